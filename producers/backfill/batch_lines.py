"""The lines of an OpenAI batch's output and error files, from what became of its calls.

    output   {"id", "custom_id", "response": {"status_code": 200, "request_id", "body"}, "error": null}
    errors   the same with another status and `body.error`; or `"response": null` and `"error": {"code", "message"}` of
             what was no call, and of a call that came to no answer

They stand in the input's order, and are the same whenever they are written again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from headrace.producers.backfill.failures import BatchCallRefused, BatchLineInvalid
from headrace.producers.backfill.openai_batch import custom_id_of
from headrace.producers.backfill.outcome import Outcome, without_cost
from headrace.producers.backfill.row_ids import row_id
from headrace.producers.backfill.source import RowFault
from headrace.producers.http import answers
from headrace.producers.http.failures import failure_of, failure_of_error
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Result
from headrace.schemas.strict_json import JsonFault, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.producers.backfill.openai_batch import BatchMapping
    from headrace.producers.backfill.source import Chunk
    from headrace.producers.http.wanted import ApiError, Wanted
    from headrace.schemas.messages import JsonObject, JsonValue, Status

_ID: Final = "batch_req_"
_REFUSED: Final = "req_"  # a response's request id where no request was made
_LINE: Final = "line"  # the key under which an outcome from an earlier part has its line

# What OpenAI says of a call that was given up.
_GIVEN_UP: Final[dict[Status, tuple[str, str]]] = {
    "expired": ("batch_expired", "This request could not be executed before its time had passed."),
    "cancelled": ("batch_cancelled", "This request was cancelled before it was executed."),
}


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Lines of both files, JSONL in UTF-8, each with its line feed; either may be empty.

    `told`: what the lines say of each row, as `earlier` has it.
    """

    output: bytes
    errors: bytes
    told: Sequence[Outcome] = field(default=(), compare=False)


class BatchLines:
    """Makes the lines of one job."""

    def __init__(self, mapping: BatchMapping, job_id: str, *, created: int) -> None:
        """`created`: seconds since the epoch, of the job's begin, which answers name as their own."""
        self._mapping = mapping
        self._job_id = job_id
        self._created = created

    def of(self, chunk: Chunk, outcomes: Sequence[Outcome]) -> BatchPart:
        """The lines of a chunk; `outcomes[i]` is of `chunk.rows[i]`. One from `earlier` has its line already."""
        output: list[bytes] = []
        errors: list[bytes] = []
        told: list[Outcome] = []
        for place, (row, outcome) in enumerate(zip(chunk.rows, outcomes, strict=True)):
            kept = (outcome.columns or {}).get(_LINE)
            line = kept or self._line(chunk.first_row + place, row, outcome)
            said = self._told(line, chunk.first_row + place)
            (output if said.status == "ok" else errors).append(answers.encode_json(line) + b"\n")
            told.append(said)
        return BatchPart(b"".join(output), b"".join(errors), told)

    def earlier(self, part: BatchPart, first_row: int, count: int) -> list[Outcome | None]:
        """What became of rows by a part that was written of them; None of a row that has no line in it.

        Raises JsonFault for what is no line.
        """
        lines = [parse(line.decode()) for line in (part.output + part.errors).split(b"\n") if line]
        by_id: dict[str, JsonObject] = {line["id"]: line for line in lines}
        numbers = range(first_row, first_row + count)
        found = ((number, by_id.get(f"{_ID}{self._digest(number)}")) for number in numbers)
        return [None if line is None else self._told(line, number) for number, line in found]

    def error_line(self, number: int, row: JsonObject | RowFault, outcome: Outcome) -> bytes:
        """The line of a row that has failed, with its line feed."""
        return answers.encode_json(self._line(number, row, outcome)) + b"\n"

    def _told(self, line: JsonObject, number: int) -> Outcome:
        """What a line says of its row. Another row's answer cost nothing here."""
        outcome = _outcome_of(line)
        id_ = None if outcome.request_id is None else row_id(self._job_id, outcome.request_id)
        return outcome if id_ is None or id_.row == number else without_cost(outcome)

    def _digest(self, number: int) -> str:
        return hashlib.sha256(f"{self._job_id}:{number}".encode()).hexdigest()[:32]

    def _line(self, number: int, row: JsonObject | RowFault, outcome: Outcome) -> JsonObject:
        digest = self._digest(number)
        response: JsonObject | None = None
        error: JsonObject | None = None
        try:
            status, body = self._answer(number, row, outcome)
            request_id = outcome.request_id or f"{_REFUSED}{digest}"
            response = {"status_code": status, "request_id": request_id, "body": body}
        except _NoAnswer as none:
            error = {"code": none.reason, "message": none.message}
        custom_id = _custom_id_in(row.text) if isinstance(row, RowFault) else custom_id_of(row)
        return {"id": f"{_ID}{digest}", "custom_id": custom_id, "response": response, "error": error}

    def _answer(self, number: int, row: JsonObject | RowFault, outcome: Outcome) -> tuple[int, JsonObject]:
        """The status and the body that the endpoint would have answered with. Raises _NoAnswer."""
        if isinstance(row, RowFault):
            raise _NoAnswer(row.code, f"row {number}: {row.message}")
        try:
            wanted = self._mapping.wanted(row)
        except BatchLineInvalid as fault:
            raise _NoAnswer(fault.reason, f"row {number}: {fault.message}") from None
        except BatchCallRefused as refused:
            return refused.failure.status, refused.failure.as_json()
        if outcome.status in _GIVEN_UP:
            raise _NoAnswer(*_GIVEN_UP[outcome.status])
        kept: JsonValue = outcome.value
        if not isinstance(kept, dict):
            raise _NoAnswer(outcome.code or outcome.status, outcome.error or f"it ended as {outcome.status}")
        result = Result.model_validate(kept)
        failure: ApiError
        if result.status == "ok":
            try:
                return 200, self._body(result, wanted)
            except HeadraceError as error:
                failure = failure_of_error(error, wanted)
        else:
            failure = failure_of(result, wanted)
        return failure.status, failure.as_json()

    def _body(self, result: Result, wanted: Wanted) -> JsonObject:
        if wanted.endpoint == "chat":
            return answers.chat_completion(result, wanted, created=self._created)
        return answers.text_completion([result], wanted, created=self._created)


def _outcome_of(line: JsonObject) -> Outcome:
    """As far as a line says it: not every status of a Result has one of HTTP for itself."""
    response: JsonObject | None = line["response"]
    if response is None:
        code, message = line["error"]["code"], line["error"]["message"]
        given_up: list[Status] = [each for each, (known, _) in _GIVEN_UP.items() if known == code]
        status: Status = given_up[0] if given_up else "rejected"
        return Outcome(status, code=code, error=message, asked=False, columns={_LINE: line})
    request_id = None if response["request_id"].startswith(_REFUSED) else response["request_id"]
    body: JsonObject = response["body"]
    if response["status_code"] == 200:
        tokens = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
        return Outcome("ok", None, None, None, *tokens, None, request_id, columns={_LINE: line})
    code, message = body["error"]["code"], body["error"]["message"]
    status = _status_of(response["status_code"], code)
    asked = request_id is not None
    return Outcome(
        status, code=code, error=message, request_id=request_id, asked=asked, columns={_LINE: line}
    )


def _status_of(http_status: int, code: str | None) -> Status:
    if http_status == 422:
        return "truncated" if code == "truncated" else "invalid_output"
    return "failed" if http_status >= 500 else "rejected"


class _NoAnswer(Exception):
    """There is no response to tell of, but why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def _custom_id_in(text: str) -> str | None:
    """The id in a line that is no call, where it can be read."""
    try:
        line = parse(text)
    except JsonFault:
        return None
    return custom_id_of(cast("JsonObject", line)) if isinstance(line, dict) else None
