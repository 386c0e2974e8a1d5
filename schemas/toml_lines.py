"""On which line of a TOML file a key stands: `tomllib` does not say. Pure."""

from __future__ import annotations

import re

_TABLE = re.compile(r"\s*\[{1,2}\s*([^\[\]]+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')"""
_ENTRY = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*=")
_NAME = re.compile(_KEY)
# Whatever may hide the three quotes of a string of many lines comes first.
_QUOTES = re.compile(r"\"\"\"|'''|\"(?:[^\"\\]|\\.)*\"|'[^']*'|#.*|\\.")


def line_of(text: str, keys: tuple[str, ...]) -> int | None:
    """The line, from 1, where a key stands, or else the nearest table or key around it.

    None where neither is in the text: a key that is missing at the top.
    """
    best: tuple[int, int] | None = None
    for number, path in _places(text):
        shared = len(path) if keys[: len(path)] == path else 0
        if shared and (best is None or shared > best[0]):
            best = (shared, number)
    return best[1] if best else None


def _places(text: str) -> list[tuple[int, tuple[str, ...]]]:
    found: list[tuple[int, tuple[str, ...]]] = []
    table: tuple[str, ...] = ()
    inside: str | None = None  # the quotes of the string that goes on from the line before
    for number, line in enumerate(text.splitlines(), start=1):
        if inside is None:
            if header := _TABLE.match(line):
                table = _names(header[1])
                found.append((number, table))
            elif entry := _ENTRY.match(line):
                found.append((number, table + _names(entry[1])))
        inside = _inside_after(line, inside)
    return found


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip("\"'") for name in _NAME.findall(dotted))


def _inside_after(line: str, inside: str | None) -> str | None:
    position = 0
    while True:
        if inside is not None:
            end = _closing(line, inside, position)
            if end is None:
                return inside
            position, inside = end, None
        match = _QUOTES.search(line, position)
        if match is None:
            return None
        position = match.end()
        if match[0] in ('"""', "'''"):
            inside = match[0]


def _closing(line: str, quotes: str, position: int) -> int | None:
    """Behind the quotes that end a string of many lines, or None where this line does not end it."""
    while True:
        end = line.find(quotes, position)
        if end < 0:
            return None
        backslashes = len(line[:end]) - len(line[:end].rstrip("\\"))
        if quotes == "'''" or backslashes % 2 == 0:
            return end + 3
        position = end + 1
