"""What `headrace bench http` makes of pages, streams and times."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest

from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.http_first_token import Look, Mean, Side, mean_on, texts_in
from headrace.ops.bench.http_first_token import sum_up as sum_up_first_tokens
from headrace.ops.bench.http_stream_clients import (
    Calls,
    Heard,
    Read,
    Stream,
    heard_from,
    read_stream,
    request_of,
)
from headrace.ops.bench.http_streams import Cpu, StreamsFigures, sum_up, texts_of
from headrace.ops.bench.paced_worker import Gaps, PacedGaps
from headrace.ops.bench.vllm_server import flags_of

ENGINE = PacedGaps(Gaps(100.0, 102.0, 1000), Gaps(100.0, 110.0, 1000))


def test_engine_arguments_become_flags_of_vllm_serve() -> None:
    arguments: dict[str, int | bool | str] = {
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "enforce_eager": True,
    }
    assert flags_of(arguments) == ["--max-num-seqs", "8", "--no-enable-prefix-caching", "--enforce-eager"]


# --- the first token ---


def look(scale: float, calls: int) -> Look:
    """All calls took the same: 30 ms at the endpoint, 3 until admitted, 20 until the first token, 15 of them vLLM's."""
    return Look(
        *(Mean(scale * calls * ms / 1000, calls) for ms in (30.0, 3.0, 20.0, 15.0, 16.0)),
    )


def test_the_parts_of_the_time_are_those_between_two_looks_and_add_up_to_the_clients() -> None:
    pairs: list[dict[Side, float | None]] = [{"headrace": 32.0, "vllm": 18.0} for _ in range(10)]
    found = sum_up_first_tokens(pairs, 10, look(2.0, 5), Look(*(add(look(2.0, 5), look(1.0, 10)))))
    spent = found.spent
    assert (spent.http, spent.kafka, spent.queue, spent.engine) == pytest.approx((2.0, 10.0, 3.0, 17.0))
    assert (found.engine_in_worker, found.engine_in_vllm) == pytest.approx((15.0, 16.0))
    assert found.added_p50 == pytest.approx(14.0)


def add(one: Look, other: Look) -> list[Mean]:
    names = ("endpoint", "queue", "worker", "engine_in_worker", "engine_in_vllm")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return [Mean(a.seconds + b.seconds, a.count + b.count) for a, b in pairs]


def test_a_pair_in_which_one_side_said_nothing_counts_for_neither() -> None:
    pairs: list[dict[Side, float | None]] = [{"headrace": 30.0, "vllm": 10.0} for _ in range(19)]
    pairs.insert(0, {"headrace": 9999.0, "vllm": None})
    found = sum_up_first_tokens(pairs, 20, look(1.0, 0), look(1.0, 20))
    assert (found.pairs, found.headrace_p95, found.vllm_p95) == (19, 30.0, 10.0)
    with pytest.raises(BenchFailed, match="3 of 20 prompts"):
        sum_up_first_tokens(pairs[:-2], 20, look(1.0, 0), look(1.0, 20))


def test_added_time_is_held_against_the_goals() -> None:
    pairs: list[dict[Side, float | None]] = [{"headrace": 30.0, "vllm": 10.0} for _ in range(9)]
    pairs.append({"headrace": 80.0, "vllm": 10.0})
    found = sum_up_first_tokens(pairs, 10, look(1.0, 0), look(1.0, 10))
    assert list(found.goals().values()) == [True, False, False]


def test_a_histogram_is_read_over_all_its_labels_and_missed_where_it_is_not_there() -> None:
    page = 'a_seconds_sum{lane="x"} 1.5\na_seconds_sum{lane="y"} 0.5\na_seconds_count{lane="x"} 3\na_seconds_count 1\n'
    assert mean_on(page, "a_seconds") == Mean(2.0, 4.0)
    assert mean_on(page, "a_seconds").ms == pytest.approx(500.0)
    with pytest.raises(BenchFailed, match="b_seconds"):
        mean_on(page, "b_seconds")


def test_an_error_amid_a_stream_and_an_end_without_done_are_no_measurement() -> None:
    text = 'data: {"choices": [{"delta": {"role": "assistant"}}]}'
    assert list(texts_in(iter([text, "", "data: [DONE]"]))) == [""]
    with pytest.raises(BenchFailed, match=r"without \[DONE\]"):
        list(texts_in(iter([text])))
    with pytest.raises(BenchFailed, match="gone"):
        list(texts_in(iter(['data: {"error": {"message": "gone"}}'])))


# --- many streams ---


def chunk(text: str, finish: str | None = None) -> bytes:
    delta: Any = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}
    return b"data: " + json.dumps(delta).encode() + b"\n\n"


def http(*bodies: bytes) -> list[bytes]:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head, *(f"{len(body):x}\r\n".encode() + body + b"\r\n" for body in bodies), b"0\r\n\r\n"]


def test_an_event_counts_from_the_read_that_completes_it() -> None:
    whole = chunk("mill")
    cut = [*http(whole[:10], whole[10:] + b": keep-alive\n\n", chunk("pond", "stop"), b"data: [DONE]\n\n")]
    found = read_stream(0.5, [Read(number / 10, data) for number, data in enumerate(cut)])
    assert found == Stream(0.5, 200, "millpond", "stop", True, [], [2 / 10, 3 / 10])


@pytest.mark.parametrize(
    ("bodies", "error"),
    [
        ([chunk("mill"), b'data: {"error": {"message": "gone"}}\n\n'], "gone"),
        ([chunk("mill"), b"data: [DONE]\n\n", chunk("mill")], "after the end"),
        ([chunk("mill"), b"data: {"], "amid an event"),
    ],
)
def test_what_a_stream_must_not_say_is_an_error(bodies: list[bytes], error: str) -> None:
    found = read_stream(0.0, [Read(0.1, data) for data in http(*bodies)])
    assert error in "".join(found.errors)


def test_an_answer_that_is_no_stream_is_an_error_with_its_status() -> None:
    refused = b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nfull"
    found = read_stream(0.0, [Read(0.1, refused)])
    assert found.status == 429
    assert "full" in found.errors[0]
    assert read_stream(0.0, [], "ConnectionResetError: gone").errors[0] == "ConnectionResetError: gone"


def test_what_the_callers_process_prints_is_read_back() -> None:
    heard = Heard([Stream(0.0, 200, "mill", "stop", True, [], [0.1])], 0.25)
    assert heard_from(json.dumps(asdict(heard))) == heard


def test_a_request_says_its_own_length() -> None:
    head, _, body = request_of(Calls("h", 1, "m", [], 7, 1.0, 2.0), "naïve").partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body)["messages"] == [{"role": "user", "content": "naïve"}]


def stream(text: str, *at: float, errors: list[str] | None = None, is_whole: bool = True) -> Stream:
    return Stream(0.0, 200, text, "stop", is_whole, errors or [], list(at))


def figures(*streams: Stream) -> StreamsFigures:
    return sum_up(streams, ["millpond"] * len(streams), ENGINE, 1.0, Cpu(0.1, 0.1, 0.1))


def test_gaps_are_those_within_a_stream_and_are_held_against_the_engine_alone() -> None:
    found = figures(stream("millpond", 0.1, 0.2), stream("millpond", 5.0, 5.15))
    assert (found.gap_p50, found.gap_p95, found.gap_longest) == pytest.approx((100.0, 150.0, 150.0))
    assert (found.first_text_p50, found.first_text_p95) == pytest.approx((100.0, 5000.0))
    assert (found.tokens, found.tokens_per_event) == (4, 1.0)
    assert found.over_engine == pytest.approx(48.0)
    assert all(found.goals().values())
    assert list(figures(stream("millpond", 0.1, 0.253)).goals().values()) == [True, True, False]


def test_a_text_of_another_stream_is_wrong_and_a_stream_that_stops_is_an_error() -> None:
    found = figures(stream("pondmill", 0.1, 0.2), stream("mill", 0.1, 0.2, is_whole=False))
    assert found.wrong_texts == 2
    assert found.errors == ["stream 1: it ended without [DONE]"]
    assert list(found.goals().values())[:2] == [False, False]


def test_streams_without_gaps_are_no_measurement() -> None:
    with pytest.raises(BenchFailed, match="HTTP 503"):
        figures(stream("", errors=["HTTP 503"], is_whole=False))


def test_expected_texts_have_the_tokens_that_are_asked_for_and_differ_by_prompt() -> None:
    one, other = asyncio.run(texts_of(["one", "other"], 16))
    assert len(one) == len(other) == 64
    assert one != other
