"""The parts of `make demo-rollout` that need no broker: its picture, and its count."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from rich.console import Console

from headrace.consumers.records import RecordLocation
from headrace.ops.faults.requests import Composer, Mix
from headrace.ops.faults.timeline import Event
from headrace.ops.faults.verdict import Answer, Asked
from headrace.ops.rollout_demo import FAILS_A_THIRD
from headrace.ops.rollout_demo_count import count_up, slot_of, version_of
from headrace.ops.rollout_demo_view import CELL_S, Cell, Owner, Picture, RolloutView, Strips, colour_of
from headrace.ops.rollouts.view import VersionRow
from headrace.ops.rollouts.watching import Answer as Watched
from headrace.schemas.messages import Sampling, Status
from headrace.workers.engine import Generation, GenerationJob, TextPrompt
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.simulated_failures import Script


def result(unit: int, at_s: float, version: str = "1", status: str = "ok") -> Watched:
    return Watched(version, status, 10.0, 4, int(at_s * 1000), unit)


def test_a_strip_has_the_last_results_of_a_unit_and_one_failure_in_a_cell_is_seen() -> None:
    strips = Strips()
    strips.take(result(0, 100.0))
    strips.take(result(0, 100.0 + CELL_S, "2", "failed"))
    strips.take(result(0, 100.1 + CELL_S, "2"))
    strips.take(result(1, 100.0))
    assert strips.row(0, 100.1 + 2 * CELL_S, 4) == [None, Cell("1", False), Cell("2", True), None]
    assert strips.row(0, 100.0 + CELL_S, 1) == [Cell("2", True)], "older ones have left the picture"
    assert strips.row(2, 100.0, 2) == [None, None]


def test_versions_beside_each_other_have_colours_of_their_own() -> None:
    assert len({colour_of(version) for version in "123"}) == 3
    assert colour_of("latest") == colour_of("latest")


def picture(units: int = 8) -> Picture:
    strips = Strips()
    for unit in range(units):
        strips.take(result(unit, 100.0, "1"))
        strips.take(result(unit, 100.0 + CELL_S, "2", "failed" if unit == 3 else "ok"))
    rows = [
        VersionRow(version, 0.5, units // 2, "0-3", 2, 1, 20, 2.0, 0.1, 0.0, 100.0, 200.0, 80)
        for version in "123"
    ]
    owners = {unit: Owner("2", f"v2-{unit % 2}") for unit in range(units - 1)}
    return Picture(
        "rollout 2.x: watched/1 to version 2, " + "holding " * 30,
        "held " * 40,
        units,
        40,
        39,
        owners,
        {0: 7},
        rows,
        ["units are moving"],
        strips,
        100.0 + CELL_S,
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 24), (120, 34), (200, 60)])
def test_the_picture_fits_the_terminal_and_shows_each_partition(width: int, height: int) -> None:
    def console() -> Console:
        return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, record=True)

    view = RolloutView(console())
    with view.live():
        for number in range(30):
            view.event(Event(float(number), "planned", "version 2", f"event {number}"))
    paper = console()
    paper.print(view.picture(picture()))
    lines = paper.export_text().splitlines()
    shown = "\n".join(lines)
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    assert "event 29" in shown
    assert "event 20" not in shown
    assert "40 sent, 39 results" in shown
    assert sum("■ 2" in line for line in lines) == 7
    assert sum("moves" in line for line in lines) == 1, "a partition without an owner"
    assert sum(line.rstrip().endswith("█x") for line in lines) == 1


def test_where_there_is_no_terminal_there_are_lines() -> None:
    out = io.StringIO()
    view = RolloutView(Console(file=out, width=160))
    with view.live():
        view.event(Event(1.0, "planned", "version 2", "half"))
        view.show(picture())
        view.show(picture())
    first, second = out.getvalue().splitlines()
    assert first.endswith("half")
    assert second.strip().startswith("40 sent, 39 results; version 1: 4 of 8 partitions, 10% of 20 failed")


# --- the count ---


def asked(id_: str, offset: int) -> Asked:
    return Asked(id_, id_, RecordLocation("requests", 0, offset))


def answer(id_: str, offset: int, version: str, status: Status = "ok", source: int = 0) -> Answer:
    at, of = RecordLocation("results", 0, offset), RecordLocation("requests", 0, source)
    return Answer(id_, status, None, "text", at, of, slot_of(version, 1), 1)


ASKED = [asked("a", 0), asked("b", 1), asked("c", 2), asked("b", 3)]
ANSWERS = [
    answer("a", 0, "2"),
    answer("b", 1, "3", "failed"),
    answer("c", 2, "2"),
    answer("b", 3, "2"),
]


def test_what_was_sent_is_what_was_answered_once_and_what_was_asked_again() -> None:
    assert version_of(slot_of("10", 3)) == "10"
    count = count_up(ASKED, ANSWERS, "3")
    assert (count.sent, count.answered_once, count.asked_again, count.answered_again) == (3, 2, 1, 1)
    assert (count.others, count.bad_failed, count.by_version) == (0, 1, {"2": 3, "3": 1})
    assert count.adds_up
    first, second = count.lines(12.3)
    assert first.startswith(
        "3 sent = 2 answered once + 1 answered by version 3 (1 failed) and asked again; 0 lost"
    )
    assert second == "4 answers = 3 sent + 1 asked again: 3 by version 2, 1 by version 3, in 12 s"


@pytest.mark.parametrize(
    "answers",
    [
        ANSWERS[1:],  # one is lost
        [*ANSWERS, answer("a", 4, "2")],  # one is doubled
        ANSWERS[:3],  # nobody has answered it again
        [*ANSWERS[:3], answer("b", 3, "3")],  # the bad version has
        [*ANSWERS[:3], answer("b", 3, "2", "failed")],  # not well
        [answer("a", 0, "2"), answer("b", 1, "2"), *ANSWERS[2:]],  # it need not have been asked again
    ],
)
def test_a_count_that_does_not_add_up_says_so(answers: list[Answer]) -> None:
    count = count_up(ASKED, answers, "3")
    assert not count.adds_up
    assert count.others == 1


def test_a_rollout_that_had_nothing_to_ask_again_does_not_add_up() -> None:
    assert not count_up(ASKED[:1], ANSWERS[:1], "3").adds_up


def test_version_3_fails_about_a_third_of_the_requests_that_are_sent() -> None:
    assert len(json.loads(FAILS_A_THIRD)) == 5

    async def fail() -> int:
        engine = SimulatedEngine(SimulatedProfile(time_scale=0), Script.from_json(FAILS_A_THIRD))
        await engine.start()
        composer, failed = Composer(Mix(seed=1)), 0
        for _ in range(300):
            request = composer.next().request
            assert request.prompt is not None
            job = GenerationJob(request.id, await engine.encode(TextPrompt(request.prompt)), Sampling())
            async for event in engine.generate(job):
                failed += isinstance(event, Generation) and event.choices[0].finish_reason == "error"
        return failed

    assert 75 <= asyncio.run(fail()) <= 120
