"""Pydantic's errors as ours: the field as a JSON pointer, and a sentence for whoever wrote the message."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.schemas.errors import InvalidField, MessageError, UnknownField
from headrace.schemas.strict_json import pointer

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_SENTENCES: Final = {
    "missing": "this field is missing",
    "extra_forbidden": "an unknown field",
    "string_type": "must be a string",
    "string_unicode": "must be a string without lone surrogates",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "bytes_type": "must be bytes",
}
_JSON_TYPES: Final[dict[type, str]] = {
    bool: "true or false", int: "a number", float: "a number", str: "a string", bytes: "bytes",
    list: "an array", dict: "an object", type(None): "null",
}  # fmt: skip

Path = tuple[str | int, ...]


def explain(error: ValidationError, fields: Any) -> MessageError:
    """The first of the faults that `error` names, in `fields`, the message as it was given.

    An unknown field comes first, since whoever misspelt a name is misled by what follows from it.
    """
    found = [
        (_path(detail, fields), detail) for detail in error.errors(include_url=False, include_input=False)
    ]
    unknown = [path for path, detail in found if detail["type"] == "extra_forbidden"]
    if unknown:
        name = unknown[0][-1]
        return UnknownField(f"an unknown field: {str(name)[:100]!r}", path=pointer(unknown[0]))
    path, sentences = _first(found)
    given = "" if any("missing" in each for each in sentences) else _given(path, fields)
    message = " or ".join(sentences).replace(" or must be", " or")
    return InvalidField(message + (given if message.startswith("must be a") else ""), path=pointer(path))


def _first(found: list[tuple[Path, ErrorDetails]]) -> tuple[Path, list[str]]:
    """The first place at fault, and what each branch of a union says; the furthest branch wins."""
    first = found[0][0]
    deepest = max((path for path, _ in found if path[: len(first)] == first), key=len) if first else first
    sentences = [_sentence(detail) for path, detail in found if path == deepest]
    return deepest, list(dict.fromkeys(sentences))


def _path(detail: ErrorDetails, fields: Any) -> Path:
    """`loc` without the names of a union's branches, which are not in the message."""
    path: list[str | int] = []
    here: Any = fields
    steps = detail["loc"]
    for place, step in enumerate(steps):
        if isinstance(here, dict):
            mapping = cast("dict[Any, Any]", here)
            if step in mapping:
                here = mapping[step]
            elif not (detail["type"] == "missing" and place == len(steps) - 1):
                continue
        elif isinstance(here, list) and isinstance(step, int) and step < len(cast("list[Any]", here)):
            here = cast("list[Any]", here)[step]
        else:
            continue
        path.append(step)
    return tuple(path)


def _sentence(detail: ErrorDetails) -> str:
    known = _SENTENCES.get(detail["type"])
    if known is not None:
        return known
    message = detail["msg"].removeprefix("Value error, ")
    return message.replace("Input should be", "must be").replace("should have", "must have")


def _given(path: Path, fields: Any) -> str:
    value: object = functools.reduce(operator.getitem, path, fields)
    return f"; given: {_JSON_TYPES.get(type(value), 'another type')}"
