"""A shadow beside what callers got, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.ops.cli.result_rows import WIDTH_OF_A_PIPE, shortened
from headrace.ops.rollouts.agreement import Agreement, FieldAgreement
from headrace.ops.rollouts.pairing import Pairing, Side

SHOWN_ID = 24  # characters of a request's id
SHOWN_VALUE = 44  # and of a value
SHOWN_FIELDS = 40  # those that agree least


def show(pairing: Pairing, unreadable: int) -> None:
    """Print it: the two sides, agreement, examples, and what is not in it."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_OF_A_PIPE
    parts: list[RenderableType] = []
    if pairing.pairs:
        parts += [_sides(pairing), Text(), _agreement(pairing)]
        examples = _examples(pairing.agreement)
        if examples is not None:
            parts += [Text(), examples]
        parts.append(Text())
    parts += map(Text, _footer(pairing, unreadable))
    console.print(Group(*parts))


def _table(*columns: tuple[str, bool]) -> Table:
    """By name, and whether it is of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, numbers in columns:
        table.add_column(name, justify="right" if numbers else "left", no_wrap=True)
    return table


def _sides(pairing: Pairing) -> Table:
    numbers = ("ANSWERS", "FAILED", "VALID", "P50 MS", "P95 MS", "TOKENS")
    table = _table(("", False), ("VERSION", False), *((name, True) for name in numbers), ("STATUSES", False))
    for name, side in (("live", pairing.live), ("shadow", pairing.shadow)):
        table.add_row(name, *_side(side))
    return table


def _side(side: Side) -> list[str]:
    p50, p95 = side.tally.quantile_ms(0.5), side.tally.quantile_ms(0.95)
    return [
        shortened(_counts(side.versions) if len(side.versions) > 1 else next(iter(side.versions), "-"), 30),
        f"{side.statuses.total():,}",
        _percent(side.failed),
        _percent(side.valid),
        "-" if p50 is None else f"{p50:,.0f}",
        "-" if p95 is None else f"{p95:,.0f}",
        "-" if side.tokens is None else f"{side.tokens:,.1f}",
        _counts(side.statuses),
    ]


def _counts(of: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(of.items(), key=lambda each: -each[1]))


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.1%}"


def _agreement(pairing: Pairing) -> Table:
    agreement = pairing.agreement
    table = _table(("AGREEMENT", False), ("COMPARED", True), ("EQUAL", True), ("PART", True))
    table.add_row("status", f"{pairing.pairs:,}", f"{pairing.same_status:,}", _part(pairing))
    for name, found in _rows(agreement):
        table.add_row(shortened(name, 60), f"{found.compared:,}", f"{found.equal:,}", _coloured(found.part))
    if (hidden := len(agreement.fields) - SHOWN_FIELDS) > 0:
        table.add_row(f"({hidden} more fields: --json has them)", "", "", "")
    if agreement.median_similarity is not None:
        table.add_row("text, median similarity", "", "", f"{agreement.median_similarity:.2f}")
    return table


def _part(pairing: Pairing) -> Text:
    return _coloured(pairing.same_status / pairing.pairs)


def _coloured(part: float | None) -> Text:
    return Text(_percent(part), style="yellow" if part is not None and part < 1 else "")


def _rows(agreement: Agreement) -> list[tuple[str, FieldAgreement]]:
    """What was compared: whole values, their fields by name, texts."""
    fields = sorted(agreement.fields.items(), key=lambda each: (each[1].part or 0, each[0]))[:SHOWN_FIELDS]
    rows = [("output, all fields", agreement.values), *sorted(fields), ("text", agreement.texts)]
    return [(name, found) for name, found in rows if found.compared]


def _examples(agreement: Agreement) -> Table | None:
    table = _table(("DIFFERS IN", False), ("REQUEST", False), ("LIVE", False), ("SHADOW", False))
    for name, found in _rows(agreement):
        if found is agreement.values and agreement.fields:
            continue  # its fields have examples
        for each in found.examples:
            table.add_row(
                shortened(name, 40),
                shortened(each.request_id, SHOWN_ID),
                shortened(each.live, SHOWN_VALUE),
                shortened(each.shadow, SHOWN_VALUE),
            )
    return table if table.row_count else None


def _footer(pairing: Pairing, unreadable: int) -> list[str]:
    said = [f"{pairing.pairs:,} of {pairing.read:,} answers of the shadow have a partner"]
    if pairing.without_partner:
        said.append(f"{pairing.without_partner:,} have none: what callers got is still to come, or gone")
    if pairing.gave_up:
        said.append(f"{pairing.gave_up.total():,} were given up: {_counts(pairing.gave_up)}")
    if pairing.left_out:
        said.append(f"{pairing.left_out:,} older ones were left out: --limit takes more at a time")
    if pairing.repeated:
        said.append(f"{pairing.repeated:,} were to a request that was asked again: the last one counts")
    if unreadable:
        said.append(f"{unreadable:,} results could not be read")
    return said
