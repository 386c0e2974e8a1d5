"""A reasoning model on the real engine, in a process of its own: `reasoning_life.py DIRECTORY PARSER`.

Prints one JSON object: what was seen of each job. The model is the tiny one with two tokens more, `<think>` and
`</think>`; its chat template opens the reasoning, and closes it again where thinking is off. A random model never
closes it by itself: the budget of the request does.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from conformance.engine_port import Seen, collect

from headrace.ops.bench.tiny_model import CHAT_TEMPLATE, CONTEXT, tiny_model
from headrace.schemas.errors import UnsupportedField
from headrace.schemas.messages import ChatMessage, OutputConstraint, Reasoning, Sampling, Tool
from headrace.schemas.settings import Settings
from headrace.workers.engine import ChatPrompt, GenerationJob, Prompt, TextPrompt
from headrace.workers.vllm_engine import VllmEngine

BUDGET = 6  # tokens of reasoning
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["bright", "dark"]},
        "score": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["mood", "score"],
    "additionalProperties": False,
}
TOOL = Tool.model_validate({"function": {"name": "look"}})
CALL = r'I look\. <tool_call>\{"name": "look", "arguments": \{\}\}</tool_call>'
TEMPLATE = CHAT_TEMPLATE.replace(
    "assistant\\n' }}{% endif %}",
    "assistant\\n<think>\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '</think>' }}{% endif %}{% endif %}",
)


def reasoning_model(target: Path) -> Path:
    """The tiny model with the tokens of a reasoning parser, in `target`."""
    transformers: Any = importlib.import_module("transformers")
    tiny = tiny_model(Settings.from_environment().cache_dir / "models")
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tiny)
    tokenizer.add_tokens(["<think>", "</think>"])
    assert TEMPLATE != CHAT_TEMPLATE
    tokenizer.chat_template = TEMPLATE
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)
    return target


async def _ask(
    engine: VllmEngine, prompt: Prompt, *, stream: bool = False, free: bool = False, **sampling: Any
) -> Seen:
    token_ids = await engine.encode(prompt)
    own: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 3} | sampling
    return await collect(
        engine.generate(
            GenerationJob(
                f"{len(token_ids)}-{prompt.reasoning}-{stream}-{free}-{sampling}",
                token_ids,
                Sampling(**own),
                None if free else OutputConstraint(json_schema=SCHEMA),
                stream=stream,
                reasoning=prompt.reasoning,
            )
        )
    )


async def _call(engine: VllmEngine, *, stream: bool) -> Seen:
    """A call of a tool after the reasoning."""
    prompt = ChatPrompt([ChatMessage(role="user", content="mill")], [TOOL], Reasoning(max_tokens=BUDGET))
    job = GenerationJob(
        f"call-{stream}",
        await engine.encode(prompt),
        Sampling(max_tokens=120, temperature=1.0, seed=3),
        OutputConstraint(regex=CALL),
        stream=stream,
        reasoning=prompt.reasoning,
        calls_of=prompt,
    )
    return await collect(engine.generate(job))


async def _refusal(engine: VllmEngine, prompt: Prompt) -> str | None:
    try:
        await engine.encode(prompt)
    except UnsupportedField as error:
        return error.path
    return None


async def _scenario(target: Path, parser: str) -> dict[str, Any]:
    engine = VllmEngine(
        reasoning_model(target),
        engine_arguments={"max_model_len": CONTEXT, "enforce_eager": True, "dtype": "float32"},
        reasoning_parser=parser,
        tool_parser="hermes",
    )
    messages = [ChatMessage(role="user", content="mill")]

    def chat(**wish: Any) -> ChatPrompt:
        return ChatPrompt(messages, reasoning=Reasoning(**wish) if wish else None)

    seen: dict[str, Any] = {}
    await engine.start()
    try:
        await engine.probe()
        budget: dict[str, Any] = {"max_tokens": BUDGET}
        seen["held"] = await _ask(engine, chat(**budget))
        seen["several"] = await _ask(engine, chat(**budget), n=3)
        seen["streamed"] = await _ask(engine, chat(**budget), stream=True)
        seen["free"] = await _ask(engine, chat(**budget), free=True, max_tokens=30)
        seen["free_streamed"] = await _ask(engine, chat(**budget), free=True, stream=True, max_tokens=30)
        seen["cut"] = await _ask(engine, chat(), max_tokens=10)
        seen["cut_streamed"] = await _ask(engine, chat(), stream=True, max_tokens=10)
        seen["off"] = await _ask(engine, chat(effort="none"))
        seen["off_streamed"] = await _ask(engine, chat(effort="none"), stream=True)
        seen["off_free"] = await _ask(engine, chat(effort="none"), free=True, max_tokens=10)
        seen["text"] = await _ask(engine, TextPrompt("mill<think>", Reasoning(max_tokens=BUDGET)))
        seen["called"] = await _call(engine, stream=False)
        seen["called_streamed"] = await _call(engine, stream=True)
        seen = {name: asdict(one) for name, one in seen.items()}
        seen["refused"] = {
            "low": await _refusal(engine, chat(effort="low")),
            "medium": await _refusal(engine, chat(effort="medium")),
            "none": await _refusal(engine, chat(effort="none")),
            "text": await _refusal(engine, TextPrompt("mill", Reasoning(effort="none"))),
        }
    finally:
        await engine.shutdown()
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_scenario(Path(sys.argv[1]), sys.argv[2]))))
