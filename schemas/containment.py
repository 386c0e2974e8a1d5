"""Whether one JSON Schema accepts all that another one accepts: yes, no, or unknown.

A yes is proved; a no comes with an instance that shows it, wherever one was found. The proof is jsonschema-rs's, and a
small schema can keep it busy for long: 1.2 KB of `allOf` times `anyOf` took 6.8 s and 800 MB. So outside of tests it
runs in a process of its own, within limits: `containment_process.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

import jsonschema_rs

from headrace.schemas.counterexamples import ANNOTATIONS, Counterexample, with_definitions_of
from headrace.schemas.counterexamples import counterexamples as find_counterexamples
from headrace.schemas.errors import InvalidSchema
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.output_schema import BACKTRACK_LIMIT, OutputSchema

Verdict = Literal["yes", "no", "unknown"]

MAX_DIFFERENCES = 8  # that are told; one place of a schema gives one
MAX_DEPTH = 16  # levels of properties and items that are gone down to a difference
MAX_PIECES = 32  # of what one schema accepts and the other does not, that examples are made for


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the one schema accepts what the other does not.

    `path` is a JSON pointer into an instance, `field` the same for people (`tags[0].name`). `example` is a whole
    instance, accepted by the one and rejected by the other; it counts where `has_example` is True.
    """

    path: str
    field: str
    reason: str
    example: JsonValue = None
    has_example: bool = False


@dataclass(frozen=True, slots=True)
class Containment:
    """The verdict, why it is unknown, and where the schemas differ."""

    verdict: Verdict
    reason: str = ""
    differences: tuple[Difference, ...] = ()


def containment(outer: JsonObject | bool, inner: JsonObject | bool) -> Containment:
    """Whether `outer` accepts all that `inner` accepts. Unbounded in time and memory: see above.

    Raises InvalidSchema, of it SchemaTooComplex, for what is no output schema.
    """
    found = tuple(differences(outer, inner))
    if found:
        return Containment("no", "", found)
    return proved(outer, inner)


def differences(outer: JsonObject | bool, inner: JsonObject | bool) -> Iterator[Difference]:
    """Where `outer` rejects what `inner` accepts, an example for each place: found by trying, and not all of them."""
    accepts, rejects = OutputSchema.parse(inner), OutputSchema.parse(outer)
    for count, found in enumerate(find_counterexamples(accepts, rejects)):
        if count == MAX_DIFFERENCES:
            return
        yield _difference(found)


def proved(outer: JsonObject | bool, inner: JsonObject | bool) -> Containment:
    """The verdict without trying examples first. A no has one where it can be made of what the proof left over."""
    verdict, reason = _covers(outer, inner)
    if verdict == "yes":
        return Containment("yes")
    accepts, rejects = OutputSchema.parse(inner), OutputSchema.parse(outer)
    for found in find_counterexamples(accepts, rejects, leads=list(_left_over(outer, inner))):
        return Containment("no", "", (_difference(found),))
    path, field, differing = _smallest_difference(outer, inner)
    place = f"; the schemas differ there in {', '.join(differing)}" if differing else ""
    if verdict == "no":
        said = (
            f"the comparison says that more is accepted here, and no example was found that shows it{place}"
        )
        return Containment("no", reason, (Difference(path, field, said),))
    return Containment("unknown", reason, (Difference(path, field, f"{reason}{place}"),))


def _difference(found: Counterexample) -> Difference:
    return Difference(found.path, field_of(found.path), found.reason, found.instance, True)


def field_of(pointer: str) -> str:
    """A JSON pointer as people write it: `tags[0].name`; the whole value is empty."""
    field = ""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        field += f"[{name}]" if name.isdecimal() or name == "*" else f".{name}" if field else name
    return field


# --- the proof ------------------------------------------------------------------------------------------------


def _canonical(schema: JsonObject | bool) -> jsonschema_rs.CanonicalSchema:
    # Just so: without `validate_formats` it drops `format`, and then a date accepts all that a string does.
    return jsonschema_rs.canonicalize(
        schema,
        validate_formats=True,
        offline=True,
        pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT),
    )


def _covers(outer: JsonObject | bool, inner: JsonObject | bool) -> tuple[Verdict, str]:
    canonical = jsonschema_rs.canonical
    try:
        told = _canonical(outer).covers(_canonical(inner))
    except canonical.IncompatibleOperands:
        return "unknown", "the two schemas are written for two drafts: give both the same $schema"
    except (canonical.UnsupportedOperand, canonical.CanonicalizationError) as error:
        return "unknown", f"the comparison cannot take one of the schemas: {error}"
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return "unknown", f"the comparison cannot read one of the schemas: {error}"
    if told == canonical.Containment.YES:
        return "yes", ""
    if told == canonical.Containment.NO:
        return "no", ""
    return "unknown", "the comparison can neither prove nor refute it"


def _left_over(outer: JsonObject | bool, inner: JsonObject | bool) -> Iterator[JsonObject | bool]:
    """Schemas of what `inner` accepts and `outer` does not, as far as they can be had."""
    canonical = jsonschema_rs.canonical
    try:
        rest = _canonical(inner).subtract(_canonical(outer)).to_json_schema()
    except (
        canonical.UnsupportedResult,
        canonical.IncompatibleOperands,
        canonical.UnsupportedOperand,
        canonical.CanonicalizationError,
        jsonschema_rs.ValidationError,
        jsonschema_rs.ReferencingError,
        ValueError,
    ):
        return
    if not isinstance(rest, dict):
        return
    members = cast("JsonObject", rest)
    pieces = members.get("anyOf")
    if isinstance(pieces, list):
        for piece in cast("list[JsonObject | bool]", pieces)[:MAX_PIECES]:
            yield with_definitions_of(members, piece)
    else:
        yield members


# --- where, when no example was found ---------------------------------------------------------------------------


def _smallest_difference(outer: JsonObject | bool, inner: JsonObject | bool) -> tuple[str, str, list[str]]:
    """Down to the last property or item that is not proved to be contained: its path, its field, the keywords."""
    path = ""
    here: tuple[JsonValue, JsonValue] = (outer, inner)
    for _ in range(MAX_DEPTH):
        below = next(
            (each for each in _common_places(*here) if not _is_proved(outer, inner, *each[1:])), None
        )
        if below is None:
            break
        step, *both = below
        path += "/" + step
        here = (both[0], both[1])
    return path, field_of(path), _differing_keywords(*here)


def _common_places(outer: JsonValue, inner: JsonValue) -> Iterator[tuple[str, JsonValue, JsonValue]]:
    if not isinstance(outer, dict) or not isinstance(inner, dict):
        return
    one, other = cast("JsonObject", outer), cast("JsonObject", inner)
    named: list[JsonValue] = [one.get("properties"), other.get("properties")]
    if isinstance(named[0], dict) and isinstance(named[1], dict):
        properties = cast("JsonObject", named[1])
        for name, schema in cast("JsonObject", named[0]).items():
            if name in properties and schema != properties[name]:
                yield name.replace("~", "~0").replace("/", "~1"), schema, properties[name]
    items: list[JsonValue] = [one.get("items"), other.get("items")]
    if isinstance(items[0], dict) and isinstance(items[1], dict) and items[0] != items[1]:
        yield "*", cast("JsonObject", items[0]), cast("JsonObject", items[1])


def _is_proved(
    outer: JsonObject | bool, inner: JsonObject | bool, within_outer: JsonValue, within_inner: JsonValue
) -> bool:
    if not isinstance(within_outer, (dict, bool)) or not isinstance(within_inner, (dict, bool)):
        return True
    one = with_definitions_of(outer, cast("JsonObject | bool", within_outer))
    other = with_definitions_of(inner, cast("JsonObject | bool", within_inner))
    try:
        OutputSchema.parse(one)
        OutputSchema.parse(other)
    except InvalidSchema:
        return True  # it refers to what does not stand in the definitions: the place above is the smallest
    return _covers(one, other)[0] == "yes"


def _differing_keywords(outer: JsonValue, inner: JsonValue) -> list[str]:
    if not isinstance(outer, dict) or not isinstance(inner, dict):
        return []
    one, other = cast("JsonObject", outer), cast("JsonObject", inner)
    names = dict.fromkeys([*one, *other])
    return [name for name in names if name not in ANNOTATIONS and one.get(name) != other.get(name)]
