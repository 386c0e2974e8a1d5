"""What a caller is told of one parameter at fault: status 400, the parameter's name, and OpenAI's code for the fault.

`param` is as OpenAI writes it: `temperature`, `messages[0].content[1].text`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError

from headrace.producers.http.wanted import ApiError
from headrace.schemas.field_errors import explain

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonValue

MAX_NAME_CHARACTERS = 100  # of a caller's own name in an answer: an error must not echo a key of megabytes


def missing(param: str, sentence: str = "") -> ApiError:
    """A parameter that the endpoint cannot do without."""
    message = f"Missing required parameter: '{param}'." + (f" {sentence}" if sentence else "")
    return ApiError(400, message, reason="missing_required_parameter", param=param)


def invalid(param: str, sentence: str) -> ApiError:
    """A value that the parameter cannot have; `sentence` says which it can, without a full stop."""
    return ApiError(400, f"Invalid '{param}': {sentence}.", reason="invalid_value", param=param)


def unsupported(param: str, sentence: str) -> ApiError:
    """What OpenAI or vLLM would take and this endpoint cannot serve; `sentence` says why, or what to send instead."""
    return ApiError(
        400, f"'{param}' is not supported: {sentence}.", reason="unsupported_parameter", param=param
    )


def unknown(param: str, hint: str = "") -> ApiError:
    """A name that is no parameter, here or of a part of one."""
    message = f"Unknown parameter: '{param}'." + (f" {hint}" if hint else "")
    return ApiError(400, message, reason="unknown_parameter", param=param)


def check(adapter: TypeAdapter[Any], value: JsonValue, param: str) -> None:
    """Raises ApiError where `value` is not what a message of ours has there, with the path below `param`."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        raise _refused(error, value, param) from None


def shortened(name: str) -> str:
    """A caller's own name, cut to what an answer may hold."""
    return name if len(name) <= MAX_NAME_CHARACTERS else name[:MAX_NAME_CHARACTERS] + "…"


def _refused(error: ValidationError, value: JsonValue, param: str) -> ApiError:
    explained = explain(error, value)
    return invalid(param + _below(value, explained.path), explained.message)


def _below(value: JsonValue, pointer: str | None) -> str:
    """A JSON pointer into `value` as OpenAI writes paths: an index in brackets, a key behind a dot."""
    written = ""
    here: object = value
    for step in (pointer or "").split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(here, list):
            written += f"[{key}]"
            here = cast("list[object]", here)[int(key)]
        else:
            written += f".{key}"
            here = cast("dict[str, object]", here).get(key) if isinstance(here, dict) else None
    return written
