"""One process's work at a job: rows out, results in, parts written, until nothing is left or something stops it.

All decisions are the ledger's, the pacing's, the breaker's; here is the loop that joins them to Kafka and the files. It
has one thread. What others bring (results, acknowledgements, looks at the lane) lies in queues until it is taken.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.producers.backfill.breaker import Breaker
from headrace.producers.backfill.failures import BackfillError, BudgetSpent, TooManyFailures
from headrace.producers.backfill.ledger import Ledger
from headrace.producers.backfill.outcome import Outcome, is_asked_again
from headrace.producers.backfill.outstanding import Outstanding
from headrace.producers.backfill.pacing import Lane, room
from headrace.producers.backfill.progress import JobView
from headrace.producers.backfill.results_feed import Findings, FoundResult, has_read_to
from headrace.producers.backfill.rounds import part_written
from headrace.producers.backfill.row_ids import row_id
from headrace.producers.backfill.rows_to_ask import RowsToAsk
from headrace.producers.backfill.run_ports import End, Limits, Parts
from headrace.producers.backfill.tally import Tally
from headrace.schemas.errors import KafkaUnavailable, MessageError

if TYPE_CHECKING:
    from headrace.consumers.lane_progress import LaneProgress
    from headrace.producers.backfill.source import Chunk
    from headrace.producers.backfill.state import JobState, JobStatus

log = logging.getLogger(__name__)

SEND_AT_ONCE = 500  # rows between two looks at what has come in
INBOX = 32  # polls' worth of results: when they are not taken, reading waits
IDLE_S = 0.05
LOOK_S = 0.5  # between looks at orders, the breaker and the budget
SAY_S = 10.0  # between words to the control topic, and states, where no part is written
ROWS_OF_UNKNOWN_COST = 20  # at most outstanding where there is a budget
CANCEL_WITHIN_S = 15.0  # that requests which were taken back are waited for


class JobRun:
    """See the module. Everything is called in one thread, but for `deliver`, `look`, `stop` and what futures call."""

    def __init__(
        self,
        state: JobState,
        of: Parts,
        limits: Limits,
        tell: Callable[[JobView], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` is shown the job twice a second; `clock` has seconds that never go back."""
        self._clock = clock
        self.state = state
        self._of, self._limits, self._tell = of, limits, tell
        self._ledger = Ledger(
            row_count=state.rows, chunk_rows=state.rows_per_part, done=state.done, positions=state.offsets
        )
        self._outstanding = Outstanding(of.lane_topic, state.lane_partitions)
        self._breaker = Breaker(limits.max_failures)
        self._rows = RowsToAsk(
            of.source.chunks(state.rows_per_part, self._ledger.is_wanted),
            self._ledger,
            self._outstanding,
            asker=of.asker,
            wire=of.wire,
            job=state.job,
            round_=state.round,
            answers=of.answers,
            dedupe=limits.dedupe,
            give_up_after_s=limits.give_up_after_s,
            begun=self._take_earlier,
            settle=self._settle_here,
            took_up=self._breaker.begin,
            clock=clock,
        )
        self._inbox: queue.Queue[Findings] = queue.Queue(INBOX)
        self._lane: LaneProgress | None = None
        self._sent_at_look = 0
        self._ended = False
        self._stopping: str | None = None
        self._answered_before: Mapping[int, int] = {}
        self._tally = Tally(self._clock())
        self._saved_s = self._looked_s = self._clock()
        self._busy_before_ms = state.busy_ms
        self._phase = "catching up"
        self._note = ""

    # --- what other threads bring ---

    def deliver(self, findings: Findings) -> None:
        """Results that were read, from the reading thread; waits while too many lie here untaken."""
        while not self._ended:
            with contextlib.suppress(queue.Full):
                self._inbox.put(findings, timeout=0.2)
                return

    def look(self, lane: LaneProgress) -> None:
        """The lane was looked at."""
        self._sent_at_look = self._rows.sent
        self._lane = lane

    def stop(self, why: str) -> None:
        """Stop soon: nothing more is asked, and what is on its way is found by the next run."""
        self._stopping = why

    # --- the loop ---

    def run(self) -> End:
        """Work until the end. Raises JobTaken, InputFailed, OutputFailed, KafkaFailed and what `Link.tell` raises."""
        try:
            self.begin()
            while (end := self.step(IDLE_S)) is None:
                pass
            return end
        finally:
            self._ended = True

    def begin(self) -> None:
        """Take the job over; what was answered while nobody looked is taken before anything is asked again."""
        self._of.link.tell("running", **self._counts())
        self._answered_before = self._of.results_end()

    def step(self, idle_s: float) -> End | None:
        """One turn of the loop, after `begin`; waits so many seconds for results where there is nothing to send."""
        if self._phase == "catching up" and has_read_to(self._ledger.positions, self._answered_before):
            self._phase = "running"
            self._obey()  # it may have been paused before this process began
        self._rows.take_acknowledgements()
        sent = self._send_some()
        self._take_findings(0 if sent else idle_s)
        self._write_settled()
        if self._ledger.is_complete:
            # A small job ends between two looks; another round has nothing left to spare.
            why = self._breaker.why if self.state.redo is None else None
            return self._end("written", None) if why is None else self._stop(TooManyFailures(why))
        error = self._look_around()
        return None if error is None else self._stop(error)

    def _take_findings(self, wait_s: float) -> None:
        try:
            findings = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            for _ in range(INBOX):
                self._take(findings)
                findings = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _take(self, findings: Findings) -> None:
        now = self._clock()
        for found in findings.found:
            self._take_result(found, now)
        self._ledger.read_to(findings.positions)
        if self._phase != "catching up":
            self._tally.rates.note(now, ours=len(findings.found), others=findings.others)
        if findings.skipped:
            log.warning(
                "%d results were gone before they were read: their rows are asked again", findings.skipped
            )

    def _take_result(self, found: FoundResult, now: float) -> None:
        of = row_id(self.state.job, found.request_id)
        if of is None or not 0 <= of.row < self.state.rows:
            return
        if isinstance(found.result, MessageError):
            error = found.result
            outcome = Outcome("failed", code=error.code, error=str(error), request_id=found.request_id)
        else:
            outcome = self._of.mapping.outcome_of(found.result)
        if outcome.status != "ok" and of.round != self.state.round:
            return  # an earlier round's bad answer is what this round asks anew for
        if outcome.status == "cancelled":  # taken back by whoever stopped the job: no answer
            if not self._ledger.is_settled(of.row):
                self._rows.take_back(of.row)
            return
        if self._settle(of.row, outcome, (found.partition, found.offset)):
            self._tally.answered += 1
            if self._phase != "catching up":  # what came before this process began is no rate of now
                self._tally.rates.note(now, rows=1, tokens=outcome.completion_tokens)
            self._rows.settled(of.row, of.digest, outcome)

    def _settle(self, row: int, outcome: Outcome, at: tuple[int, int] | None = None) -> bool:
        if not self._ledger.settle(row, outcome, at):
            return False
        asked = self._outstanding.settle(row)
        if at is not None and asked is None:  # by a process before this one, which had taken it up
            self._breaker.begin(row)
        self._tally.settle(row // self.state.rows_per_part, outcome)
        if outcome.status != "ok":
            self._breaker.fail(row)
        return True

    def _settle_here(self, row: int, outcome: Outcome) -> None:
        if not self._settle(row, outcome) or outcome.asked or outcome.request_id is None:
            return
        if outcome.request_id.startswith(f"{self.state.job}."):
            self._tally.shared += 1
        else:
            self._tally.reused += 1

    def _take_earlier(self, chunk: Chunk) -> None:
        """A chunk that has a part from an earlier round keeps what need not be asked again."""
        part = next((each for each in self.state.parts if each.number == chunk.number), None)
        if part is None:
            return
        self._of.still_ours()  # whoever has taken the job over may have replaced the part
        for row, outcome in enumerate(self._of.output.earlier(part), chunk.first_row):
            if not is_asked_again(outcome, self.state.redo) and self._ledger.settle(row, outcome):
                self._tally.settle(chunk.number, outcome, is_earlier=True)

    # --- asking ---

    def _send_some(self) -> int:
        if self._phase != "running" or self._is_budget_full():
            return 0
        allowed = self._room()
        sent = 0
        for _ in range(SEND_AT_ONCE):  # a row that needs no request takes no room
            row = self._rows.next_row() if sent < allowed and not self._is_budget_full() else None
            if row is None:
                break
            sent += self._rows.ask(row)
        return sent

    def _room(self) -> int:
        look, rate = self._lane, self._tally.rates.rows(self._clock())
        if look is None:
            return room(Lane(0, 0, rate), len(self._outstanding))
        ahead = look.ahead + self._rows.sent - self._sent_at_look
        return room(Lane(ahead, look.capacity, rate), len(self._outstanding))

    def _is_budget_full(self) -> bool:
        budget = self._limits.token_budget
        if budget is None:
            return False
        spent, answered = sum(self._tally.tokens(self.state)), self._tally.requests(self.state)
        if not spent or not answered:  # what a request costs is not known yet
            return spent >= budget or len(self._outstanding) >= ROWS_OF_UNKNOWN_COST
        return spent + spent / answered * (len(self._outstanding) + 1) > budget

    # --- writing ---

    def _write_settled(self) -> None:
        for number in self._ledger.settled_chunks():
            self._of.link.check()
            self._of.still_ours()
            outcomes = [each for each in self._ledger.outcomes(number) if each is not None]
            part = self._of.output.write(self._rows.open[number], outcomes, self.state.round)
            del self._rows.open[number]
            self._ledger.close(number)
            self._tally.close(number)
            self._keep(**part_written(self.state, part))
            self._of.output.put_in_place(part)

    def _keep(self, **changes: object) -> None:
        """Write the state. Whatever it says is on disk already."""
        now = self._clock()
        kept: dict[str, object] = {
            "offsets": self._ledger.resume_offsets(),
            "outstanding": len(self._outstanding),
            "updated_ms": int(time.time() * 1000),
            "busy_ms": self._busy_before_ms + int((now - self._tally.began_s) * 1000),
        }
        self.state = self.state.model_copy(update=kept | changes)
        self._of.save(self.state)
        self._saved_s = now

    # --- twice a second ---

    def _look_around(self) -> BackfillError | None:
        now = self._clock()
        if now - self._looked_s < LOOK_S:
            return None
        self._looked_s = now
        self._of.link.check()
        self._obey()
        if self._lane is not None and self._phase == "running":
            self._ask_overdue(self._lane, now)
        if now - self._saved_s > SAY_S:
            self._keep()
            with contextlib.suppress(KafkaUnavailable):
                self._of.link.tell("paused" if self._phase == "paused" else "running", **self._counts())
        self._tell(self.view())
        return self._why_stop()

    def _why_stop(self) -> BackfillError | None:
        if self._stopping is not None:
            return BackfillError(self._stopping)
        if (why := self._breaker.why) is not None:
            return TooManyFailures(why)
        if self._is_budget_full() and not self._outstanding and not self._ledger.is_complete:
            spent = sum(self._tally.tokens(self.state))
            return BudgetSpent(
                f"{spent:,} tokens are spent; the job's token_budget is {self._limits.token_budget:,}"
            )
        return None

    def _obey(self) -> None:
        order = self._of.link.order()
        if order is not None and order.order == "cancel":
            self._stopping = f"the job was cancelled by {order.by}"
            self._phase = "cancelling"
        elif order is not None and order.order == "pause" and self._phase == "running":
            self._phase, self._note = "paused", f"by {order.by}"
            self._saved_s = float("-inf")  # whoever has paused it waits for the word
        elif order is None and self._phase == "paused":
            self._phase, self._note = "running", ""
            self._saved_s = float("-inf")

    def _ask_overdue(self, lane: LaneProgress, now: float) -> None:
        overdue: list[int] = []
        with contextlib.suppress(KafkaUnavailable):  # an outage: they are looked for again
            overdue = self._outstanding.overdue(lane, self._ledger.positions, self._of.results_tip, now)
        blocked = self._outstanding.blocked(self._ledger.positions, now)
        self._note = _open_transaction(self.state.results_topic, blocked) if blocked else ""
        for row in overdue:
            log.warning("the answer to row %d is not to be had any more: it is asked again", row)
            self._rows.ask(row, again=True)

    # --- the end ---

    def _stop(self, error: BackfillError) -> End:
        is_cancelled = self._phase == "cancelling"
        self._phase = "stopping"
        if is_cancelled or isinstance(error, TooManyFailures):
            self._of.still_ours()  # or what another process has asked for would be taken back
            self._take_back(str(error))
        self._write_settled()
        return self._end("cancelled" if is_cancelled else "stopped", error)

    def _take_back(self, why: str) -> None:
        """Nobody will want what is still on its way."""
        try:
            self._of.wire.cancel(self.state.job, why)
        except KafkaUnavailable as error:
            log.warning("what is on its way could not be taken back: %s", error)
            return
        deadline = self._clock() + CANCEL_WITHIN_S
        while self._outstanding and self._lane and self._lane.members and self._clock() < deadline:
            self._take_findings(IDLE_S)

    def _end(self, status: JobStatus, error: BackfillError | None) -> End:
        self._of.link.check()
        self._keep(status=status, reason=None if error is None else error.message)
        self._phase = "putting together" if status == "written" else "stopping"
        with contextlib.suppress(KafkaUnavailable):
            self._of.link.tell("running" if status == "written" else status, **self._counts())
        view = self.view()
        self._tell(view)
        return End(self.state, view, error)

    # --- what there is to say ---

    def _counts(self) -> dict[str, int]:
        statuses = self._tally.statuses(self.state, self._ledger)
        settled = sum(statuses.values())
        return {"rows": self.state.rows, "settled": settled, "failed": settled - statuses["ok"]}

    def view(self) -> JobView:
        """The job at this moment."""
        self._tally.asked = self._rows.sent
        held = "waits for the last rows of parts that are nearly complete" if self._rows.held_back else ""
        return self._tally.view(
            self.state,
            self._ledger,
            outstanding=len(self._outstanding),
            lane=self._lane,
            phase=self._phase,
            note=self._note or held,
            now_s=self._clock(),
        )

    def open_failures(self) -> Iterator[tuple[Chunk, int, Outcome]]:
        """Rows of chunks without a part that have failed: (chunk, index in it, outcome)."""
        have_parts = {part.number for part in self.state.parts}  # of an earlier round, beside their rejects
        for number in sorted(self._rows.open.keys() - have_parts):
            chunk = self._rows.open[number]
            for index, outcome in enumerate(self._ledger.outcomes(number)):
                if outcome is not None and outcome.status != "ok":
                    yield chunk, index, outcome


def _open_transaction(topic: str, partitions: list[int]) -> str:
    """What to do about a log that committed readers cannot read on in."""
    shown = ", ".join(f"{topic}-{partition}" for partition in partitions)
    return (
        f"{shown}: a transaction there does not end, and nothing behind it can be read; find it with Kafka's"
        " kafka-transactions.sh find-hanging, and abort it"
    )
