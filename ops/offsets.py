"""The offsets of a contract's group as an operator sees them, and what accepting a loss does."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.consumers import offset_encoding
from headrace.consumers.control import ControlRecords, read_control
from headrace.consumers.group import read_committed_offsets
from headrace.consumers.metadata_limit import LONGEST_METADATA
from headrace.consumers.partitions import partitions_of
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import (
    Acceptance,
    Park,
    Start,
    done_within,
    retention_headroom,
    where_to_start,
)
from headrace.consumers.tail_reader import TailReader
from headrace.ops.operator_name import operator_name
from headrace.producers.control import ControlWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.errors import UnreadableOffsets, UsageError
from headrace.schemas.messages import LANES, Lane
from headrace.topics.admin import ConfigResource, kafka_errors, open_admin

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

COMMITTED_TIMEOUT_S = 30.0  # a worker that died in mid-transaction holds the offsets back for as long as 20 s

RETENTION_CONFIGS = ("retention.bytes", "retention.ms")

State = Literal["ok", "no offset yet", "accepted", "parked"]
Place = Literal["beginning", "end"] | int


# --- pure -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionOffsetsReport:
    """One partition of one lane. `decision` is what a worker does with it now, `without_acceptance` what it would
    do had no operator said anything."""

    tp: TopicPartition
    lane: Lane
    beginning: int
    end: int
    committed: CommitPoint | None
    decision: Start | Park
    without_acceptance: Start | Park

    @property
    def name(self) -> str:
        """`<lane>-<partition>`."""
        return f"{self.lane}-{self.tp.partition}"

    @property
    def state(self) -> State:
        """`accepted`: it was parked, and an acceptance waits for a worker."""
        if isinstance(self.decision, Park):
            return "parked"
        if isinstance(self.without_acceptance, Park):
            return "accepted"
        return "ok" if self.committed is not None else "no offset yet"

    @property
    def frontier(self) -> int:
        """The offset below which all is done; without a committed one: where the log begins."""
        return self.beginning if self.committed is None else self.committed.offset

    @property
    def lag(self) -> int:
        """Offsets from the frontier to the log's end, those that are done too, as Kafka's own tools count."""
        return max(0, self.end - max(self.frontier, self.beginning))

    @property
    def headroom(self) -> float:
        """See `retention_headroom`."""
        return retention_headroom(self.beginning, self.frontier, self.end)

    @property
    def done(self) -> int | None:
        """How many offsets above the frontier are done; None: that cannot be read."""
        progress = self._progress()
        return None if progress is None else sum(map(len, progress.done))

    @property
    def in_doubt(self) -> int | None:
        """How many offsets may have been handed to an engine, and are not done; None: that cannot be read."""
        progress = self._progress()
        if progress is None:
            return None
        started = range(self.frontier, max(self.frontier, min(progress.started, self.end)))
        return len(started) - done_within(started, progress.done)

    def _progress(self) -> offset_encoding.Progress | None:
        if self.committed is None:
            return offset_encoding.Progress(self.frontier)
        try:
            return offset_encoding.decode(self.committed.metadata, self.committed.offset, LONGEST_METADATA)
        except UnreadableOffsets:
            return None


@dataclass(frozen=True, slots=True)
class Consequence:
    """What going on at `resume_at` does, in numbers of requests, each at most.

    `again`: answered before, and answered once more. `skipped`: still in the log, and never answered. `lost`: not in
    the log any more, and not answered.
    """

    resume_at: int
    again: int
    skipped: int
    lost: int


def consequence(report: PartitionOffsetsReport, resume_at: int) -> Consequence:
    """What it means for a parked partition to go on at an offset of its log."""
    park = report.without_acceptance
    assert isinstance(park, Park), "only of what is parked"
    beginning, end = report.beginning, report.end
    if park.cause == "retention":
        assert report.committed is not None, "without a committed offset there is nothing to be faster than"
        done = offset_encoding.decode(
            report.committed.metadata, report.committed.offset, LONGEST_METADATA
        ).done
        passed = range(beginning, resume_at)
        return Consequence(resume_at, 0, len(passed) - done_within(passed, done), park.unanswered)
    all_done_to = max(beginning, report.frontier) if park.cause == "unreadable" else beginning
    return Consequence(resume_at, end - resume_at, max(0, resume_at - all_done_to), park.unanswered)


def place_to_resume(report: PartitionOffsetsReport, at: Place | None) -> int:
    """The offset that `at` means for a parked partition; None: where nothing is skipped that the log still holds.

    Raises UsageError for an offset that is not in the log.
    """
    park = report.without_acceptance
    assert isinstance(park, Park), "only of what is parked"
    if at is None:
        return park.resume_at
    if at == "beginning":
        return report.beginning
    if at == "end":
        return report.end
    if not report.beginning <= at <= report.end:
        raise UsageError(
            f"{report.name}: {at} is not in its log, which has {report.beginning} to {report.end}"
        )
    return at


def choose_parked(
    reports: Iterable[PartitionOffsetsReport], wanted: Collection[TopicPartition] | None
) -> list[PartitionOffsetsReport]:
    """The reports of the partitions that are to be accepted; None: of all that are parked.

    Raises UsageError where one is named that does not exist or is not parked.
    """
    found = {each.tp: each for each in reports}
    if wanted is None:
        return [each for each in found.values() if each.state == "parked"]
    for tp in wanted:
        if tp not in found:
            raise UsageError(
                f"there is no partition {tp.topic}-{tp.partition}; `headrace offsets list` has all"
            )
        if (state := found[tp].state) != "parked":
            said = (
                "was accepted already, and a worker goes on with it"
                if state == "accepted"
                else "is not parked"
            )
            raise UsageError(f"{found[tp].name} {said}: there is nothing to accept; nothing was changed")
    return [found[tp] for tp in dict.fromkeys(wanted)]


def named_partition(given: str, names: ContractNames) -> TopicPartition:
    """`standard-3`, or the topic's whole name and -3. Raises UsageError."""
    match = re.fullmatch(r"(.+)-([0-9]{1,9})", given, re.ASCII)
    topic = match[1].removeprefix(f"{names.base}.requests.") if match else ""
    if match is None or topic not in LANES:
        raise UsageError(
            f"{given!r} is no partition of {names.base}: give LANE-NUMBER, as standard-3 "
            f"(lanes are {', '.join(LANES)}), or the topic's whole name and -3"
        )
    return TopicPartition(names.requests(topic), int(match[2]))


# --- the edge ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OffsetsReport:
    """All partitions of a contract's lanes, and what retention each topic has (configs as the broker tells them)."""

    partitions: list[PartitionOffsetsReport]
    retention: Mapping[str, Mapping[str, str | None]]

    @property
    def parked(self) -> list[PartitionOffsetsReport]:
        """Those of which nothing is served."""
        return [each for each in self.partitions if each.state == "parked"]


def read_offsets(settings: Settings, names: ContractNames) -> OffsetsReport:
    """Where a contract's group stands in each of its request partitions, whether or not workers run.

    Waits for the end of transactions that are open over the offsets.
    Raises TopicsError where a topic is missing, BrokerNotFound, KafkaUnavailable, KafkaFailed.
    """
    found = partitions_of(settings, names.request_topics)
    tps = [tp for topic in names.request_topics for tp in found[topic]]
    control = read_control(settings)
    # Before the logs' ends: what is committed meanwhile must not seem to lie beyond them.
    committed = read_committed_offsets(settings, names.group, tps, COMMITTED_TIMEOUT_S)
    beginnings, ends = _log_ranges(settings, tps)
    reports = [_report(names, tp, committed[tp], beginnings[tp], ends[tp], control) for tp in tps]
    return OffsetsReport(reports, _retention(settings, names.request_topics))


def _retention(settings: Settings, topics: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """What the brokers tell of each topic's retention; None for what they do not."""
    with open_admin(settings, "reading the topics' retention") as admin:
        try:
            told: dict[str, Any] = admin.describe_configs(
                [ConfigResource("TOPIC", each) for each in topics], config_filter="all"
            ).get("topic", {})
        except kafka_errors.UnsupportedVersionError:
            told = {}
    return {
        topic: {name: told.get(topic, {}).get(name, {}).get("value") for name in RETENTION_CONFIGS}
        for topic in topics
    }


def _log_ranges(
    settings: Settings, tps: Collection[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    reader = TailReader(settings, tps, dict.fromkeys(tps, 0))
    try:
        return reader.beginning_offsets(), reader.end_offsets()
    finally:
        reader.close()


def _report(
    names: ContractNames,
    tp: TopicPartition,
    committed: CommitPoint | None,
    beginning: int,
    end: int,
    control: ControlRecords,
) -> PartitionOffsetsReport:
    of = (names.group, tp)

    def decide(acceptance: Acceptance | None) -> Start | Park:
        return where_to_start(
            tp,
            committed,
            beginning=beginning,
            end=end,
            known=of in control.known,
            acceptance=acceptance,
            limit=LONGEST_METADATA,
            group=names.group,
        )

    lane = names.lane_of(tp.topic)
    return PartitionOffsetsReport(
        tp, lane, beginning, end, committed, decide(control.acceptances.get(of)), decide(None)
    )


def accept(
    settings: Settings, names: ContractNames, resume: Iterable[tuple[PartitionOffsetsReport, int]]
) -> None:
    """Write that each of these parked partitions, as it was reported, goes on at that offset.

    Raises KafkaUnavailable, KafkaFailed, TopicMissing.
    """
    now_ms = int(time.time() * 1000)
    who = operator_name()
    acceptances = {
        report.tp: Acceptance(report.committed, resume_at, who, now_ms) for report, resume_at in resume
    }
    producer = PlainProducer(settings)
    try:
        ControlWriter(producer, prefix=names.prefix, group=names.group).accept(acceptances)
    finally:
        producer.close()
