"""Where a job is written, so that its mistakes can be found: a file, a command's options, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.producers.backfill.failures import JobInvalid
from headrace.schemas.toml_lines import line_of

_OPTION_OF: Final = {"variables": "variable", "attributes": "attribute"}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a job is written. `options`: what was given on the command line, by key; None: there is none."""

    file: Path | None = None
    text: str = ""
    options: Mapping[str, Any] | None = None

    def fault(self, message: str, *keys: str) -> JobInvalid:
        """An error at a key (`"variables", "title"`), with the file and the line where there are some."""
        if self._is_option(keys):
            return JobInvalid(f"{option_of(*keys)}: {message}")
        line = line_of(self.text, keys) if self.text else None
        place = "" if self.file is None else f"{self.file}: " if line is None else f"{self.file}:{line}: "
        return JobInvalid(f"{place}{'.'.join(keys)}{': ' if keys else ''}{message}")

    def _is_option(self, keys: tuple[str, ...]) -> bool:
        if self.options is None or not keys:
            return False
        if self.file is None:
            return True
        if keys[1:] == ("format",) and f"{keys[0]}_format" in self.options:
            return True
        given = self.options.get(keys[0])
        return given is not None and (len(keys) == 1 or not isinstance(given, dict) or keys[1] in given)


def option_of(key: str, *below: str) -> str:
    """How a key is given on the command line: `--max-failures`, `--sampling temperature`, `--input-format`."""
    if key in ("input", "output"):
        return f"--{key}-format" if below == ("format",) else f"--{key}"
    return " ".join([f"--{_OPTION_OF.get(key, key).replace('_', '-')}", *below])
