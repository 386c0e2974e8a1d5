"""What can go wrong with a backfill."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.schemas.errors import HeadraceError, MessageError

if TYPE_CHECKING:
    from headrace.producers.http.wanted import ApiError


class BackfillError(HeadraceError):
    """Of a job as a whole; a row's own fault never ends it."""

    code = "backfill_failed"


class JobInvalid(BackfillError):
    """What a job says cannot be done as it stands."""

    code = "job_invalid"
    exit_code = 2


class InputFailed(BackfillError):
    """The input is not there, cannot be read, or is no table."""

    code = "input_failed"
    exit_code = 2


class OutputFailed(BackfillError):
    """The output, or the state beside it, cannot be read or written."""

    code = "output_failed"


class StateUnreadable(BackfillError):
    """There is a state beside the output, and it is none of ours."""

    code = "state_unreadable"
    exit_code = 2


class JobChanged(BackfillError):
    """The job beside the output was begun with another input, prompt or parameters."""

    code = "job_changed"
    exit_code = 2


class JobCancelled(BackfillError):
    """An operator has cancelled the job."""

    code = "job_cancelled"
    exit_code = 2


class JobTaken(BackfillError):
    """Another process has begun to run the same job."""

    code = "job_taken"
    exit_code = 5


class TooManyFailures(BackfillError):
    """More rows have failed than the job allows."""

    code = "too_many_failures"


class BudgetSpent(BackfillError):
    """The job's token budget is spent."""

    code = "budget_spent"


class BatchLineInvalid(MessageError):
    """A line of a batch file that is no call: without a `custom_id`, with an unknown `url`, or the like.

    `reason` is the code that its line in the error file has.
    """

    code = "batch_line_invalid"

    def __init__(self, message: str, *, reason: str, path: str | None = None) -> None:
        super().__init__(message, path=path)
        self.reason = reason


class BatchCallRefused(MessageError):
    """A line of a batch file whose call is refused, as the HTTP endpoint would refuse it: `failure` says how."""

    code = "batch_call_refused"

    def __init__(self, failure: ApiError) -> None:
        super().__init__(failure.message, path=_body_pointer(failure.param))
        self.failure = failure


def _body_pointer(param: str | None) -> str:
    """`messages[0].content` as a JSON pointer into a line."""
    return "/body" + "".join(f"/{step}" for step in re.split(r"[.\[\]]+", param or "") if step)
