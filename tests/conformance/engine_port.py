"""What every engine must do: one suite for the simulated engine and for vLLM.

A test module makes a subclass whose name begins with `Test`, and gives a fixture `port`. The tests are plain
functions that hand a coroutine to `port.run`, for an engine lives on one loop, which may be on another
thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol, TypeVar

import jsonschema_rs
import pytest

from headrace.schemas.errors import (
    EngineRejected,
    InvalidSchema,
    PromptTooLong,
    TemplateFailed,
    UnsupportedField,
)
from headrace.schemas.messages import ChatMessage, OutputConstraint, Reasoning, Sampling, TextPart, Tool
from headrace.schemas.output_schema import OutputCheck
from headrace.workers.constraint_checks import held_constraint
from headrace.workers.engine import (
    PRIORITY,
    ChatPrompt,
    Delta,
    Engine,
    Generation,
    GenerationJob,
    TextPrompt,
)

T = TypeVar("T")
_ids = count()
WAIT_SECONDS = 60.0


class Runner(Protocol):
    """Runs a coroutine on the engine's loop, to its end."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], /) -> T: ...


@dataclass(frozen=True)
class Port:
    """An engine that has been started, and what tells how many jobs are inside it."""

    engine: Engine
    run: Runner
    running_jobs: Callable[[], int]


@dataclass
class Seen:
    """What a job gave."""

    generation: Generation
    deltas: list[Delta] = field(default_factory=list[Delta])

    @property
    def text(self) -> str:
        return self.generation.choices[0].text


def job(token_ids: list[int], *, request_id: str | None = None, **fields: Any) -> GenerationJob:
    """A job with an id of its own; `sampling` and `constraint` as dicts."""
    sampling: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 1} | fields.pop("sampling", {})
    constraint = fields.pop("constraint", None)
    return GenerationJob(
        request_id or f"port-{next(_ids)}",
        token_ids,
        Sampling(**sampling),
        None if constraint is None else OutputConstraint(**constraint),
        **fields,
    )


async def collect(events: AsyncIterator[Delta | Generation]) -> Seen:
    """All of a job: deltas, then exactly one Generation."""
    deltas: list[Delta] = []
    ends: list[Generation] = []
    async for event in events:
        assert not ends, "nothing may follow the Generation"
        if isinstance(event, Generation):
            ends.append(event)
        else:
            deltas.append(event)
    assert len(ends) == 1
    return Seen(ends[0], deltas)


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until it holds, within a minute."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        await asyncio.sleep(0.01)


class EnginePort:
    """The suite. Subclass it and give `port`."""

    PROMPT = "The mill stands by the river, and the wheel turns."

    def ask(self, port: Port, prompt: str = PROMPT, **fields: Any) -> Seen:
        async def go() -> Seen:
            token_ids = await port.engine.encode(TextPrompt(prompt))
            return await collect(port.engine.generate(job(token_ids, **fields)))

        return port.run(go())

    # --- generation -----------------------------------------------------------------------------------------

    def test_a_job_ends_with_one_generation(self, port: Port) -> None:
        seen = self.ask(port)
        assert seen.deltas == []
        assert seen.text
        assert seen.generation.prompt_tokens == len(port.run(port.engine.encode(TextPrompt(self.PROMPT))))
        assert 1 <= seen.generation.choices[0].completion_tokens <= 24

    def test_deltas_concatenate_to_the_text(self, port: Port) -> None:
        seen = self.ask(port, stream=True)
        assert len(seen.deltas) > 1
        assert "".join(delta.text for delta in seen.deltas) == seen.text

    def test_streaming_does_not_change_the_text(self, port: Port) -> None:
        assert self.ask(port, stream=True).text == self.ask(port).text

    def test_max_tokens_ends_with_length(self, port: Port) -> None:
        choice = self.ask(port, sampling={"max_tokens": 5}).generation.choices[0]
        assert choice.finish_reason == "length"
        assert choice.completion_tokens == 5

    def test_a_stop_string_ends_the_text_before_it(self, port: Port) -> None:
        whole = self.ask(port).text
        stop = whole[len(whole) // 2 :][:3]
        choice = self.ask(port, sampling={"stop": [stop]}).generation.choices[0]
        assert choice.finish_reason == "stop"
        assert choice.text == whole[: whole.index(stop)]

    def test_the_same_seed_gives_the_same_text_and_another_seed_another(self, port: Port) -> None:
        first = self.ask(port, sampling={"seed": 5}).text
        assert self.ask(port, sampling={"seed": 5}).text == first
        assert self.ask(port, sampling={"seed": 6}).text != first

    def test_another_prompt_gives_another_text(self, port: Port) -> None:
        assert self.ask(port).text != self.ask(port, "Something else altogether.").text

    def test_n_choices_come_in_one_generation_and_differ(self, port: Port) -> None:
        seen = self.ask(port, sampling={"n": 3}, stream=True)
        choices = seen.generation.choices
        assert len({choice.text for choice in choices}) == 3
        for index, choice in enumerate(choices):
            assert "".join(delta.text for delta in seen.deltas if delta.choice == index) == choice.text

    def test_logprobs_cover_every_token(self, port: Port) -> None:
        choice = self.ask(port, sampling={"logprobs": 2, "max_tokens": 6}).generation.choices[0]
        assert choice.logprobs is not None
        assert len(choice.logprobs) == choice.completion_tokens
        assert all(one.logprob <= 0 and len(one.top) <= 2 for one in choice.logprobs)
        assert "".join(one.token for one in choice.logprobs).strip() == choice.text.strip()
        assert self.ask(port).generation.choices[0].logprobs is None

    # --- constraints ----------------------------------------------------------------------------------------

    SCHEMA: dict[str, Any] = {  # noqa: RUF012 - read only
        "type": "object",
        "properties": {
            "zeta": {"enum": ["wheel", "sluice", "weir"]},
            "alpha": {"type": "array", "items": {"enum": [1, 2, 3]}, "minItems": 2, "maxItems": 3},
            "code": {"type": "string", "pattern": "^[a-z]{2,4}$"},
            "count": {"type": "integer", "minimum": 10, "maximum": 99},
        },
        "required": ["zeta", "alpha", "code", "count"],
        "additionalProperties": False,
    }

    @pytest.mark.parametrize("seed", range(5))
    def test_a_json_schema_is_held(self, port: Port, seed: int) -> None:
        constraint = {"json_schema": self.SCHEMA}
        seen = self.ask(port, sampling={"max_tokens": 200, "seed": seed}, constraint=constraint)
        assert seen.generation.choices[0].finish_reason == "stop"
        value = json.loads(seen.text)
        assert jsonschema_rs.validator_for(self.SCHEMA).is_valid(value), seen.text
        assert list(value) == ["zeta", "alpha", "code", "count"], "properties come in the schema's order"
        assert not re.search(r"\s", seen.text), "no whitespace between tokens"

    def test_a_regex_is_held(self, port: Port) -> None:
        seen = self.ask(port, constraint={"regex": r"(mill|weir)-[0-9]{3}"})
        assert re.fullmatch(r"(mill|weir)-[0-9]{3}", seen.text)
        assert seen.generation.choices[0].finish_reason == "stop"

    def test_a_choice_is_held(self, port: Port) -> None:
        options = ['a "quoted" one', "größer", "three"]
        assert self.ask(port, constraint={"choice": options}).text in options

    def test_a_grammar_is_held(self, port: Port) -> None:
        grammar = 'root ::= "go " ("left" | "right") "!"'
        assert self.ask(port, constraint={"grammar": grammar}).text in ("go left!", "go right!")

    def test_a_json_object_begins_as_one(self, port: Port) -> None:
        choice = self.ask(port, constraint={"json_object": True}).generation.choices[0]
        assert choice.text.startswith("{")
        assert choice.finish_reason == "length" or isinstance(json.loads(choice.text), dict)

    def test_the_schema_true_takes_any_json(self, port: Port) -> None:
        choice = self.ask(port, constraint={"json_schema": True}).generation.choices[0]
        assert choice.finish_reason == "length" or json.loads(choice.text) is not ...

    @pytest.mark.parametrize(
        "constraint",
        [
            {"json_schema": {"type": "nonsense"}},
            {"json_schema": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
            {"json_schema": {"$ref": "https://example.org/schema.json"}},
            {"json_schema": False},
            {"regex": "[a"},
            {"grammar": "start: nowhere"},
        ],
        ids=["type", "unsupported", "remote", "false", "regex", "grammar"],
    )
    def test_a_bad_constraint_is_rejected_and_the_engine_lives(
        self, port: Port, constraint: dict[str, Any]
    ) -> None:
        with pytest.raises(EngineRejected) as caught:
            self.ask(port, constraint=constraint)
        assert len(caught.value.message) > 20
        assert "\n" not in caught.value.message
        assert self.ask(port).text

    @pytest.mark.parametrize(
        "constraint",
        [{"json_schema": SCHEMA}, {"json_schema": True}, {"regex": "[a-c]{2}"}, {"choice": ["a", "b"]}],
        ids=["schema", "true", "regex", "choice"],
    )
    def test_what_an_engine_says_it_enforces_it_holds(self, port: Port, constraint: dict[str, Any]) -> None:
        asked = OutputConstraint(**constraint)
        enforcement = port.run(port.engine.enforcement_of(asked))
        assert enforcement.tier in ("enforced", "enforced_normalised")
        held = held_constraint(asked, enforcement)
        assert held is not None
        seen = self.ask(port, sampling={"max_tokens": 200}, constraint=held.model_dump(exclude_none=True))
        choice = seen.generation.choices[0]
        if choice.finish_reason == "stop":
            OutputCheck(asked).check(choice.text)
        else:
            assert choice.finish_reason == "length", "of any JSON whatever, where the model does not end it"

    @pytest.mark.parametrize(
        ("constraint", "path"),
        [
            ({"json_schema": {"type": "nonsense"}}, "/output/json_schema/type"),
            ({"json_schema": {"$ref": "https://example.org/schema.json"}}, "/output/json_schema"),
            ({"regex": "[a"}, "/output/regex"),
        ],
        ids=["type", "remote", "regex"],
    )
    def test_a_constraint_that_cannot_be_held_is_refused_with_its_place(
        self, port: Port, constraint: dict[str, Any], path: str
    ) -> None:
        with pytest.raises(InvalidSchema) as caught:
            port.run(port.engine.enforcement_of(OutputConstraint(**constraint)))
        assert (caught.value.path or "").startswith(path)

    # --- what is refused ------------------------------------------------------------------------------------

    def test_a_prompt_that_is_too_long_is_refused_with_both_lengths(self, port: Port) -> None:
        limit = port.engine.identity.max_model_len
        token = port.run(port.engine.encode(TextPrompt("mill")))[0]
        with pytest.raises(PromptTooLong, match=str(limit)):
            port.run(collect(port.engine.generate(job([token] * limit))))
        fits = port.run(collect(port.engine.generate(job([token] * (limit - 1)))))
        assert fits.generation.choices[0].completion_tokens == 1

    def test_an_empty_prompt_is_rejected(self, port: Port) -> None:
        with pytest.raises(EngineRejected, match="empty"):
            port.run(collect(port.engine.generate(job([]))))

    def test_a_token_out_of_the_vocabulary_is_rejected(self, port: Port) -> None:
        with pytest.raises(EngineRejected, match="vocabulary"):
            port.run(collect(port.engine.generate(job([2**33]))))

    def test_greedy_sampling_of_several_choices_is_rejected(self, port: Port) -> None:
        with pytest.raises(EngineRejected, match="greedy"):
            self.ask(port, sampling={"n": 2, "temperature": 0.0})

    # --- prompts --------------------------------------------------------------------------------------------

    def test_messages_go_through_the_chat_template(self, port: Port) -> None:
        def encode(*messages: ChatMessage, tools: list[Tool] | None = None) -> list[int]:
            return port.run(port.engine.encode(ChatPrompt(list(messages), tools or [])))

        plain = encode(ChatMessage(role="user", content="mi\nll"))
        parts = encode(ChatMessage(role="user", content=[TextPart(text="mi"), TextPart(text="ll")]))
        assert parts == plain
        assert len(plain) > len(port.run(port.engine.encode(TextPrompt("mill"))))
        assert encode(ChatMessage(role="system", content="mi\nll")) != plain

    def test_a_template_that_refuses_says_why(self, port: Port) -> None:
        with pytest.raises(TemplateFailed, match="assistant"):
            port.run(port.engine.encode(ChatPrompt([ChatMessage(role="assistant", content="mill")])))

    @pytest.mark.parametrize(
        "prompt", [ChatPrompt([ChatMessage(role="user", content="mill")]), TextPrompt("mill")]
    )
    def test_a_wish_for_reasoning_is_refused_by_name_by_a_model_that_does_not_reason(
        self, port: Port, prompt: ChatPrompt | TextPrompt
    ) -> None:
        with pytest.raises(UnsupportedField) as refused:
            port.run(port.engine.encode(replace(prompt, reasoning=Reasoning(effort="high"))))
        assert refused.value.path == "/reasoning"

    def test_a_long_prompt_is_encoded_whole(self, port: Port) -> None:
        limit = port.engine.identity.max_model_len
        token_ids = port.run(port.engine.encode(TextPrompt("the mill and the weir " * limit)))
        assert len(token_ids) > limit

    # --- many, and their end --------------------------------------------------------------------------------

    def test_many_jobs_at_once_each_get_their_own_answer(self, port: Port) -> None:
        async def go(number: int) -> Seen:
            token_ids = await port.engine.encode(TextPrompt(f"word number {number}"))
            own = {"regex": f"{number:02}-[a-z]{{3,9}}"}
            asked = job(token_ids, constraint=own, priority=number % 3, stream=number % 2 == 0)
            return await collect(port.engine.generate(asked))

        async def all_of_them() -> list[Seen]:
            return await asyncio.gather(*(go(number) for number in range(24)))

        for number, answer in enumerate(port.run(all_of_them())):
            assert re.fullmatch(f"{number:02}-[a-z]{{3,9}}", answer.text)
        assert port.running_jobs() == 0

    def test_every_lanes_priority_is_taken(self, port: Port) -> None:
        for priority in PRIORITY.values():
            assert self.ask(port, priority=priority).text

    @pytest.mark.parametrize(("stream", "n"), [(True, 1), (False, 1), (True, 2), (False, 2)])
    def test_abort_ends_a_job_with_abort(self, port: Port, stream: bool, n: int) -> None:
        async def go() -> Seen:
            token_ids = await port.engine.encode(TextPrompt(self.PROMPT))
            endless = self._endless(token_ids, stream=stream, n=n)
            task = asyncio.create_task(collect(port.engine.generate(endless)))
            await wait_until(lambda: port.running_jobs() > 0, "the job to begin")
            await port.engine.abort(endless.request_id)
            return await asyncio.wait_for(task, WAIT_SECONDS)

        choices = port.run(go()).generation.choices
        assert [choice.finish_reason for choice in choices] == ["abort"] * n
        assert port.running_jobs() == 0

    def test_an_unknown_id_is_no_error_to_abort(self, port: Port) -> None:
        port.run(port.engine.abort("nobody knows this id"))
        port.engine.check_health()

    def test_cancelling_the_task_leaves_nothing_running(self, port: Port) -> None:
        async def go() -> None:
            token_ids = await port.engine.encode(TextPrompt(self.PROMPT))
            task = asyncio.create_task(collect(port.engine.generate(self._endless(token_ids))))
            await wait_until(lambda: port.running_jobs() > 0, "the job to begin")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await wait_until(lambda: port.running_jobs() == 0, "the job to be gone")

        port.run(go())
        assert self.ask(port).text

    def test_leaving_the_iteration_aborts_the_job(self, port: Port) -> None:
        async def go() -> None:
            token_ids = await port.engine.encode(TextPrompt(self.PROMPT))
            events: Any = port.engine.generate(self._endless(token_ids, stream=True))
            async with aclosing(events):
                async for _ in events:
                    assert port.running_jobs() == 1
                    break
            await wait_until(lambda: port.running_jobs() == 0, "the job to be gone")

        port.run(go())

    def _endless(self, token_ids: list[int], *, stream: bool = False, n: int = 1) -> GenerationJob:
        """A job that takes hundreds of tokens."""
        constraint = {"regex": "[a-z]{900,990}"}
        return job(
            token_ids, sampling={"max_tokens": 900, "n": n}, constraint=constraint, stream=stream, priority=0
        )

    # --- life -----------------------------------------------------------------------------------------------

    def test_the_probe_passes_and_the_engine_is_healthy(self, port: Port) -> None:
        port.run(port.engine.probe())
        port.engine.check_health()

    def test_the_identity_names_engine_version_backend_and_length(self, port: Port) -> None:
        identity = port.engine.identity
        assert identity.engine in ("vllm", "simulated")
        assert identity.engine_version[0].isdigit()
        assert identity.backend == "guidance"
        assert identity.max_model_len > 100
