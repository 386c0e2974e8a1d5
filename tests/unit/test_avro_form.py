"""An output schema as Avro: which type stands for what, and that results are written by it and read again."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner
from packages import TAGS_SCHEMA, write_package
from registry_twin import RegistryTwin

from headrace.ops.cli.schemas import schemas
from headrace.schemas.avro_form import MAX_FIELDS, MAX_LEVELS, contract_result_schema
from headrace.schemas.avro_schema import Primitive, parse_schema, shipped, shipped_text
from headrace.schemas.avro_values import Unfit, value_writer
from headrace.schemas.codec import Codec, Encoding, TypedResults
from headrace.schemas.errors import (
    InvalidField,
    InvalidSchema,
    MessageError,
    RegistryFailed,
    SchemaIncompatible,
    UnknownWriterSchema,
)
from headrace.schemas.messages import Output, Provenance, Reply, Result

TOPIC = "headrace.tagger.c1.results"
JSON_TEXT = {"type": "string", "headrace": "json"}
NULLABLE = ["null", "string"]


def schema_of(output: dict[str, Any] | bool, model: str = "tagger", contract: int = 1) -> str:
    text = contract_result_schema(output, model, contract)
    assert text is not None
    return text


def output_record(text: str) -> dict[str, Any]:
    fields = {field["name"]: field for field in json.loads(text)["fields"]}
    return fields["outputs"]["type"]["items"]


def value_type(output: dict[str, Any]) -> Any:
    """The Avro type of the value, without its null."""
    fields = {field["name"]: field for field in output_record(schema_of(output))["fields"]}
    assert fields["value"]["type"][0] == "null"
    return fields["value"]["type"][1]


def fields_of(output: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in value_type(output)["fields"]}


def an_object(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def a_result(value: Any) -> Result:
    return Result(
        id="r-1",
        status="ok",
        outputs=[Output(text=json.dumps(value), finish_reason="stop", value=value)],
        provenance=Provenance(
            model="tagger", version="1", contract=1, engine="e", engine_version="1", slot="s",
            source_topic="t", source_partition=0, source_offset=0,
        ),
    )  # fmt: skip


def typed_codec(output: dict[str, Any], registry: RegistryTwin | None = None) -> Codec:
    return Codec(registry, typed_results=TypedResults(TOPIC, schema_of(output)))


def foreign_view(output: dict[str, Any], value: Any) -> dict[str, Any]:
    """The output as a reader sees it that has fastavro and the .avsc alone."""
    data = typed_codec(output).encode(a_result(value), topic=TOPIC)
    parsed = fastavro.parse_schema(json.loads(schema_of(output)))
    read: Any = fastavro.schemaless_reader(io.BytesIO(data[10:]), parsed, None)
    return read["outputs"][0]


def read_back(output: dict[str, Any], value: Any) -> Any:
    codec = typed_codec(output)
    return codec.decode(Result, codec.encode(a_result(value), topic=TOPIC)).message.outputs[0].value


# --- the form -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string", "minLength": 1}, "string"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "integer"}, "long"),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "long"),
        ({"type": "integer", "maximum": 2**63}, JSON_TEXT),
        ({"type": "integer", "exclusiveMinimum": -1e30}, JSON_TEXT),
        ({"enum": [1, 2**70]}, JSON_TEXT),
        ({"enum": [1, 2, 3]}, "long"),
        ({"type": "number"}, "double"),
        ({"const": 1.5}, "double"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["integer", "string"]}, JSON_TEXT),
        ({}, JSON_TEXT),
        (True, JSON_TEXT),
        ({"type": "array"}, {"type": "array", "items": JSON_TEXT}),
        ({"items": {"type": "number"}}, {"type": "array", "items": "double"}),
        ({"type": "array", "items": {"type": ["number", "null"]}}, {"type": "array", "items": ["null", "double"]}),
        (
            {"type": "array", "prefixItems": [{"type": "number"}, {"type": "integer"}], "items": False},
            {"type": "array", "items": "double"},
        ),
        ({"type": "array", "prefixItems": [{"type": "number"}]}, {"type": "array", "items": JSON_TEXT}),
        ({"type": "object"}, {"type": "map", "values": JSON_TEXT}),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            {"type": "map", "values": "long"},
        ),
        (
            {"type": "object", "patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False},
            {"type": "map", "values": "string"},
        ),
        ({"anyOf": [{"type": "string"}, {"const": "x"}]}, "string"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "double"),
        ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "long"),
        ({"type": "string", "not": {"const": "x"}}, "string"),
        ({"type": "null"}, JSON_TEXT),
    ],
)  # fmt: skip
def test_each_place_has_one_type(schema: Any, expected: Any) -> None:
    assert fields_of(an_object("v", v=schema))["v"]["type"] == expected


def test_null_beside_one_type_is_a_union_and_absence_has_a_default() -> None:
    found = fields_of(
        an_object("a", "b", a={"type": ["string", "null"]}, b={"type": "string"}, c={"type": "string"})
    )
    assert found["a"] == {"name": "a", "type": NULLABLE}
    assert found["b"] == {"name": "b", "type": "string"}
    assert found["c"] == {"name": "c", "type": NULLABLE, "default": None}


def test_an_optional_reference_and_a_plain_one_are_one_record() -> None:
    tag = {"$ref": "#/$defs/Tag"}
    schema = an_object(
        "a", "b", a={"anyOf": [tag, {"type": "null"}]}, b=tag, c={"type": "array", "items": tag}
    )
    schema["$defs"] = {"Tag": an_object("name", name={"type": "string"})}
    found = fields_of(schema)
    assert found["a"]["type"][1]["name"] == "Tag"
    assert found["b"]["type"] == "Tag"
    assert found["c"]["type"] == ["null", {"type": "array", "items": "Tag"}]


def test_enumerated_strings_are_strings_with_their_values_beside_them() -> None:
    found = fields_of(
        an_object(
            "a",
            a={"enum": ["x y", ""]},
            b={"enum": ["x", None]},
            c={"type": "array", "items": {"const": "k"}},
        )
    )
    assert found["a"] == {"name": "a", "type": "string", "values": ["x y", ""]}
    assert (found["b"]["type"], found["b"]["values"]) == (NULLABLE, ["x"])
    assert found["c"]["values"] == ["k"]


def test_names_are_escaped_each_to_its_own_and_keep_their_original() -> None:
    text = {"type": "string"}
    names = ["a-b", "a b", "A_B", "1st", "ü", "", "_additional"]
    schema = {"type": "object", "properties": dict.fromkeys(names, text)}
    found = fields_of(schema)
    assert list(found) == ["a_b", "a_b_2", "A_B_3", "_1st", "_", "__2", "_additional", "_additional_2"]
    assert [field.get("jsonName", name) for name, field in found.items()][:-1] == names
    assert found["_additional_2"]["headrace"] == "rest"
    value = {name: f"<{name}>" for name in names} | {"more": [1, None]}
    assert read_back(schema, value) == value


def test_branches_are_one_record_with_the_fields_of_all() -> None:
    film = an_object("kind", "title", kind={"const": "film"}, title={"type": "string"})
    song = an_object(
        "kind", "length", kind={"const": "song"}, length={"type": "integer"}, title={"type": "number"}
    )
    found = fields_of({"oneOf": [film, song]})
    assert found["kind"] == {"name": "kind", "type": "string", "values": ["film", "song"]}
    assert found["length"]["type"] == ["null", "long"]
    assert found["title"]["type"] == ["null", JSON_TEXT]


def test_siblings_of_a_reference_count_where_the_draft_has_them_count() -> None:
    schema: dict[str, Any] = {
        "$ref": "#/definitions/a",
        "properties": {"y": {"type": "string"}},
        "definitions": {"a": {"type": "object", "properties": {"x": {"type": "string"}}}},
    }
    assert set(fields_of(schema)) == {"x", "y", "_additional"}
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    assert set(fields_of(schema)) == {"x", "_additional"}
    within = {key: schema.pop(key) for key in ("$ref", "properties")}
    assert set(fields_of({**schema, "allOf": [within, {"minProperties": 1}]})) == {"x", "_additional"}


def test_an_object_within_itself_ends_in_json_text() -> None:
    schema = an_object("v", v={"type": "string"}, next={"$ref": "#"})
    assert fields_of(schema)["next"]["type"] == ["null", JSON_TEXT]
    value = {"v": "a", "next": {"v": "b", "next": {"v": "c"}}}
    assert read_back(schema, value) == value
    assert json.loads(foreign_view(schema, value)["value"]["next"]) == value["next"]


def test_what_is_nested_deeper_than_is_read_ends_in_json_text() -> None:
    schema: dict[str, Any] = {"type": "string"}
    value: Any = "deep"
    for _ in range(MAX_LEVELS * 3 // 4):
        schema = an_object(v={"type": "array", "items": schema})
        value = {"v": [value]}
    assert parse_schema(schema_of(schema)).root.depth < 64
    assert read_back(schema, value) == value


def test_a_shared_definition_that_would_be_read_too_deep_ends_in_json_text() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(MAX_LEVELS // 2):
        deep = an_object(v=deep)
    outer: dict[str, Any] = {"$ref": "#/$defs/deep"}
    for _ in range(MAX_LEVELS // 2 + 1):
        outer = an_object(v=outer)
    schema = an_object(a={"$ref": "#/$defs/deep"}, b=outer)
    schema["$defs"] = {"deep": deep}
    assert '"headrace":"json"' in schema_of(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": ["string", "object"]},
        {"type": "null"},
        {"anyOf": [an_object(), {"type": "string"}]},
    ],
)
def test_what_is_several_things_has_no_form(schema: Any) -> None:
    assert contract_result_schema(schema, "m", 1) is None


def test_what_would_have_too_many_columns_has_no_form() -> None:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(250)}}

    def repeated(times: int) -> dict[str, Any]:
        each = {"allOf": [{"$ref": "#/$defs/wide"}, {"minProperties": 1}]}
        return an_object(**{f"o{n}": each for n in range(times)}) | {"$defs": {"wide": wide}}

    assert contract_result_schema(repeated(MAX_FIELDS // 251), "m", 1) is not None
    assert contract_result_schema(repeated(MAX_FIELDS // 251 + 1), "m", 1) is None


def test_what_is_no_schema_is_refused() -> None:
    with pytest.raises(InvalidSchema):
        contract_result_schema({"$ref": "#/nowhere"}, "m", 1)


def test_the_same_schema_gives_the_same_text_and_another_contract_another_fingerprint() -> None:
    text = schema_of(TAGS_SCHEMA)
    assert schema_of(json.loads(json.dumps(TAGS_SCHEMA))) == text
    others = [schema_of(TAGS_SCHEMA, "tagger", 2), schema_of(TAGS_SCHEMA, "other", 1)]
    # A mere string has the canonical form that JSON text has: only names tell them apart.
    others += [schema_of({"type": "string"}), shipped_text("result")]
    assert len({parse_schema(each).fingerprint for each in [text, *others]}) == 5


def test_all_but_the_value_is_as_in_the_schema_that_ships() -> None:
    text = schema_of(TAGS_SCHEMA)
    ours, theirs = json.loads(text), json.loads(shipped_text("result"))
    named = {field["name"]: field for field in output_record(text)["fields"]}
    assert list(named) == [
        "text", "finish_reason", "reasoning", "tool_calls", "value", "value_json", "logprobs",
    ]  # fmt: skip
    for schema in (ours, theirs):
        del schema["fields"][2]
    assert ours == theirs
    parsed: Any = fastavro.parse_schema(json.loads(text))
    assert parsed["name"] == "headrace.v1.Result"
    assert '"headrace.v1.ToolCall"' in json.dumps(parsed)
    assert '"headrace.v1.TopLogprob"' in json.dumps(parsed)
    assert '"headrace.tagger.c1.Value"' in json.dumps(parsed)


def test_the_code_that_reads_it_as_another_team_would_sees_columns() -> None:
    schema = an_object(
        "name", name={"type": "string"}, year={"type": "integer"}, ok={"type": ["boolean", "null"]}
    )
    seen = foreign_view(schema, {"name": "The General", "year": 1926})
    assert seen["value"] == {"name": "The General", "year": 1926, "ok": None, "_additional": {}}
    assert seen["value_json"] is None
    assert json.loads(seen["text"]) == {"name": "The General", "year": 1926}


# --- values -------------------------------------------------------------------------------------------------------


def test_absent_and_null_are_kept_apart() -> None:
    schema = an_object("r", r={"type": ["string", "null"]}, o={"type": ["string", "null"]}, j={}, k={})
    for value in (
        {"r": None},
        {"r": None, "o": None},
        {"r": "x", "o": "y", "j": None},
        {"r": "", "k": "null"},
    ):
        seen = foreign_view(schema, value)
        assert seen["value_json"] is None
        assert read_back(schema, value) == value
    assert foreign_view(schema, {"r": None, "o": None})["value"]["_additional"] == {"o": "null"}


@pytest.mark.parametrize(
    "value",
    [
        {"n": 2**63, "d": 1.5},
        {"n": 1.5, "d": 1.5},
        {"n": True, "d": 1},
        {"n": 1, "d": 2**53 + 1},
        {"n": 1, "d": 10**308 + 1},
        {"n": 1, "d": "x"},
        {"n": 1},
        {"n": 1, "d": 1, "more": 1},
        {"n": None, "d": 1},
        [1],
        "text",
        {"n": 1, "d": 1, "o": {"x": 1}},
        {"n": 1, "d": 1, "a": ["x", 1]},
        {"n": 1, "d": 1, "m": {"k": 1}},
        {"n": 1, "d": 1, "b": 0},
    ],
)
def test_a_value_that_does_not_fit_stands_beside_as_json_text(value: Any) -> None:
    schema = an_object(
        "n", "d", n={"type": "integer"}, d={"type": "number"}, o=an_object(x={"type": "string"}),
        a={"type": "array", "items": {"type": "string"}}, b={"type": "boolean"},
        m={"type": "object", "additionalProperties": {"type": "string"}},
    )  # fmt: skip
    seen = foreign_view(schema, value)
    assert seen["value"] is None
    assert json.loads(seen["value_json"]) == value
    assert read_back(schema, value) == value


def test_whole_floats_fit_integers_and_integers_fit_doubles() -> None:
    schema = an_object("n", "d", n={"type": "integer"}, d={"type": "number"})
    assert foreign_view(schema, {"n": 3.0, "d": 4})["value"] == {"n": 3, "d": 4.0}


def test_a_number_beyond_all_doubles_does_not_fit_one() -> None:
    with pytest.raises(Unfit):
        value_writer(Primitive("double", 0))(10**400, bytearray())


def test_a_value_that_no_bytes_can_stand_for_is_still_refused() -> None:
    with pytest.raises(InvalidField) as caught:
        typed_codec(TAGS_SCHEMA).encode(a_result({"mood": "\ud800", "score": 1, "tags": []}), topic=TOPIC)
    assert caught.value.path == "/outputs/0/value/mood"


def test_results_without_a_value_have_none() -> None:
    assert foreign_view(TAGS_SCHEMA, None)["value"] is None
    assert read_back(TAGS_SCHEMA, None) is None


# --- strangers' bytes -----------------------------------------------------------------------------------------


def hostile(value_type_: Any, datum: bytes) -> MessageError:
    """What is said of a typed value of these bytes."""
    writer = {
        "type": "record", "name": "Result",
        "fields": [{"name": "outputs", "type": {"type": "array", "items": {
            "type": "record", "name": "Output", "fields": [
                {"name": "value", "type": ["null", value_type_], "default": None, "headrace": "typed"},
            ]}}}],
    }  # fmt: skip
    schema = parse_schema(json.dumps(writer))
    codec = Codec()
    codec.add_writer_schema(Result, schema.text)
    with pytest.raises(MessageError) as caught:
        codec.decode(Result, b"\xc3\x01" + schema.fingerprint + b"\x02\x02" + datum + b"\x00")
    return caught.value


@pytest.mark.parametrize(
    ("type_", "datum", "reason"),
    [
        ("double", b"\x00\x00\x00\x00\x00\x00\xf0\x7f", "inf is not JSON"),
        ("bytes", b"\x02a", "bytes are not JSON"),
        (JSON_TEXT, b"\x02{", "not JSON"),
        ({"type": "map", "values": "long"}, b"\x04\x02a\x00\x02a\x00\x00", "given twice"),
        (
            {"type": "record", "name": "V", "fields": [
                {"name": "a", "type": "long"},
                {"name": "r", "type": {"type": "map", "values": JSON_TEXT}, "headrace": "rest"},
            ]},
            b"\x00\x02\x02a\x021\x00",
            "a field of its own",
        ),
        (
            {"type": "record", "name": "V", "fields": [{"name": "r", "type": "long", "headrace": "rest"}]},
            b"\x00",
            "must be a map",
        ),
    ],
)  # fmt: skip
def test_what_is_no_json_value_is_refused_with_its_place(type_: Any, datum: bytes, reason: str) -> None:
    error = hostile(type_, datum)
    assert reason in error.message
    assert (error.path or "").startswith("/outputs/0/value")


def test_an_annotation_that_is_no_string_is_refused() -> None:
    fields = [{"name": "id", "type": "string", "jsonName": 3}]
    with pytest.raises(UnknownWriterSchema, match="jsonName"):
        parse_schema(json.dumps({"type": "record", "name": "R", "fields": fields}))


# --- on the wire --------------------------------------------------------------------------------------------------

VALUE = {"mood": "dark", "score": 3, "tags": ["noir"]}


def test_only_the_contracts_own_topic_has_typed_results_and_replies_have_none() -> None:
    codec = typed_codec(TAGS_SCHEMA)
    own = codec.encode(a_result(VALUE), topic=TOPIC)
    assert own[2:10] == parse_schema(schema_of(TAGS_SCHEMA)).fingerprint
    assert codec.encode(a_result(VALUE), topic="tenant.results")[2:10] == shipped("result").fingerprint
    assert codec.encode(a_result(VALUE), Encoding.JSON, topic=TOPIC).startswith(b"{")
    reply = Reply(id="r-1", seq=0, kind="final", result=a_result(VALUE))
    assert Codec().decode(Reply, codec.encode(reply, topic=TOPIC)).message == reply


def test_results_written_either_way_are_read_as_the_same() -> None:
    codec = typed_codec(TAGS_SCHEMA)
    for writer in (codec, Codec()):
        assert codec.decode(Result, writer.encode(a_result(VALUE), topic=TOPIC)).message == a_result(VALUE)


def test_a_reader_without_the_schema_says_so_and_one_that_can_ask_asks_once() -> None:
    data = typed_codec(TAGS_SCHEMA).encode(a_result(VALUE), topic=TOPIC)
    with pytest.raises(UnknownWriterSchema, match="fingerprint"):
        Codec().decode(Result, data)
    asked: list[int] = []

    def schemas_found() -> list[str]:
        asked.append(1)
        return ["no schema", schema_of(TAGS_SCHEMA)]

    codec = Codec(result_schemas=schemas_found)
    assert codec.decode(Result, data).message == a_result(VALUE)
    unknown = data[:2] + b"12345678" + data[10:]
    for _ in range(3):
        with pytest.raises(UnknownWriterSchema):
            codec.decode(Result, unknown)
    codec.decode(Result, data)
    assert len(asked) == 1


def test_with_a_registry_the_contracts_schema_is_registered_with_its_level() -> None:
    registry = RegistryTwin()
    data = typed_codec(TAGS_SCHEMA, registry).encode(a_result(VALUE), topic=TOPIC)
    assert registry.texts == [schema_of(TAGS_SCHEMA)]
    assert registry.levels == {f"{TOPIC}-value": "FORWARD_TRANSITIVE"}
    assert Codec(registry).decode(Result, data).message == a_result(VALUE)


def test_a_level_that_may_not_be_set_or_is_set_already_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Guarded(RegistryTwin):
        def set_compatibility(self, subject: str, level: str) -> None:
            raise RegistryFailed("403 Forbidden")

    with caplog.at_level(logging.WARNING):
        assert typed_codec(TAGS_SCHEMA, Guarded()).encode(a_result(VALUE), topic=TOPIC)
    assert "403 Forbidden" in caplog.text
    registry = RegistryTwin()
    registry.levels[f"{TOPIC}-value"] = "NONE"
    typed_codec(TAGS_SCHEMA, registry).encode(a_result(VALUE), topic=TOPIC)
    assert registry.levels == {f"{TOPIC}-value": "NONE"}


def test_where_the_subject_forbids_types_results_are_written_as_before_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Settled(RegistryTwin):
        def register(self, subject: str, schema_text: str) -> int:
            if schema_text != shipped_text("result"):
                raise SchemaIncompatible("409 incompatible")
            return super().register(subject, schema_text)

    registry = Settled()
    registry.register(f"{TOPIC}-value", shipped_text("result"))
    codec = typed_codec(TAGS_SCHEMA, registry)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            data = codec.encode(a_result(VALUE), topic=TOPIC)
            assert Codec(registry).decode(Result, data).message == a_result(VALUE)
    assert len(caplog.records) == 1
    assert "409 incompatible" in caplog.text


def test_a_registry_that_is_down_is_no_reason_to_write_without_types() -> None:
    registry = RegistryTwin()
    codec = typed_codec(TAGS_SCHEMA, registry)
    registry.down = True
    with pytest.raises(RegistryFailed):
        codec.encode(a_result(VALUE), topic=TOPIC)
    registry.down = False
    codec.encode(a_result(VALUE), topic=TOPIC)
    assert registry.texts == [schema_of(TAGS_SCHEMA)]


# --- the command --------------------------------------------------------------------------------------------------


def test_export_writes_the_contracts_schema_beside_the_others(tmp_path: Path) -> None:
    package = write_package(tmp_path / "package", output=TAGS_SCHEMA)
    arguments = ["export", "--dir", str(tmp_path), "--package", str(package), "--json"]
    report = json.loads(CliRunner().invoke(schemas, arguments, catch_exceptions=False).output)
    file = tmp_path / "tagger.c1.result.avsc"
    assert json.loads(file.read_text()) == json.loads(schema_of(TAGS_SCHEMA))
    fingerprint = parse_schema(schema_of(TAGS_SCHEMA)).fingerprint[::-1].hex()
    assert report[-1] == {"file": str(file), "action": "wrote", "fingerprint": fingerprint}


def test_export_says_why_a_contract_has_no_schema_of_its_own(tmp_path: Path) -> None:
    for output, why in (
        (None, "has no output schema"),
        ({"type": ["string", "null", "object"]}, "no Avro form"),
    ):
        package = write_package(tmp_path / "package", output=output)
        arguments = ["export", "--dir", str(tmp_path / "to"), "--package", str(package)]
        assert why in CliRunner().invoke(schemas, arguments, catch_exceptions=False).output
    assert not list((tmp_path / "to").glob("tagger*"))
