"""Every row of a job's input looked at, before anything is asked: what is refused, what is spared, what is to be asked.

Of what is to be asked a sample is kept, drawn by chance over the whole input. Nothing grows with the rows but eight
bytes for each of them.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute

from headrace.producers.backfill.asking import NotAsked, Question, RowAsker, request_of
from headrace.producers.backfill.breaker import Breaker, MaxFailures
from headrace.producers.backfill.estimating import SmallestKeys
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.prompt_sizes import PromptSizes
from headrace.producers.backfill.row_ids import RowId, request_id
from headrace.producers.backfill.rows_to_ask import refusal
from headrace.producers.backfill.source import RowFault
from headrace.schemas.codec import Codec
from headrace.schemas.digest import digest_of
from headrace.schemas.errors import MessageError

if TYPE_CHECKING:
    from headrace.producers.backfill.rows_to_ask import KnownAnswers
    from headrace.producers.backfill.source import Source
    from headrace.schemas.messages import JsonObject

ROWS_AT_ONCE: Final = 1_000
SAMPLE: Final = 1_000  # requests whose prompts are measured
EXAMPLES: Final = 3  # of each reason for which rows are refused

_COMPUTE: Final = cast("Any", pyarrow.compute)  # its stubs are partly unknown


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that no request can be made of."""

    row: int  # counted from 0
    code: str
    reason: str
    input: JsonObject | str


class Measured(NamedTuple):
    """A request of the sample: its prompt's size, and its own in bytes as Kafka gets it."""

    row: int
    size: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Chosen:
    """A request that is tried: its row, and what is asked."""

    row: int
    input: JsonObject
    question: Question
    size: int


@dataclass(slots=True)
class Examined:
    """What became of the rows. `identical` ask what an earlier row asks; `known` what an earlier job has answered.

    `stops_at`: why `max_failures` would stop the job, by rejects alone, and at which row; None: it would not.
    """

    rows: int = 0
    unreadable: int = 0  # among the refused
    refused: Counter[str] = field(default_factory=Counter[str])  # by code
    examples: dict[str, list[Refused]] = field(default_factory=dict[str, list[Refused]])
    identical: int = 0
    known: int = 0
    requests: int = 0  # to be made
    sample: list[Measured] = field(default_factory=list[Measured])
    chosen: list[Chosen] = field(default_factory=list[Chosen])
    stops_at: tuple[str, int] | None = None

    @property
    def rejects(self) -> int:
        """Rows that are refused."""
        return self.refused.total()


class Examination:
    """Looks at the rows of one job."""

    def __init__(
        self,
        asker: RowAsker,
        sizes: PromptSizes,
        *,
        limit: MaxFailures,
        rows: int,
        trials: int,
        dedupe: bool,
        answers: KnownAnswers | None = None,
    ) -> None:
        """`trials`: how many requests are chosen to be tried; `answers`: those of an earlier job."""
        self._asker, self._sizes, self._dedupe, self._answers = asker, sizes, dedupe, answers
        self._breaker = Breaker(limit)
        self._codec = Codec()
        self._hashes = array("Q")  # of what is asked
        self._sample: SmallestKeys[Measured] = SmallestKeys(SAMPLE)
        self._chosen: SmallestKeys[Chosen] = SmallestKeys(trials)
        self._found = Examined()

    def of(self, source: Source, progress: Callable[[int], None]) -> Examined:
        """Look at all rows; `progress` is told how many so far. Raises InputFailed."""
        for chunk in source.chunks(ROWS_AT_ONCE, lambda _: True):
            for place, row in enumerate(chunk.rows):
                self._look_at(chunk.first_row + place, row)
            self._found.rows += len(chunk)
            progress(self._found.rows)
        found = self._found
        distinct = _distinct(self._hashes)
        found.identical = len(self._hashes) - distinct
        found.requests = distinct if self._dedupe else len(self._hashes)
        found.sample = sorted(self._sample.items())
        found.chosen = sorted(self._chosen.items(), key=lambda each: each.row)
        return found

    def _look_at(self, number: int, row: JsonObject | RowFault) -> None:
        self._breaker.begin(number)
        asked = self._asker.ask(row)
        if isinstance(asked, NotAsked):
            self._refuse(number, row, asked.outcome)
            return
        try:
            request = request_of(asked, request_id("estimate", RowId(number, 0, asked.digest)), "estimate")
        except MessageError as error:
            self._refuse(number, row, refusal(error))
            return
        if self._answers is not None and self._answers.get(asked.digest) is not None:
            self._found.known += 1
            return
        self._hashes.append(int(asked.digest[:16], 16))
        # Keys by chance: of what is asked, so that equal requests are one; else of the row too.
        key = asked.digest if self._dedupe else digest_of([number, asked.digest])
        if not self._sample.wants(key):
            return
        size = self._sizes.of(asked.fields)
        try:
            encoded = len(self._codec.encode(request))
        except MessageError as error:
            self._hashes.pop()
            self._refuse(number, row, refusal(error))
            return
        self._sample.add(key, Measured(number, size, encoded))
        if self._chosen.wants(key) and not isinstance(row, RowFault):
            self._chosen.add(key, Chosen(number, row, asked, size))

    def _refuse(self, number: int, row: JsonObject | RowFault, outcome: Outcome) -> None:
        found = self._found
        code, reason = outcome.code or outcome.status, outcome.error or ""
        found.refused[code] += 1
        examples = found.examples.setdefault(code, [])
        if len(examples) < EXAMPLES:
            examples.append(Refused(number, code, reason, row.text if isinstance(row, RowFault) else row))
        found.unreadable += isinstance(row, RowFault)
        self._breaker.fail(number)
        if found.stops_at is None and (why := self._breaker.why) is not None:
            found.stops_at = (why, number)


def _distinct(hashes: array[int]) -> int:
    if not hashes:
        return 0
    values = pa.Array.from_buffers(pa.uint64(), len(hashes), [None, pa.py_buffer(hashes)])
    return cast("int", _COMPUTE.count_distinct(values).as_py())
