"""Cancels: which requests they are about, and what becomes of those."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_worker import NAMES
from packages import a_package
from serving_parts import Sent, a_work, until

from headrace.schemas.codec import Codec
from headrace.schemas.messages import Cancel
from headrace.workers import cancels as cancels_module
from headrace.workers.admission import Admission, Room
from headrace.workers.answers import Answers
from headrace.workers.cancels import Cancels
from headrace.workers.replying import ReplySender
from headrace.workers.requests import Requests
from headrace.workers.serving import Serving
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.work import Completion

LATER = 10**15  # ms since the epoch: after every request of these tests


def test_a_cancel_is_about_its_id_or_its_job_and_nothing_else() -> None:
    cancels = Cancels()
    cancels.note(Cancel(id="a", time=0), LATER)
    cancels.note(Cancel(job="nightly", reason="wrong prompt", time=0), LATER)
    assert cancels.of(a_work('{"id":"a","prompt":"x"}')) is not None
    found = cancels.of(a_work('{"id":"b","job":"nightly","prompt":"x"}'))
    assert found is not None
    assert found.reason == "wrong prompt"
    assert cancels.of(a_work('{"id":"nightly","prompt":"x"}')) is None
    assert cancels.of(a_work('{"id":"c","job":"a","prompt":"x"}')) is None


def test_an_id_that_is_asked_for_again_after_its_cancel_is_meant() -> None:
    cancels = Cancels()
    work = a_work('{"id":"a","prompt":"x"}')
    cancels.note(Cancel(id="a", time=0), work.appended_ms - 1)
    assert cancels.of(work) is None
    cancels.note(Cancel(id="a", time=0), work.appended_ms)
    assert cancels.of(work) is not None


def test_only_so_many_are_remembered_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels_module, "REMEMBERED", 2)
    cancels = Cancels()
    for name in "abc":
        cancels.note(Cancel(id=name, time=0), LATER)
    assert [cancels.of(a_work(f'{{"id":"{name}","prompt":"x"}}')) is not None for name in "abc"] == [
        False,
        True,
        True,
    ]


def test_what_runs_ends_at_once_what_waits_is_never_generated_and_the_rest_goes_on(tmp_path: Path) -> None:
    package = a_package(tmp_path)
    completed: list[Completion] = []

    async def run() -> SimulatedEngine:
        engine = SimulatedEngine(SimulatedProfile(time_scale=0))
        engine.script.fail("hang", prompt_contains="running", times=1)
        await engine.start()
        cancels = Cancels()
        requests = Requests(
            model="tagger",
            admission=Admission(Room(1, None, 0)),
            serving=Serving(
                package=package,
                engine=engine,
                replies=ReplySender(Sent(), Codec(), model="t"),
                cancels=cancels,
            ),
            answers=Answers(
                package=package, names=NAMES, slot="s", codec=Codec(), check_size=lambda record: None
            ),
            cancels=cancels,
            complete=completed.append,
            hand_back=lambda units, works: None,
            failed=lambda error: pytest.fail(str(error)),
        )
        requests.accept(
            [
                a_work(f'{{"id":"{name}","prompt":"{name}"}}', offset=offset)
                for offset, name in enumerate(("running", "waiting", "other"))
            ]
        )
        await until(lambda: engine.running_jobs == 1)
        requests.cancel(Cancel(id="running", time=0), LATER)
        requests.cancel(Cancel(id="waiting", time=0), LATER)
        await until(lambda: len(completed) == 3)
        return engine

    engine = asyncio.run(run())
    assert engine.running_jobs == 0
    results = {each.request_id: each.result for each in completed}
    assert {name: result.status for name, result in results.items() if result} == {
        "running": "cancelled",
        "waiting": "cancelled",
        "other": "ok",
    }
    assert all(len(each.records) == 1 for each in completed), "a cancelled request leaves no dead letter"
