"""Lines of JSON, and of CSV, as records; one that cannot be read is a RowFault and ends nothing.

CSV is read as RFC 4180 has it, with a header line, in UTF-8 (with or without a byte order mark): every value is
text, an empty field (`""` too) is null, a quoted field may have line breaks in it, blank lines are passed over. A
quote that is never closed costs the one line that it stands in. JSON lines are read as `strict_json` does: two equal
keys, NaN, numbers beyond a double and lone surrogates are faults of their line.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from headrace.producers.backfill.input_lines import MAX_LINE_BYTES, LineReader, OverlongLine
from headrace.producers.backfill.source import RowFault
from headrace.schemas import strict_json
from headrace.schemas.errors import Undecodable

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject

MAX_QUOTED_BYTES: Final = 4 << 20  # of a CSV record that goes over several lines
_TEXT_LENGTH: Final = 1000  # characters of a faulty row that are kept


class Records(Protocol):
    """One file's rows in their order."""

    def next_record(self) -> JsonObject | RowFault | None:
        """None at the end."""
        ...


class JsonRecords:
    """A JSON object in each line. Blank lines are passed over."""

    def __init__(self, lines: LineReader) -> None:
        self._lines = lines

    def next_record(self) -> JsonObject | RowFault | None:
        while (line := self._lines.next_line()) is not None:
            if line and not line.isspace():
                return _json_object(line)
        return None


def _json_object(line: bytes) -> JsonObject | RowFault:
    if isinstance(line, OverlongLine):
        return _overlong(line)
    try:
        value = strict_json.parse(line.decode())
    except UnicodeDecodeError as error:
        return _fault(f"bytes that are no UTF-8 (at byte {error.start})", line)
    except strict_json.JsonFault as fault:
        return _fault(f"{fault.reason}{_where(fault, line)}", line)
    if type(value) is dict:
        return cast("JsonObject", value)
    return _fault(f"{_JSON_NAMES[cast('type[Any]', type(value))]}, and a row is an object", line)


_JSON_NAMES: Final[dict[type[Any], str]] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _where(fault: strict_json.JsonFault, line: bytes) -> str:
    if fault.index is not None:
        return f" (at byte {len(line.decode()[: fault.index].encode())})"
    place = strict_json.pointer(fault.path)
    return f" (at {place})" if place else ""


def _overlong(line: OverlongLine) -> RowFault:
    return _fault(f"a line of {line.length} bytes, and at most {MAX_LINE_BYTES} are read", line)


def _fault(message: str, line: bytes) -> RowFault:
    text = line[: 4 * _TEXT_LENGTH].decode("utf-8", "replace")[:_TEXT_LENGTH]
    return RowFault(Undecodable.code, message, text.rstrip("\r\n"))


class _RecordTooLong(Exception):
    """A quoted field went on and on."""


class CsvRecords:
    """Records of CSV or TSV. `header`: the columns; None until `read_header` has found them."""

    def __init__(self, lines: LineReader, delimiter: str, header: list[str] | None = None) -> None:
        csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # of the whole process
        self.header = header
        self._lines = lines
        self._taken: list[bytes] = []  # the lines of the record that is being read
        self._taken_bytes = 0
        self._not_utf_8: str | None = None
        self._reader = csv.reader(self, delimiter=delimiter, strict=True)

    def read_header(self) -> list[str] | RowFault | None:
        """Takes the first record for the names of the columns; one without a name is called by its place."""
        fields = self._next_fields()
        if isinstance(fields, list):
            fields = self.header = [name or f"column_{place}" for place, name in enumerate(fields, 1)]
        return fields

    def __iter__(self) -> CsvRecords:
        return self

    def __next__(self) -> str:
        """The next line, for the csv module. Not a generator, which would end with what it raises."""
        line = self._lines.next_line()
        if line is None:
            raise StopIteration
        self._taken.append(line)
        self._taken_bytes += len(line)
        if isinstance(line, OverlongLine) or (self._taken_bytes > MAX_QUOTED_BYTES and len(self._taken) > 1):
            raise _RecordTooLong
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError as error:
            at = self._taken_bytes - len(line) + len(self._taken) - 1 + error.start
            self._not_utf_8 = self._not_utf_8 or f"bytes that are no UTF-8 (at byte {at})"
            return line.decode("utf-8", "replace") + "\n"

    def next_record(self) -> JsonObject | RowFault | None:
        fields = self._next_fields()
        header = self.header
        if header is None or not isinstance(fields, list):
            return cast("RowFault | None", fields)
        if len(fields) != len(header):
            return self._fault_of(f"{_count(len(fields))}, and the header has {len(header)}")
        return dict(zip(header, [field or None for field in fields]))  # noqa: B905 (compared above)

    def _next_fields(self) -> list[str] | RowFault | None:
        while True:
            self._taken.clear()
            self._taken_bytes = 0
            self._not_utf_8 = None
            try:
                fields = next(self._reader)
            except StopIteration:
                return None
            except csv.Error as error:
                return self._fault_of_first_line(f"bad quoting: {error}")
            except _RecordTooLong:
                if isinstance(self._taken[0], OverlongLine):
                    return _overlong(self._taken[0])
                return self._fault_of_first_line(
                    f"a quote that is not closed within {MAX_QUOTED_BYTES} bytes"
                )
            if not fields or (len(fields) == 1 and self._taken[0].isspace()):
                continue  # a blank line
            return fields if self._not_utf_8 is None else self._fault_of(self._not_utf_8)

    def _fault_of(self, message: str) -> RowFault:
        return _fault(message, b"\n".join(self._taken))

    def _fault_of_first_line(self, message: str) -> RowFault:
        """A quote that was not meant as one has taken the lines behind it too: these are read anew."""
        first, *others = self._taken
        self._lines.push_back(others)
        return _fault(message, first)


def _count(fields: int) -> str:
    return "1 field" if fields == 1 else f"{fields} fields"
