"""A job's files when two processes have them: the one that came last goes on, the other stops."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from property.backfill_stand_ins import LANE, MemorySource, PromptMapping

from headrace.consumers.records import Record, RecordLocation, TopicPartition
from headrace.producers.backfill import results_feed
from headrace.producers.backfill.asking import RowAsker
from headrace.producers.backfill.failures import JobTaken
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.ledger import Ledger
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.outstanding import Outstanding
from headrace.producers.backfill.results_feed import Findings, ResultsFeed
from headrace.producers.backfill.row_ids import RequestDigests
from headrace.producers.backfill.rows_to_ask import RowsToAsk
from headrace.producers.backfill.state import JobState
from headrace.schemas.errors import KafkaUnavailable, RegistryFailed
from headrace.schemas.headers import JOB, REQUEST_ID
from headrace.schemas.messages import Request
from headrace.schemas.settings import Settings


def a_state(job: str = "tags-00000000", **fields: Any) -> JobState:
    return JobState(
        job=job,
        model="tagger",
        contract=1,
        identity={},
        rows=10,
        rows_per_part=5,
        lane_partitions=1,
        results_topic="results",
        offsets={0: 0},
        created_ms=0,
        updated_ms=0,
        **fields,
    )


def test_a_process_whose_state_another_has_written_does_not_write_over_it(tmp_path: Path) -> None:
    """Frozen before it could hear of it, it goes on with an older state than the one there."""
    first, second = JobFiles(str(tmp_path / "tags.parquet")), JobFiles(str(tmp_path / "tags.parquet"))
    first.take_over(a_state(), "first")
    first.save(a_state(outstanding=1))
    second.take_over(a_state(outstanding=2), "second")
    with pytest.raises(JobTaken, match="is run by another process now"):
        first.save(a_state(outstanding=3))
    with pytest.raises(JobTaken):
        first.check_ours("tags-00000000")
    second.save(a_state(outstanding=4))
    found = second.state()
    assert found is not None
    assert (found.outstanding, found.writer) == (4, "second")


def test_a_process_whose_job_was_set_aside_stops(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "tags.parquet"))
    files.take_over(a_state(), "first")
    JobFiles(str(tmp_path / "tags.parquet")).set_aside(a_state())
    with pytest.raises(JobTaken, match=r"was set aside meanwhile: .*state\.json is gone"):
        files.save(a_state())
    JobFiles(str(tmp_path / "tags.parquet")).save(a_state("tags-11111111"))
    with pytest.raises(JobTaken, match="is the output of tags-11111111 now"):
        files.save(a_state())


@pytest.mark.parametrize("output", ["tags.parquet", "tags"])
def test_what_killed_processes_have_half_written_is_removed_wherever_it_lies(
    tmp_path: Path, output: str
) -> None:
    files = JobFiles(str(tmp_path / output))
    places = files.places
    left: list[Path] = []
    for folder in (files.own, files.own.child("former"), places.parts, places.rejects, places.folder):
        with folder.open_output("file"):
            [half] = Path(folder.path).glob(".file.*.partial")
        left.append(half.with_name(half.name.replace(".file.", ".other.")))
        left[-1].write_bytes(b"half")  # as a killed process leaves it: there, and locked by nobody
    files.sweep()
    assert [path for path in left if path.exists()] == []


# --- what was found beside it -------------------------------------------------------------------------------------


def test_rows_that_wait_for_one_that_is_settled_without_an_answer_are_settled_with_it() -> None:
    """The row that is asked about for all could not be sent; then an answer to the same question is found."""
    source, mapping = MemorySource([{"kind": "good", "value": 1}] * 3), PromptMapping()
    ledger = Ledger(row_count=3, chunk_rows=3, done=(), positions={0: 0})
    answers: dict[str, Outcome] = {}
    waiting: list[Any] = []

    class Known:
        def get(self, digest: str) -> Outcome | None:
            return answers.get(digest)

        def put(self, digest: str, outcome: Outcome) -> None: ...

    class Wire:
        def send(self, request: Request, partition: int, told: Any, *, again: bool = False) -> None:
            waiting.append((request, told))

        def cancel(self, job: str, reason: str) -> None: ...

        def close(self) -> None: ...

    def settle(row: int, outcome: Outcome) -> None:
        ledger.settle(row, outcome)

    rows = RowsToAsk(
        source.chunks(3, lambda _: True),
        ledger,
        Outstanding(LANE, 1),
        asker=RowAsker(mapping, RequestDigests("m", 1, None)),
        wire=Wire(),
        job="tags-00000000",
        round_=0,
        answers=Known(),
        dedupe=True,
        give_up_after_s=None,
        begun=lambda _: None,
        settle=settle,
        took_up=lambda _: None,
        clock=lambda: 0.0,
    )
    while (row := rows.next_row()) is not None:
        rows.ask(row)
    [(request, told)] = waiting
    told(KafkaUnavailable("no broker"))
    rows.take_acknowledgements()
    answers[request.id.rpartition(".")[2]] = Outcome("ok", "found elsewhere")
    again = rows.next_row()
    assert again == 0
    rows.ask(again)
    assert [each and each.value for each in ledger.outcomes(0)] == ["found elsewhere"] * 3


@dataclass
class _Tail:
    """Reads one partition, a record a poll."""

    records: list[Record]
    at: int
    skipped: dict[TopicPartition, int] = field(default_factory=dict)

    def poll(self, timeout_s: float, max_records: int) -> list[Record]:
        found = self.records[self.at : self.at + 1]
        self.at += len(found)
        return found

    def position(self, tp: TopicPartition) -> int:
        return self.at

    def close(self) -> None: ...

    def wake_up(self) -> None: ...


def test_a_result_that_cannot_be_read_for_the_moment_is_read_again_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The registry is away when its schema is asked for."""
    place = TopicPartition("results", 0)
    records = [
        Record("results", 0, n, 0, None, b"", ((JOB, b"tags"), (REQUEST_ID, b"tags.%d" % n)))
        for n in range(3)
    ]
    failures = iter([False, True, False])

    class Codec:
        def decode(self, kind: object, value: bytes) -> Any:
            if next(failures, False):
                raise RegistryFailed("no registry")
            return type("Decoded", (), {"message": "a result"})

    def tail(settings: Settings, partitions: Any, starts: dict[TopicPartition, int]) -> _Tail:
        return _Tail(records, starts[place])

    monkeypatch.setattr(results_feed, "TailReader", tail)
    monkeypatch.setattr(results_feed, "partitions_of", lambda *_: {"results": [place]})
    monkeypatch.setattr(results_feed, "TRY_AGAIN_S", 0.0)
    codec: Any = Codec()
    feed = ResultsFeed(Settings(), "results", codec)
    found: list[int] = []

    def deliver(findings: Findings) -> None:
        found.extend(each.offset for each in findings.found)
        assert findings.positions == {0: len(found)}
        if len(found) == len(records):
            feed.stop()

    feed.subscribe("tags", {0: 0}, deliver)
    feed.run()
    assert found == [0, 1, 2]
    assert RecordLocation("results", 0, 2) == records[2].location
