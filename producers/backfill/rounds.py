"""Asking anew for rows that a job is through with: the ones that failed, or those that were refused. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.state import JobState, WrittenPart

Redo = Literal["failed", "rejects"]


def rows_to_redo(state: JobState, redo: Redo) -> int:
    """How many rows in parts a round for these would ask about again."""
    return sum(_concerned(part.statuses, redo) for part in state.parts)


def _concerned(statuses: dict[str, int], redo: Redo) -> int:
    rejected = statuses.get("rejected", 0)
    if redo == "rejects":
        return rejected
    return sum(statuses.values()) - statuses.get("ok", 0) - rejected


class Cost(NamedTuple):
    """Tokens of prompts, and generated."""

    prompt: int
    completion: int


def cost_of_replaced(part: WrittenPart, kept: Iterable[Outcome]) -> Cost:
    """What the rows of a part have cost that are asked about again: all of it but for the rows that are kept."""
    asked = [outcome for outcome in kept if outcome.asked]
    return Cost(
        max(0, part.prompt_tokens - sum(outcome.prompt_tokens for outcome in asked)),
        max(0, part.completion_tokens - sum(outcome.completion_tokens for outcome in asked)),
    )


def part_written(state: JobState, part: WrittenPart, replaced: Cost) -> dict[str, object]:
    """What changes in the state with a part that is there now; `replaced`: what its rows have cost in vain."""
    return {
        "parts": state.with_part(part),
        "redone": state.redone if state.redo is None else [*state.redone, part.number],
        "replaced_prompt_tokens": state.replaced_prompt_tokens + replaced.prompt,
        "replaced_completion_tokens": state.replaced_completion_tokens + replaced.completion,
    }


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
