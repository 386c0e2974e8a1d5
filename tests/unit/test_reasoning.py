"""What becomes of a reasoning model's output: only the answer is streamed, validated and `text`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from packages import TAGS_SCHEMA, a_package
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.schemas.messages import FinishReason, Reasoning, Reply
from headrace.workers.answers import Served
from headrace.workers.cancels import Cancels
from headrace.workers.engine import Delta, GeneratedChoice, Generation, GenerationJob, Prompt
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

ANSWER = '{"mood":"calm","score":3,"tags":["abc"]}'


class Thinking(SimulatedEngine):
    """An engine whose model has thought before it answers."""

    def __init__(self, text: str, finish: FinishReason = "stop") -> None:
        super().__init__(SimulatedProfile(time_scale=0, max_model_len=256))
        self.choice = GeneratedChoice(text, finish, 9, reasoning="let me see")
        self.asked: list[Prompt] = []
        self.jobs: list[GenerationJob] = []

    async def encode(self, prompt: Prompt) -> list[int]:
        self.asked.append(prompt)
        return [1, 2, 3]

    async def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        self.jobs.append(job)
        if job.stream and self.choice.text:
            yield Delta(0, self.choice.text)
        yield Generation([self.choice], 3)


def serve(
    directory: Path, engine: Thinking, value: str, *, extra: str = "", stream: bool = False, **options: Any
) -> tuple[Served, list[Reply]]:
    sent = Sent()
    replies = ReplySender(sent, Codec(), model="tagger")
    package = a_package(directory, extra=extra, **options)

    async def run() -> Served:
        await engine.start()
        serving = Serving(package=package, engine=engine, replies=replies, cancels=Cancels())
        return await serving.serve(a_work(value, stream=stream))

    served = asyncio.run(run())
    replies.stop()
    replies.run()
    return served, sent.deltas()


PARSER = 'reasoning_parser = "qwen3"'
ASKED = '{"id":"a","variables":{"title":"Heat"}}'


def test_only_the_answer_is_validated_and_the_reasoning_stands_beside_it(tmp_path: Path) -> None:
    served, _ = serve(tmp_path, Thinking(ANSWER), ASKED, extra=PARSER, output=TAGS_SCHEMA)
    assert served.status == "ok"
    assert served.outputs[0].reasoning == "let me see"
    assert served.outputs[0].text == ANSWER
    assert served.outputs[0].value == {"mood": "calm", "score": 3, "tags": ["abc"]}


def test_a_generation_cut_within_its_reasoning_is_truncated_under_an_output_schema(tmp_path: Path) -> None:
    served, _ = serve(tmp_path, Thinking("", "length"), ASKED, extra=PARSER, output=TAGS_SCHEMA)
    assert (served.status, served.outputs[0].text) == ("truncated", "")
    assert served.outputs[0].reasoning == "let me see"


def test_a_generation_cut_within_its_reasoning_is_ok_without_an_output_schema(tmp_path: Path) -> None:
    served, _ = serve(tmp_path, Thinking("", "length"), ASKED, extra=PARSER)
    assert (served.status, served.outputs[0].text) == ("ok", "")


def test_a_model_that_stops_within_its_reasoning_gave_no_answer(tmp_path: Path) -> None:
    served, _ = serve(tmp_path, Thinking(""), ASKED, extra=PARSER, output=TAGS_SCHEMA)
    assert served.status == "invalid_output"
    assert served.error is not None
    assert "within its reasoning" in served.error.message


def test_a_streamed_request_gets_the_answer_alone(tmp_path: Path) -> None:
    served, replies = serve(
        tmp_path, Thinking("good"), '{"id":"a","stream":true,"prompt":"x"}', extra=PARSER, stream=True
    )
    assert "".join(reply.delta or "" for reply in replies) == "good" == served.outputs[0].text


def test_the_wish_for_reasoning_reaches_prompt_and_job(tmp_path: Path) -> None:
    engine = Thinking("good")
    value = '{"id":"a","variables":{"title":"Heat"},"reasoning":{"effort":"low","max_tokens":9}}'
    served, _ = serve(tmp_path, engine, value, extra=PARSER)
    assert served.status == "ok"
    wish = Reasoning(effort="low", max_tokens=9)
    assert engine.asked[0].reasoning == wish
    assert engine.jobs[0].reasoning == wish


def test_a_package_without_a_parser_refuses_a_wish_for_reasoning_by_name(tmp_path: Path) -> None:
    value = '{"id":"a","variables":{"title":"Heat"},"reasoning":{"effort":"none"}}'
    served, _ = serve(tmp_path, Thinking("good"), value)
    assert served.status == "rejected"
    assert served.error is not None
    assert (served.error.code, served.error.path) == ("unsupported_field", "/reasoning")
