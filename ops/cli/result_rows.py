"""Results on a terminal: one row each, printed as they come."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.messages import Result

# Columns beside the text, and the widths that they keep, so that rows printed one by one stand below each other.
BEFORE_TEXT = (("id", 32), ("status", 14))
AFTER_TEXT = (("tokens", 7), ("ms", 8), ("version", 8))
NARROW = 110  # characters; a terminal below that shows shortened ids
NARROW_ID = 16
SHORTEST_TEXT = 20  # characters
WIDTH_OF_A_PIPE = 160  # characters
COLOURS = {"ok": "green", "truncated": "yellow", "invalid_output": "yellow"}


class ResultRows:
    """Prints results to a console, or as JSON lines."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self.console = console
        self._as_json = as_json
        self._codec = Codec()
        self._printed = 0

    @classmethod
    def on_stdout(cls, *, as_json: bool) -> ResultRows:
        """On standard output; where that is no terminal, in wide rows."""
        console = Console()
        return cls(console if console.is_terminal else Console(width=WIDTH_OF_A_PIPE), as_json=as_json)

    def add(self, result: Result) -> None:
        """Print one."""
        if self._as_json:
            line = self._codec.encode(result, Encoding.JSON).decode()
            self.console.out(line, highlight=False)
            self.console.file.flush()
        else:
            self.console.print(self._row(result))
        self._printed += 1

    def _row(self, result: Result) -> Table:
        table = Table(box=None, show_header=self._printed == 0, pad_edge=False, header_style="bold")
        widths = dict(BEFORE_TEXT + AFTER_TEXT)
        if self.console.width < NARROW:
            widths["id"] = NARROW_ID
        gaps = 2 * len(widths)
        widths["text"] = max(SHORTEST_TEXT, self.console.width - sum(widths.values()) - gaps)
        for name in ("id", "status", "text"):
            table.add_column(name, width=widths[name], no_wrap=True)
        for name, width in AFTER_TEXT:
            table.add_column(name, width=width, no_wrap=True, justify="right")
        table.add_row(
            Text(shortened(result.id, widths["id"])),
            Text(result.status, style=COLOURS.get(result.status, "red")),
            Text(shortened(said(result), widths["text"])),
            str(result.usage.completion_tokens),
            str(result.timings.total_ms),
            Text(shortened(result.provenance.version, widths["version"])),
        )
        return table


def said(result: Result) -> str:
    """The first output's text, or why there is none."""
    if result.status == "ok" and result.outputs:
        return result.outputs[0].text
    if result.error is not None:
        return f"{result.error.path + ': ' if result.error.path else ''}{result.error.message}"
    return result.outputs[0].text if result.outputs else ""


def shortened(text: str, width: int) -> str:
    """One line of at most `width` characters, without anything that a terminal would take for a command."""
    start = " ".join(text[: 4 * width + 100].split())
    printable = "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in start
    )
    return printable if len(printable) <= width else printable[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"
