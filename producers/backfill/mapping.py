"""From a row to what is asked, and from its result to what became of it: the port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.producers.backfill.outcome import Outcome
    from headrace.schemas.messages import JsonObject, Result


class Mapping(Protocol):
    """How rows are asked about."""

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of all that decides what is asked for a row: columns, templates, sampling, output schema."""
        ...

    def request_of(self, row: JsonObject) -> JsonObject:
        """The fields of the Request that asks for a row, all but `id`, `key`, `job` and `deadline`.

        Equal rows give equal fields. Raises MessageError with a JSON pointer into the row or the request.
        """
        ...

    def outcome_of(self, result: Result) -> Outcome:
        """What a result says of its row."""
        ...
