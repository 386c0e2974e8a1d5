"""What the rollout records of any history say, read as they came and read again after compaction."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from property.rollout_mutants import BUGS
from property_examples import EXAMPLES

from headrace.consumers.rollouts import (
    Limits,
    Planned,
    Progress,
    Rollback,
    Rollout,
    RolloutRecords,
    Value,
    Wished,
    rollout_record,
)
from headrace.consumers.sharing import Plan

GROUPS = ("g", "h")
IDS = ("a", "b", "c")
SHARES = st.dictionaries(st.sampled_from("1234"), st.integers(0, 100), max_size=3)
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.builds(
        Rollout,
        model=st.just("m"),
        contract=st.just(1),
        to=st.sampled_from("1234"),
        before=SHARES,
        steps=st.just([50, 100]),
        hold_s=st.just(1.0),
        limits=st.just(Limits()),
        by=st.just("me"),
        at=st.just(1),
    ),
    st.builds(Planned, shares=SHARES, step=st.integers(0, 1), at=st.just(1)),
    st.builds(Planned, shares=SHARES, step=st.integers(0, 1), at=st.just(1)),
    st.builds(Rollback, shares=SHARES, why=st.just("bad"), by=st.just("me"), at=st.just(1)),
    st.builds(
        Progress,
        step=st.integers(0, 1),
        state=st.sampled_from(("waiting", "moving", "holding", "finished")),
        since=st.just(1),
    ),
    st.builds(Wished, wish=st.sampled_from(("go_on", "pause", "promote")), by=st.just("me"), at=st.just(1)),
)


@dataclass(frozen=True)
class Written:
    """A record and what it is about; `value` None: it cannot be read."""

    group: str
    id_: str
    value: Value
    readable: bool

    def record(self) -> tuple[bytes, bytes]:
        key, value = rollout_record((self.group, self.id_), self.value)
        return key, value if self.readable else b'{"shares": 7}'


HISTORY = st.lists(
    st.builds(
        Written,
        st.sampled_from(GROUPS),
        st.sampled_from(IDS),
        VALUES,
        st.sampled_from((True,) * 9 + (False,)),
    ),
    max_size=24,
)


def expected(history: list[Written], group: str) -> Plan | None:
    """The plan of a group, found the slow way: by asking the whole history."""
    ours = [(offset, each) for offset, each in enumerate(history) if each.group == group]
    begun: dict[str, int] = {}
    before: dict[str, dict[str, int]] = {}
    said: dict[str, dict[str, int]] = {}
    undone: dict[str, dict[str, int]] = {}
    revision = -1
    for offset, each in ours:
        value = each.value
        if isinstance(value, Rollback):
            undone[each.id_] = value.shares if each.readable else {}
        if not each.readable:
            continue
        if isinstance(value, Rollout):
            begun[each.id_], before[each.id_] = offset, value.before
        if isinstance(value, Planned):
            said[each.id_] = value.shares
    for offset, each in ours:
        if isinstance(each.value, Rollback) or (isinstance(each.value, Planned) and each.readable):
            revision = max(revision, offset)
    spoken = {**said, **{id_: shares or before.get(id_, {}) for id_, shares in undone.items()}}
    if not spoken:
        return None
    last = max(spoken, key=lambda id_: (begun.get(id_, -1), id_))
    return Plan(revision, last, spoken[last])


def read(history: list[Written], places: list[int] | None = None) -> RolloutRecords:
    records = RolloutRecords()
    for offset in places if places is not None else range(len(history)):
        records.take(*history[offset].record(), offset)
    return records


def compacted(history: list[Written]) -> list[int]:
    """Offsets of each key's last record."""
    last = {each.record()[0]: offset for offset, each in enumerate(history)}
    return sorted(last.values())


def check(history: list[Written]) -> None:
    for group in GROUPS:
        records = RolloutRecords()
        revision = -1
        for offset, each in enumerate(history):
            records.take(*each.record(), offset)
            plan = records.plan(group)
            if plan is not None:
                assert plan.revision >= revision, "a revision never falls"
                revision = plan.revision
        assert records.plan(group) == expected(history, group)


def check_compacted(history: list[Written]) -> None:
    """Of records that can all be read: one that cannot be read has taken nothing back, and hides what it was over."""
    readable = [each for each in history if each.readable]
    for group in GROUPS:
        assert read(readable, compacted(readable)).plan(group) == read(readable).plan(group)


QUICK = settings(max_examples=EXAMPLES, deadline=None)


@QUICK
@given(HISTORY)
def test_the_last_word_of_the_rollout_begun_last_counts_and_a_rollback_is_final(
    history: list[Written],
) -> None:
    check(history)


@QUICK
@given(HISTORY)
def test_after_compaction_the_records_say_the_same(history: list[Written]) -> None:
    check_compacted(history)


@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)

    @settings(QUICK, max_examples=max(EXAMPLES, 1000), database=None, phases=[Phase.generate])
    @given(HISTORY)
    def laws(history: list[Written]) -> None:
        check(history)
        check_compacted(history)

    with pytest.raises((AssertionError, ExceptionGroup)):
        laws()
