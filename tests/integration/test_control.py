"""The control topic on a real Kafka, and what befalls offsets and logs there: seen, parked, accepted, gone on with."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from kafka.errors import NoError
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition
from kafka_members import WITHIN_S, admin_client, produce, read_all, settings_for
from waiting import wait_until

from headrace.consumers import offset_encoding
from headrace.consumers.control import ControlReader, partition_key
from headrace.consumers.group import read_committed_offsets
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import Acceptance, Park, Start, where_to_start
from headrace.ops.offsets import PartitionOffsetsReport, accept, place_to_resume, read_offsets
from headrace.producers.control import ControlWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.errors import KafkaUnavailable
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic
from headrace.topics.provision import LayoutOptions, bring_in_line

LIMIT = 4096
SMALL = LayoutOptions(partitions=2, replication=1)


@dataclass
class Cluster:
    """A contract's topics, and whoever may move its group's offsets."""

    bootstrap: str
    settings: Settings
    names: ContractNames

    @property
    def standard(self) -> TopicPartition:
        return TopicPartition(self.names.requests("standard"), 1)

    def commit(self, points: Mapping[TopicPartition, CommitPoint]) -> None:
        read_committed_offsets(
            self.settings, self.names.group, list(points), WITHIN_S
        )  # there is a coordinator
        with admin_client(self.bootstrap) as admin:
            offsets = {
                KafkaTopicPartition(*tp): OffsetAndMetadata(*point, -1) for tp, point in points.items()
            }
            outcome = admin.alter_group_offsets(self.names.group, offsets)
        assert set(outcome.values()) == {NoError}

    def report(self, tp: TopicPartition) -> PartitionOffsetsReport:
        return next(each for each in read_offsets(self.settings, self.names).partitions if each.tp == tp)

    @contextmanager
    def writer(self) -> Iterator[ControlWriter]:
        producer = PlainProducer(self.settings)
        try:
            yield ControlWriter(producer, prefix=self.names.prefix, group=self.names.group)
        finally:
            producer.close()

    @contextmanager
    def reader(self) -> Iterator[ControlReader]:
        reader = ControlReader(self.settings)
        thread = threading.Thread(target=reader.run)
        thread.start()
        try:
            yield reader
        finally:
            reader.stop()
            thread.join(WITHIN_S)
            assert not thread.is_alive()

    def begun_by_a_worker(self, tp: TopicPartition, reader: ControlReader) -> Start | Park:
        """What a worker decides that gets the partition now."""
        report = self.report(tp)
        return where_to_start(
            tp,
            read_committed_offsets(self.settings, self.names.group, [tp], WITHIN_S)[tp],
            beginning=report.beginning,
            end=report.end,
            known=reader.is_known(self.names.group, tp),
            acceptance=reader.accepted(self.names.group, tp),
            limit=LIMIT,
            group=self.names.group,
        )


@pytest.fixture
def bare(kafka_bootstrap: str, unique_prefix: str) -> Cluster:
    settings = settings_for(kafka_bootstrap, prefix=unique_prefix)
    return Cluster(kafka_bootstrap, settings, ContractNames(unique_prefix, "tagger", 1))


@pytest.fixture
def cluster(bare: Cluster) -> Cluster:
    bring_in_line(bare.settings, bare.names, SMALL)
    return bare


def point(offset: int, *done: range) -> CommitPoint:
    return CommitPoint(offset, offset_encoding.encode(offset, Progress(offset + 1, done), LIMIT))


def is_ready(reader: ControlReader) -> None:
    wait_until(lambda: reader.ready, WITHIN_S, "the control reader")


# --- the topic ------------------------------------------------------------------------------------------------


def test_a_missing_topic_is_waited_for_and_what_is_written_is_read_by_all(
    bare: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace")
    with bare.reader() as early:
        wait_until(lambda: "headrace topics apply" in caplog.text, WITHIN_S, "the warning")
        bring_in_line(bare.settings, bare.names, SMALL)
        is_ready(early)
        tp, group = bare.standard, bare.names.group
        assert not early.is_known(group, tp)
        with bare.writer() as writer:
            writer.know({tp: point(0)}, early)
            wait_until(lambda: early.is_known(group, tp), WITHIN_S, "the partition to be known")
            writer.know({tp: point(0)}, early)
            acceptance = Acceptance(CommitPoint(4, "h1;…"), 7, "operator@host", 1)
            writer.accept({tp: acceptance})
            wait_until(lambda: early.accepted(group, tp) == acceptance, WITHIN_S, "the acceptance")
        with bare.reader() as late:
            is_ready(late)
            assert late.is_known(group, tp)
            assert late.accepted(group, tp) == acceptance
            with bare.writer() as writer:
                writer.know({tp: point(7)}, late)
            wait_until(lambda: early.accepted(group, tp) is None, WITHIN_S, "the acceptance to be spent")
    written = read_all(bare.settings, control_topic(bare.names.prefix))
    assert [record.key for record in written].count(partition_key(group, tp)) == 1
    assert json.loads(written[0].value or b"")["known_since"] > 0
    assert len([message for message in caplog.messages if "headrace topics apply" in message]) == 1


def test_it_is_compacted_in_one_partition(cluster: Cluster) -> None:
    with admin_client(cluster.bootstrap) as admin:
        (topic,) = admin.describe_topics([control_topic(cluster.names.prefix)])
    assert len(topic["partitions"]) == 1


# --- what befalls offsets and logs -----------------------------------------------------------------------------


def accept_and_begin(
    cluster: Cluster, tp: TopicPartition, at: int | None, reader: ControlReader
) -> Start | Park:
    """An operator accepts; what a running worker then does."""
    report = cluster.report(tp)
    accept(cluster.settings, cluster.names, [(report, place_to_resume(report, at))])
    wait_until(lambda: reader.accepted(cluster.names.group, tp), WITHIN_S, "the acceptance")
    assert cluster.report(tp).state == "accepted"
    return cluster.begun_by_a_worker(tp, reader)


def test_offsets_that_expired_while_the_group_had_no_members(cluster: Cluster) -> None:
    tp = cluster.standard
    produce(cluster.bootstrap, tp.topic, tp.partition, [b"r"] * 10)
    assert cluster.report(tp).state == "no offset yet"
    cluster.commit({tp: point(6, range(8, 9))})
    assert (cluster.report(tp).state, cluster.report(tp).done, cluster.report(tp).lag) == ("ok", 1, 4)
    with cluster.reader() as reader:
        is_ready(reader)
        with cluster.writer() as writer:
            writer.know({tp: point(6)}, reader)
        wait_until(lambda: reader.is_known(cluster.names.group, tp), WITHIN_S, "the partition to be known")
        with admin_client(cluster.bootstrap) as admin:
            admin.delete_groups([cluster.names.group])
        park = cluster.begun_by_a_worker(tp, reader)
        assert isinstance(park, Park)
        assert park.cause == "offsets_gone"
        assert accept_and_begin(cluster, tp, None, reader) == Start(0, CommitPoint(0, ""))
        # Its first commit settles it, and a loss like the first one that comes later is another one.
        cluster.commit({tp: point(10)})
        with cluster.writer() as writer:
            writer.know({tp: point(10)}, reader)
        wait_until(lambda: not reader.accepted(cluster.names.group, tp), WITHIN_S, "it to be spent")
        with admin_client(cluster.bootstrap) as admin:
            admin.delete_group_offsets(cluster.names.group, [KafkaTopicPartition(*tp)])
        assert isinstance(cluster.begun_by_a_worker(tp, reader), Park)
        assert cluster.report(tp).state == "parked"


def test_records_deleted_under_a_lagging_group(cluster: Cluster) -> None:
    tp = cluster.standard
    produce(cluster.bootstrap, tp.topic, tp.partition, [b"r"] * 10)
    committed = point(2, range(4, 6), range(8, 9))
    cluster.commit({tp: committed})
    assert cluster.report(tp).headroom == 1.0, "retention has never removed anything"
    with admin_client(cluster.bootstrap) as admin:
        admin.delete_records({KafkaTopicPartition(*tp): 7})
    report = cluster.report(tp)
    assert isinstance(report.decision, Park)
    assert (report.decision.lost, report.decision.unanswered) == (range(2, 7), 3)
    assert (report.headroom, report.lag, report.in_doubt) == (0.0, 3, 1)
    with cluster.reader() as reader:
        is_ready(reader)
        assert accept_and_begin(cluster, tp, None, reader) == Start(7, committed)
        cluster.commit({tp: point(3)})
        assert isinstance(cluster.begun_by_a_worker(tp, reader), Park), "it holds for no other state"


def test_offsets_committed_beyond_the_end_of_the_log(cluster: Cluster) -> None:
    tp = cluster.standard
    produce(cluster.bootstrap, tp.topic, tp.partition, [b"r"] * 3)
    cluster.commit({tp: point(5)})
    report = cluster.report(tp)
    assert isinstance(report.decision, Park)
    assert (report.decision.cause, report.lag, report.headroom) == ("log_cut_back", 0, 1.0)
    with cluster.reader() as reader:
        is_ready(reader)
        assert accept_and_begin(cluster, tp, 3, reader) == Start(3, CommitPoint(3, ""))


def test_a_topic_deleted_and_made_anew(cluster: Cluster) -> None:
    tp = cluster.standard
    produce(cluster.bootstrap, tp.topic, tp.partition, [b"old"] * 5)
    cluster.commit({tp: point(5)})
    with cluster.reader() as reader:
        is_ready(reader)
        with cluster.writer() as writer:
            writer.know({tp: point(5)}, reader)
        wait_until(lambda: reader.is_known(cluster.names.group, tp), WITHIN_S, "the partition to be known")
        with admin_client(cluster.bootstrap) as admin:
            admin.delete_topics([tp.topic])

        def made_anew() -> bool:
            return any(
                change.topic == tp.topic for change in bring_in_line(cluster.settings, cluster.names, SMALL)
            )

        wait_until(made_anew, WITHIN_S, "the topic to be made anew")
        # Kafka has deleted the offsets with the topic. As long as it is empty, nothing can be doubled or skipped.

        def offsets_are_gone() -> bool:
            try:
                return cluster.report(tp).committed is None
            except KafkaUnavailable:  # a broker may not know the new topic yet
                return False

        wait_until(offsets_are_gone, WITHIN_S, "the offsets to be deleted")
        assert cluster.begun_by_a_worker(tp, reader) == Start(0, None)
        produce(cluster.bootstrap, tp.topic, tp.partition, [b"new"] * 2)
        park = cluster.begun_by_a_worker(tp, reader)
        assert isinstance(park, Park)
        assert park.cause == "offsets_gone"
        assert accept_and_begin(cluster, tp, None, reader) == Start(0, CommitPoint(0, ""))


def test_metadata_of_a_later_release(cluster: Cluster) -> None:
    tp = cluster.standard
    produce(cluster.bootstrap, tp.topic, tp.partition, [b"r"] * 9)
    cluster.commit({tp: CommitPoint(4, "h99;whatever")})
    report = cluster.report(tp)
    assert (report.state, report.done, report.in_doubt, report.lag) == ("parked", None, None, 5)
    with cluster.reader() as reader:
        is_ready(reader)
        assert accept_and_begin(cluster, tp, None, reader) == Start(4, CommitPoint(4, ""))
