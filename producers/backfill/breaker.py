"""When a job gives up because too many of its rows fail. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_ROWS = 1_000  # that a share is reckoned of at first
DEFAULT_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class MaxFailures:
    """The most rows that may end otherwise than `ok`: a share, or a number."""

    share: float | None = DEFAULT_SHARE
    rows: int | None = None

    @classmethod
    def parse(cls, given: str | int) -> MaxFailures:
        """`5%` or a number of rows. Raises ValueError with a sentence."""
        text = str(given).strip()
        number = text.removesuffix("%").strip()
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if text.endswith("%"):
            if not 0 <= value <= 100:
                raise ValueError(f"{given!r}: a share is from 0% to 100%")
            return cls(share=value / 100)
        if value < 0 or value != int(value):
            raise ValueError(f"{given!r}: give a share (5%) or a number of rows (200)")
        return cls(share=None, rows=int(value))

    def __str__(self) -> str:
        return f"{self.rows}" if self.share is None else f"{round(self.share * 100, 8):g}%"


class Breaker:
    """Counts one run's failures.

    A share is of the first 1,000 rows that are taken up: 5 % are 50 rows, also of a table that has fewer, where a few
    bad ones are no reason to stop. It is exceeded as soon as it cannot but be, however many are still unanswered. After
    them it is of all that were taken up: rows that are refused before they are asked about are known to be bad long
    before good ones are known to be good.
    """

    def __init__(self, limit: MaxFailures) -> None:
        self.limit = limit
        self._first: set[int] = set()
        self._first_failed = 0
        self.begun = 0
        self.failed = 0

    def begin(self, row: int) -> None:
        """A row is taken up."""
        self.begun += 1
        if len(self._first) < FIRST_ROWS:
            self._first.add(row)

    def fail(self, row: int) -> None:
        """A row that was taken up has ended otherwise than `ok`."""
        self.failed += 1
        self._first_failed += row in self._first

    @property
    def why(self) -> str | None:
        """Why the job has to stop; None: it need not."""
        limit = self.limit
        if limit.rows is not None:
            if self.failed > limit.rows:
                return f"{self.failed:,} rows have failed, and max_failures is {limit}"
            return None
        assert limit.share is not None
        if self._first_failed > limit.share * FIRST_ROWS:
            failed, first = self._first_failed, min(self.begun, FIRST_ROWS)
            return f"{failed:,} of the first {first:,} rows have failed, and max_failures is {limit}"
        if self.begun > FIRST_ROWS and self.failed > limit.share * self.begun:
            return f"{self.failed:,} of {self.begun:,} rows have failed, and max_failures is {limit}"
        return None
