"""Whether one schema accepts all that another does: the verdict, the place, the example, and the limits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from headrace.schemas.containment import containment, field_of, proved
from headrace.schemas.containment_process import Limits, bounded_containment
from headrace.schemas.errors import OutputViolatesSchema
from headrace.schemas.output_schema import OutputSchema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
CONTRACT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["bright", "dark"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]{2,8}$"},
            "minItems": 1,
            "maxItems": 3,
        },
        "when": {"type": "string", "format": "date"},
    },
    "required": ["mood", "score", "tags"],
    "additionalProperties": False,
}


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    version = copy.deepcopy(CONTRACT)
    change(version)
    return version


def accepts(schema: Any, value: Any) -> bool:
    try:
        OutputSchema(schema).check_value(value)
    except OutputViolatesSchema:
        return False
    return True


WIDENED: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "a new enum value": (lambda s: s["properties"]["mood"]["enum"].append("calm"), "/mood", "mood"),
    "a higher maximum": (lambda s: s["properties"]["score"].update(maximum=10), "/score", "score"),
    "number for integer": (lambda s: s["properties"]["score"].update(type="number"), "/score", "score"),
    "required to optional": (lambda s: s["required"].remove("score"), "/score", "score"),
    "opened": (lambda s: s.pop("additionalProperties"), "", ""),
    "more items": (lambda s: s["properties"]["tags"].update(maxItems=4), "/tags", "tags"),
    "no items": (lambda s: s["properties"]["tags"].pop("minItems"), "/tags", "tags"),
    "no pattern": (lambda s: s["properties"]["tags"]["items"].pop("pattern"), "/tags/0", "tags[0]"),
    "a longer pattern": (
        lambda s: s["properties"]["tags"]["items"].update(pattern="^[a-z]{2,9}$"),
        "/tags/0",
        "tags[0]",
    ),
    "no format": (lambda s: s["properties"]["when"].pop("format"), "/when", "when"),
    "another property": (lambda s: s["properties"].update(more={"type": "string"}), "", ""),
    "null as well": (lambda s: s["properties"]["when"].update(type=["string", "null"]), "/when", "when"),
}

NARROWED: dict[str, Callable[[dict[str, Any]], object]] = {
    "fewer enum values": lambda s: s["properties"]["mood"]["enum"].pop(),
    "a lower maximum": lambda s: s["properties"]["score"].update(maximum=5),
    "optional to required": lambda s: s["required"].append("when"),
    "a property less": lambda s: s["properties"].pop("when"),
    "another order": lambda s: s["required"].reverse(),
    "a title": lambda s: s.update(title="Tags"),
}


@pytest.mark.parametrize("what", WIDENED)
def test_what_is_widened_is_another_contract_and_an_example_shows_where(what: str) -> None:
    change, path, field = WIDENED[what]
    version = changed(change)
    told = containment(CONTRACT, version)
    assert told.verdict == "no"
    [difference] = told.differences
    assert (difference.path, difference.field, difference.has_example) == (path, field, True)
    assert accepts(version, difference.example)
    assert not accepts(CONTRACT, difference.example)


@pytest.mark.parametrize("what", NARROWED)
def test_what_is_narrowed_is_contained(what: str) -> None:
    assert containment(CONTRACT, changed(NARROWED[what])).verdict == "yes"


def test_each_place_that_differs_is_told() -> None:
    def change(version: dict[str, Any]) -> None:
        for what in ("a new enum value", "a higher maximum", "no format"):
            WIDENED[what][0](version)

    told = containment(CONTRACT, changed(change))
    assert {each.path for each in told.differences} == {"/mood", "/score", "/when"}


def test_a_format_is_not_dropped_from_the_comparison() -> None:
    date, text = {"type": "string", "format": "date"}, {"type": "string"}
    assert containment(text, date).verdict == "yes"
    assert containment(date, text).verdict == "no"
    assert proved(date, text).verdict == "no"


def test_two_drafts_are_unknown_and_the_reason_says_what_to_do() -> None:
    told = containment(CONTRACT, changed(lambda s: s.update({"$schema": DRAFT_7})))
    assert told.verdict == "unknown"
    assert "give both the same $schema" in told.reason
    assert [each.has_example for each in told.differences] == [False]


def test_an_example_is_found_whatever_the_drafts_are() -> None:
    def change(version: dict[str, Any]) -> None:
        version["$schema"] = DRAFT_7
        version["properties"]["score"]["maximum"] = 10

    told = containment(CONTRACT, changed(change))
    assert (told.verdict, told.differences[0].path) == ("no", "/score")


def test_without_a_proof_the_smallest_place_and_its_keywords_are_named() -> None:
    # No example is found: nothing that is tried matches such a pattern.
    ours, theirs = (
        {
            "type": "object",
            "properties": {
                "a": {"type": "object", "properties": {"code": {"type": "string", "pattern": pattern}}}
            },
        }
        for pattern in ("^zq[0-7]+!(k|m)w$", "^zq[0-8]+!(k|m)w$")
    )
    told = containment(ours, theirs)
    assert told.verdict == "unknown"
    [difference] = told.differences
    assert (difference.path, difference.field, difference.has_example) == ("/a/code", "a.code", False)
    assert "differ there in pattern" in difference.reason


@pytest.mark.parametrize(
    "version",
    [
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}, "v": {}}}},
        },
        {"items": {"$ref": "#"}},
        {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "integer"}]}}},
    ],
)
def test_a_recursive_schema_is_no_trap(version: dict[str, Any]) -> None:
    assert containment(True, version).verdict == "yes"
    told = containment({**version, "maxProperties": 1}, version)
    assert told.verdict == "no"
    assert told.differences[0].has_example


@pytest.mark.parametrize(
    ("outer", "inner", "verdict"),
    [(True, False, "yes"), (True, {}, "yes"), (False, {}, "no"), ({}, True, "yes")],
)
def test_true_and_false_are_schemas_too(outer: Any, inner: Any, verdict: str) -> None:
    assert containment(outer, inner).verdict == verdict


@pytest.mark.parametrize(
    ("pointer", "field"),
    [
        ("", ""),
        ("/a", "a"),
        ("/a/0/b~1c", "a[0].b/c"),
        ("/0", "[0]"),
        ("/tags/*", "tags[*]"),
        ("/a~0b", "a~b"),
    ],
)
def test_a_pointer_as_people_write_it(pointer: str, field: str) -> None:
    assert field_of(pointer) == field


# --- in a process of its own ----------------------------------------------------------------------------------


def test_the_process_says_the_same() -> None:
    version = changed(WIDENED["a new enum value"][0])
    assert bounded_containment(CONTRACT, version) == containment(CONTRACT, version)
    assert bounded_containment(version, CONTRACT).verdict == "yes"


def test_equal_schemas_need_no_process() -> None:
    told = bounded_containment(CONTRACT, dict(reversed(CONTRACT.items())), Limits(clock_s=0.0))
    assert told.verdict == "yes"


def test_past_the_clock_it_is_unknown_and_says_so() -> None:
    told = bounded_containment(CONTRACT, changed(NARROWED["a lower maximum"]), Limits(clock_s=0.001))
    assert told.verdict == "unknown"
    assert told.reason == "the comparison took longer than 0.001 s"
    assert told.differences[0].reason == told.reason


def burning(choices: int, clauses: int) -> dict[str, Any]:
    """A small schema that keeps the comparison busy for minutes."""
    clause = [
        {
            "anyOf": [
                {"properties": {f"p{n}_{m}": {"type": "string", "minLength": n + m}}} for m in range(choices)
            ]
        }
        for n in range(clauses)
    ]
    return {"type": "object", "allOf": clause}


def test_past_its_memory_it_is_unknown_and_says_so() -> None:
    outer, inner = burning(4, 6), {**burning(4, 6), "maxProperties": 3}
    told = bounded_containment(outer, inner, Limits(cpu_s=60, clock_s=120, memory_mib=16))
    assert told.verdict == "unknown"
    assert told.reason == "the comparison took more than 16 MiB of memory"


def test_past_its_cpu_time_it_is_unknown_and_says_so() -> None:
    outer, inner = burning(4, 6), {**burning(4, 6), "maxProperties": 3}
    told = bounded_containment(outer, inner, Limits(cpu_s=1, clock_s=120, memory_mib=4096))
    assert told.verdict == "unknown"
    assert told.reason == "the comparison took more than 1 s of CPU time"


def test_what_is_no_schema_is_unknown() -> None:
    told = bounded_containment({"type": "nonsense"}, {"type": "string"})
    assert told.verdict == "unknown"
    assert "cannot be held" in told.reason
