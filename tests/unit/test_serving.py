"""One request's life in the loop, on the simulated engine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages import TAGS_SCHEMA, a_package
from pydantic import JsonValue
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.errors import EngineDead
from headrace.schemas.messages import OutputConstraint, Reply, Sampling
from headrace.schemas.output_schema import OutputCheck
from headrace.workers.answers import Served
from headrace.workers.cancels import Cancels
from headrace.workers.engine import GeneratedChoice
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving, judge, may_try_again, seed_of_attempt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.simulated_failures import Failure


class Held(SimulatedEngine):
    """An engine that says how much of a schema it holds."""

    tier = "enforced"

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        return replace(await super().enforcement_of(constraint), tier=self.tier)


def serve(
    directory: Path,
    value: str,
    *,
    failures: list[Failure] | None = None,
    output: dict[str, Any] | None = None,
    extra: str = "",
    stream: bool = False,
    time_scale: float = 0,
    deaths: int = 0,
    tier: str = "enforced",
) -> tuple[Served, list[Reply], SimulatedEngine]:
    engine = Held(SimulatedProfile(time_scale=time_scale, max_model_len=256))
    engine.tier = tier
    for failure in failures or []:
        engine.script.fail_next(failure)
    sent = Sent()
    replies = ReplySender(sent, Codec(), model="tagger")
    package = a_package(directory, output=output, extra=extra)

    async def run() -> Served:
        await engine.start()
        serving = Serving(package=package, engine=engine, replies=replies, cancels=Cancels())
        return await serving.serve(replace(a_work(value, stream=stream), deaths=deaths))

    served = asyncio.run(run())
    replies.stop()
    replies.run()
    return served, sent.deltas(), engine


def test_a_request_under_an_output_schema_comes_back_with_its_value(tmp_path: Path) -> None:
    served, _, _ = serve(tmp_path, '{"id":"a","variables":{"title":"Heat"}}', output=TAGS_SCHEMA)
    assert served.status == "ok"
    value: JsonValue = served.outputs[0].value
    assert isinstance(value, dict)
    assert set(value) == {"mood", "score", "tags"}
    assert served.usage.completion_tokens > 0
    assert served.output_schema_digest is not None


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        ('{"id":"a","variables":{}}', "missing_variable", "/variables/title"),
        ('{"id":"a","variables":{"title":"x","titel":"y"}}', "unknown_field", "/variables/titel"),
        ('{"id":"a","prompt":"' + "x" * 2000 + '"}', "prompt_too_long", "/prompt"),
        (
            '{"id":"a","prompt":"x","output":{"json_schema":{"type":"strin"}}}',
            "invalid_schema",
            "/output/json_schema/type",
        ),
        (
            '{"id":"a","prompt":"x","tools":[{"type":"function","function":{"name":"f"}}]}',
            "unsupported_field",
            "/tools",
        ),
    ],
)
def test_what_cannot_be_served_is_rejected_with_its_field(
    tmp_path: Path, value: str, code: str, path: str
) -> None:
    served, _, _ = serve(tmp_path, value)
    assert served.status == "rejected"
    assert served.error is not None
    assert (served.error.code, served.error.path) == (code, path)


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        ("reject", "rejected", "engine_rejected"),
        ("error", "failed", "constraint_error"),
        ("abort", "failed", "aborted"),
        ("truncated", "truncated", "truncated"),
        ("invalid_output", "invalid_output", None),
    ],
)
def test_each_way_to_fail_under_a_schema_has_its_status(
    tmp_path: Path, failure: Failure, status: str, code: str | None
) -> None:
    value = '{"id":"a","variables":{"title":"Heat"}}'
    served, _, _ = serve(tmp_path, value, failures=[failure], output=TAGS_SCHEMA)
    assert served.status == status
    assert served.error is not None
    assert code is None or served.error.code == code


@pytest.mark.parametrize(
    ("text", "by_grammar", "status", "code"),
    [
        ('{"a":', True, "failed", "constraint_error"),
        ("", True, "failed", "constraint_error"),
        ('{"a":', False, "invalid_output", "not_json"),
        ('{"a":1e999}', True, "invalid_output", "not_json"),
        ('{"a":1,"a":2}', True, "invalid_output", "not_json"),
        ('{"a":"x"}', True, "invalid_output", "schema_violated"),
    ],
)
def test_a_text_that_ends_as_no_json_although_a_grammar_held_it_is_the_grammars_fault(
    text: str, by_grammar: bool, status: str, code: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "number"}}}
    check = OutputCheck(OutputConstraint(json_schema=schema))
    judged = judge(GeneratedChoice(text, "stop", 5), check, by_grammar=by_grammar)
    assert judged.error is not None
    assert (judged.status, judged.error.code) == (status, code)
    assert judged.output.text == text, "the text is there for whoever looks into it"


def test_running_into_max_tokens_without_a_schema_is_ok(tmp_path: Path) -> None:
    served, _, _ = serve(tmp_path, '{"id":"a","prompt":"hello","sampling":{"max_tokens":3}}')
    assert (served.status, served.outputs[0].finish_reason) == ("ok", "length")


def test_an_invalid_output_is_tried_again_and_the_second_attempt_counts(tmp_path: Path) -> None:
    value = '{"id":"a","variables":{"title":"Heat"}}'
    served, _, _ = serve(
        tmp_path, value, failures=["invalid_output"], output=TAGS_SCHEMA, extra="max_attempts = 2"
    )
    assert (served.status, served.attempt) == ("ok", 2)


def test_trying_again_needs_chance_and_no_seed_of_the_callers(tmp_path: Path) -> None:
    request = a_work('{"id":"a","prompt":"x"}').request
    seeded = a_work('{"id":"a","prompt":"x","sampling":{"seed":1}}').request
    assert request is not None
    assert seeded is not None
    assert may_try_again("invalid_output", request, Sampling(), 1, 2)
    assert not may_try_again("invalid_output", request, Sampling(), 2, 2)
    assert not may_try_again("invalid_output", request, Sampling(temperature=0), 1, 2)
    assert not may_try_again("invalid_output", seeded, Sampling(seed=1), 1, 2)
    assert not may_try_again("truncated", request, Sampling(), 1, 2)
    assert seed_of_attempt(Sampling(seed=7), 3).seed == 9


def test_a_deadline_that_has_passed_costs_no_generation(tmp_path: Path) -> None:
    served, _, engine = serve(tmp_path, '{"id":"a","prompt":"x","deadline":1000}', failures=["reject"])
    assert served.status == "expired"
    assert not engine.script.empty, "the engine was never asked"


def test_a_deadline_that_passes_while_it_runs_aborts_it(tmp_path: Path) -> None:
    deadline = int(time.time() * 1000) + 300
    served, _, _ = serve(
        tmp_path, f'{{"id":"a","prompt":"x","deadline":{deadline}}}', failures=["hang"], time_scale=1
    )
    assert served.status == "expired"
    assert served.error is not None
    assert "while it was generated" in served.error.message


def test_a_dead_engine_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(EngineDead):
        serve(tmp_path, '{"id":"a","prompt":"x"}', failures=["die"])


def test_streamed_deltas_add_up_to_the_text_in_sequence(tmp_path: Path) -> None:
    served, deltas, _ = serve(
        tmp_path, '{"id":"a","prompt":"hello","stream":true}', stream=True, time_scale=0.2
    )
    assert len(deltas) > 1, "the first token leaves alone"
    assert "".join(each.delta or "" for each in deltas) == served.outputs[0].text
    assert [each.seq for each in deltas] == list(range(len(deltas)))
    assert served.next_seq == len(deltas)
    assert served.first_token_ms is not None


@pytest.mark.parametrize("tier", ["enforced", "enforced_normalised", "relaxed:maxLength"])
def test_text_under_a_schema_is_streamed_where_decoding_holds_all_of_it_and_only_there(
    tmp_path: Path, tier: str
) -> None:
    value = '{"id":"a","variables":{"title":"Heat"},"stream":true}'
    served, deltas, _ = serve(tmp_path, value, output=TAGS_SCHEMA, stream=True, tier=tier)
    assert served.status == "ok"
    text = "".join(each.delta or "" for each in deltas)
    assert text == (served.outputs[0].text if tier.startswith("enforced") else "")


@pytest.mark.parametrize(("tier", "attempt"), [("enforced", 1), ("relaxed:maxLength", 2)])
def test_an_invalid_output_is_not_tried_again_once_its_text_has_left(
    tmp_path: Path, tier: str, attempt: int
) -> None:
    served, deltas, _ = serve(
        tmp_path,
        '{"id":"a","variables":{"title":"Heat"},"stream":true}',
        failures=["invalid_output"],
        output=TAGS_SCHEMA,
        extra="max_attempts = 2",
        stream=True,
        tier=tier,
    )
    assert (served.status, served.attempt) == ("invalid_output" if attempt == 1 else "ok", attempt)
    assert bool(deltas) is (attempt == 1)


def test_a_request_that_was_in_flight_at_deaths_says_in_its_tokens_and_its_result_which_attempt_this_is(
    tmp_path: Path,
) -> None:
    served, deltas, _ = serve(tmp_path, '{"id":"a","prompt":"hello","stream":true}', stream=True, deaths=2)
    assert served.attempt == 3
    assert {each.attempt for each in deltas} == {3}
