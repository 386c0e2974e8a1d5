"""LlamaIndex's OpenAILike: text, structured answers, streams, and the old endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from outcomes import MODEL, QUESTION, Mood, Outcomes, base_url

told = Outcomes()
options: Any = {"model": MODEL, "api_base": base_url(), "api_key": "none", "context_window": 8192}
chat = OpenAILike(**options, is_chat_model=True, is_function_calling_model=True)
formatted = OpenAILike(**options, is_chat_model=True, should_use_structured_outputs=True)
old = OpenAILike(**options, is_chat_model=False)
messages = [ChatMessage(role="user", content=QUESTION)]
prompt = PromptTemplate(QUESTION)

told.call("plain", lambda: chat.chat(messages).message.content)
told.call("complete", lambda: chat.complete(QUESTION).text)
told.call("structured", lambda: chat.as_structured_llm(Mood).chat(messages).raw)
told.call("predict", lambda: chat.structured_predict(Mood, prompt))
told.call("response_format", lambda: formatted.structured_predict(Mood, prompt))
told.call("stream", lambda: "".join(part.delta or "" for part in chat.stream_chat(messages)))
told.call("stream of a model", lambda: list(chat.stream_structured_predict(Mood, prompt))[-1])
told.call("stream by response_format", lambda: list(formatted.stream_structured_predict(Mood, prompt))[-1])
told.call("completion", lambda: old.complete(QUESTION).text)
asyncio.run(told.await_call("asynchronous", lambda: chat.astructured_predict(Mood, prompt)))
told.print()
