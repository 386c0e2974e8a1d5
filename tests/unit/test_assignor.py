"""Which member gets which unit, and what the members of a group tell each other."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from headrace.consumers.assignor import NAME, Claim, UnitAssignor, assign_units

TOPICS = {"interactive", "standard"}


class Cluster:
    """As much of kafka-python's cluster metadata as an assignor reads."""

    def __init__(self, **partitions: int | None) -> None:
        self._partitions = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._partitions.get(topic)
        return None if count is None else set(range(count))


def assignor(slot: str = "slot-a", incarnation: str = "1", version: str = "3") -> UnitAssignor:
    return UnitAssignor(slot=slot, incarnation=incarnation, version=version, capacity=8)


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


def give(member: UnitAssignor, units: int, generation: int, incarnation: str = "1") -> None:
    echo = json.dumps({"f": 1, "incarnation": incarnation, "version": "3"}).encode()
    topics = [(topic, list(range(units))) for topic in sorted(TOPICS)]
    member.on_assignment(sent(ConsumerProtocolAssignment(2, topics, echo)), generation)


def test_no_members_and_no_units() -> None:
    assert assign_units({}, 16) == {}
    assert assign_units({"a": Claim("a")}, 0) == {"a": []}


def test_a_single_member_gets_all() -> None:
    assert assign_units({"a": Claim("a")}, 4) == {"a": [0, 1, 2, 3]}


def test_a_member_with_too_many_lets_go_and_nobody_gets_them_in_that_round() -> None:
    members = {"a": Claim("a", generation=5, owned=frozenset(range(4))), "b": Claim("b")}
    assert assign_units(members, 4) == {"a": [0, 1], "b": []}


def test_the_next_round_gives_away_what_was_let_go() -> None:
    members = {"a": Claim("a", generation=6, owned=frozenset({0, 1})), "b": Claim("b", generation=6)}
    assert assign_units(members, 4) == {"a": [0, 1], "b": [2, 3]}


def test_the_claim_of_the_higher_generation_holds() -> None:
    members = {
        "expelled": Claim("a", generation=3, owned=frozenset({0, 1})),
        "owner": Claim("b", generation=7, owned=frozenset({0, 1})),
    }
    assert assign_units(members, 2)["owner"] == [0]
    assert assign_units(members, 2)["expelled"] == []


def test_a_claim_beyond_the_known_units_stays_where_it_is() -> None:
    members = {"a": Claim("a", generation=2, owned=frozenset({0, 9})), "b": Claim("b")}
    assert assign_units(members, 0) == {"a": [0, 9], "b": []}


def test_more_members_than_units() -> None:
    given = assign_units({name: Claim(name) for name in "abc"}, 2)
    assert sorted(map(len, given.values())) == [0, 1, 1]


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
    give(member, units=2, generation=4)
    metadata = ConsumerProtocolSubscription.decode(member.metadata(TOPICS).encode())
    assert NAME == member.name == "headrace-1"
    assert json.loads(metadata.user_data) == {
        "f": 1, "slot": "slot-a", "incarnation": "1", "version": "3", "capacity": 8, "generation": 4, "own": [0, 1],
    }  # fmt: skip
    assert {topic.topic: list(topic.partitions) for topic in metadata.owned_partitions} == {
        "interactive": [0, 1],
        "standard": [0, 1],
    }


def test_a_lost_membership_claims_nothing() -> None:
    member = assignor()
    give(member, units=2, generation=4)
    member.lost()
    said = json.loads(ConsumerProtocolSubscription.decode(member.metadata(TOPICS).encode()).user_data)
    assert (said["own"], said["generation"]) == ([], -1)


@pytest.mark.parametrize(
    "user_data",
    [
        b"",
        b"\xff\x00 no json",
        b"[1]",
        b'{"f": 99, "own": "what a later version says"}',
        b'{"f": 1, "slot": "s", "version": "1", "capacity": 1, "generation": 9, "own": [1, "2"]}',
        b'{"f": 1, "slot": "s", "version": "1", "capacity": 1, "generation": true, "own": []}',
        b'{"f": 1, "slot": "s", "version": "1", "capacity": 1, "generation": 9, "own": [-1]}',
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


def test_an_assignor_that_fails_leaves_every_member_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def partitions_for_topic(self, topic: str) -> set[int]:
            raise RuntimeError(topic)

    leader, other = assignor("slot-a"), assignor("slot-b")
    give(other, units=2, generation=4)
    given = leader.assign(Broken(), [joining(leader, "a"), joining(other, "b")])
    assert partitions(sent(given["b"])) == {(topic, n) for topic in TOPICS for n in range(2)}
    assert partitions(sent(given["a"])) == set()
    assert "keeps what it has" in caplog.text


def test_an_assignment_made_for_this_incarnation_needs_no_rejoin() -> None:
    member = assignor()
    given = member.assign(Cluster(interactive=1, standard=1), [joining(member, "a")])
    member.on_assignment(sent(given["a"]), 2)
    assert not member.take_rejoin_wish()
    assert member.units == {0}


@pytest.mark.parametrize("echo", [b'{"f":1,"incarnation":"0","version":"3"}', b"", b"no json"])
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
