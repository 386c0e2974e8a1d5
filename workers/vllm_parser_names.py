"""The names of vLLM's parsers, read out of its source: a check of a package is not to wait the ten seconds that
importing vLLM takes.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from headrace.schemas.errors import PackageError
from headrace.schemas.toml_lines import line_of

if TYPE_CHECKING:
    from headrace.schemas.package import Package

Kind = Literal["reasoning_parser", "tool_parser"]

# Of each kind: the package of vLLM whose `__init__.py` lists them, and the list's name there.
_LISTS: Final[dict[Kind, tuple[str, str]]] = {
    "reasoning_parser": ("reasoning", "_REASONING_PARSERS_TO_REGISTER"),
    "tool_parser": ("tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
}


def listed(kind: Kind) -> list[str] | None:
    """The parsers that the installed vLLM has; None where there is none, or it lists them in another way."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        return None
    folder, name = _LISTS[kind]
    try:
        source = ast.parse((Path(found.origin).parent / folder / "__init__.py").read_text(encoding="utf-8"))
        for each in source.body:
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name:
                return sorted(ast.literal_eval(each.value))
    except (OSError, SyntaxError, ValueError):
        pass
    return None


def check_name(kind: Kind, name: str, known: Sequence[str]) -> None:
    """Raises PackageError, with a suggestion, for a parser that is none of these."""
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
        raise PackageError(f"vLLM has no {kind.replace('_', ' ')} {name!r}; {hint}", key=kind)


def check_package(package: Package) -> None:
    """Raises PackageError for a parser that the installed vLLM does not list. Without vLLM nothing can be said."""
    given: dict[Kind, str | None] = {
        "reasoning_parser": package.reasoning_parser,
        "tool_parser": package.tool_parser,
    }
    for kind, name in given.items():
        known = None if name is None else listed(kind)
        if name is None or known is None:
            continue
        try:
            check_name(kind, name, known)
        except PackageError as error:
            line = line_of(package.file.read_text(encoding="utf-8-sig"), (kind,))
            message = error.message.removeprefix(f"{kind}: ")
            raise PackageError(message, file=package.file, line=line, key=kind) from None
