"""The rows that are asked about next, chunk by chunk, and what is asked once for several of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.producers.backfill.asking import NotAsked, RowAsker, request_of
from headrace.producers.backfill.outcome import Outcome, without_cost
from headrace.producers.backfill.row_ids import RowId, request_id
from headrace.schemas.errors import HeadraceError, KafkaUnavailable, MessageError, ResultTooLarge

if TYPE_CHECKING:
    from headrace.consumers.records import RecordLocation
    from headrace.producers.backfill.ledger import Ledger
    from headrace.producers.backfill.outstanding import Outstanding
    from headrace.producers.backfill.source import Chunk
    from headrace.producers.backfill.wire import Wire

# Rows held in memory for chunks that lack a row: outcomes, and rows that wait for another's answer. No further chunk is
# begun beyond it. (One may always be: what a killed process had asked is held for chunks that none has begun yet.)
MAX_OPEN_ROWS = 60_000


class KnownAnswers(Protocol):
    """Answers by the digest of what was asked: to rows of this job (`dedupe`), of an earlier one (`reuse`)."""

    def get(self, digest: str) -> Outcome | None:
        """The `ok` outcome, if it is known."""
        ...

    def put(self, digest: str, outcome: Outcome) -> None:
        """Remember an `ok` outcome of this job."""
        ...


class RowsToAsk:
    """Takes up chunks as they are needed, and sends what has to be asked. For one thread."""

    def __init__(
        self,
        chunks: Iterator[Chunk],
        ledger: Ledger,
        outstanding: Outstanding,
        *,
        asker: RowAsker,
        wire: Wire,
        job: str,
        round_: int,
        answers: KnownAnswers | None,
        dedupe: bool,
        give_up_after_s: float | None,
        begun: Callable[[Chunk], None],
        settle: Callable[[int, Outcome], None],
        took_up: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        """`begun` is told of each chunk before its rows are asked about and may settle some; `settle` of rows whose
        outcome is known here; `took_up` of each row that is taken up first."""
        self.open: dict[int, Chunk] = {}
        self.held_back = False  # no chunk is begun for the sake of those that are open
        self.sent = 0
        self._chunks, self._ledger, self._outstanding = chunks, ledger, outstanding
        self._asker, self._wire, self._job, self._round = asker, wire, job, round_
        self._answers, self._dedupe, self._give_up_after_s = answers, dedupe, give_up_after_s
        self._begun, self._settle, self._took_up, self._clock = begun, settle, took_up, clock
        self._unsent: deque[int] = deque()
        self._taken_back: set[int] = (
            set()
        )  # rows whose requests were cancelled: never more than were outstanding
        self._acknowledged: deque[tuple[int, RecordLocation | HeadraceError]] = deque()
        self._leaders: dict[str, int] = {}  # digest: the row that is asked about for all that ask the same
        self._followers: dict[int, list[int]] = {}
        self._following = 0  # rows, of all leaders
        self._digests: dict[int, str] = {}  # of the leaders

    def next_row(self) -> int | None:
        """None: all are taken up, or too many chunks are open."""
        while not self._unsent:
            held = self._ledger.open_rows + self._following
            self.held_back = bool(self.open) and held >= MAX_OPEN_ROWS
            chunk = None if self.held_back else next(self._chunks, None)
            if chunk is None:
                return None
            self.open[chunk.number] = chunk
            self._ledger.begin(chunk.number)
            self._begun(chunk)
            rows = range(chunk.first_row, chunk.first_row + len(chunk))
            self._unsent.extend(row for row in rows if not self._ledger.is_settled(row))
        return self._unsent.popleft()

    def ask(self, row: int, *, again: bool = False) -> int:
        """How many requests left: one, or none where the row needs none. `again`: whatever is known of its id."""
        if self._ledger.is_settled(row):
            return 0
        if not again:
            self._took_up(row)
            again = row in self._taken_back
        chunk = self.open[row // self._ledger.chunk_rows]
        question = self._asker.ask(chunk.rows[row - chunk.first_row])
        if isinstance(question, NotAsked):
            self._settle_here(row, question.outcome)
            return 0
        if self._is_known(row, question.digest):
            return 0
        id_ = request_id(self._job, RowId(row, self._round, question.digest))
        try:
            request = request_of(question, id_, self._job, self._deadline())
            self._outstanding.ask(row, question.digest, self._clock(), again=again)
            told = partial(self._told, row)
            self._wire.send(request, self._outstanding.partition_of(row), told, again=again)
        except MessageError as error:
            self._outstanding.settle(row)
            self._settle_here(row, refusal(error))
            return 0
        if self._dedupe:
            self._leaders[question.digest] = row
            self._digests[row] = question.digest
        self.sent += 1
        return 1

    def _told(self, row: int, found: RecordLocation | HeadraceError) -> None:
        """From any thread."""
        self._acknowledged.append((row, found))

    def _deadline(self) -> int | None:
        return None if self._give_up_after_s is None else int((time.time() + self._give_up_after_s) * 1000)

    def _is_known(self, row: int, digest: str) -> bool:
        """Whether a row's answer is known, or comes with another row's."""
        if self._answers is not None and (known := self._answers.get(digest)) is not None:
            self._settle_here(row, without_cost(known))
            return True
        leader = self._leaders.get(digest)
        if leader is None or leader == row:
            return False
        self._followers.setdefault(leader, []).append(row)
        self._following += 1
        return True

    def settled(self, row: int, digest: str, outcome: Outcome) -> None:
        """A row was answered: so are those that ask the same."""
        if self._answers is not None and outcome.status == "ok":
            self._answers.put(digest, outcome)
        self._settle_followers(row, outcome)

    def _settle_here(self, row: int, outcome: Outcome) -> None:
        """Without an answer to itself; others may have waited for one since it was asked about before."""
        self._settle(row, outcome)
        self._settle_followers(row, outcome)

    def _settle_followers(self, row: int, outcome: Outcome) -> None:
        digest = self._digests.pop(row, None)
        if digest is not None and self._leaders.get(digest) == row:
            del self._leaders[digest]
        for follower in self._followers.pop(row, ()):
            self._following -= 1
            self._settle(follower, without_cost(outcome))

    def take_back(self, row: int) -> None:
        """Its request was cancelled, and its id is known as answered now: asked again, it is to be run all the same."""
        self._taken_back.add(row)
        if self._outstanding.settle(row) is not None:
            self._unsent.appendleft(row)

    def take_acknowledgements(self) -> None:
        """Note what Kafka has. Raises KafkaFailed where it cannot be sent, whatever the row."""
        while self._acknowledged:
            row, found = self._acknowledged.popleft()
            if not isinstance(found, HeadraceError):
                self._outstanding.acknowledge(row, found.offset)
            elif row in self._outstanding:
                self._outstanding.settle(row)
                self._not_sent(row, found)

    def _not_sent(self, row: int, error: HeadraceError) -> None:
        if isinstance(error, KafkaUnavailable):
            self._unsent.appendleft(row)
            return
        if not isinstance(error, ResultTooLarge):
            raise error
        outcome = Outcome("rejected", code="request_too_large", error=str(error), asked=False)
        self._settle_here(row, outcome)


def refusal(error: MessageError) -> Outcome:
    """Of a row that no request can be made of."""
    return Outcome("rejected", code=error.code, error=str(error), asked=False)
