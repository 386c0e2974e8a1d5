"""What became of a row: the port between answers and tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue, Status


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a row.

    `value`: where it is `ok`, what the output schema describes, or the text; None else. `columns`: of a row that was
    taken from an earlier output, its output columns as they stand there, and then `value` is None.
    `asked`: whether a request was made of it; without one it was refused here, or shares another row's answer.
    """

    status: Status
    value: JsonValue = None
    code: str | None = None  # where it is not `ok`: of schemas/errors.py
    error: str | None = None  # where it is not `ok`: a sentence, with the field at fault
    prompt_tokens: int = 0
    completion_tokens: int = 0
    version: str | None = None  # of the model
    request_id: str | None = None  # under which its result lies in `results`
    asked: bool = True
    columns: JsonObject | None = None

    @property
    def is_reject(self) -> bool:
        """Whether asking again cannot help unless something else is changed."""
        return self.status == "rejected"


def without_cost(outcome: Outcome) -> Outcome:
    """The same for a row that shares it: nothing was asked or spent for it."""
    return replace(outcome, asked=False, prompt_tokens=0, completion_tokens=0)


def is_asked_again(outcome: Outcome, redo: Literal["failed", "rejects"] | None) -> bool:
    """Whether a row with this outcome is asked about again in a round for the `failed`, or for the `rejects`."""
    return redo is not None and outcome.status != "ok" and outcome.is_reject == (redo == "rejects")
