"""Situations in a schema that backends treat otherwise than a validator does: how to recognise each. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from headrace.schemas.keyword_sites import NUMBER_KEYWORDS, STRING_KEYWORDS, Site, type_of
from headrace.schemas.messages import JsonValue

_CLASS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\([^()]*\)")
_COUNTS = re.compile(r"\{([0-9]+),([0-9]*)\}")
_BOUNDS = re.compile(r"\{([0-9]+)(?:,([0-9]*))?\}")
# Without a type, xgrammar takes these for anything at all; `properties` and `items` it takes for an object, an array.
NEEDS_TYPE = (
    STRING_KEYWORDS
    | NUMBER_KEYWORDS
    | {"minItems", "maxItems", "uniqueItems", "contains"}
    | {"patternProperties", "propertyNames", "minProperties", "maxProperties"}
)


def with_all(*keywords: str) -> Callable[[Site], bool]:
    return lambda site: site.has(*keywords)


def typed_with(name: str, *keywords: str) -> Callable[[Site], bool]:
    return lambda site: name in site.types and site.has_any(*keywords)


def with_format_in(formats: frozenset[str]) -> Callable[[Site], bool]:
    return lambda site: "format" in site.assertions and site.schema["format"] in formats


def is_beside(keyword: str, site: Site) -> bool:
    return site.has(keyword) and bool(site.assertions - {keyword})


def is_bare(site: Site) -> bool:
    """No type, and nothing that stands for one."""
    return not site.has_any("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf") and not site.is_name


def contradicts(site: Site) -> bool:
    """Values listed beside keywords other than a type that all of them have."""
    for keyword in ("enum", "const"):
        if not site.has(keyword):
            continue
        if site.assertions - {"enum", "const", "type"}:
            return True
        values = site.branches("enum") if keyword == "enum" else [site.schema["const"]]
        if site.types and not all(_has_type(value, site.types) for value in values):
            return True
    return False


def _has_type(value: JsonValue, types: frozenset[str]) -> bool:
    name = type_of(value)
    return name in types or (name == "number" and "integer" in types and isinstance(value, int))


def requires_undeclared(site: Site) -> bool:
    """A required name that is not among the properties."""
    return any(name not in site.properties for name in site.branches("required"))


def has_optional(site: Site) -> bool:
    """Properties that need not be there, declared or not."""
    if not site.properties or site.schema.get("patternProperties"):
        return True
    return any(name not in site.branches("required") for name in site.properties)


def refers_elsewhere(site: Site) -> bool:
    """A reference by name or address, or from inside a schema that has an address of its own."""
    reference = site.schema.get("$ref")
    if not isinstance(reference, str):
        return False
    return reference[:2] not in ("#", "#/") or site.places.subschemas[site.pointer].base != (
        site.places.subschemas[""].base
    )


def is_open(site: Site) -> bool:
    return (
        site.has_any("properties", "patternProperties", "maxProperties")
        and not site.has_any("additionalProperties", "unevaluatedProperties")
    )  # fmt: skip


def has_listed_items(site: Site) -> bool:
    return isinstance(site.schema.get("items"), list)


def has_fractional_bounds(site: Site) -> bool:
    bounds = [site.schema.get(keyword) for keyword in NUMBER_KEYWORDS]
    return "integer" in site.types and any(isinstance(bound, float) for bound in bounds)


def has_wide_bounds(site: Site) -> bool:
    bounds = [site.schema.get(keyword) for keyword in NUMBER_KEYWORDS - {"multipleOf"}]
    return any(isinstance(bound, (int, float)) and abs(bound) >= 2**63 for bound in bounds)


def has_bounds_beyond_64_bits(site: Site) -> bool:
    bounds = [site.schema.get(keyword) for keyword in NUMBER_KEYWORDS - {"multipleOf"}]
    return "integer" in site.types and any(
        isinstance(bound, (int, float)) and not -(2**63) <= bound < 2**63 for bound in bounds
    )


def is_whole(pattern: str) -> bool:
    """Whether a pattern is anchored at both ends, so that searching for it and matching it are the same."""
    flat = _CLASS.sub("", pattern)
    while flat != (flat := _GROUP.sub("", flat)):
        pass
    return pattern.startswith("^") and pattern.endswith("$") and "|" not in flat


def looks_around(pattern: str) -> bool:
    return any(token in pattern for token in ("(?=", "(?!", "(?<=", "(?<!", "\\b", "\\B"))


def repeats_often(pattern: str) -> bool:
    """Whether it repeats something more than 128 times: xgrammar 0.2.8 fails on that, with its cache as vLLM has it."""
    return any(
        int(times) > 128 for bounds in _BOUNDS.findall(_CLASS.sub("", pattern)) for times in bounds if times
    )


def has_optional_repetition(pattern: str) -> bool:
    """Whether a group in it may be missing, and something is repeated: xgrammar 0.2.8 then takes parts of the group."""
    flat = _CLASS.sub("x", pattern)
    return ")?" in flat and any(sign in flat for sign in "*+{")


def counts_beside_alternatives(pattern: str) -> bool:
    """Whether it has alternatives, and something that is repeated from m to n times: xgrammar 0.2.8 may add them up."""
    flat = _CLASS.sub("x", pattern)
    return "|" in flat and any(low != high for low, high in _COUNTS.findall(flat))


def with_pattern_that(is_so: Callable[[str], bool]) -> Callable[[Site], bool]:
    return lambda site: any(is_so(pattern) for pattern in site.patterns)


def forbids_a_property(site: Site) -> bool:
    return any(child is False for child in site.properties.values())


def names_beside_others(site: Site) -> bool:
    return site.has("propertyNames") and site.has_any("properties", "patternProperties")
