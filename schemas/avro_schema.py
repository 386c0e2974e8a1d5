"""Avro schemas as types of ours: parsed, checked, and safe to read a stranger's bytes by.

fastavro parses, qualifies names and makes the fingerprint. What it does not do is done here: a writer's
schema comes from a registry that anyone may write to, so one that lets a short message become a large value
is refused.
"""

from __future__ import annotations

import functools
import importlib.resources
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import fastavro
from fastavro.schema import fingerprint as schema_fingerprint
from fastavro.schema import to_parsing_canonical_form

from headrace.schemas.errors import UnknownWriterSchema
from headrace.schemas.strict_json import JsonFault, parse

MAX_SCHEMA_CHARACTERS: Final = 1_000_000
MAX_NESTING: Final = 64  # of types within types
VALUES_PER_BYTE: Final = 4  # a message of n bytes has at most 4 n + 10,000 values
FREE_VALUES: Final = 10_000

# The property of fields and types by which ours say what Avro has no word for, and its values.
MARK: Final = "headrace"
JSON_MARK: Final = "json"
TYPED_MARK: Final = "typed"
REST_MARK: Final = "rest"

PrimitiveKind = Literal["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
_SIZES: Final[dict[str, int]] = {  # the fewest bytes that each takes
    "null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1,
}  # fmt: skip


class _Absent:
    """No default: None would be a default of null."""


ABSENT: Final = _Absent()


# `surplus` of a type: how many more values than VALUES_PER_BYTE allows for its bytes a value of it can have,
# at the worst. It adds up over fields, and what repeats (items, map values) must not have any: so no message
# has more than VALUES_PER_BYTE values a byte, and the root's surplus. `depth`: levels of types, with itself.
# Equality is identity, since a named type is one object however often it is referred to.


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """`json`: a string that holds JSON text."""

    kind: PrimitiveKind
    surplus: int
    depth: int = 1
    json: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    size: int
    surplus: int
    depth: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Enumeration:
    symbols: tuple[str, ...]
    surplus: int = 1 - VALUES_PER_BYTE
    depth: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    items: AvroType
    depth: int
    surplus: int = 1 - VALUES_PER_BYTE


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    values: AvroType
    depth: int
    surplus: int = 1 - VALUES_PER_BYTE


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    branches: tuple[AvroType, ...]
    surplus: int
    depth: int


@dataclass(frozen=True, slots=True, eq=False)
class AvroField:
    """`default` is as in the schema; `json`: the string holds JSON text; `values`: what it is one of.

    Of a contract's typed results: `typed`: the field holds a JSON value by its type; `rest`: a map of what an
    object has beside its fields; `json_name`: the property's name, where Avro does not take it; `instead_of`: the
    typed field whose value stands here as JSON text, where it does not fit there.
    """

    name: str
    type: AvroType
    default: Any
    json: bool
    values: tuple[str, ...] | None
    typed: bool = False
    rest: bool = False
    json_name: str | None = None
    instead_of: str | None = None

    @property
    def may_be_absent(self) -> bool:
        """Whether null, the first of its types, says that there is nothing."""
        first = self.type.branches[0] if isinstance(self.type, Union) else None
        return self.default is None and isinstance(first, Primitive) and first.kind == "null"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    name: str
    fields: tuple[AvroField, ...]
    surplus: int
    depth: int

    def field(self, name: str) -> AvroField | None:
        """The field of that name."""
        return next((field for field in self.fields if field.name == name), None)


AvroType = Primitive | Fixed | Enumeration | Array | Map | Union | Record


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema whose root is a record. `fingerprint`: CRC-64-AVRO's 8 bytes as they go over the wire."""

    text: str
    root: Record
    fingerprint: bytes


@functools.cache
def shipped(name: str) -> Schema:
    """The schema that ships as `schemas/avro/<name>.avsc`."""
    return parse_schema(shipped_text(name))


def shipped_text(name: str) -> str:
    """The text of `schemas/avro/<name>.avsc`."""
    return importlib.resources.files("headrace.schemas.avro").joinpath(f"{name}.avsc").read_text("utf-8")


def parse_schema(text: str) -> Schema:
    """A schema from its JSON text. Raises UnknownWriterSchema with what is wrong, whatever the text holds."""
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise UnknownWriterSchema(
            f"the writer's schema has {len(text)} characters; at most {MAX_SCHEMA_CHARACTERS} are read"
        )
    try:
        parsed: Any = parse(text)
    except JsonFault as fault:
        raise UnknownWriterSchema(f"the writer's schema is not JSON: {fault.reason}") from None
    if not isinstance(parsed, dict) or cast("dict[str, Any]", parsed).get("type") != "record":
        raise UnknownWriterSchema("the writer's schema is not a record")
    source = cast("dict[str, Any]", parsed)
    # fastavro takes a schema with this key for one of its own that needs no parsing.
    source.pop("__fastavro_parsed", None)
    try:
        qualified = cast("dict[str, Any]", fastavro.parse_schema(source))
        digest = schema_fingerprint(to_parsing_canonical_form(qualified), "CRC-64-AVRO")
    except Exception as error:  # noqa: BLE001 - a stranger's schema; fastavro raises whatever it trips over
        raise UnknownWriterSchema(f"the writer's schema is not Avro: {_one_line(error)}") from None
    root = _Builder().build(qualified)
    if not isinstance(root, Record):
        raise UnknownWriterSchema("the writer's schema is not a record")
    if root.surplus > FREE_VALUES:
        raise _refused(root.name, f"a message without bytes could have more than {FREE_VALUES} values")
    return Schema(text, root, bytes.fromhex(digest))


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:300] + "…"


def _refused(name: str, reason: str) -> UnknownWriterSchema:
    return UnknownWriterSchema(f"the writer's schema is refused: {name[:100]}: {reason}")


class _Builder:
    """Turns fastavro's parsed form into our types: named types are whole there once, and names after that."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}  # None: begun and not ended, so it refers to itself

    def build(self, parsed: Any) -> AvroType:
        if isinstance(parsed, list):
            return self._union(cast("list[Any]", parsed))
        if isinstance(parsed, str):
            return _PRIMITIVES[parsed] if parsed in _PRIMITIVES else self._reference(parsed)
        if not isinstance(parsed, dict):
            raise _refused(str(parsed), "not a type")
        schema = cast("dict[str, Any]", parsed)
        match schema.get("type"):
            case "record" | "error":
                return self._record(schema)
            case "array":
                items = self.build(schema["items"])
                return Array(self._repeated(items, items.surplus), _deeper(items))
            case "map":
                values = self.build(schema["values"])
                return Map(self._repeated(values, values.surplus + 1 - VALUES_PER_BYTE), _deeper(values))
            case "enum":
                return self._name(schema, Enumeration(_strings(schema, "symbols")))
            case "fixed":
                return self._name(schema, _fixed(schema))
            case "string" if schema.get(MARK) == JSON_MARK:
                return _JSON_TEXT
            case str(kind) if kind in _PRIMITIVES:
                return _PRIMITIVES[kind]
            case other:
                raise _refused(str(other), "not a type")

    def _reference(self, name: str) -> AvroType:
        found = self._named.get(name)
        if found is None:
            reason = "it contains itself" if name in self._named else "not a type"
            raise _refused(name, reason)
        return found

    def _name(self, schema: dict[str, Any], built: AvroType) -> AvroType:
        self._named[str(schema["name"])] = built
        return built

    def _union(self, parsed: list[Any]) -> Union:
        branches = tuple(self.build(branch) for branch in parsed)
        if not branches:
            raise _refused("a union", "it has no branch")
        if any(isinstance(branch, Union) for branch in branches):
            raise _refused("a union", "it stands in another union")
        surplus = max(branch.surplus for branch in branches) - VALUES_PER_BYTE
        return Union(branches, surplus, _deeper(*branches))

    def _record(self, schema: dict[str, Any]) -> Record:
        name = str(schema["name"])
        self._named[name] = None
        fields = tuple(self._field(field) for field in cast("list[dict[str, Any]]", schema["fields"]))
        names = [field.name for field in fields]
        if len(set(names)) != len(names):
            raise _refused(name, "two fields have one name")
        types = [field.type for field in fields]
        built = Record(name, fields, 1 + sum(each.surplus for each in types), _deeper(*types))
        self._named[name] = built
        return built

    def _field(self, field: dict[str, Any]) -> AvroField:
        name = field["name"]
        if not isinstance(name, str):
            raise _refused(str(name), "the name of a field is not a string")
        return AvroField(
            name,
            self.build(field["type"]),
            field.get("default", ABSENT),
            field.get(MARK) == JSON_MARK,
            _strings(field, "values") if "values" in field else None,
            field.get(MARK) == TYPED_MARK,
            field.get(MARK) == REST_MARK,
            _string(field, "jsonName"),
            _string(field, "insteadOf"),
        )

    def _repeated(self, items: AvroType, surplus: int) -> AvroType:
        if surplus > 0:
            name = items.name if isinstance(items, Record) else "an array's or map's item"
            raise _refused(name, "it repeats, and takes too few bytes for what it holds")
        return items


def _deeper(*inner: AvroType) -> int:
    depth = 1 + max((each.depth for each in inner), default=0)
    if depth > MAX_NESTING:
        raise _refused("a type", f"it is nested more than {MAX_NESTING} deep")
    return depth


def _fixed(schema: dict[str, Any]) -> Fixed:
    size = schema["size"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise _refused(str(schema["name"]), "its size is not a number of bytes")
    return Fixed(size, 1 - VALUES_PER_BYTE * size)


def _string(schema: dict[str, Any], key: str) -> str | None:
    found = schema.get(key)
    if found is not None and not isinstance(found, str):
        raise _refused(str(schema["name"]), f"{key} is not a string")
    return found


def _strings(schema: dict[str, Any], key: str) -> tuple[str, ...]:
    found = schema[key]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in cast("list[Any]", found)):
        raise _refused(str(schema["name"]), f"{key} is not a list of strings")
    return tuple(cast("list[str]", found))


_PRIMITIVES: Final[dict[str, Primitive]] = {
    kind: Primitive(cast("PrimitiveKind", kind), 1 - VALUES_PER_BYTE * size) for kind, size in _SIZES.items()
}
_JSON_TEXT: Final = Primitive("string", _PRIMITIVES["string"].surplus, json=True)


def default_value(type_: AvroType, default: Any) -> Any:
    """A field's default, given as JSON in the schema, as a reader would return it; ABSENT where useless."""
    match type_, default:
        case _ if default is ABSENT:
            return ABSENT
        case (Primitive("bytes") | Fixed(), str()):
            return default.encode("latin-1", "replace")  # a schema's way to write bytes: U+0000 to U+00FF
        case Union(branches), _:
            found = (default_value(branch, default) for branch in branches)
            return next((each for each in found if each is not ABSENT), ABSENT)
        case Array(items), list():
            return _whole([default_value(items, each) for each in cast("list[Any]", default)])
        case Map(values), dict():
            given = cast("dict[str, Any]", default)
            return _whole({key: default_value(values, each) for key, each in given.items()})
        case Record(_, fields), dict():
            given = cast("dict[str, Any]", default)
            return _whole({f.name: default_value(f.type, given.get(f.name, f.default)) for f in fields})
        case Primitive("null"), None:
            return None
        case Primitive("boolean"), bool():
            return default
        case (Primitive("int" | "long" | "float" | "double"), int() | float()) if not isinstance(
            default, bool
        ):
            return default
        case (Primitive("string") | Enumeration(), str()):
            return default
        case _:
            return ABSENT


def _whole(default: list[Any] | dict[str, Any]) -> Any:
    parts = default.values() if isinstance(default, dict) else default
    return ABSENT if any(part is ABSENT for part in parts) else default
