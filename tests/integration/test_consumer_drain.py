"""Units that move between members on a real Kafka: drained by their owner first, while all else is read on."""

from __future__ import annotations

import threading

from kafka_members import WITHIN_S, Member, closing, create_topics, poll_until, produce, settings_for

from headrace.consumers.records import TopicPartition
from headrace.schemas.settings import Settings

UNITS = 6
FOR_EVER_S = 600.0


def quick(bootstrap: str) -> Settings:
    return settings_for(bootstrap, session_timeout_ms=2000, heartbeat_interval_ms=100)


def units(member: Member) -> set[int]:
    return {tp.partition for tp in member.owned}


def member(settings: Settings, prefix: str, slot: str, **more: object) -> Member:
    return Member(settings, [prefix], group=prefix, slot=slot, **more)  # type: ignore[arg-type]


def all_owned(*members: Member) -> bool:
    """Each unit is owned by one of them, and they know of it."""
    owned = [unit for each in members for unit in each.assignor.units]
    assert len(owned) == len(set(owned)), "two members own one unit"
    return len(owned) == UNITS and all(units(each) == each.assignor.units for each in members)


def test_a_member_that_joins_gets_its_units_once_they_are_released_and_others_read_on(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    settings = quick(kafka_bootstrap)
    a, b, c = (member(settings, unique_prefix, slot) for slot in "abc")
    with closing(a, b, c):
        poll_until(lambda: all_owned(a, b) and len(units(a)) == len(units(b)) == 3, a, b)
        generation = a.generation
        a.drains = b.drains = False
        a.revoked.clear()
        b.revoked.clear()
        poll_until(lambda: a.consumer.draining() and b.consumer.draining(), a, b, c)
        for unit in range(UNITS):
            produce(kafka_bootstrap, unique_prefix, unit, [b"%d" % unit])
        poll_until(lambda: len(a.values) + len(b.values) == UNITS, a, b, c)
        assert (units(a) | units(b), units(c)) == (set(range(UNITS)), set()), (
            "nothing moves before its release"
        )
        moving = a.consumer.draining() | b.consumer.draining()
        a.drains = b.drains = True
        poll_until(lambda: len(units(c)) == 2 and all_owned(a, b, c), a, b, c)
        assert units(c) == moving
        assert {tp.partition for tp in a.revoked + b.revoked} == moving
        # One for the joining, one or two for the releases; one more each if a member was late.
        poll_until(lambda: not a.consumer.draining(), a, b, c)
        assert a.generation <= generation + 4
        rested = a.generation
        for _ in range(20):
            poll_until(lambda: True, a, b, c)
        assert a.generation == rested, "nobody joins again for what has been given away"


def test_a_drain_for_a_member_that_died_is_cancelled_and_the_unit_read_on_where_it_was(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    settings = quick(kafka_bootstrap)
    a, b = (member(settings, unique_prefix, slot, drains=False) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: all_owned(a), a)
        for unit in range(UNITS):
            produce(kafka_bootstrap, unique_prefix, unit, [b"before"])
        poll_until(lambda: len(a.values) == UNITS, a)
        poll_until(lambda: len(a.consumer.draining()) == 3, a, b)
        b.consumer.close(leave_group=False)  # its session times out
        poll_until(lambda: not a.consumer.draining(), a)
        for unit in range(UNITS):
            produce(kafka_bootstrap, unique_prefix, unit, [b"after"])
        poll_until(lambda: len(a.values) == 2 * UNITS, a)
        assert a.revoked == []
        assert a.values == [b"before"] * UNITS + [b"after"] * UNITS


def test_a_member_that_leaves_drains_all_and_ends_without_units(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    settings = quick(kafka_bootstrap)
    a, b = (member(settings, unique_prefix, slot) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: all_owned(a, b) and len(units(b)) == 3, a, b)
        b.drains = False
        b.consumer.leave()
        poll_until(lambda: b.consumer.draining() == units(b), a, b)
        assert len(units(b)) == 3
        b.drains = True
        poll_until(lambda: len(units(a)) == UNITS and not b.owned and b.consumer.claims_are_known(), a, b)
        assert {a.consumer.predecessor(unit) for unit in range(UNITS)} == {None}, "nothing was left open"


def test_a_released_unit_that_is_given_back_is_a_new_tenure(kafka_bootstrap: str, unique_prefix: str) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    a = member(quick(kafka_bootstrap), unique_prefix, "a", drains=False, start=0)
    tp = TopicPartition(unique_prefix, 2)
    with closing(a):
        poll_until(lambda: all_owned(a), a)
        produce(kafka_bootstrap, unique_prefix, 2, [b"first"])
        poll_until(lambda: a.values == [b"first"], a)
        a.consumer.pause([tp])
        a.start = None
        a.consumer.release([2, 17])
        produce(kafka_bootstrap, unique_prefix, 2, [b"second"])
        assert a.consumer.position(tp) is None
        poll_until(lambda: a.revoked, a)
        assert a.revoked == [tp]
        assert tp in a.owned, "revoked and assigned by one poll"
        for _ in range(5):
            a.poll()
        assert a.values == [b"first"]
        a.consumer.start_at(tp, 0)
        poll_until(lambda: a.values == [b"first", b"first", b"second"], a)


def test_the_new_owner_of_a_unit_is_told_whose_session_timed_out(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    settings = quick(kafka_bootstrap)
    a, b = (member(settings, unique_prefix, slot) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: all_owned(a, b) and len(units(b)) == 3, a, b)
        of_b = units(b)
        assert [a.consumer.predecessor(unit) for unit in range(UNITS)] == [None] * UNITS
        assert [b.consumer.predecessor(unit) for unit in range(UNITS)] == [None] * UNITS, "its owner lives"
        assert a.consumer.lowest_offset_format() == 2
        b.consumer.close(leave_group=False)
        poll_until(lambda: all_owned(a), a)
        assert {unit: a.consumer.predecessor(unit) for unit in range(UNITS)} == {
            unit: "b" if unit in of_b else None for unit in range(UNITS)
        }


def test_a_drain_is_heard_by_a_poll_that_waits_for_records_although_no_partition_changes(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    settings = quick(kafka_bootstrap)
    a, b = (member(settings, unique_prefix, slot, drains=False) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: all_owned(a), a)
        waits = threading.Thread(target=lambda: a.consumer.poll(FOR_EVER_S, 100), daemon=True)
        waits.start()
        poll_until(lambda: not waits.is_alive(), b)
        assert len(a.consumer.draining()) == UNITS // 2


def test_while_a_unit_is_on_its_way_members_hear_of_its_release_sooner_than_by_their_usual_heartbeat(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    create_topics(kafka_bootstrap, **{unique_prefix: UNITS})
    usual_ms = 5_000
    settings = settings_for(kafka_bootstrap, session_timeout_ms=30_000, heartbeat_interval_ms=usual_ms)
    a, b = (member(settings, unique_prefix, slot, drains=False) for slot in "ab")
    with closing(a, b):
        poll_until(lambda: all_owned(a), a)
        poll_until(a.consumer.draining, a, b)
        coordinator = b.consumer._coordinator
        sent: list[None] = []
        heartbeat = coordinator._send_heartbeat_request

        async def counted() -> None:
            sent.append(None)
            await heartbeat()

        coordinator._send_heartbeat_request = counted
        poll_until(lambda: len(sent) > WITHIN_S * 1000 / usual_ms, a, b, what="many heartbeats")
        a.drains = True
        poll_until(lambda: all_owned(a, b) and not a.consumer.draining(), a, b)
        assert coordinator.heartbeat.config["heartbeat_interval_ms"] == usual_ms, "nothing moves any more"
