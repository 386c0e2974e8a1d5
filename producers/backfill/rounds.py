"""Asking anew for rows that a job is through with: the ones that failed, or those that were refused. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from headrace.producers.backfill.outcome import Outcome, is_asked_again
from headrace.producers.backfill.state import JobState, WrittenPart

Redo = Literal["failed", "rejects"]
KINDS: Final[tuple[Redo, ...]] = ("failed", "rejects")


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


def bad_costs(outcomes: Sequence[Outcome]) -> dict[str, list[int]]:
    """What a part's rows have cost that a round would ask about again: `WrittenPart.bad_costs`."""
    found: dict[str, list[int]] = {}
    for redo in KINDS:
        again = [each for each in outcomes if each.asked and is_asked_again(each, redo)]
        if again:
            found[redo] = [
                sum(each.prompt_tokens for each in again),
                sum(each.completion_tokens for each in again),
            ]
    return found


def untold_costs(outcomes: Sequence[Outcome], told: Sequence[Outcome]) -> dict[str, list[int]]:
    """The same of a part whose lines tell no more of a row without an answer than that: `told[i]` of `outcomes[i]`.

    Whatever a round is for, what such a row has cost is not found in the part when it is read again.
    """
    lost = [each for each, said in zip(outcomes, told, strict=True) if each.asked and said.status != "ok"]
    cost = [sum(each.prompt_tokens for each in lost), sum(each.completion_tokens for each in lost)]
    return {redo: list(cost) for redo in KINDS} if any(cost) else {}


def cost_of_replaced(state: JobState, number: int) -> Cost:
    """What is known to have been spent on rows of a part that this round has asked about again, or that tell no cost.

    It stands in the state: the part's file may be this round's already, by a process that was killed before it had
    said so.
    """
    former = next((each for each in state.parts if each.number == number), None)
    if former is None or state.redo is None:
        return Cost(0, 0)
    return Cost(*former.bad_costs.get(state.redo, (0, 0)))


def part_written(state: JobState, part: WrittenPart) -> dict[str, object]:
    """What changes in the state with a part that is there now."""
    replaced = cost_of_replaced(state, part.number)
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
