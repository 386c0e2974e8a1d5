"""The canonical form keeps what a model sees of a schema: order, and closed objects."""

from __future__ import annotations

from headrace.schemas.normalising import normalised


def test_properties_keep_the_order_that_the_model_is_to_write_in() -> None:
    form = normalised(
        {"type": "object", "properties": {"reason": {"type": "string"}, "answer": {"enum": [1, 2]}}}
    )
    assert isinstance(form, dict)
    assert list(form["properties"]) == ["reason", "answer"]


def test_a_closed_object_stays_closed_by_additional_properties() -> None:
    properties = {"z": {}, "a": {"type": "integer"}}
    form = normalised({"type": "object", "properties": properties, "additionalProperties": False})
    assert isinstance(form, dict)
    assert form["additionalProperties"] is False
    assert "propertyNames" not in form
    assert list(form["properties"]) == ["z", "a"]


def test_a_closed_object_with_patterns_stays_closed_by_additional_properties() -> None:
    form = normalised({"type": "object", "patternProperties": {"^a": {}}, "additionalProperties": False})
    assert isinstance(form, dict)
    assert "propertyNames" not in form or "patternProperties" not in form


def test_formats_are_kept() -> None:
    form = normalised({"type": "string", "format": "date"})
    assert isinstance(form, dict)
    assert form["format"] == "date"


def test_if_and_dependencies_become_keywords_that_backends_know() -> None:
    form = normalised({"type": "object", "properties": {"a": {}, "b": {}}, "dependentRequired": {"a": ["b"]}})
    assert isinstance(form, dict)
    assert "dependentRequired" not in str(form)


def test_what_has_no_canonical_form_is_none() -> None:
    assert normalised({"type": "no type"}) is None
    assert normalised({"$ref": "http://elsewhere.example/schema"}) is None
