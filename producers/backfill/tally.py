"""What a job's process counts: rows by what became of them, tokens, failures by reason. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.progress import JobView, Rates, time_left

if TYPE_CHECKING:
    from headrace.consumers.lane_progress import LaneProgress
    from headrace.producers.backfill.ledger import Ledger
    from headrace.producers.backfill.state import JobState


@dataclass(slots=True)
class _OpenChunk:
    statuses: Counter[str] = field(default_factory=Counter[str])
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Tally:
    """Rows in parts are counted by the state; here are those of open chunks, and what this process has done."""

    def __init__(self, now_s: float) -> None:
        """`now_s`: of `time.monotonic()`."""
        self.began_s = now_s
        self.rates = Rates(now_s)
        self.reasons: Counter[str] = Counter()
        self.asked = 0  # requests that were sent
        self.answered = 0  # rows, by a result
        self.reused = 0  # rows, by an answer of an earlier job
        self.settled = 0  # rows that came to their end in this process
        self.shared = 0  # rows, by another row's answer
        self._open: dict[int, _OpenChunk] = {}

    def settle(self, chunk: int, outcome: Outcome, *, is_earlier: bool = False) -> None:
        """A row of an open chunk is settled. `is_earlier`: it was, in the part that the chunk had before."""
        counts = self._open.setdefault(chunk, _OpenChunk())
        counts.statuses[outcome.status] += 1
        if is_earlier:
            return
        self.settled += 1
        counts.requests += outcome.asked
        counts.prompt_tokens += outcome.prompt_tokens
        counts.completion_tokens += outcome.completion_tokens
        if outcome.status != "ok":
            self.reasons[outcome.code or outcome.status] += 1

    def close(self, chunk: int) -> None:
        """A chunk's part is written: the state counts its rows from now on."""
        self._open.pop(chunk, None)

    def statuses(self, state: JobState, ledger: Ledger) -> Counter[str]:
        """Settled rows of the whole job."""
        found: Counter[str] = Counter()
        done = ledger.done
        for part in state.parts:
            if part.number in done:
                found.update(part.statuses)
        for counts in self._open.values():
            found.update(counts.statuses)
        return found

    def tokens(self, state: JobState) -> tuple[int, int]:
        """Of prompts and generated, of the whole job so far."""
        prompt, completion = state.tokens
        return (
            prompt + sum(each.prompt_tokens for each in self._open.values()),
            completion + sum(each.completion_tokens for each in self._open.values()),
        )

    def requests(self, state: JobState) -> int:
        """That were answered, of the whole job so far: what the tokens were spent on."""
        return sum(part.asked for part in state.parts) + sum(each.requests for each in self._open.values())

    def view(
        self,
        state: JobState,
        ledger: Ledger,
        *,
        outstanding: int,
        lane: LaneProgress | None,
        phase: str,
        note: str,
        now_s: float,
    ) -> JobView:
        """The job at this moment."""
        statuses = self.statuses(state, ledger)
        settled = sum(statuses.values())
        rate, seconds = self.rates.rows(now_s), now_s - self.began_s
        eta, basis = time_left(state.rows - settled, rate, seconds, self.answered)
        prompt, completion = self.tokens(state)
        return JobView(
            job=state.job,
            rows=state.rows,
            settled=settled,
            statuses=dict(statuses),
            reasons=dict(self.reasons),
            outstanding=outstanding,
            asked=self.asked,
            reused=self.reused,
            parts=ledger.chunk_count,
            parts_written=len(ledger.done),
            row_rate=rate,
            prompt_tokens=prompt,
            completion_tokens=completion,
            token_rate=self.rates.tokens(now_s),
            eta_s=eta,
            eta_basis=basis,
            fleet_share=self.rates.share(now_s),
            members=0 if lane is None else len(lane.members),
            capacity=0 if lane is None else lane.capacity,
            ahead=0 if lane is None else lane.ahead,
            seconds=seconds,
            state=phase,
            note=note,
            shared=self.shared,
            settled_here=self.settled,
            is_lane_known=lane is not None,
        )
