"""What vLLM says of a fault, in our words."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Mapping
from typing import Any

from headrace.schemas.errors import PackageError


@functools.cache
def client_errors() -> tuple[type[Exception], ...]:
    """What vLLM raises when the request is at fault; pydantic's comes from the constructors of its parameters."""
    vllm_exceptions: Any = importlib.import_module("vllm.exceptions")
    pydantic: Any = importlib.import_module("pydantic")
    return (vllm_exceptions.VLLMClientError, pydantic.ValidationError)


def reason(error: BaseException) -> str:
    """An error's message on one line, without the addition that vLLM makes of the refused value."""
    text = str(error.args[0]) if error.args and isinstance(error.args[0], str) else str(error)
    return " ".join(text.split()) or type(error).__name__


def check_known(arguments: Mapping[str, Any], known: set[str]) -> None:
    """Raises PackageError for an engine argument that is not among the `known`, with the one that is most like it."""
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise PackageError(f"vLLM has no such engine argument{hint}", key=f"engine.{name}")
