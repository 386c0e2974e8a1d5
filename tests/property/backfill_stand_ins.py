"""What a world for a backfill job is made of: lanes, sources, mappings and answers in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.run import JobRun
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.schemas.errors import InvalidField
from headrace.schemas.messages import ErrorDetail, JsonObject, Output, Provenance, Request, Result, Usage

JOB = "films-00000000"
LANE = "headrace.m.c1.requests.backfill"

# `flaky` fails in every round but the last that is played.
# `refused`: by the worker, which knows no id by that.
RowKind = Literal["good", "fails", "flaky", "refused", "bad", "unreadable"]


class Killed(Exception):
    """The process ends here."""


@dataclass(frozen=True, slots=True)
class File:
    """A part's."""

    sha256: str
    outcomes: list[Outcome]


@dataclass(slots=True)
class Asked:
    request: Request
    offset: int
    again: bool
    done: bool = False


@dataclass(slots=True)
class Lane:
    """One partition of the lane and the partition of `results` with its number."""

    asked: list[Asked] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    results_from: int = 0  # retention took what lies below
    open_from: int | None = None  # where a transaction is open: nobody is shown what lies from there on
    known: set[str] = field(default_factory=set)

    @property
    def stable_end(self) -> int:
        """Up to where results are shown."""
        return len(self.results) if self.open_from is None else self.open_from

    @property
    def frontier(self) -> int:
        return next((each.offset for each in self.asked if not each.done), len(self.asked))


@dataclass(slots=True)
class Gone:
    """A process that is not the job's any more and does not know it."""

    incarnation: int
    run: JobRun
    read: dict[int, int]
    has_heard: bool = False


class MemorySource:
    """The rows as they are; `kept` is not looked at."""

    schema: Any = None
    digest = "sha256:0"

    def __init__(self, rows: list[JsonObject | RowFault]) -> None:
        self.rows = rows
        self.row_count = len(rows)

    def chunks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[Chunk]:
        for number in range(-(-len(self.rows) // size)):
            if wanted(number):
                kept: Any = None
                yield Chunk(number, number * size, self.rows[number * size : (number + 1) * size], kept)


class PromptMapping:
    digest = "sha256:1"

    def request_of(self, row: JsonObject) -> JsonObject:
        if row["kind"] == "bad":
            raise InvalidField("no good", path="/title")
        return {"prompt": f"{row['kind']} {row['value']}"}

    def outcome_of(self, result: Result) -> Outcome:
        value = result.outputs[0].text if result.outputs else None
        code = None if result.error is None else result.error.code
        usage = result.usage
        return Outcome(
            result.status,
            value,
            code,
            None if code is None else "failed",
            usage.prompt_tokens,
            usage.completion_tokens,
            "1",
            result.id,
        )


def result_of(request: Request, status: Any, partition: int, offset: int) -> Result:
    ok = status == "ok"
    return Result(
        id=request.id,
        status=status,
        outputs=[Output(text=f"answer to {request.prompt}", finish_reason="stop")] if ok else [],
        usage=Usage(prompt_tokens=3, completion_tokens=2),
        error=None if ok else ErrorDetail(code="engine_rejected", message="no"),
        provenance=Provenance(
            model="m",
            version="1",
            contract=1,
            engine="none",
            engine_version="0",
            slot="s",
            source_topic=LANE,
            source_partition=partition,
            source_offset=offset,
        ),
    )


def expected(kind: RowKind, value: int, healed: bool) -> tuple[str, str | None]:
    """Status and value of a row in the end."""
    if kind in ("bad", "unreadable", "refused"):
        return "rejected", None
    if kind == "fails" or (kind == "flaky" and not healed):
        return "failed", None
    return "ok", f"answer to {kind} {value}"
