"""Who is tried next: half of the most suspect, the last one alone; over lives, as the metadata carries them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_worker import SOURCES
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES

from headrace.consumers.records import Record
from headrace.consumers.suspicion import Suspicion
from headrace.schemas.codec import Codec
from headrace.workers.intake import work_of
from headrace.workers.trials import CONVICTED_AFTER, Trials, is_convicted, is_suspect
from headrace.workers.work import Work

SOURCE = SOURCES[0]


def a_work(offset: int) -> Work:
    record = Record(*SOURCE, offset, 0, None, b'{"id":"r%d","prompt":"x"}' % offset)
    return work_of(record, source=SOURCE, epoch=1, lane="interactive", codec=Codec())


def tried(trials: Trials) -> tuple[list[int], bool] | None:
    trial = trials.begin()
    return None if trial is None else ([work.offset for work in trial.works], trial.alone)


def test_one_death_suspects_nobody_and_two_do() -> None:
    assert [is_suspect(Suspicion(deaths)) for deaths in range(4)] == [False, False, True, True]


def test_half_is_tried_and_the_rest_waits_until_it_is_through() -> None:
    trials = Trials()
    for offset in range(5):
        trials.hold(a_work(offset), Suspicion(2))
    assert tried(trials) == ([0, 1, 2], False)
    assert tried(trials) is None, "one trial at a time"
    assert [trials.finished(SOURCE, offset) for offset in (1, 0, 2)] == [False, False, True]
    assert tried(trials) == ([3], False)
    assert trials.finished(SOURCE, 3)
    assert tried(trials) == ([4], True), "the last one alone"
    assert trials.finished(SOURCE, 4)
    assert trials.suspects == 0


def test_those_with_most_deaths_come_first_and_those_that_died_alone_before_them() -> None:
    trials = Trials()
    trials.hold(a_work(0), Suspicion(2))
    trials.hold(a_work(1), Suspicion(4))
    trials.hold(a_work(2), Suspicion(4))
    trials.hold(a_work(3), Suspicion(3, alone=1))
    assert tried(trials) == ([3], True)
    trials.finished(SOURCE, 3)
    assert tried(trials) == ([1], False)


def test_suspects_of_a_partition_that_drains_are_passed_over() -> None:
    trials = Trials()
    trials.hold(a_work(0), Suspicion(2))
    assert trials.begin(but_of=[SOURCE]) is None
    assert trials.begin() is not None


def test_a_trial_that_was_called_off_is_held_again() -> None:
    trials = Trials()
    trials.hold(a_work(0), Suspicion(2))
    trials.begin()
    trials.call_off({(SOURCE, 0): Suspicion(2)})
    assert (trials.under_way, trials.suspects) == (None, 1)
    assert tried(trials) == ([0], True)


def test_a_trial_is_over_when_its_partition_has_gone() -> None:
    trials = Trials()
    trials.hold(a_work(0), Suspicion(2))
    trials.hold(a_work(1), Suspicion(2))
    trials.begin()
    assert trials.forget(SOURCE)
    assert (trials.under_way, trials.suspects) == (None, 0)
    assert not trials.forget(SOURCE)


@pytest.mark.parametrize("known", [True, False], ids=["the engine dies", "the worker vanishes"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data(), suspects=st.integers(1, 40))
def test_bisection_finds_the_guilty_and_nobody_else(known: bool, data: st.DataObject, suspects: int) -> None:
    guilty = set(data.draw(st.lists(st.integers(0, suspects - 1), max_size=3, unique=True)))
    lives, convicted, answered = bisect(suspects, guilty.__contains__, known=known)
    assert convicted == guilty
    assert answered == set(range(suspects)) - guilty
    # Of each: the halvings, and the deaths alone.
    assert lives <= len(guilty) * (suspects.bit_length() + CONVICTED_AFTER + 1)


def bisect(suspects: int, kills: Callable[[int], bool], *, known: bool) -> tuple[int, set[int], set[int]]:
    """Lives until all are answered or convicted, by the rules of the metadata."""
    state = dict.fromkeys(range(suspects), Suspicion(2))
    lives, convicted, answered = 0, set[int](), set[int]()
    while state:
        lives += 1
        for offset in [offset for offset, each in state.items() if is_convicted(each)]:
            convicted.add(offset)
            del state[offset]
        trials = Trials()
        for offset, suspicion in state.items():
            trials.hold(a_work(offset), suspicion)
        while (trial := trials.begin()) is not None:
            offsets = [work.offset for work in trial.works]
            if any(map(kills, offsets)):
                for offset in offsets:
                    deaths, alone, _ = state[offset]
                    state[offset] = Suspicion(deaths + 1, alone + (trial.alone and not known))
                if trial.alone and known:
                    convicted.add(offsets[0])
                    del state[offsets[0]]
                break
            for offset in offsets:
                trials.finished(SOURCE, offset)
                answered.add(offset)
                del state[offset]
        else:
            return lives - 1, convicted, answered
    return lives, convicted, answered
