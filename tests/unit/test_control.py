"""The records of the control topic: what they say, and which are written."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import Future

import pytest
from waiting import wait_until

from headrace.consumers import control
from headrace.consumers.control import (
    ControlReader,
    ControlRecords,
    acceptance_key,
    acceptance_value,
    partition_key,
    partition_value,
)
from headrace.consumers.records import CommitPoint, Record, RecordLocation, TopicPartition
from headrace.consumers.starting import Acceptance
from headrace.producers.control import ControlWriter
from headrace.producers.outgoing import OutgoingRecord
from headrace.schemas.errors import KafkaFailed, KafkaUnavailable, TopicsError
from headrace.schemas.settings import Settings

WITHIN_S = 10.0
GROUP = "headrace.tagger.c1"
TP = TopicPartition(f"{GROUP}.requests.standard", 3)
OTHER = TopicPartition(f"{GROUP}.requests.backfill", 3)
ACCEPTANCE = Acceptance(CommitPoint(10, "h1;…"), 20, "operator@host", 1_700_000_000_000)


def records(*written: tuple[bytes | None, bytes | None]) -> ControlRecords:
    read = ControlRecords()
    for key, value in written:
        assert read.take(key, value) is None
    return read


# --- what the records say ------------------------------------------------------------------------------------


def test_a_person_can_read_them() -> None:
    assert partition_key(GROUP, TP) == b"partition/headrace.tagger.c1/headrace.tagger.c1.requests.standard/3"
    assert partition_value(5) == b'{"known_since": 5}'
    assert acceptance_key(GROUP, TP) == b"accept/headrace.tagger.c1/headrace.tagger.c1.requests.standard/3"
    assert json.loads(acceptance_value(ACCEPTANCE)) == {
        "committed": {"offset": 10, "metadata": "h1;…"},
        "resume_at": 20,
        "by": "operator@host",
        "at": 1_700_000_000_000,
    }


@pytest.mark.parametrize("committed", [None, CommitPoint(0, ""), CommitPoint(10, "h1;3;rAg;0123abcd")])
def test_an_acceptance_comes_back_as_it_was(committed: CommitPoint | None) -> None:
    acceptance = Acceptance(committed, 7, "a@b", 2)
    read = records((acceptance_key(GROUP, TP), acceptance_value(acceptance)))
    assert read.acceptances == {(GROUP, TP): acceptance}
    assert read.known == set()


def test_the_last_record_of_a_key_counts_and_one_without_a_value_takes_it_back() -> None:
    later = Acceptance(None, 0, "b@b", 3)
    key = acceptance_key(GROUP, TP)
    written = [(key, acceptance_value(ACCEPTANCE)), (key, acceptance_value(later))]
    assert records(*written).acceptances == {(GROUP, TP): later}
    assert records(*written, (key, None)).acceptances == {}
    known = (partition_key(GROUP, TP), partition_value(1))
    assert records(known, known).known == {(GROUP, TP)}
    assert records(known, (known[0], None)).known == set()


@pytest.mark.parametrize(
    "key", [None, b"", b"tomorrow/headrace.tagger", b"alias/tagger", b"\xff\xfe", b"later"]
)
def test_other_kinds_are_passed_over(key: bytes | None) -> None:
    read = records((key, b"whatever"), (key, None))
    assert (read.known, read.acceptances) == (set(), {})


def test_fields_of_a_later_release_are_passed_over() -> None:
    value = json.loads(acceptance_value(ACCEPTANCE)) | {"reason": "spring cleaning"}
    read = records((acceptance_key(GROUP, TP), json.dumps(value).encode()))
    assert read.acceptances == {(GROUP, TP): ACCEPTANCE}


@pytest.mark.parametrize("key", [b"partition/g/t", b"accept/g/t/x", b"partition/g/t/1/2", b"accept/g/t/-1"])
def test_a_key_that_is_none_is_said(key: bytes) -> None:
    assert "/<group>/<topic>/<partition>" in (ControlRecords().take(key, b"{}") or "")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b'{"committed": null, "resume_at": 1, "by": "a"}',
        b'{"resume_at": 1, "by": "a", "at": 1}',
        b'{"committed": null, "resume_at": "1", "by": "a", "at": 1}',
        b'{"committed": null, "resume_at": -1, "by": "a", "at": 1}',
        b'{"committed": {"offset": 1}, "resume_at": 1, "by": "a", "at": 1}',
    ],
)
def test_an_unreadable_acceptance_voids_the_one_before_it(value: bytes) -> None:
    read = records((acceptance_key(GROUP, TP), acceptance_value(ACCEPTANCE)))
    assert read.take(acceptance_key(GROUP, TP), value)
    assert read.acceptances == {}


def test_a_partition_is_known_whatever_its_record_says() -> None:
    read = ControlRecords()
    assert read.take(partition_key(GROUP, TP), b"{")
    assert read.known == {(GROUP, TP)}


# --- which are written ---------------------------------------------------------------------------------------


class Sent:
    """A producer that keeps what it is given."""

    def __init__(self, fails_with: Exception | None = None) -> None:
        self.records: list[OutgoingRecord] = []
        self.flushed = False
        self._fails_with = fails_with

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]:
        self.records.append(record)
        sent: Future[RecordLocation] = Future()
        if self._fails_with:
            sent.set_exception(self._fails_with)
        else:
            sent.set_result(RecordLocation(record.topic, 0, len(self.records)))
        return sent

    def flush(self, timeout_s: float) -> None:
        self.flushed = True


class View:
    """What a reader knows."""

    def __init__(self, *written: tuple[bytes | None, bytes | None]) -> None:
        self._records = records(*written)

    def is_known(self, group: str, tp: TopicPartition) -> bool:
        return (group, tp) in self._records.known

    def accepted(self, group: str, tp: TopicPartition) -> Acceptance | None:
        return self._records.acceptances.get((group, tp))


def writer(sent: Sent) -> ControlWriter:
    return ControlWriter(sent, prefix="headrace", group=GROUP)


def test_only_partitions_that_are_not_known_are_written() -> None:
    sent = Sent()
    view = View(
        (partition_key(GROUP, TP), partition_value(1)), (partition_key("another", OTHER), partition_value(1))
    )
    writer(sent).know({TP: CommitPoint(1, ""), OTHER: CommitPoint(2, "")}, view)
    (record,) = sent.records
    assert (record.topic, record.key) == ("headrace.control", partition_key(GROUP, OTHER))
    assert records((record.key, record.value)).known == {(GROUP, OTHER)}
    assert sent.flushed
    writer(again := Sent()).know({TP: CommitPoint(1, "")}, view)
    assert not again.records


def test_an_acceptance_is_spent_once_another_state_is_committed() -> None:
    view = View(
        (partition_key(GROUP, TP), partition_value(1)),
        (acceptance_key(GROUP, TP), acceptance_value(ACCEPTANCE)),
    )
    assert ACCEPTANCE.committed is not None
    writer(sent := Sent()).know({TP: ACCEPTANCE.committed}, view)
    assert not sent.records, "a commit of the very state that was accepted spends nothing"
    writer(sent).know({TP: CommitPoint(20, "")}, view)
    assert sent.records == [OutgoingRecord("headrace.control", acceptance_key(GROUP, TP), None)]


def test_an_acceptance_is_written_so_that_it_reads_the_same() -> None:
    sent = Sent()
    writer(sent).accept({TP: ACCEPTANCE})
    (record,) = sent.records
    assert records((record.key, record.value)).acceptances == {(GROUP, TP): ACCEPTANCE}
    assert sent.flushed


def test_what_could_not_be_written_is_raised() -> None:
    with pytest.raises(KafkaFailed):
        writer(Sent(fails_with=KafkaFailed("no"))).accept({TP: ACCEPTANCE})
    with pytest.raises(KafkaUnavailable):
        writer(Sent(fails_with=KafkaUnavailable("no"))).know({TP: CommitPoint(0, "")}, View())


# --- following the topic -------------------------------------------------------------------------------------


class Tail:
    """A log of one partition that a test appends to, read as TailReader reads."""

    tp = TopicPartition("headrace.control", 0)

    def __init__(self, log: list[tuple[bytes, bytes | None]], woken: threading.Event) -> None:
        self._log = log
        self._at = 0
        self._woken = woken
        self.error: Exception | None = None
        self.held_at: int | None = None  # gives no record from this offset on
        self.closed = False

    def end_offsets(self) -> dict[TopicPartition, int]:
        return {self.tp: len(self._log)}

    def position(self, tp: TopicPartition) -> int:
        return self._at

    def poll(self, timeout_s: float) -> list[Record]:
        if self.error is not None:
            raise self.error
        if self._at in (len(self._log), self.held_at):
            self._woken.wait(0.01)
            return []
        key, value = self._log[self._at]
        self._at += 1
        return [Record(*self.tp, self._at - 1, 0, key, value)]

    def wake_up(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self.closed = True


class Following:
    """A reader in its thread, and the logs that it is given, one after the other."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *logs: list[tuple[bytes, bytes | None]] | Exception
    ) -> None:
        self._left = list(logs)
        self.tails: list[Tail] = []
        self.changes = 0
        self.held_at: int | None = None  # of tails opened from now on
        monkeypatch.setattr(control, "RETRY_S", 0.01)
        monkeypatch.setattr(control, "open_control", self._open)
        self.reader = ControlReader(Settings(), self._changed)
        self.thread = threading.Thread(target=self.reader.run)

    def _open(self, settings: Settings) -> Tail:
        log = self._left[0] if len(self._left) == 1 else self._left.pop(0)
        if isinstance(log, Exception):
            raise log
        tail = Tail(log, threading.Event())
        tail.held_at = self.held_at
        self.tails.append(tail)
        return tail

    def _changed(self) -> None:
        self.changes += 1

    def __enter__(self) -> Following:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()
        self.thread.join(WITHIN_S)
        assert not self.thread.is_alive()
        assert all(tail.closed for tail in self.tails)


@pytest.fixture
def a_log() -> list[tuple[bytes, bytes | None]]:
    return [(partition_key(GROUP, TP), partition_value(1)), (b"tomorrow/x", b"?")]


def test_it_is_ready_once_it_has_read_what_was_there(
    monkeypatch: pytest.MonkeyPatch, a_log: list[tuple[bytes, bytes | None]]
) -> None:
    with Following(monkeypatch, a_log) as following:
        reader = following.reader
        wait_until(lambda: reader.ready, WITHIN_S, "the reader")
        assert (reader.is_known(GROUP, TP), reader.is_known(GROUP, OTHER)) == (True, False)
        wait_until(lambda: following.changes == 1, WITHIN_S, "the first change")
        a_log.append((acceptance_key(GROUP, TP), acceptance_value(ACCEPTANCE)))
        wait_until(lambda: following.changes == 2, WITHIN_S, "the second change")
        assert reader.accepted(GROUP, TP) == ACCEPTANCE
        assert reader.accepted(GROUP, OTHER) is None


def test_nothing_is_said_of_partitions_before_it_is_ready() -> None:
    with pytest.raises(AssertionError, match="not been read"):
        ControlReader(Settings()).is_known(GROUP, TP)


def test_a_topic_that_is_missing_is_waited_for_and_said_once(
    monkeypatch: pytest.MonkeyPatch, a_log: list[tuple[bytes, bytes | None]], caplog: pytest.LogCaptureFixture
) -> None:
    missing = TopicsError("there is no topic headrace.control: create it with `headrace topics apply`")
    with Following(monkeypatch, missing, missing, missing, a_log) as following:
        wait_until(lambda: following.reader.ready, WITHIN_S, "the reader")
    (said,) = caplog.messages
    assert "headrace topics apply" in said


def test_after_a_failure_it_reads_anew_and_old_records_never_hide_newer_ones(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = acceptance_key(GROUP, TP)
    written: list[tuple[bytes, bytes | None]] = [(key, acceptance_value(ACCEPTANCE)), (key, None)]
    with Following(monkeypatch, written) as following:
        reader = following.reader
        wait_until(lambda: reader.ready, WITHIN_S, "the reader")
        following.held_at = 1  # between the two
        following.tails[0].error = KafkaFailed("gone")
        wait_until(lambda: following.tails[-1].position(Tail.tp) == 1, WITHIN_S, "the first record again")
        assert reader.ready
        assert reader.accepted(GROUP, TP) is None
        following.tails[-1].held_at = None
        wait_until(lambda: following.changes == 2, WITHIN_S, "the second reading")
        assert reader.accepted(GROUP, TP) is None
    assert "trying on: gone" in caplog.text


def test_an_unreadable_record_is_said_once_though_it_is_read_twice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    log: list[tuple[bytes, bytes | None]] = [
        (acceptance_key(GROUP, TP), b"{"),
        (partition_key(GROUP, TP), partition_value(1)),
    ]
    with Following(monkeypatch, log) as following:
        wait_until(lambda: following.changes == 1, WITHIN_S, "the first reading")
        following.tails[0].error = KafkaFailed("gone")
        wait_until(lambda: following.changes == 2, WITHIN_S, "the second reading")
        assert following.reader.is_known(GROUP, TP)
    assert len([message for message in caplog.messages if "offset 0 cannot be read" in message]) == 1
