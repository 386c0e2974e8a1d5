"""A job's keys from a command's options: alone, or in place of those of a job's file.

Options are named as the keys are. Beside them `input_format` and `output_format` say the formats of `input` and
`output`; those of `variables`, `sampling` and `attributes` are added to the file's, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

_ADDED: Final = ("variables", "sampling", "attributes")
_PATHS: Final = ("input", "output", "openai_batch", "package", "prompt_file", "output_schema")
_FORMATS: Final = {"input": "input_format", "output": "output_format"}


def with_options(table: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A job's keys. Of `options` those that are None were not given; their paths count from the working directory."""
    given = {name: value for name, value in options.items() if value is not None}
    found = dict(table)
    for name, value in given.items():
        if name in _FORMATS.values():
            continue
        if name in _ADDED and isinstance(found.get(name), dict):
            found[name] = {**found[name], **value}
        else:
            found[name] = _absolute(value) if _is_path(name, value) else value
    for name, option in _FORMATS.items():
        if option in given and name in found:
            place: Any = found[name]
            path: Any = cast("dict[str, Any]", place).get("path") if isinstance(place, dict) else place
            found[name] = {"path": path, "format": given[option]}
    return found


def _is_path(name: str, value: object) -> bool:
    if not isinstance(value, str):
        return False
    return name in _PATHS or (name == "reuse" and ("/" in value or bool(PurePosixPath(value).suffix)))


def _absolute(path: str) -> str:
    """A URI as it is. A slash at the end stays: it tells a folder from a file."""
    if "://" in path or not path:
        return path
    return str(Path.cwd() / Path(path).expanduser()) + ("/" if path.endswith("/") else "")
