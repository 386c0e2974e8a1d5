"""Deliberate bugs in how a job keeps its rows: the worlds must find every one."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.producers.backfill import ledger, outstanding, rounds, rows_to_ask, run

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[str, Bug]] = {}


def bug(law: str) -> Callable[[Bug], Bug]:
    def note(apply: Bug) -> Bug:
        BUGS[apply.__name__] = (law, apply)
        return apply

    return note


@bug("each_row")
def results_are_read_from_where_reading_stood(patch: pytest.MonkeyPatch) -> None:
    """Killed, a job has to ask again for what open chunks had heard: under ids that are known as answered."""
    patch.setattr(ledger.Ledger, "resume_offsets", lambda self: dict(self.positions))
    patch.setattr(outstanding, "LOOK_AFTER_S", float("inf"))


@bug("each_row")
def results_of_chunks_not_begun_are_passed_over(patch: pytest.MonkeyPatch) -> None:
    settle = ledger.Ledger.settle

    def strict(self: ledger.Ledger, row: int, outcome: Any, at: Any = None) -> bool:
        chunk = self._open.get(row // self.chunk_rows)
        return chunk is not None and chunk.begun and settle(self, row, outcome, at)

    patch.setattr(ledger.Ledger, "settle", strict)
    patch.setattr(outstanding, "LOOK_AFTER_S", float("inf"))


@bug("each_row")
def the_state_is_written_before_the_part(patch: pytest.MonkeyPatch) -> None:
    close = ledger.Ledger.close
    keep = run.JobRun._keep

    def write(self: run.JobRun) -> None:
        for number in list(self._ledger.settled_chunks()):
            chunk = self._rows.open.pop(number)
            outcomes = [each for each in self._ledger.outcomes(number) if each is not None]
            files = self._of.output
            held = dict(vars(files)) if hasattr(files, "__dict__") else {}
            del held
            close(self._ledger, number)
            self._tally.close(number)
            part = _announced(chunk, outcomes)
            keep(self, parts=self.state.with_part(part))
            files.write(chunk, outcomes, self.state.round)

    patch.setattr(run.JobRun, "_write_settled", write)


def _announced(chunk: Any, outcomes: Any) -> Any:
    from collections import Counter

    from headrace.producers.backfill.state import WrittenPart

    return WrittenPart(
        number=chunk.number,
        first_row=chunk.first_row,
        rows=len(outcomes),
        file="",
        bytes=0,
        sha256="",
        statuses=dict(Counter(each.status for each in outcomes)),
    )


@bug("each_row")
def the_last_word_counts(patch: pytest.MonkeyPatch) -> None:
    """A job that was cancelled takes what was cancelled for an answer."""

    def take(self: run.JobRun, found: Any, now: float) -> None:
        from headrace.producers.backfill.row_ids import row_id

        of = row_id(self.state.job, found.request_id)
        assert of is not None
        outcome = self._of.mapping.outcome_of(found.result)
        if self._settle(of.row, outcome, (found.partition, found.offset)):
            self._rows.settled(of.row, of.digest, outcome)

    patch.setattr(run.JobRun, "_take_result", take)


@bug("each_row")
def what_was_cancelled_is_asked_as_if_it_were_new(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows_to_ask.RowsToAsk, "take_back", lambda *_: None)
    patch.setattr(outstanding, "LOOK_AFTER_S", float("inf"))


@bug("each_row")
def requests_go_wherever_there_is_room(patch: pytest.MonkeyPatch) -> None:
    """A worker knows ids of its own partitions alone."""
    count = iter(range(10**9))
    patch.setattr(outstanding.Outstanding, "partition_of", lambda self, row: next(count) % self._partitions)


@bug("each_row")
def a_row_that_others_wait_for_is_asked_each_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows_to_ask.RowsToAsk, "_is_known", lambda *_: False)


@bug("each_row")
def followers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows_to_ask.RowsToAsk, "_settle_followers", lambda *_: None)


@bug("forgotten")
def an_answer_that_is_gone_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outstanding.Outstanding, "overdue", lambda *_: [])


@bug("forgotten")
def an_answer_is_given_up_as_soon_as_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Any, progress: Any, positions: Any, ends: Any, now_s: float) -> list[int]:
        return list(self._done(progress, now_s + 100))

    patch.setattr(outstanding.Outstanding, "overdue", hasty)


@bug("round")
def a_round_asks_for_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "is_asked_again", lambda *_: True)


@bug("round")
def what_a_round_has_written_is_never_put_in_place(patch: pytest.MonkeyPatch) -> None:
    make = run.JobRun.__init__

    def begin(self: run.JobRun, state: Any, of: Any, *rest: Any, **more: Any) -> None:
        patch.setattr(type(of.output), "put_in_place", lambda *_: None)
        make(self, state, of, *rest, **more)

    patch.setattr(run.JobRun, "__init__", begin)


@bug("round")
def what_a_bad_answer_has_cost_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rounds, "cost_of_replaced", lambda *_: rounds.Cost(0, 0))


@bug("round")
def a_round_keeps_what_it_was_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run, "is_asked_again", lambda *_: False)


@bug("each_row")
def what_an_open_transaction_holds_back_is_given_up(patch: pytest.MonkeyPatch) -> None:
    """Where `results` ends for readers of what is committed, nothing may be written: more may lie behind."""
    overdue = outstanding.Outstanding.overdue

    def blind(self: Any, progress: Any, positions: Any, _: Any, now_s: float) -> list[int]:
        return overdue(self, progress, positions, lambda: positions, now_s)

    patch.setattr(outstanding.Outstanding, "overdue", blind)


@bug("each_row")
def a_process_that_has_lost_its_job_writes_on(patch: pytest.MonkeyPatch) -> None:
    make = run.JobRun.__init__

    def trusting(self: Any, state: Any, of: Any, *rest: Any, **named: Any) -> None:
        import dataclasses

        make(self, state, dataclasses.replace(of, still_ours=lambda: None), *rest, **named)

    patch.setattr(run.JobRun, "__init__", trusting)


@bug("each_row")
def what_could_not_be_sent_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows_to_ask.RowsToAsk, "_not_sent", lambda *_: None)
