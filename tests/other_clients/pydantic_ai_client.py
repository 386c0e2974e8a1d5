"""pydantic-ai: its three ways to an output of a type, text, and streams."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from outcomes import MODEL, QUESTION, TAGGED, Mood, Outcomes, base_url
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

told = Outcomes()
provider = OpenAIProvider(base_url=base_url(), api_key="none")
model = OpenAIChatModel(MODEL, provider=provider)


async def run(output_type: Any, model: OpenAIChatModel = model) -> Any:
    return (await Agent(model, output_type=output_type, retries=0).run(QUESTION)).output


async def run_with_tool() -> Any:
    agent = Agent(model, output_type=Mood)

    @agent.tool_plain
    def weather(town: Literal["Kigali", "Brno"]) -> str:
        """Look up the weather of a town."""
        return f"It rains in {town}."

    return (await agent.run(QUESTION)).output


async def stream(output_type: Any) -> Any:
    async with Agent(model, output_type=output_type, retries=0).run_stream(QUESTION) as answer:
        return await answer.get_output()


async def main() -> None:
    await told.await_call("plain", lambda: run(str))
    await told.await_call("model", lambda: run(Mood))
    await told.await_call("tool", lambda: run(ToolOutput(Mood)))
    await told.await_call("native", lambda: run(NativeOutput(Mood)))
    await told.await_call(
        "prompted", lambda: run(PromptedOutput(Mood), OpenAIChatModel(TAGGED, provider=provider))
    )
    await told.await_call("with a tool", run_with_tool)
    await told.await_call("stream", lambda: stream(str))
    await told.await_call("stream of a model", lambda: stream(Mood))


asyncio.run(main())
told.print()
