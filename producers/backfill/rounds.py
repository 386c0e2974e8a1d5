"""Asking anew for rows that a job is through with: the ones that failed, or those that were refused. Pure."""

from __future__ import annotations

from typing import Literal

from headrace.producers.backfill.state import JobState

Redo = Literal["failed", "rejects"]


def rows_to_redo(state: JobState, redo: Redo) -> int:
    """How many rows in parts a round for these would ask about again."""
    return sum(_concerned(part.statuses, redo) for part in state.parts)


def _concerned(statuses: dict[str, int], redo: Redo) -> int:
    rejected = statuses.get("rejected", 0)
    if redo == "rejects":
        return rejected
    return sum(statuses.values()) - statuses.get("ok", 0) - rejected


def begin_again(state: JobState, redo: Redo) -> JobState:
    """The state with which such a round begins. Parts that have no such rows need nothing more.

    A round that was not finished goes on as it was, where it was for the same rows.
    """
    if state.redo == redo and state.status not in ("written", "done"):
        return state
    redone = [part.number for part in state.parts if not _concerned(part.statuses, redo)]
    return state.model_copy(
        update={"round": state.round + 1, "redo": redo, "redone": redone, "status": "running", "reason": None}
    )
