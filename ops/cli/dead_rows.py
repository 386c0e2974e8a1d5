"""Dead letters on a terminal: rows, counts, and one with all that it has."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.ops.cli.result_rows import WIDTH_OF_A_PIPE, shortened
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import MessageError
from headrace.schemas.messages import DeadLetter, Location, Request

if TYPE_CHECKING:
    from headrace.consumers.dead_letters import ReadDeadLetter

COLUMNS = (("time", 19), ("code", 18), ("id", 24), ("dead at", 10), ("lay in", 24))
NARROW = 130  # characters; a terminal below that shows less of each, and neither the year nor where the request lay
NARROW_COLUMNS = (("time", 14), ("code", 14), ("id", 14), ("dead at", 9))
SHORTEST_MESSAGE = 20  # characters
MOST_CODES = 1_000  # that are counted apart; a code is a short list's, but a topic may hold anything
DUMPED_BYTES = 256  # of a value that is no text


def moment(time_ms: int) -> str:
    """A time in ms since the epoch, in UTC and to the second; "-" for one that no calendar has."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return "-"


def place(lies: Location) -> str:
    """How `dead show` names a dead letter."""
    return f"{lies.partition}:{lies.offset}"


def summary(each: ReadDeadLetter, letter: DeadLetter) -> dict[str, Any]:
    """A dead letter as JSON, without the request's bytes."""
    return {
        "partition": each.location.partition,
        "offset": each.location.offset,
        "time": letter.time,
        "code": letter.code,
        "id": letter.id,
        "message": letter.message,
        "path": letter.path,
        "model_version": each.model_version,
        "attempt": letter.attempt,
        "replays": each.replays,
        "source": letter.source.model_dump(),
    }


class DeadRows:
    """Prints dead letters as they come, one row each, or as JSON lines."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self.console = console
        self._as_json = as_json
        self._printed = 0

    @classmethod
    def on_stdout(cls, *, as_json: bool) -> DeadRows:
        """On standard output; where that is no terminal, in wide rows."""
        console = Console()
        return cls(console if console.is_terminal else Console(width=WIDTH_OF_A_PIPE), as_json=as_json)

    def add(self, each: ReadDeadLetter, letter: DeadLetter) -> None:
        """Print one."""
        if self._as_json:
            self.console.out(json.dumps(summary(each, letter), ensure_ascii=False), highlight=False)
            self.console.file.flush()
        else:
            self.console.print(self._row(each, letter))
        self._printed += 1

    def _row(self, each: ReadDeadLetter, letter: DeadLetter) -> Table:
        narrow = self.console.width < NARROW
        widths = dict(NARROW_COLUMNS if narrow else COLUMNS)
        room = self.console.width - sum(widths.values()) - 2 * len(widths)
        widths["message"] = max(SHORTEST_MESSAGE, room)
        table = Table(box=None, show_header=self._printed == 0, pad_edge=False, header_style="bold")
        source = letter.source
        cells = {
            "time": moment(letter.time)[5 * narrow :],
            "code": letter.code,
            "id": letter.id or "-",
            "dead at": place(each.location),
            "lay in": f"{source.topic.rpartition('.')[2]} {source.partition}:{source.offset}",
            "message": f"{letter.path}: {letter.message}" if letter.path else letter.message,
        }
        for name, width in widths.items():
            table.add_column(name, width=width, no_wrap=True)
        table.add_row(*(Text(shortened(cells[name], width)) for name, width in widths.items()))
        return table


@dataclass(slots=True)
class DeadCounts:
    """How many dead letters of each code, and when the first and the last of them were written."""

    counts: Counter[str] = field(default_factory=Counter[str])
    spans: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def add(self, letter: DeadLetter) -> None:
        """Count one."""
        code = letter.code
        if code not in self.counts and len(self.counts) >= MOST_CODES:
            code = "(others)"
        self.counts[code] += 1
        first, last = self.spans.get(code, (letter.time, letter.time))
        self.spans[code] = min(first, letter.time), max(last, letter.time)

    def show(self, console: Console, *, as_json: bool) -> None:
        """Print them, the most frequent first."""
        if as_json:
            for code, count in self.counts.most_common():
                first, last = self.spans[code]
                line = {"code": code, "count": count, "first": first, "last": last}
                console.out(json.dumps(line, ensure_ascii=False), highlight=False)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("code", "count", "first", "last"):
            table.add_column(name, justify="right" if name == "count" else "left", no_wrap=True)
        for code, count in self.counts.most_common():
            first, last = self.spans[code]
            table.add_row(Text(shortened(code, 60)), f"{count:,}", moment(first), moment(last))
        console.print(table)


# --- one of them ---


def described(each: ReadDeadLetter, letter: DeadLetter, codec: Codec, *, note: str | None) -> str:
    """Everything, for a person to read; `note`: where the bytes come from, if they are not the dead letter's own."""
    source = letter.source
    lines = [
        ("id", "none can be read" if letter.id is None else letter.id),
        ("code", letter.code),
        ("message", letter.message),
        ("path", letter.path),
        ("written", f"{moment(letter.time)} UTC"),
        ("dead at", f"{each.location.topic} {place(each.location)}"),
        ("lay in", f"{source.topic} {source.partition}:{source.offset}"),
        ("model version", each.model_version or "not said"),
        ("attempt", str(letter.attempt)),
        ("replayed", f"{each.replays} times, first from {each.origin}" if each.replays else None),
        ("note", note),
        ("key", None if letter.key is None else shown(letter.key)),
        *(
            ("header", f"{one.key}: {'null' if one.value is None else shown(one.value)}")
            for one in letter.headers
        ),
    ]
    text = "\n".join(f"{name:<14} {printable(value)}" for name, value in lines if value is not None)
    return f"{text}\n\n{printable(_value(letter.value, codec))}"


def as_json(each: ReadDeadLetter, letter: DeadLetter, codec: Codec) -> str:
    """Everything, as one JSON object: the dead letter with its bytes in base64, and the request where it decodes."""
    request, fault = _decoded(letter.value, codec)
    fields = summary(each, letter) | {
        "letter": json.loads(codec.encode(letter, Encoding.JSON)),
        "request": None if request is None else json.loads(codec.encode(request, Encoding.JSON)),
        "cannot_be_decoded": fault,
    }
    return json.dumps(fields, ensure_ascii=False)


def shown(data: bytes) -> str:
    """Bytes as text where they are text, else in hexadecimal."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"


def printable(text: str) -> str:
    """Without anything that a terminal would take for a command, but for line ends."""
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text
    )


def _value(value: bytes | None, codec: Codec) -> str:
    if value is None:
        return "value: null"
    request, fault = _decoded(value, codec)
    head = f"value: {len(value):,} bytes"
    if request is not None:
        fields = json.loads(codec.encode(request, Encoding.JSON))
        return f"{head}, decoded:\n{json.dumps(fields, ensure_ascii=False, indent=2)}"
    head += f", which cannot be decoded: {fault}"
    try:
        return f"{head}\n{value.decode()}"
    except UnicodeDecodeError:
        more = "" if len(value) <= DUMPED_BYTES else f"\n(the first {DUMPED_BYTES} bytes; --raw writes all)"
        return f"{head}\n{_dump(value[:DUMPED_BYTES])}{more}"


def _decoded(value: bytes | None, codec: Codec) -> tuple[Request | None, str | None]:
    try:
        return codec.decode(Request, value).message, None
    except MessageError as error:
        return None, str(error)


def _dump(data: bytes) -> str:
    rows = (data[start : start + 16] for start in range(0, len(data), 16))
    return "\n".join(
        f"{16 * number:04x}  {row.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}"
        for number, row in enumerate(rows)
    )
