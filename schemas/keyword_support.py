"""What each backend does with each keyword of JSON Schema: data, tested against the backends themselves.

Measured with xgrammar 0.2.8 and llguidance 1.7.6, behind the checks of vLLM 0.32 and set as the engine sets them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.schemas.keyword_sites import Site, are_disjoint, comes_out_raw, with_javascript_dots
from headrace.schemas.keyword_situations import (
    NEEDS_TYPE,
    contradicts,
    counts_beside_alternatives,
    forbids_a_property,
    has_bounds_beyond_64_bits,
    has_fractional_bounds,
    has_listed_items,
    has_optional,
    has_optional_repetition,
    has_wide_bounds,
    is_bare,
    is_beside,
    is_open,
    is_whole,
    looks_around,
    names_beside_others,
    refers_elsewhere,
    repeats_often,
    requires_undeclared,
    typed_with,
    with_all,
    with_format_in,
    with_pattern_that,
)
from headrace.schemas.messages import JsonObject

Backend = Literal["xgrammar", "guidance"]
Verdict = Literal["enforced", "narrowed", "ignored", "refused"]

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
XGRAMMAR_FORMATS = frozenset(
    {
        "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "json-pointer",
        "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
    }
)  # fmt: skip
GUIDANCE_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid"}
)
# Both take a date for valid in any year, admit leap seconds that never were, and mail hosts with labels that no
# name server takes; xgrammar also admits leading zeros in an IPv4 address, and writes JSON pointers' quotes raw.
LOOSE_IN_GUIDANCE = frozenset({"date", "date-time", "time", "email"})
LOOSE_IN_XGRAMMAR = LOOSE_IN_GUIDANCE | {"hostname", "ipv4", "ipv6", "json-pointer", "relative-json-pointer"}


@dataclass(frozen=True, slots=True)
class Support:
    """A situation in a schema and what each backend makes of it.

    `enforced`: what is generated is accepted by the validator, and every value can be generated. `narrowed`:
    the backend forbids more than the schema. `ignored`: it admits what the validator rejects. `refused`: it does
    not compile. `keywords` are what a schema has to give up where it is ignored or refused. `is_in` recognises
    the situation. `schema`, `accepted` and `rejected` (JSON texts) are the least example; `forbidden` is accepted
    by the validator, and not by a backend that narrows.
    """

    name: str
    keywords: tuple[str, ...]
    xgrammar: Verdict
    guidance: Verdict
    schema: JsonObject
    accepted: str
    rejected: str
    is_in: Callable[[Site], bool]
    forbidden: str | None = None
    note: str = ""

    def verdict(self, backend: Backend) -> Verdict:
        """What this backend does with it."""
        return self.xgrammar if backend == "xgrammar" else self.guidance


def support_table() -> list[tuple[str, str, str, str]]:
    """(situation, xgrammar, guidance, note), in the order of SUPPORT."""
    return [(row.name, row.xgrammar, row.guidance, row.note) for row in SUPPORT]


_S: JsonObject = {"type": "string"}
_I: JsonObject = {"type": "integer"}
_N: JsonObject = {"type": "number"}
_O: JsonObject = {"type": "object"}
_A: JsonObject = {"type": "array"}
_AB: JsonObject = {"type": "object", "properties": {"a": _I, "b": _I}}
_CLOSED: JsonObject = {"type": "object", "properties": {"a": _I}, "additionalProperties": False}

SUPPORT: tuple[Support, ...] = (
    # --- any type -------------------------------------------------------------------------------------------------
    Support("type", ("type",), "enforced", "enforced", {"type": ["string", "null"]}, '"a"', "1",
            with_all("type")),
    Support("enum", ("enum",), "enforced", "enforced", {"enum": ["a", 1, None]}, '"a"', '"b"', with_all("enum")),
    Support("const", ("const",), "enforced", "enforced", {"const": {"a": 1}}, '{"a":1}', "{}", with_all("const")),
    Support("enum or const beside keywords that not all of its values satisfy", ("enum", "const"),
            "ignored", "enforced",
            {"enum": ["a", "b"], "pattern": "^a$"}, '"a"', '"b"', contradicts, note="the listed values win"),
    Support("a keyword of one type without `type`", tuple(sorted(NEEDS_TYPE | {"required"})), "ignored",
            "enforced",
            {"minimum": 2}, "2", "1",
            lambda site: is_bare(site) and (bool(site.assertions & NEEDS_TYPE) or
                                             (site.has("required") and not site.has("properties")))),
    Support("properties or items without `type`", (), "narrowed", "enforced",
            {"items": _I}, "[1]", '["a"]',
            lambda site: is_bare(site) and site.has_any("properties", "items", "prefixItems",
            "additionalProperties"),
            forbidden="1", note="taken for `type: object` and `type: array`"),
    # --- numbers --------------------------------------------------------------------------------------------------
    Support("integer bounds", ("minimum", "maximum"), "enforced", "enforced",
            {"type": "integer", "minimum": -5, "exclusiveMaximum": 20}, "19", "20",
            typed_with("integer", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    Support("number bounds", ("minimum", "maximum"), "enforced", "enforced",
            {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, "2.5", "2.6",
            typed_with("number", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            note="written without an exponent"),
    Support("bounds of 2^63 and beyond", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            "enforced",
            "refused", {"type": "integer", "minimum": -(2**63), "maximum": 2**62}, "1", str(-(2**63) - 1),
            has_wide_bounds),
    Support("bounds of an integer beyond 64 bits", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
            "refused", "refused", {"type": "integer", "minimum": -(2**64), "maximum": 2**62}, "1", str(-(2**64) - 1),
            has_bounds_beyond_64_bits),
    Support("fractional bounds of an integer", ("minimum", "maximum", "exclusiveMinimum",
            "exclusiveMaximum"), "refused",
            "enforced", {"type": "integer", "minimum": 0.5, "maximum": 2.5}, "1", "0", has_fractional_bounds),
    Support("exclusiveMinimum: true (draft 4)", ("exclusiveMinimum", "exclusiveMaximum"), "refused",
            "enforced",
            {"$schema": DRAFT_4, "type": "integer", "minimum": 0, "exclusiveMinimum": True}, "1", "0",
            lambda site: any(isinstance(site.schema.get(name), bool) for name in ("exclusiveMinimum",
            "exclusiveMaximum"))),
    Support("multipleOf", ("multipleOf",), "refused", "enforced", {"type": "integer", "multipleOf": 5},
            "10", "11",
            lambda site: bool(site.types & {"integer", "number"}) and site.has("multipleOf")),
    # --- strings --------------------------------------------------------------------------------------------------
    Support("minLength, maxLength", ("minLength", "maxLength"), "ignored", "enforced",
            {"type": "string", "maxLength": 1}, '"a"', '"\x01"',
            lambda site: (site.is_name or "string" in site.types)
            and site.has_any("minLength", "maxLength") and not site.has_any("pattern", "format"),
            note="xgrammar holds the length, but lets raw control characters through, which are not JSON"),
    Support("pattern with ^ and $", ("pattern",), "enforced", "enforced",
            {"type": "string", "pattern": "^[a-z]+$"}, '"ab"', '"A"', lambda site: "string" in site.types and
            any(is_whole(pattern) for pattern in site.patterns)),
    Support("pattern without ^ or $", (), "narrowed", "enforced", {"type": "string", "pattern": "b"}, '"b"',
            '"a"',
            with_pattern_that(lambda pattern: not is_whole(pattern)), forbidden='"abc"',
            note="xgrammar matches the whole string"),
    Support("pattern with . or [ in a class", ("pattern", "patternProperties"), "ignored", "ignored",
            {"type": "string", "pattern": "^.$"}, '"a"', '"\u2028"',
            with_pattern_that(lambda pattern: with_javascript_dots(pattern) != pattern),
            note="U+2028 is a line end in JavaScript's dialect, and no class has classes inside"),
    Support("pattern with quotes, backslashes, control characters, look-ahead or an inner ^",
            ("pattern", "patternProperties"), "ignored", "enforced", {"type": "string", "pattern": '^"$'},
            '"\\""', '"""',
            with_pattern_that(comes_out_raw), note="xgrammar writes them raw"),
    Support("pattern with look-around or word boundaries", ("pattern", "patternProperties"), "ignored",
            "refused",
            {"type": "string", "pattern": "^(?!a).b$"}, '"cb"', '"ab"', with_pattern_that(looks_around)),
    Support("pattern with an optional group and a repetition", ("pattern", "patternProperties"), "ignored",
            "enforced", {"type": "string", "pattern": "^a(?:b[0-9]+)?$"}, '"ab1"', '"a1"',
            with_pattern_that(has_optional_repetition), note="xgrammar takes parts of the group"),
    Support("pattern with alternatives and a repetition from m to n times", ("pattern", "patternProperties"),
            "ignored", "enforced", {"type": "string", "pattern": "^(?:a|(?:b|b{1,2}))$"}, '"bb"', '"bbb"',
            with_pattern_that(counts_beside_alternatives), note="xgrammar may repeat more often"),
    Support("pattern that repeats something more than 128 times", ("pattern", "patternProperties"), "refused",
            "enforced", {"type": "string", "pattern": "^a{2,129}$"}, '"aa"', '"a"',
            with_pattern_that(repeats_often)),
    Support("pattern beside minLength, maxLength", ("minLength", "maxLength"), "refused", "enforced",
            {"type": "string", "pattern": "^a+$", "maxLength": 2}, '"aa"', '"aaa"',
            lambda site: site.has_any("pattern", "format") and site.has_any("minLength", "maxLength")),
    Support("pattern beside format", ("pattern",), "ignored", "enforced",
            {"type": "string", "pattern": "^2", "format": "uuid"}, '"2eb8aa08-aa98-11ea-b4aa-73b441d16380"',
            '"1eb8aa08-aa98-11ea-b4aa-73b441d16380"',
            lambda site: site.has("pattern") and "format" in site.assertions),
    Support("format duration, uuid", ("format",), "enforced", "enforced", {"type": "string",
            "format": "duration"},
            '"P1D"', '"P"', with_format_in(frozenset({"duration", "uuid"}))),
    Support("format uri", ("format",), "narrowed", "enforced", {"type": "string", "format": "uri"},
            '"http://a.b/c"',
            '"a b"', with_format_in(frozenset({"uri"})), forbidden='"http://[::1]/"'),
    Support("format date", ("format",), "ignored", "ignored", {"type": "string", "format": "date"},
            '"2024-02-29"', '"2023-02-29"', with_format_in(frozenset({"date"})), note="29 February in any year"),
    Support("format date-time, time", ("format",), "ignored", "ignored", {"type": "string", "format": "time"},
            '"10:00:00Z"', '"10:00:60Z"', with_format_in(frozenset({"date-time", "time"})),
            note="leap seconds at any time"),
    Support("format email", ("format",), "ignored", "ignored", {"type": "string", "format": "email"},
            '"a@b.com"', f'"a@{"b" * 64}.com"', with_format_in(frozenset({"email"})),
            note="labels of any length"),
    Support("format hostname", ("format",), "ignored", "enforced", {"type": "string", "format": "hostname"},
            '"a.b"', f'"{"b" * 64}"', with_format_in(frozenset({"hostname"})), note="labels of any length"),
    Support("format ipv4, ipv6", ("format",), "ignored", "enforced", {"type": "string", "format": "ipv4"},
            '"1.2.3.4"', '"01.2.3.4"', with_format_in(frozenset({"ipv4", "ipv6"})), note="leading zeros in IPv4"),
    Support("format uri-reference, uri-template", ("format",), "enforced", "refused",
            {"type": "string", "format": "uri-reference"}, '"/a"', '" "',
            with_format_in(frozenset({"uri-reference", "uri-template"}))),
    Support("format json-pointer, relative-json-pointer", ("format",), "ignored", "refused",
            {"type": "string", "format": "json-pointer"}, '"/a"', '"/"a"',
            with_format_in(frozenset({"json-pointer", "relative-json-pointer"})),
            note="xgrammar writes quotes raw"),
    Support("format regex, iri, iri-reference, idn-email, idn-hostname", ("format",), "refused", "refused",
            {"type": "string", "format": "regex"}, '"a+"', '"("',
            lambda site: "format" in site.assertions
            and site.schema["format"] not in XGRAMMAR_FORMATS | GUIDANCE_FORMATS),
    # --- arrays ---------------------------------------------------------------------------------------------------
    Support("items", ("items",), "enforced", "enforced", {"type": "array", "items": _I}, "[1]", '["a"]',
            lambda site: site.has("items") and not has_listed_items(site)),
    Support("minItems, maxItems", ("minItems", "maxItems"), "enforced", "enforced",
            {"type": "array", "items": _I, "minItems": 1}, "[1]", "[]", typed_with("array", "minItems",
            "maxItems")),
    Support("minItems beyond what items or prefixItems say", ("minItems",), "refused", "enforced",
            {"type": "array", "minItems": 1}, "[1]", "[]",
            lambda site: site.has("minItems") and not site.has("items")),
    Support("prefixItems", ("prefixItems",), "enforced", "enforced",
            {"type": "array", "prefixItems": [_I], "items": False}, "[1]", '["a"]', with_all("prefixItems",
            "items")),
    Support("prefixItems without items", (), "narrowed", "enforced", {"type": "array", "prefixItems": [_I]},
            "[1]",
            '["a"]', lambda site: site.has("prefixItems") and not site.has("items"), forbidden="[1,2]",
            note="xgrammar ends the array there"),
    Support("items as a list, additionalItems (before 2020-12)", ("items", "additionalItems"), "refused",
            "enforced",
            {"$schema": DRAFT_7, "type": "array", "items": [_I], "additionalItems": False}, "[1]", '["a"]',
            has_listed_items),
    Support("uniqueItems", ("uniqueItems",), "refused", "refused", {"type": "array", "items": _I,
            "uniqueItems": True},
            "[1]", "[1,1]", with_all("uniqueItems")),
    Support("contains", ("contains", "minContains", "maxContains"), "refused", "refused", {"type": "array",
            "contains": _I},
            "[1]", '["a"]', with_all("contains")),
    Support("unevaluatedItems", ("unevaluatedItems",), "enforced", "refused",
            {"type": "array", "prefixItems": [_I], "unevaluatedItems": False}, "[1]", '["a"]',
            with_all("unevaluatedItems")),
    # --- objects --------------------------------------------------------------------------------------------------
    Support("properties, required", ("properties", "required"), "enforced", "enforced",
            {**_CLOSED, "required": ["a"]}, '{"a":1}', "{}", with_all("properties", "required"),
            note="in the schema's order"),
    Support("additionalProperties", ("additionalProperties",), "enforced", "enforced",
            {"type": "object", "properties": {"a": _I}, "additionalProperties": _S}, '{"b":"x"}', '{"b":1}',
            with_all("additionalProperties")),
    Support("additionalProperties absent", (), "narrowed", "enforced", {"type": "object",
            "properties": {"a": _I}},
            '{"a":1}', '{"a":"x"}', is_open, forbidden='{"b":1}', note="xgrammar closes the object"),
    Support("required names that are no properties", ("required",), "ignored", "enforced",
            {"type": "object", "required": ["a"]}, '{"a":1}', "{}", requires_undeclared),
    Support("patternProperties", ("patternProperties",), "enforced", "enforced",
            {"type": "object", "patternProperties": {"^a$": _I}, "additionalProperties": False}, '{"a":1}',
            '{"a":"x"}',
            with_all("patternProperties")),
    Support("patternProperties beside properties or each other", ("patternProperties",), "refused",
            "enforced",
            {"type": "object", "properties": {"b": _S}, "patternProperties": {"^a": _I}}, '{"a":1}',
            '{"a":"x"}',
            lambda site: site.has("patternProperties") and (site.has("properties") or len(site.patterns) > 1)),
    Support("propertyNames", ("propertyNames",), "enforced", "refused",
            {"type": "object", "propertyNames": {"pattern": "^a$"}}, '{"a":1}', '{"b":1}',
            with_all("propertyNames")),
    Support("propertyNames beside properties or patternProperties", ("propertyNames",), "refused", "refused",
            {"type": "object", "propertyNames": {"enum": ["a"]}, "properties": {"a": _I}}, '{"a":1}',
            '{"b":1}', names_beside_others),
    Support("minProperties, maxProperties beside properties", ("minProperties", "maxProperties"),
            "enforced", "refused",
            {**_AB, "minProperties": 1}, '{"a":1}', "{}",
            lambda site: site.has_any("minProperties",
            "maxProperties") and site.has("properties") and has_optional(site)),
    Support("minProperties alone", ("minProperties",), "refused", "enforced", {"type": "object",
            "minProperties": 1},
            '{"a":1}', "{}", lambda site: site.has("minProperties")
            and not site.has_any("properties", "patternProperties", "propertyNames", "additionalProperties")),
    Support("unevaluatedProperties", ("unevaluatedProperties",), "enforced", "refused",
            {"type": "object", "properties": {"a": _I}, "unevaluatedProperties": False}, '{"a":1}', '{"b":1}',
            with_all("unevaluatedProperties")),
    Support("a property that is false", ("properties",), "refused", "enforced",
            {"type": "object", "properties": {"a": False, "b": _I}}, '{"b":1}', '{"a":1}', forbids_a_property),
    Support("dependentRequired", ("dependentRequired",), "ignored", "refused", {**_AB,
            "dependentRequired": {"a": ["b"]}},
            "{}", '{"a":1}', with_all("dependentRequired")),
    Support("dependentSchemas", ("dependentSchemas",), "ignored", "refused",
            {**_AB, "dependentSchemas": {"a": {"required": ["b"]}}}, "{}", '{"a":1}',
            with_all("dependentSchemas")),
    Support("dependencies (before 2019-09)", ("dependencies",), "ignored", "refused",
            {**_AB, "$schema": DRAFT_7, "dependencies": {"a": ["b"]}}, "{}", '{"a":1}', with_all("dependencies")),
    # --- combinations ---------------------------------------------------------------------------------------------
    Support("anyOf", ("anyOf",), "enforced", "enforced", {"anyOf": [_I, {"type": "null"}]}, "1", '"a"',
            with_all("anyOf")),
    Support("anyOf beside other keywords", ("anyOf",), "ignored", "enforced",
            {**_AB, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, '{"a":1}', "{}",
            lambda site: is_beside("anyOf", site), note="xgrammar drops the other keywords"),
    Support("oneOf that types, constants or required properties tell apart", ("oneOf",), "enforced",
            "enforced",
            {"oneOf": [_I, {"type": "null"}]}, "1", '"a"',
            lambda site: site.has("oneOf") and are_disjoint(site, site.branches("oneOf"))),
    Support("oneOf that may overlap", ("oneOf",), "ignored", "refused",
            {"oneOf": [{"type": "integer", "minimum": 2}, {"type": "integer", "maximum": 4}]}, "1", "3",
            lambda site: site.has("oneOf") and not are_disjoint(site, site.branches("oneOf")),
            note="xgrammar takes it for anyOf"),
    Support("oneOf beside other keywords", ("oneOf",), "ignored", "enforced",
            {"maximum": 4, "oneOf": [_I, {"type": "null"}]}, "1", "5",
            lambda site: is_beside("oneOf", site), note="xgrammar drops the other keywords"),
    Support("allOf of one", ("allOf",), "enforced", "enforced", {"allOf": [_I]}, "1", '"a"',
            lambda site: len(site.branches("allOf")) == 1),
    Support("allOf of one beside other keywords", ("allOf",), "ignored", "enforced", {"maximum": 4,
            "allOf": [_I]}, "1", "5",
            lambda site: len(site.branches("allOf")) == 1 and is_beside("allOf", site)),
    Support("allOf of several", ("allOf",), "refused", "enforced", {"allOf": [_I, {"maximum": 4}]}, "1", "5",
            lambda site: len(site.branches("allOf")) > 1),
    Support("not", ("not",), "ignored", "refused", {"type": "string", "not": {"const": "x"}}, '"a"', '"x"',
            with_all("not")),
    Support("if, then, else", ("if", "then", "else"), "ignored", "refused",
            {**_AB, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, "{}", '{"a":1}', with_all("if")),
    Support("then or else without if", ("then", "else"), "enforced", "refused", {"type": "integer",
            "then": _S}, "1", '"a"',
            lambda site: site.has_any("then", "else") and not site.has("if")),
    # --- references -----------------------------------------------------------------------------------------------
    Support("$ref into this schema", ("$ref",), "enforced", "enforced", {"$ref": "#/$defs/S",
            "$defs": {"S": _S}},
            '"a"', "1", with_all("$ref")),
    Support("$ref beside other keywords", ("$ref",), "ignored", "enforced",
            {"$ref": "#/$defs/S", "pattern": "^a$", "$defs": {"S": _S}}, '"a"', '"b"',
            lambda site: site.draft >= 2019 and is_beside("$ref", site),
            note="xgrammar drops the other keywords"),
    Support("$ref beside other keywords (before 2019-09)", (), "enforced", "narrowed",
            {"$schema": DRAFT_7, "$ref": "#/definitions/S", "pattern": "^a$", "definitions": {"S": _S}},
            '"a"', "1",
            lambda site: site.draft < 2019 and is_beside("$ref", site), forbidden='"b"',
            note="there the others do not count; guidance holds to them"),
    Support("$ref by name, address or from within an $id", ("$ref",), "ignored", "enforced",
            {"$ref": "#s", "$defs": {"S": {"$anchor": "s", "type": "string"}}}, '"a"', "1", refers_elsewhere,
            note="xgrammar takes it for anything"),
    Support("$dynamicRef", ("$dynamicRef",), "ignored", "refused",
            {"$dynamicRef": "#s", "$defs": {"S": {"$dynamicAnchor": "s", "type": "string"}}}, '"a"', "1",
            with_all("$dynamicRef")),
    Support("$recursiveRef", ("$recursiveRef",), "ignored", "refused",
            {"$schema": "https://json-schema.org/draft/2019-09/schema", "type": "object",
             "properties": {"a": {"$recursiveRef": "#"}}, "additionalProperties": False}, '{"a":{}}',
            '{"a":1}',
            with_all("$recursiveRef")),
)  # fmt: skip
