"""What a job reads: the port of its input, and what comes out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.schemas.messages import JsonObject


@dataclass(frozen=True, slots=True)
class RowFault:
    """A place of the input where a row should be and none can be read: why, and what stands there."""

    code: str
    message: str
    text: str


@dataclass(slots=True)
class Chunk:
    """Rows of the input that stand one after the other: what one part of the output is made of.

    Row `first_row + i` (counted from 0 through the whole input) is `rows[i]`, as JSON would have it, and row i of
    `kept`: the columns that the output has from its input. Those of a row that cannot be read are null.
    """

    number: int
    first_row: int
    rows: list[JsonObject | RowFault]
    kept: pa.Table

    def __len__(self) -> int:
        return len(self.rows)


class Source(Protocol):
    """A table of which every reading gives the same rows in the same order."""

    @property
    def schema(self) -> pa.Schema:
        """Of `Chunk.kept`: known before a row is read, and the same for every chunk."""
        ...

    @property
    def row_count(self) -> int:
        """Of the whole input, those that cannot be read among them."""
        ...

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of what the input holds: another input has another, wherever it lies."""
        ...

    def chunks(self, size: int, wanted: Callable[[int], bool]) -> Iterator[Chunk]:
        """The chunks of `size` rows whose number is wanted, in order; the input's last one may be shorter.

        Chunk n has the rows from n * size on. `wanted` is asked once a chunk, just before it would be read. What is
        not wanted is passed over as cheaply as the format allows. Raises InputFailed.
        """
        ...
