"""JSON that every reader takes the same way, with the place of what is wrong.

Python's own `json` takes the last of two equal keys, reads `1e999` as infinity, and lets `NaN` and lone
surrogates through; other languages' readers do otherwise. Here each of these is refused, with its place.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 128  # levels of arrays and objects, in one JSON text
MAX_DIGITS: Final = 309  # of an integer: more are infinite to every reader that takes numbers for doubles

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPED_TOKEN: Final = {"~": "~0", "/": "~1"}
_TOKEN_LENGTH: Final = 100  # characters of one step: an error must not echo a key of megabytes


class JsonFault(ValueError):
    """`reason` is a sentence, `path` the steps to the place, `index` a character's where it is syntax."""

    def __init__(self, reason: str, path: tuple[str | int, ...] = (), index: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        self.index = index


def pointer(path: tuple[str | int, ...]) -> str | None:
    """The JSON pointer of a path; None for the whole document. Long keys are cut short."""
    if not path:
        return None
    return "".join("/" + _token(step) for step in path)


def _token(step: str | int) -> str:
    text = str(step)
    if len(text) > _TOKEN_LENGTH:
        text = text[:_TOKEN_LENGTH] + "…"
    text = text.encode(errors="backslashreplace").decode()
    return re.sub("[~/]", lambda match: _ESCAPED_TOKEN[match[0]], text)


def parse(text: str) -> Any:
    """The value of a JSON text. Raises JsonFault, and nothing else, whatever the text holds."""
    try:
        try:
            value = _FAST.decode(text)
        except _Suspicious:
            _find_marked(_MARKING.decode(text))
    except json.JSONDecodeError as error:
        raise JsonFault(f"not JSON: {error.msg}", index=error.pos) from None
    except RecursionError:
        raise JsonFault(f"nested more than {MAX_DEPTH} deep") from None
    _check_nesting(text, value)
    if _SURROGATE_ESCAPE.search(text) or not _is_unicode(text):
        _refuse_surrogates(value)
    return value


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def dump(value: Any) -> str:
    """The compact JSON text of a value, one that `parse` takes. Raises JsonFault for what is not JSON."""
    try:
        text = _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise JsonFault(f"not a JSON value: {error}") from None
    except RecursionError:
        raise JsonFault(f"nested more than {MAX_DEPTH} deep") from None
    _check_nesting(text, value)
    if not _is_unicode(text):
        _refuse_surrogates(value)
    return text


# --- what `json` lets through -------------------------------------------------------------------------------


class _Suspicious(Exception):
    """The text has something to refuse; where, a second pass finds out."""


class _Marked:
    """Stands in the parsed value where the fault was met."""

    def __init__(self, reason: str, key: str | None = None) -> None:
        self.reason = reason
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Suspicious
    return found


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _Suspicious
    return number


def _int(text: str) -> int:
    if len(text) >= MAX_DIGITS and _is_beyond_double(text):
        raise _Suspicious
    return int(text)


def _is_beyond_double(text: str) -> bool:
    return math.isinf(float(text))


def _constant(text: str) -> NoReturn:
    raise _Suspicious


def _mark_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Marked:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            return _Marked("this key is given twice", key)
        found[key] = value
    return found


def _mark_float(text: str) -> float | _Marked:
    number = float(text)
    return _Marked(f"{text[:40]} is beyond a double's range") if math.isinf(number) else number


def _mark_int(text: str) -> int | _Marked:
    if len(text) >= MAX_DIGITS and _is_beyond_double(text):
        return _Marked(f"an integer of {len(text.lstrip('-'))} digits is beyond a double's range")
    return int(text)


def _mark_constant(text: str) -> _Marked:
    return _Marked(f"{text} is not JSON")


_FAST: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_int=_int, parse_constant=_constant
)
_MARKING: Final = json.JSONDecoder(
    object_pairs_hook=_mark_object,
    parse_float=_mark_float,
    parse_int=_mark_int,
    parse_constant=_mark_constant,
)
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _find_marked(value: Any) -> NoReturn:
    for path, found in _walk(value):
        if isinstance(found, _Marked):
            raise JsonFault(found.reason, path if found.key is None else (*path, found.key))
    raise AssertionError("the second pass meets what the first one met")  # pragma: no cover


def _check_nesting(text: str, value: Any) -> None:
    if text.count("{") + text.count("[") > MAX_DEPTH:  # else it cannot be that deep
        for _ in _walk(value):
            pass


def _refuse_surrogates(value: Any) -> None:
    for path, found in _walk(value):
        for text in (found, path[-1] if path else None):
            if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
                raise JsonFault("a lone surrogate: half of a character", path)


def _walk(value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value with its path, outer ones first. Raises JsonFault where it is nested too deep.

    Without recursion, and with one open iterator a level: the value is a stranger's.
    """
    yield (), value
    open_: list[tuple[tuple[str | int, ...], Iterator[tuple[str | int, Any]]]] = [((), _children(value))]
    while open_:
        path, children = open_[-1]
        child = next(children, None)
        if child is None:
            open_.pop()
            continue
        step, inner = child
        here = (*path, step)
        yield here, inner
        if isinstance(inner, dict | list):
            if len(open_) >= MAX_DEPTH:
                raise JsonFault(f"nested more than {MAX_DEPTH} deep", here[:8])
            open_.append((here, _children(inner)))


def _children(value: Any) -> Iterator[tuple[str | int, Any]]:
    if isinstance(value, dict):
        yield from cast("dict[str, Any]", value).items()
    elif isinstance(value, list):
        yield from enumerate(cast("list[Any]", value))
