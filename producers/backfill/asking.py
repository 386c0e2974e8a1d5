"""From a row to the request that asks about it, or to why none is made. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from headrace.producers.backfill.mapping import Mapping
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.row_ids import RequestDigests
from headrace.producers.backfill.source import RowFault
from headrace.schemas.errors import InvalidField, MessageError
from headrace.schemas.field_errors import explain
from headrace.schemas.messages import JsonObject, Request
from headrace.schemas.strict_json import JsonFault, pointer


@dataclass(frozen=True, slots=True)
class NotAsked:
    """A row that no request can be made of."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a row."""

    fields: JsonObject
    digest: str


class RowAsker:
    """Makes questions of rows."""

    def __init__(self, mapping: Mapping, digests: RequestDigests) -> None:
        self._mapping = mapping
        self._digests = digests

    def ask(self, row: JsonObject | RowFault) -> Question | NotAsked:
        """The question, checked: a request can be made of it."""
        if isinstance(row, RowFault):
            return NotAsked(Outcome("rejected", code=row.code, error=row.message, asked=False))
        try:
            fields = self._mapping.request_of(row)
            return Question(fields, self._digests.of(fields))
        except MessageError as error:
            return NotAsked(Outcome("rejected", code=error.code, error=str(error), asked=False))
        except JsonFault as fault:
            error = InvalidField(fault.reason, path=pointer(fault.path))
            return NotAsked(Outcome("rejected", code=error.code, error=str(error), asked=False))


def request_of(question: Question, id_: str, job: str, deadline_ms: int | None = None) -> Request:
    """The request of a question; the deadline since the epoch. Raises InvalidField with a pointer to the field."""
    try:
        return Request.model_validate({**question.fields, "id": id_, "job": job, "deadline": deadline_ms})
    except ValidationError as error:
        raise explain(error, question.fields) from None
