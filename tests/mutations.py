"""Messages as they should not be: good requests, changed by a seed in the ways in which things go wrong."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.messages import Request

Headers = list[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Mutated:
    """A record to be sent, and how it came to be what it is."""

    how: str
    value: bytes
    headers: Headers


def mutated_requests(seed: int, count: int, schemas: list[Any]) -> Iterator[Mutated]:
    """So many records from a seed; the same each time. `schemas` are JSON Schemas that some ask for."""
    dice = random.Random(seed)
    codec = Codec()
    ways = list(WAYS.items())
    for number in range(count):
        request = _good(dice, f"m{number}", schemas)
        how, way = ways[number % len(ways)]
        headers: Headers = []
        value = way(dice, request, codec, headers)
        yield Mutated(how, value, headers)


def _good(dice: random.Random, request_id: str, schemas: list[Any]) -> dict[str, Any]:
    request: dict[str, Any] = {"id": request_id, "sampling": {"max_tokens": dice.randint(1, 4)}}
    if dice.random() < 0.5:
        request["prompt"] = f"Say something of {request_id}."
    else:
        request["messages"] = [{"role": "user", "content": f"Say something of {request_id}."}]
    match dice.randrange(6):
        case 0:
            request["output"] = {"json_schema": dice.choice(schemas)}
        case 1:
            request["output"] = {"regex": "[a-z]{1,3}"}
        case 2:
            request["output"] = {"choice": ["yes", "no"]}
        case 3:
            request["attributes"] = {"a": "b"}
        case _:
            pass
    return request


# --- the ways: each takes the dice, a good request, a codec, and headers to add to; gives the record's value ---


def _written(request: dict[str, Any]) -> bytes:
    return json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _avro(dice: random.Random, request: dict[str, Any], codec: Codec) -> bytes:
    return codec.encode(Request.model_validate(request), Encoding.SINGLE_OBJECT)


def _flip_bits(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, each in items:
        found += _places(each, (*path, step))
    return found


def _put(request: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(request)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def _another_type(dice: random.Random) -> Any:
    return dice.choice(
        [None, True, 0, -1, 1.5, "", "x", [], {}, [1], {"a": 1}, "\u0000", "\ud800", 2**63, 2**70]
    )


def _nested(dice: random.Random) -> bytes:
    depth = dice.choice([10, 100, 1_000, 10_000])
    return b'{"a":' * depth + b"1" + b"}" * depth if dice.random() < 0.5 else b"[" * depth + b"]" * depth


def _huge_number(dice: random.Random) -> bytes:
    return dice.choice(
        [b"9" * 5_000, b"1e999", b"-1e999", b"NaN", b"Infinity", b"0" * 10 + b"1", b"1" + b"0" * 400]
    )


def _raw_at_a_place(dice: random.Random, request: dict[str, Any], raw: bytes) -> bytes:
    marked = _put(request, dice.choice(_places(request)), "@@@")
    return _written(marked).replace(b'"@@@"', raw, 1)


def _twice(dice: random.Random, request: dict[str, Any]) -> bytes:
    text = _written(request)
    name = dice.choice([key for key in request if key != "id"])
    return text[:-1] + b"," + json.dumps(name).encode() + b":" + json.dumps(request[name]).encode() + b"}"


def _more_fields(dice: random.Random, request: dict[str, Any]) -> bytes:
    objects = [path for path in _places(request) if isinstance(_at(request, path), dict)]
    path = dice.choice([(), *objects])
    return _written(
        _put(request, (*path, dice.choice(["responseFormat", "Prompt", "", "id "])), dice.choice([1, {}]))
    )


def _at(request: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        request = request[step]
    return request


def _mutated_schema(dice: random.Random, request: dict[str, Any]) -> bytes:
    asked = request.get("output", {}).get("json_schema")
    schema = (
        asked
        if isinstance(asked, dict) and asked
        else {"type": "object", "properties": {"a": {"type": "string"}}}
    )
    schema = _put(schema, dice.choice(_places(schema)), _another_type(dice))
    return _written(request | {"output": {"json_schema": schema}})


def _other_encoding(dice: random.Random, request: dict[str, Any]) -> bytes:
    text = _written(request | {"attributes": {"n": "näme 🎬"}}).decode()
    return text.encode(dice.choice(["utf-16", "utf-32", "utf-8-sig", "cp1252", "utf-7"]), "replace")


def _odd_headers(dice: random.Random, request: dict[str, Any], headers: Headers) -> bytes:
    names = ["reply-topic", "reply-partition", "correlation-id", "traceparent", "headrace-replay", "x"]
    for _ in range(dice.randint(1, 4)):
        headers.append(
            (dice.choice(names), dice.choice([b"", b"0", b"-1", b"\xff\xfe", b"a" * 2_000, b"nowhere"]))
        )
    return _written(request)


Way = Callable[[random.Random, dict[str, Any], Codec, Headers], bytes]

WAYS: dict[str, Way] = {
    "as it should be": lambda dice, request, codec, headers: _written(request),
    "bits of JSON flipped": lambda dice, request, codec, headers: _flip_bits(dice, _written(request)),
    "bits of Avro flipped": lambda dice, request, codec, headers: _flip_bits(
        dice, _avro(dice, request, codec)
    ),
    "JSON cut off": lambda dice, request, codec, headers: _written(request)[
        : dice.randrange(len(_written(request)))
    ],
    "Avro cut off": lambda dice, request, codec, headers: _avro(dice, request, codec)[
        : dice.randrange(1, len(_avro(dice, request, codec)))
    ],
    "a value of another type": lambda dice, request, codec, headers: _written(
        _put(request, dice.choice(_places(request)), _another_type(dice))
    ),
    "nested deep": lambda dice, request, codec, headers: _raw_at_a_place(dice, request, _nested(dice)),
    "a huge number": lambda dice, request, codec, headers: _raw_at_a_place(dice, request, _huge_number(dice)),
    "a field twice": lambda dice, request, codec, headers: _twice(dice, request),
    "a field too many": lambda dice, request, codec, headers: _more_fields(dice, request),
    "another encoding": lambda dice, request, codec, headers: _other_encoding(dice, request),
    "a schema with another value in it": lambda dice, request, codec, headers: _mutated_schema(dice, request),
    "odd headers": lambda dice, request, codec, headers: _odd_headers(dice, request, headers),
    "no JSON at all": lambda dice, request, codec, headers: dice.randbytes(dice.randrange(0, 200)),
}
