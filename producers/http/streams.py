"""Server-sent events as OpenAI sends them: a chat's or a completion's chunks, one after the other. Pure.

    stream = ChatStream(wanted, request_id=..., created=...)
    send(stream.first()); send(stream.text("Hel")); send(stream.text("lo")); send(*stream.finish(result))

`KEEP_ALIVE` may be sent between any two of them: clients take it for a comment.
"""

from __future__ import annotations

from typing import Final, Protocol

from headrace.producers.asking import raise_for_status
from headrace.producers.http import answers
from headrace.producers.http.wanted import ApiError, Wanted
from headrace.schemas.errors import StreamRestarted
from headrace.schemas.messages import JsonObject, Output, Result

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"

# JSON need not escape these, and not every client's reader splits lines at \n and \r only (Python's `splitlines`,
# which `httpx.Response.iter_lines` is made of, splits at these too).
_LINE_ENDS: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


class EventStream(Protocol):
    """The events of one call. `prompt` is the place of a prompt among the call's `asked`."""

    def first(self) -> bytes:
        """What goes out before any text; may be empty."""
        ...

    def text(self, piece: str, prompt: int = 0) -> bytes:
        """More text of the first choice; empty where it is held back for `finish`."""
        ...

    def finish(self, result: Result, prompt: int = 0) -> list[bytes]:
        """What of a prompt's choices was not sent yet and, with the last of the prompts, the end of the stream.

        Raises StreamRestarted where the text that was sent is no beginning of the result's, RequestFailed for a
        result that is not `ok`, ApiError where a forced tool call cannot be read; `failed` then ends the stream.
        """
        ...

    def failed(self, error: ApiError) -> bytes:
        """The end of a stream that cannot go on: clients raise it. No `[DONE]` follows, which would say all is well."""
        ...


class _Stream:
    """What both streams have in common. A choice's `deltas` are the parts of its chunks that differ."""

    _kind: str  # the chunks' `object`

    def __init__(self, wanted: Wanted, completion_id: str, created: int) -> None:
        self._wanted = wanted
        self._head: JsonObject = {
            "id": completion_id,
            "object": self._kind,
            "created": created,
            "model": wanted.model,
            "system_fingerprint": None,  # known with the result: in the chunks at the end
        }
        self._sent: dict[int, list[str]] = {}  # choice: its pieces of text
        self._results: dict[int, Result] = {}  # prompt: its result

    def text(self, piece: str, prompt: int = 0) -> bytes:
        if not piece or self._wanted.tool is not None:
            return b""
        index = prompt * self._wanted.choices
        self._sent.setdefault(index, []).append(piece)
        return self._chunk([self._choice(index, piece)])

    def finish(self, result: Result, prompt: int = 0) -> list[bytes]:
        raise_for_status(result)
        fingerprint = answers.system_fingerprint([result])
        choices: list[JsonObject] = []
        for place, output in enumerate(result.outputs):
            index = prompt * self._wanted.choices + place
            rest = self._rest(index, output)
            choices += self._last_of(index, output, rest, result, place)
        self._results[prompt] = result
        events = [self._chunk([choice], fingerprint=fingerprint) for choice in choices]
        return events + self._end()

    def failed(self, error: ApiError) -> bytes:
        return event(error.as_json())

    def _rest(self, index: int, output: Output) -> str:
        sent = "".join(self._sent.get(index, ()))
        if not output.text.startswith(sent):
            raise StreamRestarted(
                "the answer differs from the text that was sent so far; ask again for the whole of it"
            )
        return output.text[len(sent) :]

    def _end(self) -> list[bytes]:
        if len(self._results) < len(self._wanted.asked):
            return []
        if not self._wanted.include_usage:
            return [DONE]
        results = list(self._results.values())
        fingerprint = answers.system_fingerprint(results)
        return [self._chunk([], usage=answers.usage(results), fingerprint=fingerprint), DONE]

    def _chunk(
        self, choices: list[JsonObject], *, usage: JsonObject | None = None, fingerprint: str | None = None
    ) -> bytes:
        chunk = self._head | {"choices": choices}
        if fingerprint is not None:
            chunk["system_fingerprint"] = fingerprint
        if self._wanted.include_usage:
            chunk["usage"] = usage
        return event(chunk)

    def _choice(self, index: int, text: str) -> JsonObject:
        """A choice with more text."""
        raise NotImplementedError

    def _last_of(self, index: int, output: Output, rest: str, result: Result, place: int) -> list[JsonObject]:
        """What is left to say of a choice, each for a chunk of its own; the last has the finish reason."""
        raise NotImplementedError


class ChatStream(_Stream):
    """The events of `/v1/chat/completions`."""

    _kind = "chat.completion.chunk"

    def __init__(self, wanted: Wanted, *, request_id: str, created: int) -> None:
        """`created` in seconds since the epoch."""
        super().__init__(wanted, answers.chat_id(request_id), created)
        self._head["service_tier"] = answers.service_tier(wanted)

    def first(self) -> bytes:
        """The role, for each choice."""
        content = "" if self._wanted.tool is None else None
        delta: JsonObject = {"role": "assistant", "content": content, "refusal": None}
        return b"".join(self._chunk([_chat_choice(index, delta)]) for index in range(self._wanted.choices))

    def _choice(self, index: int, text: str) -> JsonObject:
        return _chat_choice(index, {"content": text})

    def _last_of(self, index: int, output: Output, rest: str, result: Result, place: int) -> list[JsonObject]:
        deltas: list[JsonObject] = []
        calls = answers.tool_calls(result, place, self._wanted)
        if thought := answers.reasoning(output):
            deltas.append(thought)
        if rest and (not calls or answers.spoken_text(output)):
            deltas.append({"content": rest})
        for number, call in enumerate(calls):
            deltas.append({"tool_calls": [{"index": number, **call}]})
        logprobs = answers.chat_logprobs(output, self._wanted)
        if logprobs is not None and not deltas:
            deltas.append({})
        choices = [_chat_choice(index, delta) for delta in deltas]
        if logprobs is not None:
            choices[-1]["logprobs"] = logprobs  # all at once: pieces of text that were sent came without
        finish_reason = answers.chat_finish_reason(output, self._wanted.tool)
        return [*choices, _chat_choice(index, {}, finish_reason)]


class TextStream(_Stream):
    """The events of `/v1/completions`."""

    _kind = "text_completion"

    def __init__(self, wanted: Wanted, *, request_id: str, created: int) -> None:
        """`created` in seconds since the epoch."""
        super().__init__(wanted, answers.text_id(request_id), created)

    def first(self) -> bytes:
        """Nothing."""
        return b""

    def _choice(self, index: int, text: str) -> JsonObject:
        return _text_choice(index, text)

    def _last_of(self, index: int, output: Output, rest: str, result: Result, place: int) -> list[JsonObject]:
        logprobs = answers.text_logprobs(output, self._wanted)
        thought = answers.reasoning(output)
        choices: list[JsonObject] = []
        if rest or thought or logprobs is not None:
            choices.append(_text_choice(index, rest) | thought | {"logprobs": logprobs})
        return [*choices, _text_choice(index, "", answers.text_finish_reason(output))]


def event(data: JsonObject) -> bytes:
    """One server-sent event."""
    encoded = answers.encode_json(data)
    if not encoded.isascii():
        for character, escaped in _LINE_ENDS:
            encoded = encoded.replace(character, escaped)
    return b"data: " + encoded + b"\n\n"


def _chat_choice(index: int, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _text_choice(index: int, text: str, finish_reason: str | None = None) -> JsonObject:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
