"""The JSON text that a model wrote, read as strictly as the most careful of its readers would."""

from __future__ import annotations

from headrace.schemas import strict_json
from headrace.schemas.errors import OutputNotJson, OutputUnparsable
from headrace.schemas.messages import JsonValue


def parse_output(text: str) -> JsonValue:
    """The value of an output's text.

    Raises OutputNotJson, and nothing else, for what is not JSON or not the same JSON to every reader:
    duplicate keys, numbers beyond a double's range, NaN and the infinities, lone surrogates, nesting beyond
    `strict_json.MAX_DEPTH`. Says where: a pointer into the value, or the byte's offset where it is syntax; then it
    is OutputUnparsable.
    """
    if not text.isascii():
        _refuse_unwritable(text)
    try:
        return strict_json.parse(text)
    except strict_json.JsonFault as fault:
        if fault.index is not None:
            raise OutputUnparsable(fault.reason, offset=_bytes_before(text, fault.index)) from None
        raise OutputNotJson(fault.reason, path=strict_json.pointer(fault.path)) from None


def _bytes_before(text: str, index: int) -> int:
    return len(text[:index].encode("utf-8", "replace"))


def _refuse_unwritable(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"a lone surrogate (U+{ord(text[error.start]):04X}), which cannot be written as UTF-8"
        raise OutputNotJson(message, offset=_bytes_before(text, error.start)) from None
