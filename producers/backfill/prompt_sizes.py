"""How large a request's prompt is: in tokens of the model's own tokenizer where it is at hand, else in characters."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.schemas.errors import MessageError
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.strict_json import dump

if TYPE_CHECKING:
    from headrace.schemas.package import Package

_FILE: Final = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """Sizes of prompts. `counts_tokens`: whether they are in tokens, and `basis` says of what.

    What the model's chat template puts around messages is not among them, nor, without the package, what the
    package's does around variables.
    """

    counts_tokens: bool
    basis: str
    _package: Package | None
    _count: Callable[[str], int]

    def of(self, fields: JsonObject) -> int:
        """Of the prompt that a request's fields ask for."""
        return sum(map(self._count, _texts(fields, self._package)))


def prompt_sizes(package: Package | None) -> PromptSizes:
    """The best measure that there is, for a package where it is known."""
    if package is None:
        return PromptSizes(False, "the job names no package, so its tokenizer is not known", None, len)
    file = _tokenizer_file(package)
    if file is None:
        return PromptSizes(
            False, f"there is no {_FILE} of the package's weights on this machine", package, len
        )
    if importlib.util.find_spec("tokenizers") is None:
        return PromptSizes(False, "the library `tokenizers` is not installed here", package, len)
    library: Any = importlib.import_module("tokenizers")
    try:
        tokenizer: Any = library.Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 (the library raises plain Exception)
        return PromptSizes(False, f"{file} cannot be read: {str(error)[:200]}", package, len)
    return PromptSizes(
        True,
        f"counted by {file}",
        package,
        lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
    )


def _tokenizer_file(package: Package) -> Path | None:
    for place in (package.tokenizer, package.weights):
        if isinstance(place, Path) and (place / _FILE).is_file():
            return place / _FILE
        if isinstance(place, str) and (file := _downloaded(place, package.revision)) is not None:
            return file
    return None


def _downloaded(name: str, revision: str | None) -> Path | None:
    """The file in the hub's cache of this machine; nothing is downloaded."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        found: object = hub.try_to_load_from_cache(name, _FILE, revision=revision)
    except ValueError:  # no name that the hub could have
        return None
    return Path(found) if isinstance(found, str) else None


def _texts(fields: JsonObject, package: Package | None) -> list[str]:
    """The texts of a prompt; what can be seen of them without the package's template, where there is none."""
    if (variables := fields.get("variables")) is not None:
        if package is None or package.prompt is None:
            return [_text(value) for value in variables.values()]
        try:
            rendered = package.prompt.render(variables)
        except MessageError:  # the worker will refuse it
            return []
        return [rendered] if isinstance(rendered, str) else [_text(turn.content) for turn in rendered]
    if (prompt := fields.get("prompt")) is not None:
        return [_text(prompt)]
    turns = cast("list[JsonObject]", fields.get("messages") or [])
    return [_text(turn.get("content")) for turn in turns] + [
        _text(each) for each in fields.get("tools") or ()
    ]


def _text(value: JsonValue) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else dump(value)
