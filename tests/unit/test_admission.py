"""Which request goes to the engine next, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.records import TopicPartition
from headrace.schemas.codec import Encoding
from headrace.schemas.messages import Lane, Request, Sampling
from headrace.workers.admission import Admission, Room
from headrace.workers.work import Work


def a_work(
    lane: Lane,
    offset: int,
    *,
    partition: int = 0,
    key: bytes | None = None,
    value: bytes = b"xxxx",
    alone: bool = False,
    **fields: Any,
) -> Work:
    """One token of prompt; `fields` are of the request, `max_tokens` and `n` of its sampling."""
    sampling = Sampling(max_tokens=fields.pop("max_tokens", 1), n=fields.pop("n", None))
    return Work(
        source=TopicPartition(f"t.{lane}", partition),
        offset=offset,
        epoch=1,
        lane=lane,
        appended_ms=0,
        key=key,
        value=value,
        headers=(),
        encoding=Encoding.JSON,
        request=Request(id=f"{offset}", prompt="p", sampling=sampling, **fields),
        request_id=f"{offset}",
        alone=alone,
    )


def an_admission(
    works: Sequence[Work] = (), *, sequences: int = 100, kv_tokens: int | None = None, **options: Any
) -> Admission:
    admission = Admission(Room(sequences, kv_tokens, options.pop("queued_ahead", 0)), **options)
    for work in works:
        admission.offer(work)
    return admission


def admitted(admission: Admission) -> list[int]:
    """The offsets of all that goes in now."""
    found: list[int] = []
    while (work := admission.admit()) is not None:
        found.append(work.offset)
    return found


# --- room ---


def test_what_is_in_flight_is_what_one_step_takes_and_the_few_that_wait_inside_for_the_next() -> None:
    works = [a_work("interactive", offset) for offset in range(9)]
    admission = an_admission(works, sequences=4, queued_ahead=2)
    assert admitted(admission) == [0, 1, 2, 3, 4, 5]
    assert (admission.in_flight, admission.waiting("interactive")) == (6, 3)
    admission.finished(works[2])
    assert admitted(admission) == [6]


def test_a_request_with_n_takes_n_sequences() -> None:
    admission = an_admission(
        [a_work("interactive", 0, n=3), a_work("interactive", 1, n=2), a_work("interactive", 2)], sequences=4
    )
    assert admitted(admission) == [0]
    assert admission.in_flight_tokens == 1 + 3


def test_what_a_request_leaves_out_comes_from_the_package() -> None:
    work = a_work("interactive", 0)
    assert work.request is not None
    work = replace(work, request=work.request.model_copy(update={"sampling": None}))
    admission = an_admission([work], defaults=Sampling(n=2, max_tokens=7))
    assert admitted(admission) == [0]
    assert admission.in_flight_tokens == 1 + 2 * 7


def test_a_prompt_is_estimated_from_its_bytes_until_it_is_measured() -> None:
    work = a_work("interactive", 0, value=b"x" * 400, max_tokens=50)
    admission = an_admission([work, a_work("interactive", 1)], kv_tokens=151)
    assert admitted(admission) == [0]  # of two more tokens there is room for one
    assert admission.in_flight_tokens == 100 + 50
    admission.measured(work, 99)
    assert admission.in_flight_tokens == 99 + 50
    assert admitted(admission) == [1]


def test_a_completion_is_expected_to_have_the_usual_length_and_never_more_than_max_tokens() -> None:
    works = [a_work("interactive", offset, max_tokens=100) for offset in range(4)]
    admission = an_admission(works[:2])
    assert admitted(admission) == [0, 1]
    assert admission.in_flight_tokens == 2 + 2 * 100  # before any has ended
    admission.finished(works[0], 10)
    admission.finished(works[1], 31)
    admission.offer(works[2])
    admission.offer(a_work("interactive", 9, max_tokens=5))
    assert admitted(admission) == [2, 9]
    assert admission.in_flight_tokens == 1 + 21 + 1 + 5


def test_no_sequence_is_expected_to_be_longer_than_the_model_is() -> None:
    work = a_work("interactive", 0, value=b"x" * 4000, max_tokens=500)
    admission = an_admission([work, a_work("interactive", 1, max_tokens=500)], max_model_len=100)
    assert admitted(admission) == [0, 1]
    assert admission.in_flight_tokens == 100 + 100


@pytest.mark.parametrize("large", [{"n": 8}, {"max_tokens": 900}])
@pytest.mark.parametrize("lane", ["interactive", "standard", "backfill"])
def test_a_request_larger_than_everything_goes_in_when_nothing_else_is_in_flight(
    lane: Lane, large: dict[str, int]
) -> None:
    first = a_work("interactive", 0)
    admission = an_admission([first], sequences=7, kv_tokens=100)
    assert admitted(admission) == [0]
    admission.offer(a_work(lane, 1, **large))
    assert admitted(admission) == []
    admission.finished(first)
    assert admitted(admission) == [1]


@pytest.mark.parametrize("room", [Room(0, None, 1), Room(1, 0, 1), Room(1, None, -1)])
def test_a_room_that_admits_nothing_is_refused(room: Room) -> None:
    with pytest.raises(ValueError, match="no room"):
        Admission(room)


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="backfill_share"):
        Admission(Room(1, None, 0), backfill_share=share)


# --- lanes and their reserves ---


def test_of_equal_requests_that_came_at_once_the_higher_lane_goes_first() -> None:
    lanes: list[Lane] = ["backfill", "standard", "interactive"]
    works = [a_work(lane, offset) for offset, lane in enumerate(lanes)]
    assert admitted(an_admission(works)) == [2, 1, 0]


def test_an_interactive_request_that_comes_late_overtakes_all_that_waits() -> None:
    works = [a_work("backfill", offset) for offset in range(5)]
    admission = an_admission(works, sequences=1)
    assert admitted(admission) == [0]
    admission.offer(a_work("interactive", 9))
    admission.finished(works[0])
    assert admitted(admission) == [9]


def test_backfill_leaves_a_quarter_and_standard_a_sixteenth() -> None:
    admission = an_admission(
        [a_work("backfill", offset) for offset in range(40)], sequences=32, queued_ahead=4
    )
    assert len(admitted(admission)) == 24
    for offset in range(40):
        admission.offer(a_work("standard", offset))
    assert len(admitted(admission)) == 10
    for offset in range(40):
        admission.offer(a_work("interactive", offset))
    assert len(admitted(admission)) == 2


def test_tokens_are_kept_for_the_higher_lanes_as_sequences_are() -> None:
    admission = an_admission(
        [a_work("backfill", offset, max_tokens=9) for offset in range(40)], kv_tokens=160
    )
    assert len(admitted(admission)) == 12
    for offset in range(40):
        admission.offer(a_work("standard", offset, max_tokens=9))
    assert len(admitted(admission)) == 3
    for offset in range(40):
        admission.offer(a_work("interactive", offset, max_tokens=9))
    assert len(admitted(admission)) == 1


def test_one_sequence_is_everybodys() -> None:
    assert admitted(an_admission([a_work("backfill", 0)], sequences=1)) == [0]


def test_small_requests_do_not_slip_past_a_large_one_for_ever() -> None:
    small = [a_work("standard", offset, max_tokens=19) for offset in range(5)]
    admission = an_admission(small[:4], kv_tokens=100)
    assert admitted(admission) == [0, 1, 2, 3]  # 80 tokens of standard's 94
    admission.offer(a_work("standard", 9, max_tokens=59))
    admission.offer(small[4])
    admission.offer(a_work("backfill", 10, max_tokens=21))
    admission.finished(small[0])
    assert admitted(admission) == []  # there is room for each of the two that came later
    admission.finished(small[1])
    admission.finished(small[2])
    assert admitted(admission) == [9]


def test_while_a_large_request_waits_for_room_interactive_ones_go_into_their_reserve() -> None:
    works = [a_work("standard", offset, max_tokens=19) for offset in range(4)]
    admission = an_admission(works, kv_tokens=100)
    assert admitted(admission) == [0, 1, 2, 3]
    admission.offer(a_work("standard", 9, max_tokens=79))
    assert admitted(admission) == []
    admission.offer(a_work("interactive", 20, max_tokens=5))
    admission.offer(a_work("interactive", 21, max_tokens=499))  # its turn is after the large one's
    assert admitted(admission) == [20]
    for work in works:
        admission.finished(work)
    assert admitted(admission) == [9]


# --- tenants, keys, alone ---


def test_a_tenant_with_a_long_queue_does_not_keep_another_waiting() -> None:
    works = [a_work("standard", offset, tenant="loud") for offset in range(50)]
    quiet = a_work("standard", 99, tenant="quiet")
    admission = an_admission([*works, quiet], sequences=3)
    assert 99 in admitted(admission)


def test_who_names_no_tenant_is_one_tenant_like_another() -> None:
    works = [a_work("standard", offset) for offset in range(50)]
    admission = an_admission([*works, a_work("standard", 99, tenant="a")], sequences=3)
    assert 99 in admitted(admission)


def test_one_request_of_a_key_is_in_flight_and_others_pass_those_behind_it() -> None:
    works = [a_work("standard", offset, key=b"k") for offset in range(3)]
    admission = an_admission(
        [*works, a_work("standard", 9, key=b"other"), a_work("standard", 10)], order_by_key=True
    )
    admission.offer(a_work("interactive", 20, key=b"k"))
    assert admitted(admission) == [20, 9, 10]
    assert admission.waiting("standard") == 3
    admission.finished(a_work("interactive", 20))
    assert admitted(admission) == [0]
    admission.finished(works[0])
    assert admitted(admission) == [1]


def test_requests_of_a_key_go_by_offset_whenever_they_were_offered() -> None:
    works = [a_work("standard", offset, key=b"k", tenant=f"{offset}") for offset in (5, 3, 4)]
    admission = an_admission(works, order_by_key=True)
    order: list[int] = []
    while (work := admission.admit()) is not None:
        order.append(work.offset)
        admission.finished(work)
    assert order == [3, 4, 5]


def test_without_order_keys_mean_nothing() -> None:
    works = [a_work("standard", offset, key=b"k") for offset in range(3)]
    assert admitted(an_admission(works)) == [0, 1, 2]


def test_what_runs_alone_waits_for_an_empty_engine_and_has_it_to_itself() -> None:
    works = [a_work("interactive", offset) for offset in range(3)]
    suspect = a_work("backfill", 9, alone=True)
    admission = an_admission(works[:2])
    assert admitted(admission) == [0, 1]
    admission.offer(suspect)
    admission.offer(works[2])
    assert admitted(admission) == []
    admission.finished(works[0])
    assert admitted(admission) == []
    admission.finished(works[1])
    assert admitted(admission) == [9]
    admission.finished(suspect)
    assert admitted(admission) == [2]


def test_what_runs_alone_and_is_behind_its_key_keeps_others_out_once_that_one_runs() -> None:
    first = a_work("standard", 0, key=b"k")
    admission = an_admission([first, a_work("standard", 1, key=b"k", alone=True)], order_by_key=True)
    admission.offer(a_work("standard", 2))
    assert admitted(admission) == [0]
    admission.finished(first)
    assert admitted(admission) == [1]


# --- out of the queues again ---


def test_what_is_taken_back_comes_by_offset_and_nothing_else_leaves() -> None:
    works = [a_work("standard", offset, partition=offset % 2, tenant=f"{offset % 3}") for offset in range(8)]
    admission = an_admission(works[::-1], sequences=1)
    running = admission.admit()
    taken = admission.take_back(lambda work: work.source.partition == 1)
    assert [work.offset for work in taken] == [offset for offset in (1, 3, 5, 7) if works[offset] != running]
    assert running is not None
    admission.finished(running)
    rest: list[int] = []
    while (work := admission.admit()) is not None:
        rest.append(work.offset)
        admission.finished(work)
    assert sorted(rest + [work.offset for work in taken] + [running.offset]) == list(range(8))


def test_what_waits_past_its_deadline_leaves_the_queues() -> None:
    late, soon, never = (
        a_work("standard", 0, deadline=100),
        a_work("standard", 1, deadline=50),
        a_work("standard", 2),
    )
    admission = an_admission([late, soon, never])
    assert admission.expired(49) == []
    assert admission.expired(100) == [soon, late]
    assert admitted(admission) == [2]
    assert admission.expired(10**9) == []


def test_deadlines_of_what_has_run_are_not_kept_until_they_come() -> None:
    admission = an_admission()
    for offset in range(1000):
        work = a_work("standard", offset, deadline=10**12)
        admission.offer(work)
        assert admission.admit() is work
        admission.finished(work, 1)
    assert len(admission._deadlines) < 100
