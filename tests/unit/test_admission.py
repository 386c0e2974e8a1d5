"""Which request goes to the engine next."""

from headrace.consumers.records import TopicPartition
from headrace.schemas.codec import Encoding
from headrace.schemas.messages import Lane
from headrace.workers.admission import Admission
from headrace.workers.work import Work


def work(lane: Lane, offset: int, partition: int = 0) -> Work:
    return Work(
        source=TopicPartition(f"t.{lane}", partition),
        offset=offset,
        epoch=1,
        lane=lane,
        appended_ms=0,
        key=None,
        value=b"",
        headers=(),
        encoding=Encoding.JSON,
        request=None,
        request_id=str(offset),
    )


def admitted(admission: Admission) -> list[tuple[Lane, int]]:
    found: list[tuple[Lane, int]] = []
    while (each := admission.admit()) is not None:
        found.append((each.lane, each.offset))
    return found


def test_lanes_are_served_in_their_order_and_each_first_come_first_served() -> None:
    admission = Admission(10)
    lanes: list[Lane] = ["backfill", "standard", "interactive", "backfill", "interactive"]
    for offset, lane in enumerate(lanes):
        admission.offer(work(lane, offset))
    assert admitted(admission) == [
        ("interactive", 2),
        ("interactive", 4),
        ("standard", 1),
        ("backfill", 0),
        ("backfill", 3),
    ]


def test_no_more_than_the_cap_are_in_flight_and_a_finished_one_makes_room() -> None:
    admission = Admission(2)
    for offset in range(4):
        admission.offer(work("standard", offset))
    assert [offset for _, offset in admitted(admission)] == [0, 1]
    assert (admission.in_flight, admission.waiting("standard")) == (2, 2)
    admission.finished()
    assert [offset for _, offset in admitted(admission)] == [2]


def test_an_interactive_request_that_comes_late_overtakes_all_that_waits() -> None:
    admission = Admission(1)
    admission.offer(work("backfill", 0))
    admission.offer(work("backfill", 1))
    assert admission.admit() is not None
    admission.offer(work("interactive", 2))
    admission.finished()
    assert admitted(admission) == [("interactive", 2)]


def test_what_waits_for_a_lost_partition_is_forgotten_and_nothing_else() -> None:
    admission = Admission(10)
    for offset in range(4):
        admission.offer(work("standard", offset, partition=offset % 2))
    assert admission.forget(lambda each: each.source.partition == 1) == 2
    assert [offset for _, offset in admitted(admission)] == [0, 2]
