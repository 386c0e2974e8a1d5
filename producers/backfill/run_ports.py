"""What a run is made of, and what it leaves: the ports of `run.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.consumers.backfill_jobs import Order, RunStatus
    from headrace.producers.backfill.asking import RowAsker
    from headrace.producers.backfill.breaker import MaxFailures
    from headrace.producers.backfill.failures import BackfillError
    from headrace.producers.backfill.mapping import Mapping as RowMapping
    from headrace.producers.backfill.outcome import Outcome
    from headrace.producers.backfill.progress import JobView
    from headrace.producers.backfill.rows_to_ask import KnownAnswers
    from headrace.producers.backfill.source import Chunk, Source
    from headrace.producers.backfill.state import JobState, WrittenPart
    from headrace.producers.backfill.wire import Wire


class Output(Protocol):
    """Where parts go. A state names a part only after it was written."""

    def write(self, chunk: Chunk, outcomes: Sequence[Outcome], round_: int) -> WrittenPart:
        """Write a chunk's part, complete or not at all; a second time it is the same. Raises OutputFailed.

        One of a later round leaves the former one as it is until `put_in_place`.
        """
        ...

    def put_in_place(self, part: WrittenPart) -> None:
        """Let readers find a part that the state names by now. Raises OutputFailed."""
        ...

    def earlier(self, part: WrittenPart) -> list[Outcome]:
        """The outcomes that a part was written with, each with its columns. Raises OutputFailed."""
        ...


class Link(Protocol):
    """What is needed of `orders.OrdersLink`."""

    def order(self) -> Order | None: ...
    def check(self) -> None: ...
    def tell(self, status: RunStatus, *, rows: int, settled: int, failed: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What may stop a job, and how it asks."""

    max_failures: MaxFailures
    token_budget: int | None = None  # prompts and generated, all runs of the job together
    dedupe: bool = False
    give_up_after_s: float | None = None  # of a request


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of. `save` writes the state. `results_end` asks where `results` ends now for who reads what is
    committed, `results_tip` where it ends with what open transactions hold back."""

    source: Source
    mapping: RowMapping
    asker: RowAsker
    output: Output
    save: Callable[[JobState], None]
    wire: Wire
    link: Link
    results_end: Callable[[], Mapping[int, int]]
    results_tip: Callable[[], Mapping[int, int]]
    lane_topic: str
    answers: KnownAnswers | None = None
    # Raises JobTaken where another process has written the state: of that one hears even where Kafka says nothing yet.
    still_ours: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class End:
    """How a process's work at a job has ended. `error`: why it stopped before its end."""

    state: JobState
    view: JobView
    error: BackfillError | None = None
