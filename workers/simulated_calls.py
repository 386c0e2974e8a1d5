"""Calls of tools on the simulated engine, written as Hermes writes them.

    <tool_call>{"name": "look", "arguments": {"at": 3}}</tool_call>

The tools that the last message names are called, in the order in which they were given.
"""

from __future__ import annotations

import hashlib
import json
import random
import re

from headrace.schemas.errors import EngineError
from headrace.schemas.messages import OutputConstraint, Tool
from headrace.schemas.tool_calls import NO_ARGUMENTS
from headrace.workers import simulated_text as texts
from headrace.workers.engine import ChatPrompt, FoundCall, PartedText

_BEGIN, _END = "<tool_call>", "</tool_call>"
_CALL = re.compile(f"{_BEGIN}(.*?){_END}|{_BEGIN}(.*)", re.DOTALL)
_ARGUMENTS_BYTES = 4_000  # of one call


def calls_text(prompt: ChatPrompt, grammars: texts.Grammars, dice: random.Random) -> bytes | None:
    """An answer with a call of each tool that the last message names; None where it names none."""
    content = prompt.messages[-1].content or ""
    said = content if isinstance(content, str) else "".join(part.text for part in content)
    called = [tool for tool in prompt.tools if re.search(rf"\b{re.escape(tool.function.name)}\b", said)]
    if not called:
        return None
    calls = [_call(tool.function.name, _arguments(tool, grammars, dice)) for tool in called]
    return "\n".join(["I look it up.", *calls]).encode()


def invalid_call(prompt: ChatPrompt) -> str:
    """A call that no tool takes: its arguments are no object."""
    return _call(prompt.tools[0].function.name, '"no"')


def parted(text: str, *, cut: bool) -> PartedText:
    """The calls in a text, as vLLM's parser of this notation finds them: all of them, or none."""
    calls: list[FoundCall] = []
    try:
        for closed, left_open in _CALL.findall(text):
            call = json.loads(closed or left_open)
            digest = hashlib.sha256(f"{len(calls)}:{text}".encode("utf-8", "replace")).hexdigest()
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            calls.append(FoundCall(f"call_{digest[:24]}", str(call["name"]), arguments))
    except (ValueError, TypeError, KeyError):
        return PartedText(text, unread=True)
    is_begun = cut and any(text.endswith(_BEGIN[:length]) for length in range(1, len(_BEGIN)))
    return PartedText(text.partition(_BEGIN)[0], calls, unread=is_begun)


def _call(name: str, arguments: str) -> str:
    return f'{_BEGIN}{{"name": {json.dumps(name)}, "arguments": {arguments}}}{_END}'


def _arguments(tool: Tool, grammars: texts.Grammars, dice: random.Random) -> str:
    given = tool.function.parameters
    schema = NO_ARGUMENTS if given is None else given or {"type": "object"}
    matcher = grammars.matcher(OutputConstraint(json_schema=schema))
    data, held = texts.constrained_text(matcher, dice, _ARGUMENTS_BYTES)
    if not held:
        raise EngineError(f"no arguments of {tool.function.name} can be made")
    return data.decode()
