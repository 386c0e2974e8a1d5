"""A contract's output schema as an Avro form, so that its results have columns for whoever reads Avro. Pure.

Each place has one type, or that and null:

| in the output schema                        | in Avro                                                              |
|---------------------------------------------|----------------------------------------------------------------------|
| string; enumerated strings                  | string, the values in a property `values`; no enum, which cannot grow |
| integer                                     | long; a string of JSON text where its bounds are beyond 64 bits       |
| number, boolean                             | double, boolean                                                      |
| array                                       | array; a tuple of several types has items of JSON text                |
| object with properties                      | record; what has no field is in the map `_additional`, as JSON text   |
| object without                              | map                                                                  |
| several types, anything, an object in itself | a string of JSON text: its type has a property `headrace` of `json`   |

An object that contains itself ends in JSON text, though Avro knows recursion through records: a topic with such a
schema cannot be opened at all by engines whose tables have no recursive types. Property names that Avro does not take
are escaped; the field's `jsonName` has the original.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, cast

from headrace.schemas.avro_schema import JSON_MARK, MARK, REST_MARK, TYPED_MARK, parse_schema, shipped_text
from headrace.schemas.avro_shape import Node, Place, Shape, Shapes
from headrace.schemas.errors import UnknownWriterSchema
from headrace.schemas.messages import JsonObject

MAX_LEVELS: Final = 20  # of records, arrays and maps within each other; below them stands JSON text
MAX_FIELDS: Final = 4_000
MAX_DOC_CHARACTERS: Final = 300
REST_FIELD: Final = "_additional"
TEXT_FIELD: Final = "value_json"

_INT64: Final = 2**63
_JSON_TEXT: Final[JsonObject] = {"type": "string", MARK: JSON_MARK}
_REST_DOC: Final = (
    "What has no field of its own, and explicit nulls of what may be absent: JSON text by name."
)
_VALUE_DOC: Final = (
    "The text as parsed and validated; null where no output schema was asked for, for the JSON value null, and "
    "where value_json has it."
)
_TEXT_DOC: Final = "The value as JSON text, where it does not fit the type of value."


def contract_result_schema(output_schema: JsonObject | bool, model: str, contract: int) -> str | None:
    """The .avsc text of a contract's results: `Result`, the value of whose outputs has a type of its own.

    The same schema gives the same text. None where it says no more than that a value is JSON. Raises InvalidSchema
    for what is no output schema.
    """
    namespace = f"headrace.{_escaped(model)}.c{contract}"
    value = _value_type(output_schema)
    if value is None:
        return None
    result = cast("JsonObject", json.loads(shipped_text("result")))
    outputs = next(field for field in result["fields"] if field["name"] == "outputs")
    output = cast("JsonObject", outputs["type"]["items"])
    # A name of its own: what is beside names does not count for a fingerprint, and `value` may be a mere string.
    output["namespace"] = namespace
    fields: list[JsonObject] = []
    for field in cast("list[JsonObject]", output["fields"]):
        if field["name"] != "value":
            fields.append({**field, "type": _in_namespace(field["type"], str(result["namespace"]))})
            continue
        unmarked = {name: each for name, each in field.items() if name != MARK}
        fields += [
            {**unmarked, "type": ["null", value], "doc": _VALUE_DOC, MARK: TYPED_MARK},
            {
                "name": TEXT_FIELD,
                "type": ["null", "string"],
                "default": None,
                "doc": _TEXT_DOC,
                "insteadOf": "value",
            },
        ]
    output["fields"] = fields
    text = json.dumps(result, separators=(",", ":"))
    try:
        parse_schema(text)
    except UnknownWriterSchema:  # too large to be read by
        return None
    return text


def _in_namespace(type_: Any, namespace: str) -> Any:
    """The type, its outermost records in a namespace; those inside inherit it."""
    if isinstance(type_, list):
        return [_in_namespace(each, namespace) for each in cast("list[Any]", type_)]
    if not isinstance(type_, dict):
        return type_
    schema = cast("JsonObject", type_)
    if schema["type"] == "array":
        return {**schema, "items": _in_namespace(schema["items"], namespace)}
    return {**schema, "namespace": namespace} if schema["type"] == "record" else schema


def _value_type(output_schema: JsonObject | bool) -> Any:
    builder = _Builder(Shapes(output_schema))
    try:
        form = builder.root()
    except _TooLarge:
        return None
    return None if form.is_json_text else form.type


class _TooLarge(Exception):
    """More fields than a table may have."""


@dataclass(frozen=True, slots=True)
class _Form:
    """An Avro type without its null; `levels` of records, arrays and maps; `values` of its strings."""

    type: Any
    nullable: bool = False
    levels: int = 0
    values: tuple[str, ...] | None = None

    @property
    def is_json_text(self) -> bool:
        return self.type == _JSON_TEXT

    @property
    def whole(self) -> Any:
        """With null, where it may be."""
        return ["null", self.type] if self.nullable else self.type


class _Builder:
    """Names and records of one form. The same place is one record, however often it is referred to."""

    def __init__(self, shapes: Shapes) -> None:
        self._shapes = shapes
        self._records: dict[Node, _Form] = {}
        self._begun: set[Node] = set()
        self._names = {"output"}  # in lower case: code generators make files of them
        self._fields = 0

    def root(self) -> _Form:
        return self._form(self._shapes.root, "Value", 0)

    def _form(self, node: Node, called: str, level: int) -> _Form:
        """What stands at `node`, `level` deep; `called` is what a record there may be called after."""
        meant, nullable = self._shapes.meant(node)
        if isinstance(meant, Place) and meant != node and "/" in meant.pointer and level > 0:
            called = _last_step(meant.pointer, called)
        shape = self._shapes.of(meant)
        kinds = shape.kinds - {"null"}
        nullable = nullable or "null" in shape.kinds
        if kinds and kinds <= {"integer", "fraction"}:
            if "fraction" in kinds:
                return _Form("double", nullable)
            return _Form(_JSON_TEXT) if _is_wide(shape) else _Form("long", nullable)
        if len(kinds) != 1:
            return _Form(_JSON_TEXT)
        (kind,) = kinds
        match kind:
            case "string":
                return _Form("string", nullable, 0, shape.texts)
            case "boolean":
                return _Form("boolean", nullable)
            case "array":
                return self._repeated(
                    "items", self._form_below(shape.items, called + " item", level), nullable
                )
            case _:
                form = self._object(meant, shape, called, level)
                return _Form(form.type, nullable and not form.is_json_text, form.levels)

    def _form_below(self, node: Node, called: str, level: int) -> _Form:
        return self._form(node, called, level + 1) if level < MAX_LEVELS else _Form(_JSON_TEXT)

    @staticmethod
    def _repeated(key: str, inner: _Form, nullable: bool) -> _Form:
        type_ = {"type": "array" if key == "items" else "map", key: inner.whole}
        return _Form(type_, nullable, inner.levels + 1, inner.values)

    def _object(self, node: Node, shape: Shape, called: str, level: int) -> _Form:
        known = self._records.get(node)
        if known is not None:
            return known if level + known.levels <= MAX_LEVELS else _Form(_JSON_TEXT)
        if node in self._begun:
            return _Form(_JSON_TEXT)
        named = {name: each for name, each in shape.properties.items() if self._shapes.of(each).kinds}
        if not named:
            values = (
                _Form(_JSON_TEXT) if shape.values is None else self._form_below(shape.values, called, level)
            )
            return self._repeated("values", values, nullable=False)
        self._begun.add(node)
        form = self._record(named, shape, called, level)
        self._begun.remove(node)
        self._records[node] = _Form(form.type["name"], levels=form.levels)
        return form

    def _record(self, named: dict[str, Node], shape: Shape, called: str, level: int) -> _Form:
        record: JsonObject = {
            "type": "record",
            "name": self._unused(_pascal(called), self._names),
            "fields": [],
        }
        taken: set[str] = set()
        levels, keeps_rest = 0, shape.values is not None
        for name, node in named.items():
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise _TooLarge
            form = self._form_below(node, name, level)
            required = name in shape.required
            levels = max(levels, form.levels)
            keeps_rest |= form.nullable and not required
            record["fields"].append(
                self._field(name, self._unused(_escaped(name), taken), node, form, required)
            )
        if keeps_rest:
            record["fields"].append(
                {
                    "name": self._unused(REST_FIELD, taken),
                    "type": {"type": "map", "values": _JSON_TEXT},
                    "default": {},
                    "doc": _REST_DOC,
                    MARK: REST_MARK,
                }
            )
        return _Form(record, levels=levels + 1)

    def _field(self, name: str, escaped: str, node: Node, form: _Form, required: bool) -> JsonObject:
        field: JsonObject = {"name": escaped, "type": form.whole if required else ["null", form.type]}
        if not required:
            field["default"] = None
        doc = self._shapes.described(node)
        if doc is not None:
            field["doc"] = doc[:MAX_DOC_CHARACTERS]
        if form.values is not None:
            field["values"] = list(form.values)
        if escaped != name:
            field["jsonName"] = name
        return field

    @staticmethod
    def _unused(name: str, taken: set[str]) -> str:
        """The name, or with a number; `taken` has them in lower case, as tables know no other."""
        found, number = name, 1
        while found.lower() in taken:
            number += 1
            found = f"{name}_{number}"
        taken.add(found.lower())
        return found


def _is_wide(shape: Shape) -> bool:
    return any(bound is not None and not -_INT64 <= bound < _INT64 for bound in (shape.lower, shape.upper))


def _escaped(name: str) -> str:
    """The name as Avro takes names: letters, digits and `_`, no digit first."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


def _pascal(words: str) -> str:
    parts = re.findall(r"[A-Za-z0-9]+", words)
    return _escaped("".join(part[0].upper() + part[1:] for part in parts)) if parts else "Record"


def _last_step(pointer: str, otherwise: str) -> str:
    """What a definition is called; a choice's branch has a number for a name, which says nothing."""
    step = pointer.rpartition("/")[2]
    return otherwise if step.isdigit() else step
