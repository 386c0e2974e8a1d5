"""instructor: every mode that its OpenAI class has."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
from instructor import Mode
from openai import AsyncOpenAI, OpenAI
from outcomes import MODEL, QUESTION, TAGGED, Mood, Outcomes, base_url

MESSAGES: Any = [{"role": "user", "content": QUESTION}]
told = Outcomes()


def asks(mode: Mode, model: str = MODEL) -> Any:
    client = instructor.from_openai(OpenAI(base_url=base_url(), api_key="none"), mode=mode)
    return client.create(model=model, messages=MESSAGES, response_model=Mood, max_retries=1)


def plain() -> str | None:
    client = instructor.from_openai(OpenAI(base_url=base_url(), api_key="none"))
    answer: Any = client.create(model=MODEL, messages=MESSAGES, response_model=None)
    return answer.choices[0].message.content


def partial() -> Any:
    client = instructor.from_openai(OpenAI(base_url=base_url(), api_key="none"))
    parts = client.create_partial(model=MODEL, messages=MESSAGES, response_model=Mood, max_retries=1)
    return list(parts)[-1]


async def asynchronous() -> Any:
    client = instructor.from_openai(AsyncOpenAI(base_url=base_url(), api_key="none"))
    return await client.create(model=MODEL, messages=MESSAGES, response_model=Mood, max_retries=1)


told.call("plain", plain)
for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA):
    told.call(mode.name.lower(), lambda mode=mode: asks(mode))
for mode in (Mode.JSON, Mode.MD_JSON):  # these leave the schema to the prompt
    told.call(mode.name.lower(), lambda mode=mode: asks(mode, TAGGED))
told.call("partial", partial)
asyncio.run(told.await_call("asynchronous", asynchronous))
told.print()
