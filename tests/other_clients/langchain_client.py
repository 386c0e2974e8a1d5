"""LangChain: `with_structured_output` by each method, text, a batch, streams, tools, and the old endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from outcomes import MODEL, QUESTION, TAGGED, Mood, Outcomes, base_url

told = Outcomes()
options: Any = {"base_url": base_url(), "api_key": "none"}
chat = ChatOpenAI(model=MODEL, **options)


def structured(chat: ChatOpenAI = chat, **how: Any) -> Any:
    return chat.with_structured_output(Mood, **how).invoke(QUESTION)


def bound() -> Any:
    (call,) = chat.bind_tools([Mood], tool_choice="any").invoke(QUESTION).tool_calls
    return Mood(**call["args"])


def after_a_tool() -> Any:
    asked = HumanMessage(QUESTION)
    called = chat.bind_tools([Mood], tool_choice="any").invoke([asked])
    told_it = ToolMessage("Noted.", tool_call_id=called.tool_calls[0]["id"])
    return chat.bind_tools([Mood], tool_choice="none").invoke([asked, called, told_it]).content


def streamed() -> str:
    return "".join(str(part.content) for part in chat.stream(QUESTION))


async def asynchronous() -> Any:
    return await chat.with_structured_output(Mood).ainvoke(QUESTION)


told.call("plain", lambda: chat.invoke(QUESTION).content)
told.call("structured", structured)
told.call("json_schema", lambda: structured(method="json_schema"))
told.call("function_calling", lambda: structured(method="function_calling"))
told.call("json_mode", lambda: structured(ChatOpenAI(model=TAGGED, **options), method="json_mode"))
told.call("strict", lambda: structured(method="function_calling", strict=True))
told.call("bound", bound)
told.call("after a tool", after_a_tool)
told.call("batch", lambda: [each.content for each in chat.batch([QUESTION, QUESTION])])
told.call("stream", streamed)
told.call(
    "logprobs",
    lambda: len(chat.bind(logprobs=True).invoke(QUESTION).response_metadata["logprobs"]["content"]),
)
told.call("completion", lambda: OpenAI(model=MODEL, **options).invoke(QUESTION))
asyncio.run(told.await_call("asynchronous", asynchronous))
told.print()
