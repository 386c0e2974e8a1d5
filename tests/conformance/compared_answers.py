"""What two servers answer to the same call, as paths and their values; and where these differ.

A path is `status`, `headers.content-type`, `body.choices[0].message.content`. Of a stream there are two kinds: what its
chunks add up to (`stream.choices[0].text`), and of what types each kind of chunk is made (`chunk(text).choices[].index`
is `int`). Ids and times differ from call to call: of these only the form is told.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import httpx
from conformance.compared_requests import Compared

ABSENT = "(absent)"
TOLERANCE = 1e-3  # of log probabilities: float32, and steps that are put together otherwise
HEADERS = ("content-type", "cache-control", "allow", "retry-after", "x-should-retry")
PRESENT = ("x-request-id", "openai-processing-ms", "x-headrace-model-version", "x-headrace-queue-ms")
DONE = "[DONE]"

Values = dict[str, Any]


class Difference(NamedTuple):
    """Where the answers to a call differ."""

    path: str
    there: Any  # at `vllm serve`
    here: Any


def observed(client: httpx.Client, base: str, asked: Compared) -> Values:
    """Send a call; all that its answer says."""
    headers = {} if asked.content_type is None else {"content-type": asked.content_type}
    content = json.dumps(asked.body).encode() if asked.body is not None else asked.raw
    answer = client.request(asked.method, base + asked.path, content=content, headers=headers)
    return values_of(answer.status_code, answer.headers, answer.text)


def values_of(status: int, headers: Any, text: str) -> Values:
    """All that an answer says."""
    found: Values = {"status": status}
    found |= {f"headers.{name}": headers[name] for name in HEADERS if name in headers}
    found |= {f"headers.{name}": "(present)" for name in PRESENT if name in headers}
    kind = headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return found | _of_stream([*events_in(text)])
    if kind.startswith("application/json"):
        return found | dict(leaves("body", json.loads(text)))
    return found | {"body": text}


def differences(there: Values, here: Values) -> list[Difference]:
    """Where two answers differ. Where their status does, the rest says nothing."""
    if there["status"] != here["status"]:
        return [Difference("status", there["status"], here["status"])]
    paths = [*there, *(path for path in here if path not in there)]
    pairs = ((path, there.get(path, ABSENT), here.get(path, ABSENT)) for path in paths)
    return [Difference(*pair) for pair in pairs if not _same(*pair[1:])]


def _same(there: Any, here: Any) -> bool:
    if type(there) is float and type(here) is float:
        return math.isclose(there, here, rel_tol=0, abs_tol=TOLERANCE)
    return type(there) is type(here) and there == here


# --- JSON -----------------------------------------------------------------------------------------------------------


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each value that has no parts, with its path."""
    members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    items = cast("list[Any]", value) if isinstance(value, list) else []
    for name, member in members.items():
        yield from leaves(f"{path}.{name}", member)
    for place, member in enumerate(items):
        yield from leaves(f"{path}[{place}]", member)
    if not (members or items):
        yield path, _form(path, value)


def _form(path: str, value: Any) -> Any:
    """A value that is the same in every answer to the same call."""
    name = path.rpartition(".")[2]
    if name == "created" and isinstance(value, int) and abs(value - time.time()) < 600:
        return "(now)"
    if name == "id" and isinstance(value, str):
        return re.sub(r"^(chatcmpl|cmpl|call|modelperm)-?_?.+$", r"\1-...", value)
    if name == "system_fingerprint" and isinstance(value, str):
        return "(a fingerprint)"
    return value


# --- streams --------------------------------------------------------------------------------------------------------


def events_in(text: str) -> Iterator[Any]:
    """The data of server-sent events; `[DONE]` as it is."""
    for line in text.split("\n"):
        if line and not line.startswith(":"):
            assert line.startswith("data: "), line
            data = line.removeprefix("data: ")
            yield DONE if data == DONE else json.loads(data)


def _of_stream(events: list[Any]) -> Values:
    chunks = [each for each in events if each != DONE and "error" not in each]
    errors = [each for each in events if each != DONE and "error" in each]
    whole: dict[str, Any] = {
        "done": events.count(DONE),
        "ends with": "nothing" if not events else DONE if events[-1] == DONE else "data",
        "ids": len({each["id"] for each in chunks}),
        "created": len({each["created"] for each in chunks}),
        "choices": _folded(chunks),
        **({"usage": [each["usage"] for each in chunks if each.get("usage")]} if chunks else {}),
        **({"errors": errors} if errors else {}),
    }
    return dict(leaves("stream", whole)) | _shapes(chunks)


def _folded(chunks: Iterable[Any]) -> list[Any]:
    """What the chunks add up to: a choice for each index."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": "", "order": []})
    for chunk in chunks:
        for given in chunk["choices"]:
            choice, delta = choices[given["index"]], given.get("delta", {"content": given.get("text")})
            for kind in kinds_of(given):
                if choice["order"][-1:] != [kind]:
                    choice["order"].append(kind)
            choice["text"] += delta.get("content") or ""
            if "role" in delta:
                choice["role"] = delta["role"]
            for call in delta.get("tool_calls") or ():
                _fold_call(choice.setdefault("tool_calls", {}), call)
            if given.get("logprobs"):
                _fold_logprobs(choice.setdefault("logprobs", {}), given["logprobs"])
            for name in ("finish_reason", "stop_reason"):
                if given.get(name) is not None:
                    choice[name] = given[name]
    for choice in choices.values():
        choice["order"] = " ".join(choice["order"])
    return [choices[index] for index in sorted(choices)]


def _fold_call(calls: dict[str, Any], given: Any) -> None:
    call = calls.setdefault(str(given["index"]), {"arguments": ""})
    function: dict[str, Any] = given.get("function") or {}
    call |= {name: given[name] for name in ("id", "type") if given.get(name)}
    call |= {"name": function["name"]} if function.get("name") else {}
    call["arguments"] += function.get("arguments") or ""


def _fold_logprobs(logprobs: dict[str, Any], given: Any) -> None:
    for name, values in given.items():
        if isinstance(values, list):
            logprobs.setdefault(name, []).extend(values)


def kinds_of(choice: Any) -> list[str]:
    """What a choice in a chunk tells: its role, text, a tool call, its end; several of them, or nothing."""
    delta = choice.get("delta", {"content": choice.get("text")})
    told = {
        "role": "role" in delta,
        "text": bool(delta.get("content")),
        "tool": bool(delta.get("tool_calls")),
        "end": choice.get("finish_reason") is not None,
    }
    return [kind for kind, there in told.items() if there] or ["nothing"]


def _shapes(chunks: Iterable[Any]) -> Values:
    """The types at each path of each kind of chunk."""
    found: dict[str, set[str]] = defaultdict(set)
    for chunk in chunks:
        kinds = {kind for choice in chunk["choices"] for kind in kinds_of(choice)} or {"usage"}
        for path, value in leaves("", chunk):
            shape = re.sub(r"\[\d+\]", "[]", path)
            shape = re.sub(r"\.(top_logprobs\[\])\..+", r".\1", shape)  # its names are tokens
            for kind in kinds:
                found[f"chunk({kind}){shape}"].add(_type(value))
    return {path: " or ".join(sorted(types)) for path, types in found.items()}


def _type(value: Any) -> str:
    return {"NoneType": "null", "dict": "{}", "list": "[]"}.get(type(value).__name__, type(value).__name__)
