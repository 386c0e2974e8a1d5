"""kafka-python's port to the sharing of units: what a member says, and what it makes of what it is told."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from headrace.consumers.assignor import LOOK_AGAIN_S, NAME, UnitAssignor
from headrace.consumers.claims import Told, decode_claim, decode_told, encode_told
from headrace.consumers.sharing import Plan

TOPICS = {"interactive", "standard"}


class Cluster:
    """As much of kafka-python's cluster metadata as an assignor reads."""

    def __init__(self, **partitions: int | None) -> None:
        self._partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def assignor(slot: str = "slot-a", incarnation: str = "1", version: str = "3", **more: Any) -> UnitAssignor:
    return UnitAssignor(slot=slot, incarnation=incarnation, version=version, capacity=8, **more)


def joining(member: UnitAssignor, member_id: str, user_data: bytes | None = None) -> Any:
    """A member as the leader sees it, its metadata encoded and decoded as on the way to the broker and back."""
    metadata = member.metadata(TOPICS)
    if user_data is not None:
        metadata.user_data = user_data
    decoded = ConsumerProtocolSubscription.decode(metadata.encode())
    return SimpleNamespace(member_id=member_id, group_instance_id=f"slot-{member_id}", metadata=decoded)


def sent(assignment: Any) -> Any:
    return ConsumerProtocolAssignment.decode(assignment.encode())


def partitions(assignment: Any) -> set[tuple[str, int]]:
    return {(tp.topic, tp.partition) for tp in assignment.partitions()}


def give(member: UnitAssignor, units: int, generation: int, incarnation: str = "1", **more: Any) -> None:
    told = Told(incarnation=incarnation, version="3", **more)
    topics = [(topic, list(range(units))) for topic in sorted(TOPICS)]
    member.on_assignment(sent(ConsumerProtocolAssignment(2, topics, encode_told(told))), generation)


def said(member: UnitAssignor) -> Any:
    return ConsumerProtocolSubscription.decode(member.metadata(TOPICS).encode())


def claimed(member: UnitAssignor) -> set[int]:
    return {partition for topic in said(member).owned_partitions for partition in topic.partitions}


def test_a_unit_is_a_partition_of_every_topic_that_has_it() -> None:
    leader = assignor()
    given = leader.assign(Cluster(interactive=3, standard=2), [joining(leader, "a")])
    assert partitions(sent(given["a"])) == {(topic, n) for topic in TOPICS for n in range(2)} | {
        ("interactive", 2)
    }


def test_a_topic_that_the_leader_has_not_heard_of_takes_nothing_away() -> None:
    leader = assignor()
    give(leader, units=2, generation=4)
    given = leader.assign(Cluster(interactive=2, standard=None), [joining(leader, "a")])
    assert partitions(sent(given["a"])) == {(topic, n) for topic in TOPICS for n in range(2)}


def test_the_metadata_says_what_the_member_is_and_claims() -> None:
    member = assignor()
    give(member, units=2, generation=4, drain=frozenset({1}), holders={0: ("slot-a",), 1: ("x", "slot-a")})
    member.offer_plan(Plan(7, "rollout", {"3": 100}))
    metadata = said(member)
    assert NAME == member.name == "headrace-1"
    assert json.loads(metadata.user_data) == {
        "f": 1, "slot": "slot-a", "incarnation": "1", "version": "3", "capacity": 8, "reads": 2, "drain": [1],
        "leaving": False, "plan": {"revision": 7, "rollout": "rollout", "shares": {"3": 100}},
        "holders": [[["slot-a"], [0]], [["x", "slot-a"], [1]]],
    }  # fmt: skip
    assert {topic.topic: list(topic.partitions) for topic in metadata.owned_partitions} == {
        "interactive": [0, 1],
        "standard": [0, 1],
    }
    assert metadata.generation_id == 4
    claim = decode_claim(metadata.user_data, owned=frozenset({0, 1}), generation=4)
    assert claim is not None
    assert claim.plan == Plan(7, "rollout", {"3": 100})
    assert claim.holders == {0: ("slot-a",), 1: ("x", "slot-a")}


def test_a_lost_membership_claims_nothing() -> None:
    member = assignor()
    give(member, units=2, generation=4, predecessors={0: "x"}, lowest_offset_format=2)
    member.release({1})
    member.lost()
    assert claimed(member) == set()
    assert said(member).generation_id == -1
    assert member.units == member.draining == member.take_reopened() == frozenset()
    assert member.predecessor(0) is None
    assert member.lowest_offset_format == 1


# --- drain, then move ---


def test_a_released_unit_is_not_claimed_and_not_owned() -> None:
    member = assignor()
    give(member, units=3, generation=4, drain=frozenset({1, 2}))
    assert member.draining == {1, 2}
    member.release({1})
    assert member.units == {0, 2}
    assert member.draining == {2}
    assert claimed(member) == {0, 2}
    assert json.loads(said(member).user_data)["drain"] == [2]


def test_a_drain_that_is_not_repeated_is_cancelled() -> None:
    member = assignor()
    give(member, units=2, generation=4, drain=frozenset({1}))
    give(member, units=2, generation=5)
    assert member.draining == frozenset()
    assert member.units == {0, 1}
    assert member.take_reopened() == frozenset()


def test_a_released_unit_that_is_given_back_is_opened_anew() -> None:
    member = assignor()
    give(member, units=2, generation=4, drain=frozenset({1}))
    member.release({1})
    said(member)  # the leader is told
    give(member, units=2, generation=5)
    assert member.units == claimed(member) == {0, 1}
    assert member.take_reopened() == {1}
    assert member.take_reopened() == frozenset()


def test_a_unit_released_while_a_join_is_under_way_waits_for_the_next_round() -> None:
    member = assignor()
    give(member, units=2, generation=4, drain=frozenset({1}))
    said(member)
    member.release({1})
    give(member, units=2, generation=5, drain=frozenset({1}))
    assert member.units == claimed(member) == {0}
    assert member.take_reopened() == frozenset()


def test_a_unit_released_while_a_join_is_under_way_is_opened_anew_if_its_drain_was_cancelled() -> None:
    member = assignor()
    give(member, units=2, generation=4, drain=frozenset({1}))
    said(member)
    member.release({1})
    give(member, units=2, generation=5)
    assert member.units == {0, 1}
    assert member.take_reopened() == {1}


def test_what_was_released_stays_so_when_an_answer_never_comes() -> None:
    member = assignor()
    give(member, units=2, generation=4, drain=frozenset({1}))
    member.release({1})
    assert claimed(member) == claimed(member) == {0}


def test_one_that_leaves_is_told_to_drain_all() -> None:
    member, other = assignor("slot-a"), assignor("slot-b")
    give(member, units=2, generation=4)
    member.leave()
    given = other.assign(Cluster(interactive=2, standard=2), [joining(member, "a"), joining(other, "b")])
    member.on_assignment(sent(given["a"]), 5)
    assert member.draining == member.units == {0, 1}


def test_the_predecessor_is_that_of_the_latest_assignment_that_gave_the_unit() -> None:
    member = assignor()
    give(member, units=2, generation=4, predecessors={0: "x", 1: "y"})
    give(member, units=2, generation=5)
    assert [member.predecessor(unit) for unit in (0, 1, 2)] == ["x", "y", None]
    member.release({1})
    said(member)
    give(member, units=2, generation=6)
    assert [member.predecessor(unit) for unit in (0, 1)] == ["x", None]
    give(member, units=1, generation=7)
    give(member, units=2, generation=8, predecessors={1: "z"})
    assert member.predecessor(1) == "z"


def test_the_offset_format_is_the_lowest_that_anybody_reads() -> None:
    new, old = assignor("slot-a", reads_offset_format=3), assignor("slot-b", reads_offset_format=2)
    cluster = Cluster(interactive=2, standard=2)
    assert new.lowest_offset_format == 1
    new.on_assignment(sent(new.assign(cluster, [joining(new, "a")])["a"]), 1)
    assert new.lowest_offset_format == 3
    new.on_assignment(sent(new.assign(cluster, [joining(new, "a"), joining(old, "b")])["a"]), 2)
    assert new.lowest_offset_format == 2
    foreign = joining(old, "b", b"no json")
    new.on_assignment(sent(new.assign(cluster, [joining(new, "a"), foreign])["a"]), 3)
    assert new.lowest_offset_format == 1


# --- plans ---


def test_a_newer_plan_makes_the_member_join_once_more() -> None:
    member = assignor()
    assert not member.take_rejoin_wish()
    member.offer_plan(Plan(2, "r", {"3": 1}))
    assert member.take_rejoin_wish()
    member.offer_plan(Plan(2, "r", {"3": 1}))
    member.offer_plan(Plan(1, "r", {"2": 1}))
    assert not member.take_rejoin_wish()
    assert member.plan == Plan(2, "r", {"3": 1})


def test_a_member_learns_the_plan_that_was_followed() -> None:
    member = assignor()
    give(member, units=1, generation=4, plan=Plan(2, "r", {"3": 1}))
    assert member.plan == Plan(2, "r", {"3": 1})
    assert not member.take_rejoin_wish()


def test_an_assignment_by_an_older_plan_makes_the_member_join_once_more_and_only_once() -> None:
    member = assignor()
    give(member, units=1, generation=4, plan=Plan(2, "r", {"3": 1}))
    give(member, units=1, generation=5, plan=Plan(1, "r", {"3": 1}))
    assert member.take_rejoin_wish()
    give(member, units=1, generation=6)
    assert not member.take_rejoin_wish()
    assert member.plan == Plan(2, "r", {"3": 1})


# --- the leader ---


def test_the_leader_looks_again_while_anything_is_drained_and_not_more_often_than_allowed() -> None:
    clock = Clock()
    leader, joiner = assignor("slot-a", clock=clock), assignor("slot-b")
    give(leader, units=2, generation=4)
    cluster = Cluster(interactive=2, standard=2)
    given = leader.assign(cluster, [joining(leader, "a"), joining(joiner, "b")])
    leader.on_assignment(sent(given["a"]), 5)
    clock.now = LOOK_AGAIN_S - 1
    assert not leader.take_rejoin_wish()
    clock.now = LOOK_AGAIN_S
    assert leader.take_rejoin_wish()
    assert not leader.take_rejoin_wish()
    leader.release(leader.draining)
    given = leader.assign(cluster, [joining(leader, "a"), joining(joiner, "b")])
    leader.on_assignment(sent(given["a"]), 6)
    clock.now *= 9
    assert not leader.take_rejoin_wish(), "nothing is unsettled"


@pytest.mark.parametrize("known", [{"interactive": 2}, {}])
def test_the_leader_looks_again_while_a_topic_is_not_known(known: dict[str, int]) -> None:
    clock = Clock()
    leader = assignor(clock=clock)
    leader.on_assignment(sent(leader.assign(Cluster(**known), [joining(leader, "a")])["a"]), 1)
    clock.now = LOOK_AGAIN_S
    assert leader.take_rejoin_wish()


def test_every_member_is_told_whether_another_round_is_to_be_expected() -> None:
    leader, joiner = assignor("slot-a"), assignor("slot-b")
    give(leader, units=2, generation=4)
    cluster = Cluster(interactive=2, standard=2)

    def round_(generation: int) -> list[bool]:
        given = leader.assign(cluster, [joining(leader, "a"), joining(joiner, "b")])
        for member, name in ((leader, "a"), (joiner, "b")):
            member.on_assignment(sent(given[name]), generation)
        return [member.moving for member in (leader, joiner)]

    assert round_(5) == [True, True], "a unit is being drained"
    leader.release(leader.draining)
    assert round_(6) == [False, False]
    give(joiner, units=0, generation=7, moving=True)
    joiner.lost()
    assert not joiner.moving


def test_one_that_leads_no_more_does_not_look_again() -> None:
    clock = Clock()
    leader = assignor(clock=clock)
    leader.on_assignment(sent(leader.assign(Cluster(), [joining(leader, "a")])["a"]), 1)
    said(leader)
    give(leader, units=0, generation=2)
    clock.now = LOOK_AGAIN_S
    assert not leader.take_rejoin_wish()


CLAIM = {"f": 1, "slot": "s", "incarnation": "1", "version": "1", "capacity": 1, "reads": 2, "drain": [],
         "leaving": False, "plan": None, "holders": []}  # fmt: skip


def test_user_data_with_everything_in_it_is_read() -> None:
    assert decode_claim(json.dumps(CLAIM).encode(), owned=frozenset({0}), generation=1) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"f": 2}, {"slot": 1}, {"capacity": True}, {"capacity": -1}, {"reads": "2"}, {"drain": {}}, {"drain": [-1]},
        {"drain": ["1"]}, {"leaving": 1}, {"plan": []}, {"plan": {"revision": 1}},
        {"plan": {"revision": 1, "rollout": "r", "shares": {"1": 0.5}}}, {"holders": [[["a"]]]},
        {"holders": [[[], [1]]]},
        {"holders": [["a", [1]]]}, {"holders": {"1": "a"}},
    ],
)  # fmt: skip
def test_user_data_with_one_thing_wrong_is_not_read(wrong: dict[str, Any]) -> None:
    assert decode_claim(json.dumps(CLAIM | wrong).encode(), owned=frozenset({0}), generation=1) is None


def test_a_drain_of_what_is_not_owned_is_not_read() -> None:
    claim = decode_claim(json.dumps(CLAIM | {"drain": [0, 5]}).encode(), owned=frozenset({0}), generation=1)
    assert claim is not None
    assert claim.draining == {0}


@pytest.mark.parametrize(
    "user_data",
    [
        b"",
        b"\xff\x00 no json",
        b"[1]",
        b'{"f": 99, "own": "what a later version says"}',
        b'{"f": 1, "slot": "s", "version": "1", "capacity": 1, "drain": [0]}',
        b"[" * 100_000,
    ],
)
def test_user_data_of_others_is_read_as_no_more_than_the_partitions_they_own(user_data: bytes) -> None:
    leader, other = assignor("slot-a"), assignor("slot-b")
    give(other, units=1, generation=4)
    members = [joining(leader, "a"), joining(other, "b", user_data)]
    given = leader.assign(Cluster(interactive=2, standard=2), members)
    assert partitions(sent(given["b"])) == {("interactive", 0), ("standard", 0)}
    assert partitions(sent(given["a"])) == {("interactive", 1), ("standard", 1)}


def test_a_foreign_claim_gives_way_to_one_of_ours() -> None:
    leader, other = assignor("slot-a"), assignor("slot-b")
    give(leader, units=1, generation=4)
    give(other, units=1, generation=9)
    given = leader.assign(Cluster(interactive=1), [joining(leader, "a"), joining(other, "b", b"no json")])
    assert partitions(sent(given["a"])) == {(topic, 0) for topic in TOPICS}
    assert partitions(sent(given["b"])) == set()


def test_an_assignor_that_fails_leaves_every_member_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def partitions_for_topic(self, topic: str) -> set[int]:
            raise RuntimeError(topic)

    leader, other = assignor("slot-a"), assignor("slot-b")
    give(other, units=2, generation=4, drain=frozenset({1}))
    given = leader.assign(Broken(), [joining(leader, "a"), joining(other, "b")])
    assert decode_told(sent(given["b"]).user_data).drain == {1}
    assert partitions(sent(given["b"])) == {(topic, n) for topic in TOPICS for n in range(2)}
    assert partitions(sent(given["a"])) == set()
    assert "keeps what it has" in caplog.text


def test_an_assignment_made_for_this_incarnation_needs_no_rejoin() -> None:
    member = assignor()
    given = member.assign(Cluster(interactive=1, standard=1), [joining(member, "a")])
    member.on_assignment(sent(given["a"]), 2)
    assert not member.take_rejoin_wish()
    assert member.units == {0}


@pytest.mark.parametrize("echo", [encode_told(Told("0", "3")), encode_told(Told("1", "2")), b"", b"no json"])
def test_an_assignment_made_for_a_predecessor_makes_the_member_join_once_more_and_only_once(
    echo: bytes,
) -> None:
    member = assignor(incarnation="1")
    assignment = sent(ConsumerProtocolAssignment(2, [("interactive", [0])], echo))
    member.on_assignment(assignment, 2)
    assert member.take_rejoin_wish()
    assert not member.take_rejoin_wish()
    member.on_assignment(assignment, 3)
    assert not member.take_rejoin_wish()


def test_the_leader_says_which_planned_version_nobody_serves_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new = assignor("slot-a", version="3"), assignor("slot-b", version="4")
    cluster = Cluster(interactive=4, standard=4)
    old.offer_plan(Plan(7, "r", {"3": 75, "4": 25, "2": 0}))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            old.assign(cluster, [joining(old, "a")])
    assert caplog.messages == ["version 4 is planned and has no member: its share goes to the others"]
    caplog.clear()
    old.assign(cluster, [joining(old, "a"), joining(new, "b")])
    assert caplog.messages == ["version 4 has a member again, or no share any more"]
