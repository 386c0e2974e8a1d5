"""A version in the shadow of a contract: what it takes, how it serves it, where it begins, and what it writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click import BadParameter
from click.testing import CliRunner
from fake_kafka import FakeKafka
from fake_worker import METADATA_LIMIT, NAMES, SOURCES, Clock, FakeWorker, RegistryCodec
from packages import a_package
from worker_turns import clock_by_hand, run, send, until_begun

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, Record, TopicPartition
from headrace.consumers.starting import Start, where_a_shadow_starts
from headrace.ops.cli.percents import Percent
from headrace.ops.cli.worker import worker as worker_command
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec
from headrace.schemas.errors import SettingsError, TopicsError, UsageError
from headrace.schemas.messages import ErrorDetail, Output
from headrace.topics.changes import ClusterState, Create, FoundTopic, diff
from headrace.topics.layout import layout, shadow_layout
from headrace.topics.names import ShadowNames
from headrace.topics.provision import units_of_contract
from headrace.workers.answers import Served
from headrace.workers.intake import work_of
from headrace.workers.shadow import NoControl, Shadow, ShadowAnswers, is_sampled
from headrace.workers.work import Work

URGENT, STANDARD = SOURCES[0], SOURCES[2]
ASIDE = ShadowNames.of(NAMES, "4")
TAKEN = [f"r{number}" for number in range(60) if is_sampled(f"r{number}", 0.5)]
LEFT = [f"r{number}" for number in range(60) if not is_sampled(f"r{number}", 0.5)]
REPLY = "headrace.replies"


# --- names and topics ---------------------------------------------------------------------------------------------


def test_a_shadow_reads_the_contracts_topics_and_has_its_own_for_everything_else() -> None:
    assert (ASIDE.request_topics, ASIDE.cancels, ASIDE.base) == (
        NAMES.request_topics,
        NAMES.cancels,
        NAMES.base,
    )
    assert ASIDE.lane_of(NAMES.requests("backfill")) == "backfill"
    assert ASIDE.group == "headrace.tagger.c1.shadow.4"
    assert (ASIDE.results, ASIDE.dead) == (f"{ASIDE.group}.results", f"{ASIDE.group}.dead")


def test_no_two_workers_have_one_transactional_id() -> None:
    """Neither a version and a slot with dots in them, nor a contract's worker whose slot looks like a shadow's."""
    ids = [
        ShadowNames.of(NAMES, "4").transactional_id("1.a"),
        ShadowNames.of(NAMES, "4.1").transactional_id("a"),
        NAMES.transactional_id("shadow.4.1.a"),
    ]
    assert len(set(ids)) == 3


def test_a_version_that_no_topic_can_be_named_by_cannot_be_a_shadow() -> None:
    with pytest.raises(SettingsError, match="version 'a b' cannot run as a shadow"):
        ShadowNames.of(NAMES, "a b")


def test_a_shadows_topics_have_as_many_partitions_as_the_contract_has_units_and_may_grow_at_any_time() -> (
    None
):
    of_contract = layout(NAMES, partitions=8, replication=1, max_record_bytes=10**6)
    there = {each.name: FoundTopic(each.partitions, 1, each.configs) for each in of_contract}
    found = ClusterState(1, there, dict.fromkeys(NAMES.request_topics, 5))
    wanted = shadow_layout(
        ASIDE, units=units_of_contract(found, ASIDE), replication=1, max_record_bytes=10**6
    )
    assert [(each.name, each.partitions) for each in wanted] == [(ASIDE.results, 8), (ASIDE.dead, 4)]
    assert all(isinstance(each, Create) for each in diff(wanted, found))
    smaller = ClusterState(1, there | {ASIDE.results: FoundTopic(4, 1, None)}, found.unread)
    assert "partitions: 4 -> 8" in [str(each) for each in diff(wanted, smaller)]


def test_a_contract_without_topics_has_no_shadow() -> None:
    with pytest.raises(TopicsError, match="has no topics that a shadow could read"):
        units_of_contract(ClusterState(1, {ASIDE.results: FoundTopic(4, 1, None)}), ASIDE)


# --- what it takes ------------------------------------------------------------------------------------------------


def a_work(value: bytes, lane: str = "interactive") -> Work:
    headers: list[tuple[str, bytes | None]] = [
        (header.REPLY_TOPIC, REPLY.encode()),
        (header.REPLY_PARTITION, b"0"),
        (header.CORRELATION_ID, b"c"),
    ]
    source = TopicPartition(f"{NAMES.base}.requests.{lane}", 1)
    record = Record(*source, 17, 1_000, b"k", value, headers)
    return work_of(record, source=source, epoch=2, lane="interactive", codec=Codec())


def test_what_is_taken_waits_in_the_backfill_lane_and_has_nobody_to_answer_to() -> None:
    work = a_work(b'{"id":"a","prompt":"x","stream":true,"result_topic":"t","deadline":5,"tenant":"b"}')
    taken = Shadow(1.0).take(work)
    assert taken is not None
    assert (taken.lane, taken.reply_to) == ("backfill", None)
    assert taken.request is not None
    assert (taken.request.stream, taken.request.result_topic) == (False, None)
    assert (taken.request.deadline, taken.request.tenant) == (5, "b"), "these hold for everybody"
    assert replace(taken, lane=work.lane, reply_to=work.reply_to, request=work.request) == work


def test_a_sample_depends_on_the_id_alone_and_does_not_change_with_a_release() -> None:
    """Pinned: two releases that disagree would leave requests out, or serve them twice over."""
    assert [number for number in range(30) if is_sampled(f"r{number}", 0.2)] == [9, 18, 27]


def test_a_share_is_typed_in_percent() -> None:
    assert [Percent().convert(each, None, None) for each in ("10%", "0.5 %", "100", 0.3)] == [
        0.1,
        0.005,
        1.0,
        0.3,
    ]
    for bad in ("0%", "101%", "-5", "a", "1e1", ""):
        with pytest.raises(BadParameter):
            Percent().convert(bad, None, None)


def test_a_sample_goes_with_a_shadow(tmp_path: Path) -> None:
    done = CliRunner().invoke(worker_command, ["run", "--package", str(tmp_path), "--sample", "5%"])
    assert isinstance(done.exception, UsageError)


# --- where it begins ----------------------------------------------------------------------------------------------


def starts(committed: CommitPoint | None, beginning: int = 10, end: int = 50) -> Start:
    return where_a_shadow_starts(
        STANDARD,
        committed,
        beginning=beginning,
        end=end,
        known=False,
        acceptance=None,
        limit=METADATA_LIMIT,
        group=ASIDE.group,
    )


def done_above(offset: int, *runs: range) -> CommitPoint:
    return CommitPoint(offset, offset_encoding.encode(offset, Progress(offset + 8, runs), METADATA_LIMIT))


@pytest.mark.parametrize(
    ("committed", "start"),
    [
        (None, Start(50, None)),
        (done_above(20, range(22, 24)), Start(20, done_above(20, range(22, 24)))),
        (done_above(5, range(12, 14)), Start(10, done_above(5, range(12, 14)))),
        (done_above(60), Start(50, CommitPoint(50, ""))),
        (CommitPoint(20, "?"), Start(50, CommitPoint(50, ""))),
    ],
    ids=["new: the end", "goes on", "retention took some", "the log was cut back", "unreadable"],
)
def test_a_shadow_goes_on_where_it_was_or_at_the_end_and_is_never_parked(
    committed: CommitPoint | None, start: Start
) -> None:
    assert starts(committed) == start


# --- in the consumer thread ---------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_by_hand(monkeypatch)


@pytest.fixture
def kafka(clock: Clock) -> FakeKafka:
    return FakeKafka(SOURCES)


def a_shadow(kafka: FakeKafka) -> FakeWorker:
    return FakeWorker(kafka, RegistryCodec(), shadow=Shadow(0.5))


def published(kafka: FakeKafka) -> list[str]:
    return [dict(record.headers)[header.REQUEST_ID].decode() for record in kafka.published]


def test_what_is_not_sampled_is_done_at_once_and_published_nowhere(kafka: FakeKafka, clock: Clock) -> None:
    worker = a_shadow(kafka)
    send(kafka, STANDARD, "before it was there")
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    assert kafka.committed[STANDARD].offset == 1, "it has begun at the end"
    for each in LEFT[:3]:
        send(kafka, STANDARD, each, REPLY)
    run(worker, clock)
    assert kafka.committed[STANDARD].offset == 4
    assert (worker.works, kafka.published, worker.replies.told) == ([], [], [])


def test_what_is_sampled_is_served_once_and_no_caller_is_told(kafka: FakeKafka, clock: Clock) -> None:
    worker = a_shadow(kafka)
    kafka.assign(URGENT, worker.member)
    run(worker, clock)
    send(kafka, URGENT, LEFT[0], REPLY)
    send(kafka, URGENT, TAKEN[0], REPLY)
    send(kafka, URGENT, TAKEN[0], REPLY)
    until_begun(worker)
    assert [(work.request_id, work.lane) for work in worker.works] == [(TAKEN[0], "backfill")]
    worker.finish(0)
    run(worker, clock)
    assert published(kafka) == [TAKEN[0]]
    assert kafka.committed[URGENT].offset == 3
    assert worker.replies.told == []


def test_what_no_version_could_serve_is_passed_over(kafka: FakeKafka, clock: Clock) -> None:
    """Else each shadow would have its dead letters; and what live versions refuse is not served in their shadow."""
    worker = a_shadow(kafka)
    kafka.assign(STANDARD, worker.member)
    run(worker, clock)
    send(kafka, STANDARD, TAKEN[0], unknown="field")
    send(kafka, STANDARD, TAKEN[1], result_topic="not.allowed")
    run(worker, clock)
    assert kafka.committed[STANDARD].offset == 2
    assert (worker.works, kafka.published) == ([], [])


def test_a_shadow_that_dies_goes_on_where_it_was(kafka: FakeKafka, clock: Clock) -> None:
    first = a_shadow(kafka)
    kafka.assign(STANDARD, first.member)
    run(first, clock)
    for each in (TAKEN[0], LEFT[0], TAKEN[1], TAKEN[2]):
        send(kafka, STANDARD, each)
    until_begun(first, 3)
    first.finish(1)
    run(first, clock)
    assert published(kafka) == [TAKEN[1]]
    kafka.expel(first.member)
    second = a_shadow(kafka)
    kafka.assign(STANDARD, second.member)
    until_begun(second, 2)
    while second.works:
        second.finish(0)
    run(second, clock)
    assert sorted(published(kafka)) == sorted(TAKEN[:3])
    assert kafka.committed[STANDARD].offset == 4


# --- what it writes -----------------------------------------------------------------------------------------------


def test_every_record_of_a_shadow_says_so_and_goes_to_its_own_topics(tmp_path: Path) -> None:
    answers = ShadowAnswers(
        package=a_package(tmp_path, version="4"),
        names=ASIDE,
        slot="slot-1",
        codec=Codec(),
        check_size=lambda record: None,
        allowed_result_topics=["t"],
    )
    taken = Shadow(1.0).take(a_work(b'{"id":"a","prompt":"x","result_topic":"t"}'))
    assert taken is not None
    ok = answers.completion(taken, Served("ok", outputs=[Output(text="fine", finish_reason="stop")]))
    failed = answers.completion(taken, Served("failed", error=ErrorDetail(code="a", message="b")))
    records = [*ok.records, *failed.records]
    assert [record.topic for record in records] == [ASIDE.results, ASIDE.results, ASIDE.dead]
    assert [record.partition for record in records] == [1, 1, None]
    assert [dict(record.headers)[header.SHADOW] for record in records] == [b"4"] * 3
    assert (ok.reply_to, failed.reply_to, ok.urgent) == ((), (), False)
    expired = answers.completion(taken, Served("expired", error=ErrorDetail(code="expired", message="late")))
    assert [record.topic for record in expired.records] == [ASIDE.results], "counted, and no dead letter"


def test_a_shadow_has_no_word_in_the_control_topic() -> None:
    control = NoControl()
    control.know({STANDARD: CommitPoint(1, "")})
    assert control.ready
    assert not control.is_known(STANDARD)
    assert control.accepted(STANDARD) is None
    control.stop()
    control.run()
