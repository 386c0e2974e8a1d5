"""The consumer thread's turns over a Kafka in memory: the races by hand. The laws are in test_pump_properties.py."""

from __future__ import annotations

import pytest
from fake_kafka import FakeKafka, FakeMember
from fake_worker import NAMES, SOURCES, TENANT, Clock, FakeWorker, RegistryCodec, refusal
from worker_turns import accept, clock_by_hand, progress_of, run, send, until_begun

from headrace.consumers.records import CommitPoint, Poll
from headrace.schemas.errors import StaleGeneration, TopicMissing
from headrace.workers import partitions as partitions_module
from headrace.workers import pump as pump_module

URGENT, STANDARD = SOURCES[0], SOURCES[2]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_by_hand(monkeypatch)


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(SOURCES)


@pytest.fixture
def worker(kafka: FakeKafka) -> FakeWorker:
    return FakeWorker(kafka, RegistryCodec())


def test_nothing_is_begun_before_the_mark_above_it_is_committed(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, URGENT, "a")
    kafka.assign(URGENT, worker.member)
    for _ in range(5):
        worker.pump.turn()
    assert worker.works == []
    assert worker.batch is not None, "the commit is handed over at once"
    worker.transactions.fail_next = lambda batch: StaleGeneration("for no reason that is known")
    worker.commit()
    worker.pump.turn()
    assert worker.works == []
    clock.now += pump_module.STALE_RETRY_S
    until_begun(worker)
    assert progress_of(kafka, URGENT).started > 0


def test_a_new_partition_starts_although_there_is_always_a_batch_that_is_due(
    kafka: FakeKafka, worker: FakeWorker
) -> None:
    kafka.assign(URGENT, worker.member)
    send(kafka, URGENT, "first")
    until_begun(worker)
    for number in range(20):
        send(kafka, URGENT, f"r{number}")
        worker.pump.turn()
        while worker.works:
            worker.finish(0)
        if number == 10:
            kafka.assign(STANDARD, worker.member)
        worker.pump.turn()
        if worker.batch is not None:
            worker.commit()
            send(kafka, URGENT, f"s{number}")
    assert worker.member.positions[STANDARD] is not None


def test_a_commit_refused_for_no_known_reason_is_tried_again_under_the_same_generation_and_without_spinning(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    poll = FakeMember.poll

    def noting(self: FakeMember, timeout_s: float, max_records: int) -> Poll:
        waits.append(timeout_s)
        return poll(self, timeout_s, max_records)

    monkeypatch.setattr(FakeMember, "poll", noting)
    send(kafka, URGENT, "a")
    kafka.assign(URGENT, worker.member)
    until_begun(worker)
    worker.finish(0)
    worker.pump.turn()
    worker.pump.turn()
    assert worker.batch is not None
    worker.transactions.fail_next = lambda batch: StaleGeneration("the coordinator has moved")
    worker.commit()
    worker.pump.turn()
    waits.clear()
    worker.pump.turn()
    assert worker.batch is None, "not at once"
    assert waits == [pump_module.IDLE_POLL_S], (
        "what is due cannot be handed over: polling without a pause helps nobody"
    )
    clock.now += pump_module.STALE_RETRY_S
    worker.pump.turn()
    assert worker.batch is not None


def test_a_commit_refused_while_a_join_was_under_way_is_tried_again_as_soon_as_the_join_is_complete(
    kafka: FakeKafka, worker: FakeWorker
) -> None:
    """The member knows the new generation before the brokers take commits of it."""
    send(kafka, URGENT, "a")
    kafka.assign(URGENT, worker.member)
    until_begun(worker)
    worker.finish(0)
    worker.pump.turn()
    worker.pump.turn()
    worker.transactions.fail_next = lambda batch: StaleGeneration("a rebalance is in progress")
    worker.commit()
    worker.pump.turn()
    assert worker.batch is None, "not before"
    worker.member.joins += 1
    worker.pump.turn()
    assert worker.batch is not None
    worker.commit()
    assert kafka.committed[URGENT].offset == 1


def test_a_group_that_begins_anew_with_lower_generations_is_committed_to(
    kafka: FakeKafka, worker: FakeWorker
) -> None:
    kafka.generation = 57
    send(kafka, URGENT, "a")
    kafka.assign(URGENT, worker.member)
    until_begun(worker)
    worker.finish(0)
    worker.pump.turn()
    worker.pump.turn()
    kafka.generation = 1  # the group was deleted, and made again by our joining
    worker.commit()
    worker.pump.turn()
    worker.pump.turn()
    assert worker.batch is not None
    worker.commit()
    assert kafka.committed[URGENT].offset == 1


def test_what_was_read_before_retention_overtook_us_is_answered_and_reading_goes_on_once_that_is_accepted(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    for number in range(200):
        send(kafka, STANDARD, f"r{number}")
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    in_hand = len(worker.works)
    assert 0 < in_hand < 150
    # The fetch that was under way when the partition was paused is answered with an error.
    assert STANDARD in worker.member.paused
    worker.member.paused.clear()
    kafka.beginnings[STANDARD] = 150
    worker.pump.turn()
    worker.member.paused.add(STANDARD)
    assert worker.member.positions[STANDARD] is None
    run(worker, clock)
    assert worker.lost == set(), "what is in hand is ours to answer"

    def finish_all() -> None:
        for _ in range(40):
            while worker.works:
                worker.finish(0)
            run(worker, clock, turns=1)

    finish_all()
    assert len(kafka.published) == in_hand, "what was in hand"
    assert kafka.committed[STANDARD].offset == in_hand
    assert list(worker.openings.parked) == [STANDARD]
    accept(kafka, STANDARD)
    finish_all()
    assert len(kafka.published) == in_hand + 50, "and what was left"
    assert kafka.committed[STANDARD].offset == 200


def test_what_is_done_stays_done_when_retention_overtakes_the_frontier(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    for number in range(6):
        send(kafka, STANDARD, f"r{number}")
    before = FakeWorker(kafka, RegistryCodec())
    kafka.assign(STANDARD, before.member)
    run(before, clock)
    before.finish(4)
    run(before, clock)
    assert kafka.committed[STANDARD].offset == 0, "the first is not done"
    kafka.expel(before.member)
    kafka.beginnings[STANDARD] = 3
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert list(worker.openings.parked) == [STANDARD], "three were removed that nobody has answered"
    accept(kafka, STANDARD)
    run(worker, clock)
    assert [work.offset for work in worker.works] == [3, 5], "4 was published"


def test_a_log_that_was_cut_back_is_parked_once_what_was_read_of_it_is_answered(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    for number in range(3):
        send(kafka, STANDARD, f"r{number}")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker, 3)
    del kafka.logs[STANDARD][1:]
    run(worker, clock)
    assert worker.lost == set()
    while worker.works:
        worker.finish(0)
    run(worker, clock)
    assert len(kafka.published) == 3
    assert list(worker.openings.parked) == [STANDARD]
    assert worker.lost == {STANDARD}


def test_nothing_is_written_to_a_reply_topic_that_is_not_allowed_whatever_else_is_wrong(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    kafka.assign(URGENT, worker.member)
    send(kafka, URGENT, "a", reply_topic=NAMES.results)
    send(kafka, URGENT, "b", reply_topic=NAMES.results, bogus=1)
    send(kafka, URGENT, "c", reply_topic="headrace.replies", result_topic="payments")
    run(worker, clock)
    statuses = [
        dict(record.headers).get("status") for record in kafka.published if record.topic == NAMES.results
    ]
    assert statuses == [b"rejected"] * 3
    told = [(address.topic, request_id) for address, _, request_id, _ in worker.replies.told]
    assert told == [("headrace.replies", "c")]


def test_a_missing_result_topic_is_found_out_once(kafka: FakeKafka, worker: FakeWorker, clock: Clock) -> None:
    kafka.assign(URGENT, worker.member)
    for number in range(5):
        send(kafka, URGENT, f"r{number}", result_topic=TENANT)
    tried = 0
    for _ in range(10):
        worker.pump.turn()
        while worker.works:
            worker.finish(0)
        if worker.batch is not None:
            if any(record.topic == TENANT for record in worker.batch.records):
                worker.transactions.fail_next = lambda batch: refusal(TopicMissing("no such topic"), 0)
                tried += 1
                send(kafka, URGENT, "later", result_topic=TENANT)
            worker.commit()
    assert tried == 1
    results = [record for record in kafka.published if record.topic == NAMES.results]
    assert len(results) == 6


def test_finished_work_that_waits_for_its_commit_holds_back_the_intake(
    kafka: FakeKafka, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions_module, "MAX_PENDING_BYTES", 2_000)
    kafka.assign(STANDARD, worker.member)
    for _ in range(30):
        send(kafka, STANDARD, "x", bogus="y" * 100)  # refused at once: nothing is ever in flight
        worker.pump.turn()
    assert worker.ledger.pending_bytes < 6_000
    assert STANDARD in worker.member.paused


def test_what_cannot_be_committed_at_the_end_is_left_to_its_next_owner(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, URGENT, "a")
    kafka.assign(URGENT, worker.member)
    run(worker, clock)
    worker.finish(0)
    worker.pump.finish(leave_group=True)
    worker.member.generation = -1
    assert not worker.pump._finished()
    clock.now += pump_module.LAST_COMMITS_S
    assert worker.pump._finished()


def test_a_consumer_thread_that_fails_closes_its_consumer_and_does_not_leave(
    kafka: FakeKafka, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: FakeMember, timeout_s: float, max_records: int) -> Poll:
        raise StaleGeneration("whatever comes out of a poll")

    monkeypatch.setattr(FakeMember, "poll", fail)
    with pytest.raises(StaleGeneration):
        worker.pump.run()
    assert worker.member.closed
    assert not worker.pump.commits.commit_next(), "the commit thread is told to end"


def test_metadata_that_is_not_ours_parks_its_partition_and_no_other(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    kafka.committed[STANDARD] = CommitPoint(0, "written by somebody else")
    for tp in (STANDARD, URGENT):
        send(kafka, tp, tp.topic)
        kafka.assign(tp, worker.member)
    run(worker, clock)
    assert list(worker.openings.parked) == [STANDARD]
    assert [work.source for work in worker.works] == [URGENT]


# --- sent twice ---


def test_a_refused_message_with_the_id_of_an_unanswered_request_is_no_answer_to_it_after_a_crash(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, STANDARD, "a")
    before = FakeWorker(kafka, RegistryCodec())
    kafka.assign(STANDARD, before.member)
    until_begun(before)
    send(kafka, STANDARD, "a", bogus=1)  # the same caller, and this time it is not understood
    run(before, clock)
    assert [dict(each.headers)["status"] for each in kafka.published if each.topic == NAMES.results] == [
        b"rejected"
    ]
    kafka.expel(before.member)
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert [work.offset for work in worker.works] == [0], "the good one has no answer yet"
    worker.finish(0)
    run(worker, clock)
    assert [dict(each.headers)["status"] for each in kafka.published if each.topic == NAMES.results] == [
        b"rejected",
        b"ok",
    ]


def test_what_was_answered_before_a_crash_is_a_duplicate_after_it(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    send(kafka, STANDARD, "a")
    before = FakeWorker(kafka, RegistryCodec())
    kafka.assign(STANDARD, before.member)
    until_begun(before)
    before.finish(0)
    run(before, clock)
    kafka.expel(before.member)
    send(kafka, STANDARD, "a", reply_topic="headrace.replies")
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert worker.works == []
    assert kafka.committed[STANDARD].offset == 2
    assert [(status, request_id) for _, status, request_id, _ in worker.replies.told] == [("duplicate", "a")]
    place = worker.replies.told[0][3]
    assert place is not None
    assert (place.topic, place.partition, place.offset) == (NAMES.results, STANDARD.partition, 0)


def test_a_partition_whose_log_lost_its_position_begins_anew_only_when_nothing_of_it_is_outstanding(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    for number in range(4):
        send(kafka, STANDARD, f"r{number}")
    kafka.assign(STANDARD, worker.member)
    until_begun(worker, 4)
    epoch = worker.ledger.epoch(STANDARD)
    for number in range(4, 9):
        send(kafka, STANDARD, f"r{number}")
    kafka.beginnings[STANDARD] = 7
    for _ in range(4):
        run(worker, clock)
        assert worker.ledger.epoch(STANDARD) == epoch
        worker.finish(0)
    worker.pump.turn()
    assert worker.ledger.epoch(STANDARD) == epoch, "its last result is not committed"
    run(worker, clock)
    assert worker.ledger.epoch(STANDARD) is None
    assert kafka.committed[STANDARD].offset == 4
    assert list(worker.openings.parked) == [STANDARD]
    accept(kafka, STANDARD)
    run(worker, clock)
    assert worker.member.positions[STANDARD] == 9


def test_a_worker_with_nothing_in_hand_looks_up_seldom_and_one_that_waits_for_completions_often(
    kafka: FakeKafka, worker: FakeWorker, clock: Clock
) -> None:
    kafka.assign(STANDARD, worker.member)
    assert worker.pump._poll_timeout() == pump_module.LONGEST_POLL_S
    worker.pump.turn()
    assert worker.pump._poll_timeout() <= pump_module.IDLE_POLL_S, "it is to be opened"
    run(worker, clock)
    assert worker.pump._poll_timeout() == pump_module.LONGEST_POLL_S
    send(kafka, STANDARD, "a")
    until_begun(worker)
    assert worker.pump._poll_timeout() <= pump_module.IDLE_POLL_S
    worker.finish(0)
    run(worker, clock)
    assert worker.pump._poll_timeout() == pump_module.LONGEST_POLL_S
    worker.member.to_drain.add(0)
    worker.pump.turn()
    assert worker.pump._poll_timeout() <= pump_module.IDLE_POLL_S, "the drain is followed"
