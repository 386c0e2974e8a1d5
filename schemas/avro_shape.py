"""What values an output schema admits at each place, as far as types go: the kinds of JSON values, an object's
properties, an array's items. Pure.

It is an estimate and says what the author meant: a schema with `properties` and no `type` is taken for an object's,
a tuple for an array of whatever it holds, and a branch of `anyOf` without a property leaves it as another branch has
it. Whoever uses it must have a way for values that it does not foresee.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.schema_bounds import SchemaMap, pointer_to

Kind = Literal["null", "boolean", "integer", "fraction", "string", "array", "object"]

ALL_KINDS: Final[frozenset[Kind]] = frozenset(
    {"null", "boolean", "integer", "fraction", "string", "array", "object"}
)
NO_KINDS: Final[frozenset[Kind]] = frozenset()
_TYPES: Final[dict[str, frozenset[Kind]]] = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"boolean"}),
    "integer": frozenset({"integer"}),
    "number": frozenset({"integer", "fraction"}),
    "string": frozenset({"string"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}
# What a schema without a type means by these.
_HINTS: Final[dict[str, Kind]] = {
    "properties": "object",
    "patternProperties": "object",
    "additionalProperties": "object",
    "items": "array",
    "prefixItems": "array",
}
# Beside a reference or a choice these change nothing about the values.
ANNOTATIONS: Final = frozenset(
    {"$comment", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
_SIBLINGS_IGNORED: Final = ("draft-04", "draft-06", "draft-07")  # a $ref stands alone there


# --- where schemas stand, alone and combined: these are keys, so that one is looked at once ---------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The subschema at a JSON pointer."""

    pointer: str


@dataclass(frozen=True, slots=True)
class AllOf:
    """What all of them admit; none: everything."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """What one of them admits; none: nothing."""

    nodes: tuple[Node, ...]


Node = Place | AllOf | AnyOf
ANYTHING: Final = AllOf(())
NOTHING: Final = AnyOf(())


def all_of(nodes: Iterable[Node]) -> Node:
    """The nodes together, each once."""
    found: dict[Node, None] = {}
    for node in nodes:
        if node == NOTHING:
            return NOTHING
        found.update(dict.fromkeys(node.nodes if isinstance(node, AllOf) else (node,)))
    return next(iter(found)) if len(found) == 1 else AllOf(tuple(found))


def any_of(nodes: Iterable[Node]) -> Node:
    """One or the other of the nodes, each once."""
    found: dict[Node, None] = {}
    for node in nodes:
        if node == ANYTHING:
            return ANYTHING
        found.update(dict.fromkeys(node.nodes if isinstance(node, AnyOf) else (node,)))
    return next(iter(found)) if len(found) == 1 else AnyOf(tuple(found))


# --- shapes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """What may stand at one place.

    `texts`: the strings, where they are enumerated. `lower` and `upper`: bounds of numbers. `values`: what
    properties hold that are not named, None where there are none.
    """

    kinds: frozenset[Kind] = ALL_KINDS
    texts: tuple[str, ...] | None = None
    lower: float | None = None
    upper: float | None = None
    properties: dict[str, Node] = field(default_factory=dict[str, Node])
    required: frozenset[str] = frozenset()
    values: Node | None = ANYTHING
    items: Node = ANYTHING


def _met(a: Shape, b: Shape) -> Shape:
    """What both admit."""
    texts = b.texts if a.texts is None else a.texts
    if a.texts is not None and b.texts is not None:
        texts = tuple(text for text in a.texts if text in b.texts)
    properties: dict[str, Node] = {}
    for name in {**a.properties, **b.properties}:
        here, there = a.properties.get(name, a.values), b.properties.get(name, b.values)
        if here is not None and there is not None:
            properties[name] = all_of((here, there))
    return Shape(
        a.kinds & b.kinds,
        texts,
        _of(max, a.lower, b.lower),
        _of(min, a.upper, b.upper),
        properties,
        a.required | b.required,
        None if a.values is None or b.values is None else all_of((a.values, b.values)),
        all_of((a.items, b.items)),
    )


def _of(which: Callable[[float, float], float], a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return which(a, b)


def _joined(shapes: list[Shape]) -> Shape:
    """What one of them admits; each part of it by those that have the kind."""
    kinds = NO_KINDS.union(*(shape.kinds for shape in shapes))
    strings = [shape.texts for shape in shapes if "string" in shape.kinds]
    numbers = [shape for shape in shapes if shape.kinds & _TYPES["number"]]
    objects = [shape for shape in shapes if "object" in shape.kinds]
    texts = [texts for texts in strings if texts is not None]
    lower = [shape.lower for shape in numbers if shape.lower is not None]
    upper = [shape.upper for shape in numbers if shape.upper is not None]
    nodes: dict[str, list[Node]] = {}
    for shape in objects:
        for name, node in shape.properties.items():
            nodes.setdefault(name, []).append(node)
    values = [shape.values for shape in objects if shape.values is not None]
    required = objects[0].required if objects else frozenset[str]()
    for shape in objects[1:]:
        required &= shape.required
    return Shape(
        kinds,
        tuple(dict.fromkeys(text for each in texts for text in each)) if len(texts) == len(strings) else None,
        min(lower) if lower and len(lower) == len(numbers) else None,
        max(upper) if upper and len(upper) == len(numbers) else None,
        {name: any_of(found) for name, found in nodes.items()},
        required,
        any_of(values) if values else None,
        any_of(shape.items for shape in shapes if "array" in shape.kinds),
    )


def _kind_of(value: JsonValue) -> Kind:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


class Shapes:
    """The shapes of one output schema's places."""

    def __init__(self, schema: JsonObject | bool) -> None:
        """Raises InvalidSchema or SchemaTooComplex."""
        self._map = SchemaMap(schema)
        self._schema = schema
        declared = schema.get("$schema") if isinstance(schema, dict) else None
        self._refs_stand_alone = isinstance(declared, str) and any(
            draft in declared for draft in _SIBLINGS_IGNORED
        )
        self._known: dict[Node, Shape] = {}

    @property
    def root(self) -> Node:
        """The whole schema's place."""
        return self._node("", self._schema)

    def of(self, node: Node) -> Shape:
        """The shape of what a node admits."""
        if node not in self._known:
            match node:
                case Place(pointer):
                    self._known[node] = self._at(pointer)
                case AllOf(nodes):
                    self._known[node] = self._all(self.of(each) for each in nodes)
                case AnyOf(nodes):
                    self._known[node] = _joined([self.of(each) for each in nodes])
        return self._known[node]

    def described(self, node: Node) -> str | None:
        """The description that stands at the place itself."""
        found = (
            self._map.subschemas[node.pointer].schema.get("description") if isinstance(node, Place) else None
        )
        return found if isinstance(found, str) else None

    def meant(self, node: Node) -> tuple[Node, bool]:
        """The place that a mere reference, or a choice of one thing and null, leads to; whether null was one."""
        null = False
        while isinstance(node, Place):
            schema = self._map.subschemas[node.pointer].schema
            keywords = schema.keys() - ANNOTATIONS
            if "$ref" in keywords and (len(keywords) == 1 or self._refs_stand_alone):
                node = self._references(node.pointer)[0]
            elif keywords in ({"anyOf"}, {"oneOf"}):
                branches = self._branches(node.pointer, keywords.pop())
                others = [each for each in branches if self.of(each).kinds != _TYPES["null"]]
                if len(others) != 1 or len(branches) == 1:
                    break
                node, null = others[0], True
            else:
                break
        return node, null

    @staticmethod
    def _all(shapes: Iterable[Shape]) -> Shape:
        found = Shape()
        for shape in shapes:
            found = _met(found, shape)
        return found

    def _at(self, pointer: str) -> Shape:
        schema = self._map.subschemas[pointer].schema
        references = self._references(pointer)
        if references and self._refs_stand_alone:
            return self.of(references[0])
        applied = [self._own(pointer, schema)]
        applied += [self.of(node) for node in references]
        applied += [self.of(node) for node in self._branches(pointer, "allOf")]
        for keyword in ("anyOf", "oneOf"):
            branches = self._branches(pointer, keyword)
            if branches:
                applied.append(_joined([self.of(node) for node in branches]))
        found = self._all(applied)
        if schema.get("unevaluatedProperties") is False:
            found = replace(found, values=None)
        hints = {kind for keyword, kind in _HINTS.items() if keyword in schema}
        return replace(found, kinds=frozenset(hints)) if found.kinds == ALL_KINDS and hints else found

    def _own(self, pointer: str, schema: JsonObject) -> Shape:
        type_ = schema.get("type")
        names = (
            cast("list[str]", type_)
            if isinstance(type_, list)
            else [type_]
            if isinstance(type_, str)
            else None
        )
        kinds = (
            ALL_KINDS if names is None else NO_KINDS.union(*(_TYPES.get(name, NO_KINDS) for name in names))
        )
        texts: tuple[str, ...] | None = None
        lower, upper = _bounds(schema)
        given = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(given, list):
            members = cast("list[JsonValue]", given)
            kinds &= frozenset(map(_kind_of, members))
            texts = tuple(dict.fromkeys(each for each in members if isinstance(each, str)))
            numbers = [each for each in members if _kind_of(each) in ("integer", "fraction")]
            if numbers:
                lower, upper = min(numbers), max(numbers)
        required = schema.get("required")
        return Shape(
            kinds,
            texts,
            lower,
            upper,
            self._properties(pointer, schema),
            frozenset(cast("list[str]", required)) if isinstance(required, list) else frozenset(),
            self._values(pointer, schema),
            self._items(pointer, schema),
        )

    def _properties(self, pointer: str, schema: JsonObject) -> dict[str, Node]:
        named = schema.get("properties")
        if not isinstance(named, dict):
            return {}
        return {
            name: self._node(pointer + pointer_to(["properties", name]), child)
            for name, child in cast("JsonObject", named).items()
        }

    def _values(self, pointer: str, schema: JsonObject) -> Node | None:
        by_pattern = schema.get("patternProperties")
        patterns = list(cast("JsonObject", by_pattern).items()) if isinstance(by_pattern, dict) else []
        nodes = [
            self._node(pointer + pointer_to(["patternProperties", name]), child) for name, child in patterns
        ]
        nodes.append(self._node(f"{pointer}/additionalProperties", schema.get("additionalProperties", True)))
        node = any_of(each for each in nodes if each != NOTHING)
        return None if node == NOTHING else node

    def _items(self, pointer: str, schema: JsonObject) -> Node:
        items = schema.get("items", True)
        if not isinstance(items, list) and "prefixItems" not in schema:
            return self._node(f"{pointer}/items", items)
        keyword, rest = ("items", "additionalItems") if isinstance(items, list) else ("prefixItems", "items")
        first = list(self._listed(pointer, keyword))
        last = schema.get("maxItems")
        if isinstance(last, int) and last <= len(first):
            return any_of(first)
        return any_of([*first, self._node(f"{pointer}/{rest}", schema.get(rest, True))])

    def _branches(self, pointer: str, keyword: str) -> list[Node]:
        return list(self._listed(pointer, keyword))

    def _listed(self, pointer: str, keyword: str) -> Iterator[Node]:
        children = self._map.subschemas[pointer].schema.get(keyword)
        if isinstance(children, list):
            for index, child in enumerate(cast("list[JsonValue]", children)):
                yield self._node(f"{pointer}/{keyword}/{index}", child)

    def _references(self, pointer: str) -> list[Node]:
        subschema = self._map.subschemas[pointer]
        return [
            Place(target) if target in self._map.subschemas else self._node(target, self._boolean_at(target))
            for target in self._map.references_of(subschema)
        ]

    def _boolean_at(self, pointer: str) -> JsonValue:
        found: JsonValue = self._schema
        for step in pointer.split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = cast("list[JsonValue]", found)[int(key)]
            else:
                found = cast("JsonObject", found)[key]
        return found

    @staticmethod
    def _node(pointer: str, schema: JsonValue) -> Node:
        if isinstance(schema, dict):
            return Place(pointer)
        return NOTHING if schema is False else ANYTHING


def _bounds(schema: JsonObject) -> tuple[float | None, float | None]:
    def bound(which: Callable[[float, float], float], *keywords: str) -> float | None:
        found: float | None = None
        for keyword in keywords:
            given = schema.get(keyword)
            if isinstance(given, (int, float)) and not isinstance(given, bool):  # a boolean, in draft 4
                found = _of(which, found, given)
        return found

    return bound(max, "minimum", "exclusiveMinimum"), bound(min, "maximum", "exclusiveMaximum")
