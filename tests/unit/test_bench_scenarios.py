"""What the benches make of recorded results, log lines and pages."""

from __future__ import annotations

import asyncio
import tomllib
from datetime import datetime

import pytest

from headrace.ops.bench.ground import PACKAGE, BenchFailed, engine_table
from headrace.ops.bench.interactive import FirstTokens, Steps, percentile, steps_on
from headrace.ops.bench.interactive import sum_up as sum_up_interactive
from headrace.ops.bench.long_request import SHORT_TOKENS, lost_and_duplicated, others_before, regenerated
from headrace.ops.bench.move_figures import (
    Counted,
    Kind,
    Mark,
    MoveFigures,
    goals,
    hand_overs,
    longest_silence,
    marks_in,
    sum_up,
    throughput,
)
from headrace.ops.bench.moves import MAX_TOKENS
from headrace.ops.bench.recording import Answered, short_request
from headrace.ops.faults.fleet import Page
from headrace.workers.engine import Generation, GenerationJob, TextPrompt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

ACTED = 100.0


def every(step: float, begins: float, ends: float, unit: int, slot: str) -> list[Answered]:
    """A unit's results at an even pace, the last one at `ends` or before it."""
    count = int((ends - begins) / step + 1e-9)
    return [
        Answered(f"{unit}-{begins + step * number}", unit, slot, begins + step * (number + 1))
        for number in range(count)
    ]


def letting_go(at: float, slot: str, *units: int) -> Mark:
    return Mark(at, slot, "letting go of", frozenset(units))


def test_engine_arguments_stand_in_the_package_as_they_were_given() -> None:
    arguments: dict[str, int | bool | str] = {"max_num_seqs": 8, "enforce_eager": True, "dtype": "float32"}
    assert tomllib.loads(PACKAGE + engine_table(arguments))["engine"] == arguments
    assert "engine" not in tomllib.loads(PACKAGE + engine_table({}))


# --- moves ---


def test_log_lines_of_draining_and_of_letting_go_are_found_with_their_time_and_units() -> None:
    log = (
        "2026-03-04 05:06:07,250 INFO headrace.workers.moving: draining: units [3, 11]\n"
        "2026-03-04 05:06:07,300 INFO headrace.workers.moving: draining: units none any more\n"
        "2026-03-04 05:06:07,400 INFO headrace.workers.partitions: partitions: 3 gained, 0 lost, 3 in all\n"
        "2026-03-04 05:06:08,500 INFO headrace.workers.moving: letting go of units [11]\n"
    )
    begins = datetime(2026, 3, 4, 5, 6, 7).timestamp()
    assert marks_in(log, "w1") == [
        Mark(begins + 0.25, "w1", "draining", frozenset({3, 11})),
        Mark(begins + 1.5, "w1", "letting go of", frozenset({11})),
    ]


def test_a_hand_over_lasts_from_the_line_that_lets_go_to_the_new_owners_first_result() -> None:
    answered = [
        *every(1, 90, 101, 0, "old"),
        *every(1, 102.25, 105.25, 0, "new"),
        *every(1, 90, 105, 1, "old"),
    ]
    marks = [letting_go(50.0, "old", 0), letting_go(101.5, "other", 0), letting_go(102.0, "old", 0)]
    (found,) = hand_overs(answered, marks, ACTED)
    assert (found.unit, found.old, found.new) == (0, "old", "new")
    assert found.took_s == pytest.approx(1.25)


def test_where_no_line_lets_go_a_hand_over_lasts_from_the_old_owners_last_result() -> None:
    answered = [*every(1, 90, 101, 0, "old"), *every(1, 102.25, 105.25, 0, "new")]
    (found,) = hand_overs(answered, [], ACTED)
    assert found.took_s == pytest.approx(2.25)


def test_throughput_counts_the_units_and_the_window_alone() -> None:
    answered = [*every(0.5, 0, 10, 0, "a"), *every(0.1, 0, 10, 1, "a")]
    assert throughput(answered, {0}, 2.0, 6.0) == pytest.approx(2.0)


def test_the_longest_silence_reaches_to_the_edges_of_the_window_and_is_one_units() -> None:
    answered = [*every(1, 0, 10, 0, "a"), *every(1, 0, 4, 1, "a")]
    assert longest_silence(answered, {0, 1}, 0.0, 10.0) == pytest.approx(6.0)
    assert longest_silence(answered, {0}, 0.0, 10.0) == pytest.approx(1.0)
    assert longest_silence(answered, {2}, 0.0, 10.0) == pytest.approx(10.0)


def moved(kind: Kind, *, stall_s: float = 0.0, counted: Counted | None = None) -> MoveFigures:
    """Unit 0 goes from `old` to `new`; unit 1 stays, and has no results for a while after the first second."""
    answered = [
        *every(0.1, 90, 101, 0, "old"),
        *every(0.1, 102.9, 106, 0, "new"),
        *every(0.1, 90, 101, 1, "staying"),
        *every(0.1, 101 + stall_s, 106, 1, "staying"),
    ]
    marks = [
        Mark(101.0, "old", "draining", frozenset({0})),
        letting_go(102.0, "old", 0),
    ]
    return sum_up(kind, answered, marks, counted or Counted(7, 7), steady_from=92.0, acted_at=ACTED)


def test_a_join_lasts_from_the_first_drain_and_a_leave_from_the_signal() -> None:
    assert moved("join").window_s == pytest.approx(2.0)
    assert moved("leave").window_s == pytest.approx(3.0)


def test_units_that_stay_and_are_served_on_keep_their_throughput() -> None:
    figures = moved("leave")
    assert (figures.moved, figures.stayed) == (1, 1)
    assert figures.throughput_ratio == pytest.approx(1.0, abs=0.05)
    assert all(goals(figures, 10.0).values())


def test_a_stall_of_the_units_that_stay_shows_in_throughput_and_silence() -> None:
    figures = moved("leave", stall_s=1.5)
    assert figures.throughput_ratio == pytest.approx(0.5, abs=0.05)
    assert figures.longest_silence_s == pytest.approx(1.6)
    assert figures.longest_silence_before_s == pytest.approx(0.1)
    assert [goal for goal, met in goals(figures, 10.0).items() if not met] == [
        "the others' throughput at least 0.9 of before"
    ]


def test_generations_beyond_one_for_each_result_are_regenerated() -> None:
    figures = moved("join", counted=Counted(begun=12, results=9))
    assert figures.regenerated == 3
    assert not goals(figures, 10.0)["nothing regenerated"]


@pytest.mark.parametrize(("begun", "met"), [(16, True), (17, False)])
def test_a_kill_may_regenerate_what_was_in_flight_and_no_more(begun: int, met: bool) -> None:
    figures = moved("kill", counted=Counted(begun=begun, results=9, in_flight=7))
    assert goals(figures, 10.0)["regenerated at most what was in flight"] is met


@pytest.mark.parametrize(("session_timeout_s", "met"), [(1.1, True), (0.9, False)])
def test_a_kill_is_timed_until_the_last_unit_is_answered_by_another(
    session_timeout_s: float, met: bool
) -> None:
    figures = moved("kill", counted=Counted(9, 9, 0))
    assert figures.answered_again_s == pytest.approx(3.0)
    assert figures.hand_over_s is None
    assert goals(figures, session_timeout_s)["answered again within the session timeout + 2 s"] is met


def test_a_change_at_which_nothing_moves_is_no_measurement() -> None:
    with pytest.raises(BenchFailed, match="no unit has moved"):
        sum_up("join", every(1, 90, 105, 0, "a"), [], Counted(1, 1), steady_from=92.0, acted_at=ACTED)


@pytest.mark.parametrize("tokens", [MAX_TOKENS, SHORT_TOKENS])
def test_short_requests_are_all_of_the_length_that_they_ask_for(tokens: int) -> None:
    async def lengths() -> set[int]:
        engine = SimulatedEngine(SimulatedProfile(time_scale=0))
        await engine.start()
        found: set[int] = set()
        for number in range(50):
            request = short_request(f"r{number}", tokens)
            assert request.prompt is not None
            assert request.sampling is not None
            job = GenerationJob(request.id, await engine.encode(TextPrompt(request.prompt)), request.sampling)
            async for event in engine.generate(job):
                if isinstance(event, Generation):
                    found.add(event.choices[0].completion_tokens)
        return found

    assert asyncio.run(lengths()) == {tokens}


# --- a long request ---


def results(*ids: str) -> list[Answered]:
    return [Answered(each, 0, "w", float(number)) for number, each in enumerate(ids)]


def test_what_was_answered_before_the_long_request_is_counted() -> None:
    assert others_before(results("s0", "s1", "long", "s2"), "long") == 2


def test_a_long_request_without_a_result_is_no_measurement() -> None:
    with pytest.raises(BenchFailed, match="no result of long"):
        others_before(results("s0"), "long")


def test_lost_and_duplicated_are_counted_among_the_ids_that_were_asked() -> None:
    answered = results("a", "b", "b", "b", "of-another-part", "of-another-part")
    assert lost_and_duplicated(answered, ["a", "b", "c"]) == (1, 2)


def test_generations_of_both_lives_beyond_one_for_each_request_are_regenerated() -> None:
    assert regenerated(Page(begun=100, answered=90), Page(begun=60, answered=60), 150) == 10


# --- interactive ---


def test_a_percentile_is_one_of_the_values_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values[::-1], 0.5) == 50.0
    assert percentile(values, 0.95) == 95.0
    assert percentile([3.0], 0.95) == 3.0


PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 24.0
vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="m"} 3.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 1.5
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 1e+02
vllm:inter_token_latency_seconds_created{engine="0",model_name="m"} 1.7e+09
"""


def test_vllms_running_sequences_and_time_between_tokens_are_read_from_its_page() -> None:
    assert steps_on(PAGE) == Steps(running=24.0, seconds=1.5, tokens=100.0)


def test_a_page_without_vllms_families_is_no_measurement() -> None:
    with pytest.raises(BenchFailed, match="num_requests_running"):
        steps_on(PAGE.replace("num_requests_running", "num_requests_gone"))


def test_the_difference_is_told_in_steps_of_the_loaded_time_alone() -> None:
    idle = FirstTokens(client_p50=8.0, client_p95=10.0, worker_p50=4.0, worker_p95=5.0)
    loaded = FirstTokens(client_p50=20.0, client_p95=40.0, worker_p50=14.0, worker_p95=20.0)
    looks = [Steps(24, 1.0, 100), Steps(2, 1.5, 150), Steps(30, 3.0, 200)]
    figures = sum_up_interactive(idle, loaded, looks, room=24.0)
    assert figures.step_ms == pytest.approx(20.0)
    assert figures.steps_over_idle == pytest.approx(1.5)
    assert figures.worker_steps_over_idle == pytest.approx(0.75)
    assert figures.ratio == pytest.approx(4.0)
    assert (figures.running, figures.saturation) == (24, 1.0)


def test_an_engine_that_generated_nothing_while_loaded_is_no_measurement() -> None:
    tokens = FirstTokens(1.0, 1.0, 1.0, 1.0)
    with pytest.raises(BenchFailed, match="generated nothing"):
        sum_up_interactive(tokens, tokens, [Steps(0, 1.0, 100)], room=24.0)
