"""The JSON Schema that an output is held to, and the check of every output against it.

That a backend enforces a grammar while it generates is no reason to skip the check: backends ignore keywords,
and a grammar that is obeyed to the letter still admits `1e999`, lone surrogates and duplicate keys.
"""

from __future__ import annotations

import difflib
import json
from functools import cache, cached_property, lru_cache
from typing import Self, cast

import jsonschema_rs

from headrace.schemas.digest import digest_of
from headrace.schemas.errors import InvalidSchema, OutputNotJson, OutputViolatesSchema, SchemaTooComplex
from headrace.schemas.messages import JsonObject, JsonValue, OutputConstraint
from headrace.schemas.output_json import parse_output
from headrace.schemas.schema_bounds import (
    DATA,
    NAMED_SUBSCHEMAS,
    SUBSCHEMAS,
    SchemaMap,
    check_pattern,
    pointer_to,
)

BACKTRACK_LIMIT = 100_000  # steps of one pattern with look-around on one string; about a millisecond
CACHED_SCHEMAS = 128  # compiled schemas of requests that are kept
CACHED_PATTERNS = 128
MAX_CHOICES = 2_000
MAX_GRAMMAR_BYTES = 64 * 1024
MAX_REASON_CHARACTERS = 300

_DRAFTS: dict[type[jsonschema_rs.Validator], int] = {
    jsonschema_rs.Draft4Validator: 4,
    jsonschema_rs.Draft6Validator: 6,
    jsonschema_rs.Draft7Validator: 7,
    jsonschema_rs.Draft201909Validator: 2019,
    jsonschema_rs.Draft202012Validator: 2020,
}
_DIALECTS = frozenset(
    f"json-schema.org/{draft}/schema"
    for draft in ("draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12")
)
_KEYWORDS = (
    SUBSCHEMAS
    | NAMED_SUBSCHEMAS
    | DATA
    | {
        "$anchor", "$comment", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor", "$recursiveRef",
        "$ref", "$schema", "$vocabulary", "contentEncoding", "contentMediaType", "deprecated", "description",
        "exclusiveMaximum", "exclusiveMinimum", "format", "id", "maxContains", "maxItems", "maxLength",
        "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties", "minimum",
        "multipleOf", "pattern", "readOnly", "title", "uniqueItems", "writeOnly",
    }
)  # fmt: skip
_KEYWORD_BY_LOWER = {keyword.lower(): keyword for keyword in _KEYWORDS}


class OutputSchema:
    """A compiled JSON Schema.

    `schema` is as it was given, its order of properties kept: models write them in that order. `digest` is of
    the canonical JSON, so two schemas that differ in order alone have the same.
    """

    def __init__(self, schema: JsonObject | bool) -> None:
        """Raises InvalidSchema or SchemaTooComplex with a pointer into the schema."""
        SchemaMap(schema)
        self._validator = _compiled(schema)
        self.schema = schema
        self.digest = digest_of(schema)

    @cached_property
    def keywords(self) -> frozenset[str]:
        """The keywords in use."""
        places = SchemaMap(self.schema).subschemas.values()
        return frozenset(keyword for place in places for keyword in place.schema)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the author: keywords and formats that are no such thing and hold nothing."""
        return _warnings(SchemaMap(self.schema), type(self._validator))

    @classmethod
    def parse(cls, schema: JsonObject | bool | str) -> Self:
        """From a JSON value or a JSON text.

        Raises InvalidSchema, of it SchemaTooComplex beyond the bounds, with a pointer into the schema.
        """
        value: JsonValue = schema
        if isinstance(schema, str):
            try:
                value = parse_output(schema)
            except OutputNotJson as error:
                raise InvalidSchema(error.message, path="", offset=error.offset) from None
        if not isinstance(value, (dict, bool)):
            raise InvalidSchema("a JSON Schema is an object, true or false", path="")
        return cls(cast("JsonObject | bool", value))

    def check(self, text: str) -> JsonValue:
        """The value of an output's text.

        Raises OutputNotJson where the text is not strict JSON, OutputViolatesSchema with a pointer into it.
        """
        value = parse_output(text)
        self.check_value(value)
        return value

    def check_value(self, value: JsonValue) -> None:
        """Raises OutputViolatesSchema for a JSON value that the schema does not accept."""
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            raise OutputViolatesSchema(_reason(error), path=pointer_to(error.instance_path)) from None
        except ValueError as error:  # a lone surrogate, in a value that is not from a JSON text
            raise OutputViolatesSchema(_shortened(str(error)), path="") from None


@lru_cache(maxsize=CACHED_SCHEMAS)
def _output_schema_of(text: str) -> OutputSchema:
    return OutputSchema.parse(text)


def output_schema_of(schema: JsonObject | bool) -> OutputSchema:
    """The compiled schema, from a bounded cache. Raises as `OutputSchema.parse` does.

    The key is the JSON text as it stands and not the digest: schemas of one digest may differ in the order of
    their properties, which the model is to keep.
    """
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return OutputSchema.parse(schema)  # says what is wrong, and where
    return _output_schema_of(text)


class OutputCheck:
    """What an output is held to, whichever kind of constraint it is.

    `digest` names it in provenance. `output_schema` is there for a JSON Schema alone.
    """

    def __init__(self, constraint: OutputConstraint) -> None:
        """Raises InvalidSchema or SchemaTooComplex, the path into the constraint: `/json_schema/type`."""
        self.constraint = constraint
        self.output_schema: OutputSchema | None = None
        self._pattern: jsonschema_rs.Validator | None = None
        self._choices = frozenset(constraint.choice or ())
        if constraint.json_schema is not None:
            self.output_schema = _schema_within(constraint.json_schema)
        elif constraint.regex is not None:
            check_pattern(constraint.regex, "/regex")
            self._pattern = _full_match(constraint.regex)
        elif len(self._choices) > MAX_CHOICES:
            raise SchemaTooComplex(
                f"{len(self._choices):,} choices, and at most {MAX_CHOICES:,} are held", path="/choice"
            )
        elif constraint.grammar is not None:
            size = len(constraint.grammar.encode("utf-8", "replace"))
            if size > MAX_GRAMMAR_BYTES:
                raise SchemaTooComplex(
                    f"a grammar of {size:,} bytes, and at most {MAX_GRAMMAR_BYTES:,} are held",
                    path="/grammar",
                )

    @property
    def digest(self) -> str:
        """`sha256:<hex>`: the schema's own digest, or that of the constraint as canonical JSON."""
        if self.output_schema is not None:
            return self.output_schema.digest
        return digest_of(self.constraint.model_dump(exclude_none=True))

    def check(self, text: str) -> JsonValue:
        """The value of an output that is JSON by its constraint, else None.

        Raises OutputNotJson or OutputViolatesSchema. A grammar's outputs are not checked again: only the
        engine can tell whether a text belongs to it.
        """
        if self.output_schema is not None:
            return self.output_schema.check(text)
        if self.constraint.json_object:
            value = parse_output(text)
            if not isinstance(value, dict):
                raise OutputViolatesSchema("the output is no JSON object", path="")
            return cast("JsonObject", value)
        if self.constraint.choice is not None and text not in self._choices:
            raise OutputViolatesSchema(f"{_shortened(repr(text))} is none of the choices")
        if self._pattern is not None and not _matches(self._pattern, text):
            raise OutputViolatesSchema(f"{_shortened(repr(text))} does not match the regex as a whole")
        return None


def _schema_within(schema: JsonObject | bool) -> OutputSchema:
    try:
        return output_schema_of(schema)
    except InvalidSchema as error:
        raise type(error)(error.message, path=f"/json_schema{error.path or ''}") from None


@lru_cache(maxsize=CACHED_PATTERNS)
def _full_match(pattern: str) -> jsonschema_rs.Validator:
    # By itself first, so that `a)|(b` cannot close the group that it is put into.
    options = jsonschema_rs.RegexOptions()
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=options)
        return jsonschema_rs.Draft202012Validator({"pattern": f"^(?:{pattern})$"}, pattern_options=options)
    except ValueError:  # ValidationError and what lone surrogates raise are both ValueErrors
        raise InvalidSchema(
            "the regex cannot be held: it is malformed, too large, or uses look-around or back references",
            path="/regex",
        ) from None


def _matches(pattern: jsonschema_rs.Validator, text: str) -> bool:
    try:
        return pattern.is_valid(text)
    except ValueError:  # a lone surrogate
        return False


def _compiled(schema: JsonObject | bool) -> jsonschema_rs.Validator:
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT)
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if isinstance(declared, str) and declared.partition("://")[2].removesuffix("#") not in _DIALECTS:
        message = f"names no draft that is known; these are: {', '.join(sorted(_DIALECTS))}"
        raise InvalidSchema(message, path="/$schema")
    try:
        draft = jsonschema_rs.validator_cls_for(schema)
        # uuid and duration came with 2019-09; below it the validator takes them for annotations.
        formats = {"uuid": _is_uuid, "duration": _is_duration} if _DRAFTS[draft] < 2019 else None
        return draft(schema, formats=formats, validate_formats=True, pattern_options=options, offline=True)
    except jsonschema_rs.ValidationError as error:
        path = pointer_to(error.instance_path)
        raise InvalidSchema(f"no JSON Schema: {_shortened(error.message)}", path=path) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise InvalidSchema(f"no JSON Schema: {_shortened(str(error))}", path="") from None


def _reason(error: jsonschema_rs.ValidationError) -> str:
    return f"{error.kind.name}: {_shortened(error.message)}"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - 3] + "..."


@cache
def _format(name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator({"format": name}, validate_formats=True)


def _is_uuid(text: str) -> bool:
    return _format("uuid").is_valid(text)


def _is_duration(text: str) -> bool:
    return _format("duration").is_valid(text)


def _warnings(places: SchemaMap, draft: type[jsonschema_rs.Validator]) -> tuple[str, ...]:
    found: list[str] = []
    for pointer, subschema in places.subschemas.items():
        if not subschema.is_known:
            continue
        for keyword in subschema.schema.keys() - _KEYWORDS:
            meant = _near_miss(keyword)
            if meant:
                found.append(f"{pointer}/{keyword}: no keyword, so it holds nothing; did you mean {meant}?")
        name = subschema.schema.get("format")
        if isinstance(name, str) and not _is_format(name, draft):
            found.append(f"{pointer}/format: {name!r} is no format of this draft, so it holds nothing")
    return tuple(sorted(found))


def _near_miss(keyword: str) -> str | None:
    if keyword.lower() in _KEYWORD_BY_LOWER:
        return _KEYWORD_BY_LOWER[keyword.lower()]
    if keyword.startswith(("_", "x-")):
        return None  # meant to be no keyword
    close = difflib.get_close_matches(keyword, _KEYWORDS, n=1, cutoff=0.85)
    return close[0] if close else None


@lru_cache(maxsize=256)
def _is_format(name: str, draft: type[jsonschema_rs.Validator]) -> bool:
    if name in ("uuid", "duration"):
        return True
    try:
        draft({"format": name}, validate_formats=True, ignore_unknown_formats=False)
    except ValueError:
        return False
    return True
