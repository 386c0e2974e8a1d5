"""Tools that a model on the real engine calls by itself, from the request to the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conformance.http_parts import BADLY, Booking, Weather
from engine.told_calls import calls_as_told
from packages import a_package
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.workers.answers import Served
from headrace.workers.cancels import Cancels
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving
from headrace.workers.vllm_engine import VllmEngine

if TYPE_CHECKING:
    from engine.conftest import LoopThread

TOOLS = [
    {
        "type": "function",
        "function": {"name": each.__name__, "parameters": each.model_json_schema(), "strict": True},
    }
    for each in (Weather, Booking)
]


@pytest.fixture
def serve(vllm_engine: VllmEngine, vllm_loop: LoopThread, tmp_path: Path) -> Any:
    package = a_package(tmp_path, extra='tool_parser = "hermes"\nmax_attempts = 2')
    replies = ReplySender(Sent(), Codec(), model="tagger")
    serving = Serving(package=package, engine=vllm_engine, replies=replies, cancels=Cancels())

    def ask(text: str, **sampling: Any) -> Served:
        request = {
            "id": "a",
            "messages": [{"role": "user", "content": text}],
            "tools": TOOLS,
            "sampling": {"max_tokens": 250, "temperature": 1.0} | sampling,
        }
        with calls_as_told(vllm_engine):
            return vllm_loop.run(serving.serve(a_work(json.dumps(request))))

    return ask


def test_a_call_comes_out_with_what_is_said_beside_it(serve: Any) -> None:
    served = serve("Ask Weather, then Booking.", n=2)
    assert (served.status, served.error) == ("ok", None)
    for output in served.outputs:
        assert (output.text, output.finish_reason) == ("I look it up.\n", "tool_calls")
        weather, booking = output.tool_calls
        assert Weather.model_validate_json(weather.function.arguments)
        assert Booking.model_validate_json(booking.function.arguments)
    assert len({call.id for output in served.outputs for call in output.tool_calls}) == 4


def test_a_call_that_its_tool_does_not_take_is_tried_again_and_then_an_invalid_output(serve: Any) -> None:
    served = serve(f"Ask Weather {BADLY}.")
    assert (served.status, served.attempt) == ("invalid_output", 2)
    assert (served.error.code, served.error.path) == ("schema_violated", "/tool_calls/0/arguments/days")
    assert served.outputs[0].tool_calls is None
    assert "<tool_call>" in served.outputs[0].text


def test_a_call_that_is_cut_off_is_truncated_and_one_that_ends_too_early_is_invalid(serve: Any) -> None:
    cut = serve("Ask Weather.", max_tokens=25)
    assert (cut.status, cut.outputs[0].tool_calls) == ("truncated", None)
    ended = serve("Ask Weather.", stop=['"days"'])
    assert (ended.status, ended.error.path, ended.outputs[0].finish_reason) == (
        "invalid_output",
        "/tool_calls/0",
        "stop",
    )


def test_the_noise_of_a_random_model_is_an_answer(serve: Any) -> None:
    served = serve("Good morning.", max_tokens=20)
    assert (served.status, served.outputs[0].tool_calls) == ("ok", None)
    assert served.outputs[0].text
