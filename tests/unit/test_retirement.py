"""What hinders a contract's retirement, what it removes, and that it gets to its end wherever it is cut off."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.consumers.contract_traffic import ContractTraffic
from headrace.consumers.contracts import ContractRecords
from headrace.consumers.group_members import Member
from headrace.consumers.retirements import Retirement, retirement_key, retirement_value
from headrace.ops.retirement import (
    Forget,
    Note,
    RemoveGroup,
    RemoveTopics,
    Standing,
    Step,
    TakeBack,
    hindrances,
    keys_of,
    removal,
    shown_duration,
    shown_size,
    told,
    without_note,
)
from headrace.topics.names import ContractNames
from headrace.topics.removal import HeldTopic

NAMES = ContractNames("h", "tagger", 1)
QUIET = ContractTraffic(
    recent=0, waiting=0, held=0, members=(), is_stable=True, has_group=True, last=None, missing=(), ends={}
)
KEYS = (
    "accept/h.tagger.c1/h.tagger.c1.requests.standard/0",
    "contract/tagger/1",
    "partition/h.tagger.c1/h.tagger.c1.requests.standard/0",
    "plan/h.tagger.c1/2.x",
    "rollout/h.tagger.c1/2.x",
    "serving/tagger/1/a/b",
)
TOPICS = tuple(
    HeldTopic(topic, 4, 10, 2048)
    for topic in (*NAMES.request_topics, NAMES.cancels, NAMES.results, NAMES.dead)
)
SCHEMA = '{"type": "record"}'
STANDING = Standing(NAMES, QUIET, 3600, TOPICS, KEYS, result_schemas=(SCHEMA,))


def a_member(version: str) -> Member:
    return Member("slot", version, 4, frozenset({0}), leaving=False)


# --- what hinders ---


def test_nothing_hinders_a_contract_that_nobody_asks_or_serves() -> None:
    assert hindrances(STANDING, results_too=False) == []


@pytest.mark.parametrize(
    ("changed", "why", "remedy"),
    [
        ({"aliases": ("films",)}, "the alias films means it", "contracts alias films --remove"),
        ({"open_rollout": "4.x"}, "rollout 4.x is under way", "rollout rollback tagger --contract 1"),
        ({"traffic": replace(QUIET, waiting=1)}, "not done: 1 request", "let a worker answer"),
        ({"traffic": replace(QUIET, recent=2000)}, "2,000 requests came within 1 h", "--idle"),
        ({"traffic": replace(QUIET, is_stable=False)}, "rebalancing", "wait"),
        (
            {"traffic": replace(QUIET, members=[a_member("3"), a_member("4"), a_member("")])},
            "live: 3 workers (1 of version ?, 1 of version 3, 1 of version 4)",
            "stop them",
        ),
        ({"shadows": {"h.tagger.c1.shadow.5": 2}}, "2 workers of h.tagger.c1.shadow.5", "stop them"),
        ({"unreadable": "no JSON"}, "its frozen record cannot be read (no JSON)", "--results-too"),
    ],
)
def test_each_hindrance_is_named_with_what_to_do(changed: dict[str, Any], why: str, remedy: str) -> None:
    [found] = hindrances(replace(STANDING, **changed), results_too=False)
    assert why in found.why
    assert remedy in found.remedy


def test_what_cannot_be_read_hinders_only_where_results_stay() -> None:
    standing = replace(STANDING, unreadable="no JSON")
    assert hindrances(standing, results_too=True) == []


def test_a_shadow_without_workers_hinders_nothing() -> None:
    assert hindrances(replace(STANDING, shadows={"h.tagger.c1.shadow.5": 0}), results_too=False) == []


# --- what is removed ---


def test_neighbours_records_are_not_the_contracts_own() -> None:
    others = [
        "alias/tagger",
        "contract/tagger/11",
        "contract/taggers/1",
        "contract/tagger/1/x",
        "partition/h.tagger.c11/h.tagger.c11.requests.standard/0",
        "partition/x.h.tagger.c1/t/0",
        "plan/h.tagger.c10/2.x",
        "retired/tagger/1",
        "serving/tagger/10/1",
        "serving/tagger/1",
        "later/h.tagger.c1/x",
    ]
    shadow = "partition/h.tagger.c1.shadow.5/h.tagger.c1.requests.standard/0"
    assert keys_of(NAMES, [*others, *KEYS, shadow]) == sorted([*KEYS, shadow])


def test_the_order_of_a_removal() -> None:
    standing = replace(STANDING, shadows={"h.tagger.c1.shadow.5": 0})
    steps = removal(standing, results_too=False, by="a@b", at_ms=5)
    note = Retirement("tagger", 1, "removing", "a@b", 5, (SCHEMA,))
    kept = (NAMES.results, NAMES.dead)
    assert steps == [
        Note(note),
        TakeBack(["contract/tagger/1", "serving/tagger/1/a/b"]),
        RemoveTopics([*NAMES.request_topics, NAMES.cancels]),
        RemoveGroup("h.tagger.c1"),
        RemoveGroup("h.tagger.c1.shadow.5"),
        TakeBack([key for key in KEYS if not key.startswith(("contract/", "serving/"))]),
        Note(replace(note, state="removed", kept=kept)),
    ]


def test_with_its_results_nothing_is_left() -> None:
    steps = removal(STANDING, results_too=True, by="a@b", at_ms=5)
    assert steps[2] == RemoveTopics([each.name for each in TOPICS])
    assert steps[-1] == Forget()


def test_what_is_removed_and_what_stays_is_told() -> None:
    lines = told(STANDING, removal(STANDING, results_too=False, by="", at_ms=0), results_too=False)
    assert "topic   h.tagger.c1.requests.standard: 4 partitions, 10 records, 2.0 KiB" in lines
    assert "group   h.tagger.c1 and its offsets" in lines
    assert "record  contract/tagger/1" in lines
    assert "record  partition/h.tagger.c1/...: 1 record" in lines
    assert [line for line in lines if line.startswith("kept")] == [
        "kept    h.tagger.c1.results: 4 partitions, 10 records, 2.0 KiB",
        "kept    h.tagger.c1.dead: 4 partitions, 10 records, 2.0 KiB",
    ]


# --- cut off ---


@dataclass
class World:
    """What there is of a contract, and the moves of a retirement on it."""

    topics: list[HeldTopic] = field(default_factory=lambda: list(TOPICS))
    keys: list[str] = field(default_factory=lambda: list(KEYS))
    has_group: bool = True
    note: Retirement | None = None

    def look(self) -> Standing:
        schemas = dict.fromkeys(self.note.result_schemas if self.note else ())
        if "contract/tagger/1" in self.keys:
            schemas[SCHEMA] = None
        traffic = replace(QUIET, has_group=self.has_group)
        return Standing(
            NAMES,
            traffic,
            0,
            tuple(self.topics),
            tuple(self.keys),
            result_schemas=tuple(schemas),
            begun=self.note,
        )

    def do(self, step: Step) -> None:
        match step:
            case Note(note):
                self.note = note
            case TakeBack(keys):
                self.keys = [key for key in self.keys if key not in keys]
            case RemoveTopics(topics):
                self.topics = [each for each in self.topics if each.name not in topics]
            case RemoveGroup():
                assert not {each.name for each in self.topics} & {*NAMES.request_topics}, (
                    "offsets before requests"
                )
                self.has_group = False
            case Forget():
                self.note = None

    def halves(self, step: Step) -> list[Step]:
        """A step in as many as it can be cut into."""
        match step:
            case TakeBack(keys):
                return [TakeBack([key]) for key in keys]
            case RemoveTopics(topics):
                return [RemoveTopics([topic]) for topic in topics]
            case _:
                return [step]


def steps_of(world: World, results_too: bool) -> list[Step]:
    steps = removal(world.look(), results_too=results_too, by="a@b", at_ms=5)
    return [each for step in steps for each in world.halves(step)]


@pytest.mark.parametrize("results_too", [False, True])
def test_wherever_it_is_cut_off_it_is_seen_and_ends_the_same(results_too: bool) -> None:
    whole = World()
    every_step = steps_of(whole, results_too)
    for step in every_step:
        whole.do(step)
    assert (whole.keys, whole.has_group) == ([], False)
    assert [each.name for each in whole.topics] == ([] if results_too else [NAMES.results, NAMES.dead])
    for cut in range(1, len(every_step)):
        world = World()
        for step in every_step[:cut]:
            world.do(step)
            assert world.look().is_half_removed, "workers and endpoints keep away"
        for step in steps_of(world, results_too):
            world.do(step)
        assert world == whole


def test_results_of_both_lives_of_a_contract_stay_readable() -> None:
    world = World()
    for step in steps_of(world, results_too=False):
        world.do(step)
    assert world.note is not None
    assert world.note.result_schemas == (SCHEMA,)
    assert world.look().is_retired
    before = replace(world.note, result_schemas=("old",))
    reopened = World(note=before)
    assert not reopened.look().is_half_removed
    assert not reopened.look().is_retired
    for step in steps_of(reopened, results_too=False):
        reopened.do(step)
    assert reopened.note is not None
    assert reopened.note.result_schemas == ("old", SCHEMA)


def test_what_was_given_up_before_anything_was_removed_leaves_what_was_there() -> None:
    world = World()
    world.do(steps_of(world, results_too=False)[0])
    assert world.look().is_untouched
    assert without_note(world.look()) == Forget()
    kept = Retirement("tagger", 1, "removed", "a@b", 5, ("old",), (NAMES.results,))
    world = World(note=kept)
    world.do(steps_of(world, results_too=False)[0])
    given_up = without_note(world.look())
    assert given_up == Note(replace(kept, result_schemas=("old", SCHEMA)))


# --- the record ---


def test_the_record_is_read_as_it_was_written() -> None:
    records = ContractRecords()
    retirement = Retirement("tagger", 3, "removed", "a@b", 5, (SCHEMA,), (NAMES.results,))
    records.take(retirement_key("tagger", 3), retirement_value(retirement))
    assert records.retired == {("tagger", 3): retirement}
    assert records.result_schemas == [SCHEMA]
    assert records.next_number("tagger") == 4
    records.take(retirement_key("tagger", 3), None)
    assert (records.retired, records.next_number("tagger")) == ({}, 1)


def test_a_record_that_cannot_be_read_hides_no_other_and_its_number() -> None:
    records = ContractRecords()
    records.take(retirement_key("tagger", 3), b'{"state": "gone", "by": "a", "at": 1}')
    assert list(records.unreadable) == ["retired/tagger/3"]
    assert records.next_number("tagger") == 4


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (90, "90 s"), (300, "5 min"), (3600, "1 h"), (86_400, "24 h")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert shown_duration(seconds) == shown


@pytest.mark.parametrize(
    ("size", "shown"), [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")]
)
def test_sizes(size: int, shown: str) -> None:
    assert shown_size(size) == shown
