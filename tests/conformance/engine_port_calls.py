"""What every engine must do where its model may call tools: a suite for the simulated engine and for vLLM.

A test module makes a subclass whose name begins with `Test`, and gives a fixture `port`, as for `engine_port`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from conformance.engine_port import Port, Seen, collect, job

from headrace.schemas.messages import ChatMessage, Tool
from headrace.workers.engine import ChatPrompt, TextPrompt


class EngineCallsPort:
    """The suite. Subclass it and give `port`."""

    TOOLS: list[Tool] = [  # noqa: RUF012 - read only
        Tool.model_validate({"function": {"name": "look", "parameters": {"type": "object"}}}),
    ]

    def written(
        self,
        port: Port,
        regex: str,
        *,
        stop: list[str] | None = None,
        max_tokens: int = 120,
        stream: bool = False,
    ) -> Seen:
        """What becomes of a text where tools may be called; the regex says what the model writes."""

        async def go() -> Seen:
            prompt = ChatPrompt([ChatMessage(role="user", content="mill")], self.TOOLS)
            sampling: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop}
            asked = job(
                await port.engine.encode(prompt),
                constraint={"regex": regex},
                sampling=sampling,
                calls_of=prompt,
                stream=stream,
            )
            return await collect(port.engine.generate(asked))

        return port.run(go())

    CALL = r'<tool_call>\{"name": "look", "arguments": \{"at": [1-9]\}\}</tool_call>'

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_call_of_a_tool_is_parted_from_what_is_said(self, port: Port, stream: bool) -> None:
        seen = self.written(port, f"Let me see: {self.CALL}\n{self.CALL}", stream=stream)
        (choice,) = seen.generation.choices
        assert choice.finish_reason == "stop"
        assert choice.text.startswith("Let me see: <tool_call>"), "it is there as it was written"
        assert "".join(delta.text for delta in seen.deltas) == (choice.text if stream else "")
        assert choice.parted is not None
        assert (choice.parted.content, choice.parted.unread) == ("Let me see: ", False)
        assert [call.name for call in choice.parted.calls] == ["look", "look"]
        assert all(1 <= json.loads(call.arguments)["at"] <= 9 for call in choice.parted.calls)
        assert len({call.id for call in choice.parted.calls} - {""}) == 2

    def test_a_text_without_a_call_is_said(self, port: Port) -> None:
        choice = self.written(port, "No call at [1-9]").generation.choices[0]
        assert choice.parted is not None
        assert (choice.parted.content, choice.parted.calls, choice.parted.unread) == (choice.text, [], False)

    def test_a_call_that_is_cut_off_is_none(self, port: Port) -> None:
        choice = self.written(port, self.CALL, max_tokens=8).generation.choices[0]
        assert choice.finish_reason == "length"
        assert choice.parted is not None
        assert (choice.parted.calls, choice.parted.unread) == ([], True)

    def test_a_call_that_ends_too_early_is_none(self, port: Port) -> None:
        choice = self.written(port, self.CALL, stop=['"at"']).generation.choices[0]
        assert choice.finish_reason == "stop"
        assert choice.parted is not None
        assert (choice.parted.calls, choice.parted.unread) == ([], True)

    def test_no_calls_are_looked_for_where_none_may_be_made(self, port: Port) -> None:
        async def go() -> Seen:
            token_ids = await port.engine.encode(TextPrompt("mill"))
            asked = job(token_ids, constraint={"regex": self.CALL}, sampling={"max_tokens": 120})
            return await collect(port.engine.generate(asked))

        seen = port.run(go())
        assert seen.generation.choices[0].parted is None
        assert seen.text.startswith("<tool_call>")
