"""What of a job is settled, what is open, and from where results must be read again. Pure.

The rows are cut into chunks. A chunk is open from the first that is heard of it until its part is written and named by
the job's state. Whatever is settled in an open chunk is lost with the process: so the state says, for each partition of
`results`, the offset from which all results of open chunks can be had once more. It may be too low and never too high.

A result may come for a chunk that this process has not begun: a former one had asked. It is kept, and counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.producers.backfill.outcome import Outcome

Offsets = Mapping[int, int]  # by the number of a partition of `results`


@dataclass(slots=True)
class _OpenChunk:
    outcomes: list[Outcome | None]
    missing: int
    begun: bool = False
    first_offsets: dict[int, int] = field(default_factory=dict[int, int])  # of the results that it has taken


class Ledger:
    """The rows of a job by what is known of them. Rows are counted from 0, chunks likewise."""

    def __init__(self, *, row_count: int, chunk_rows: int, done: Iterable[int], positions: Offsets) -> None:
        """`done`: the chunks whose parts the state names. `positions`: from where `results` is read."""
        self.row_count = row_count
        self.chunk_rows = chunk_rows
        self._done = set(done)
        self._open: dict[int, _OpenChunk] = {}
        self._positions = dict(positions)

    # --- chunks ---

    @property
    def chunk_count(self) -> int:
        """Of the whole input."""
        return -(-self.row_count // self.chunk_rows)

    @property
    def done(self) -> frozenset[int]:
        """Chunks whose parts are written."""
        return frozenset(self._done)

    @property
    def is_complete(self) -> bool:
        """Whether every chunk's part is written."""
        return len(self._done) == self.chunk_count

    def is_wanted(self, number: int) -> bool:
        """Whether a chunk is still to be begun."""
        chunk = self._open.get(number)
        return number not in self._done and (chunk is None or not chunk.begun)

    def begin(self, number: int) -> list[int]:
        """Open a chunk; its rows that nothing is known of, in order."""
        chunk = self._chunk(number)
        chunk.begun = True
        first = number * self.chunk_rows
        return [first + index for index, outcome in enumerate(chunk.outcomes) if outcome is None]

    def _chunk(self, number: int) -> _OpenChunk:
        assert number not in self._done, f"chunk {number} is done"
        chunk = self._open.get(number)
        if chunk is None:
            rows = min(self.chunk_rows, self.row_count - number * self.chunk_rows)
            chunk = self._open[number] = _OpenChunk([None] * rows, rows)
        return chunk

    def settled_chunks(self) -> Iterator[int]:
        """Begun chunks of which every row is settled, in order."""
        return iter(sorted(number for number, each in self._open.items() if each.begun and not each.missing))

    @property
    def open_rows(self) -> int:
        """Outcomes that are held in memory."""
        return sum(len(each.outcomes) - each.missing for each in self._open.values())

    @property
    def open_chunks(self) -> int:
        """Chunks that were begun and are not done."""
        return sum(each.begun for each in self._open.values())

    def outcomes(self, number: int) -> Sequence[Outcome | None]:
        """Of an open chunk, row by row."""
        return self._chunk(number).outcomes

    def close(self, number: int) -> None:
        """A chunk's part is written: it is done once the state says so."""
        assert not self._chunk(number).missing, f"chunk {number} lacks rows"
        del self._open[number]
        self._done.add(number)

    # --- rows ---

    def is_settled(self, row: int) -> bool:
        """Whether it is known what became of a row."""
        number, index = divmod(row, self.chunk_rows)
        if number in self._done:
            return True
        chunk = self._open.get(number)
        return chunk is not None and chunk.outcomes[index] is not None

    def settle(self, row: int, outcome: Outcome, at: tuple[int, int] | None = None) -> bool:
        """Note what became of a row; False where that is known already. The first word counts.

        `at`: partition and offset of the result that says so; None where it can be found out again without one.
        """
        number, index = divmod(row, self.chunk_rows)
        if not 0 <= row < self.row_count or number in self._done:
            return False
        chunk = self._chunk(number)
        if chunk.outcomes[index] is not None:
            return False
        chunk.outcomes[index] = outcome
        chunk.missing -= 1
        if at is not None:
            partition, offset = at
            chunk.first_offsets[partition] = min(offset, chunk.first_offsets.get(partition, offset))
        return True

    # --- where to read from ---

    def read_to(self, positions: Offsets) -> None:
        """All results below these offsets have been handed to `settle`, or are none of this job's."""
        self._positions.update(positions)

    @property
    def positions(self) -> Offsets:
        """Up to where results have been taken."""
        return self._positions

    def resume_offsets(self) -> dict[int, int]:
        """From where a process that knows no more than the state must read."""
        found = dict(self._positions)
        for chunk in self._open.values():
            for partition, offset in chunk.first_offsets.items():
                found[partition] = min(offset, found.get(partition, offset))
        return found
