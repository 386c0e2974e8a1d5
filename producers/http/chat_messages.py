"""From a chat's messages to a Request's: known keys kept, parts checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from headrace.producers.http.refusing import check, invalid, missing, unsupported
from headrace.producers.http.typed_values import as_list, as_object, as_one_of, as_text, without_nulls
from headrace.schemas.messages import ChatMessage

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_TEXTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA: Final = frozenset(
    {
        "image_url", "image", "input_image", "image_pil", "image_embeds", "audio_url", "audio", "input_audio",
        "audio_embeds", "video_url", "video", "input_video", "file", "input_file",
    }
)  # fmt: skip
_NO_MEDIA: Final = "a modality that the package lacks: it has text alone"
_OLD_CALL: Final = (
    "functions were replaced by tools: send an assistant's tool_calls, and role tool with a tool_call_id"
)
_MESSAGES: Final = TypeAdapter(list[ChatMessage])


def chat_messages(value: JsonValue) -> list[JsonObject]:
    """A Request's `messages`. Raises ApiError with the place of what is wrong.

    Keys that a message of ours has not are left out: clients send past answers back with all that was in them.
    """
    if value is None:
        raise missing("messages")
    given = as_list(value, "messages")
    if not given:
        raise invalid("messages", "must have at least one message")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(given)]
    check(_MESSAGES, messages, "messages")
    return messages


def _message(value: JsonValue, param: str) -> JsonObject:
    given = without_nulls(as_object(value, param))
    if "role" not in given:
        raise missing(f"{param}.role")
    if given["role"] == "function":
        raise unsupported(f"{param}.role", _OLD_CALL)
    message: JsonObject = {"role": as_one_of(given["role"], _ROLES, f"{param}.role")}
    if "function_call" in given:
        raise unsupported(f"{param}.function_call", _OLD_CALL)
    if "audio" in given:
        raise unsupported(f"{param}.audio", _NO_MEDIA)
    content = _content(given, param)
    if content is not None:
        message["content"] = content
    message |= {name: given[name] for name in ("name", "tool_call_id") if name in given}
    calls = as_list(given.get("tool_calls", []), f"{param}.tool_calls")
    if calls:
        message["tool_calls"] = [
            _tool_call(call, f"{param}.tool_calls[{index}]") for index, call in enumerate(calls)
        ]
    return message


def _content(given: JsonObject, param: str) -> str | list[JsonObject] | None:
    """The text or the parts. An assistant that refused has said its refusal."""
    content = given.get("content")
    if content is None:
        refusal = given.get("refusal") if given["role"] == "assistant" else None
        return None if refusal is None else as_text(refusal, f"{param}.refusal")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{param}.content", "must be a string or an array of text parts")
    parts = as_list(content, f"{param}.content")
    return [_part(part, f"{param}.content[{index}]") for index, part in enumerate(parts)]


def _part(value: JsonValue, param: str) -> JsonObject:
    if isinstance(value, str):
        return {"type": "text", "text": value}
    part = without_nulls(as_object(value, param))
    if "type" not in part:
        raise missing(f"{param}.type")
    kind = as_text(part["type"], f"{param}.type")
    if kind in _MEDIA:
        raise unsupported(param, f"{kind} is {_NO_MEDIA}")
    member = _TEXTS.get(kind)
    if member is None:
        raise invalid(f"{param}.type", "must be 'text'")
    if member not in part:
        raise missing(f"{param}.{member}")
    return {"type": "text", "text": as_text(part[member], f"{param}.{member}")}


def _tool_call(value: JsonValue, param: str) -> JsonObject:
    call = without_nulls(as_object(value, param))
    kind = call.get("type", "function")
    if kind != "function":
        raise unsupported(f"{param}.type", "functions are the only kind of tool")
    known: JsonObject = {name: call[name] for name in ("id", "function") if name in call}
    if "function" in known:
        function = without_nulls(as_object(known["function"], f"{param}.function"))
        known["function"] = {name: function[name] for name in ("name", "arguments") if name in function}
    return {"type": "function", **known}
