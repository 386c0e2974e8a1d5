"""`headrace schema check` and `headrace schema keywords`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.schemas.settings import Settings

if TYPE_CHECKING:
    from headrace.ops.schema_check import Totals
    from headrace.schemas.enforcement import Backend

PROGRESS_S = 5.0


@click.group(epilog="Example: headrace schema check schemas.jsonl")
def schema() -> None:
    """Check output schemas."""


@schema.command(
    epilog="""\b
    Examples:
      headrace schema keywords
      headrace schema keywords --markdown"""
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the table of docs/structured-output.md.")
def keywords(as_markdown: bool) -> None:
    """What each backend does with each keyword of JSON Schema.

    `enforced`: what is generated is valid. `narrowed`: so it is, and some valid values cannot be. `ignored`: invalid
    values can be generated too. `refused`: the backend does not take the schema. Headrace rewrites a schema, or leaves
    keywords to the validation, where the backend ignores or refuses them; `headrace schema check` says how.
    """
    from headrace.schemas.keyword_support import support_table

    heads = ("", "xgrammar", "guidance", "")
    if as_markdown:
        rows = [heads, ("---",) * 4, *support_table()]
        click.echo("\n".join(f"| {' | '.join(row)} |" for row in rows))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=SIMPLE_HEAD, pad_edge=False)
    for row in support_table():
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


@schema.command(
    epilog="""\b
    Examples:
      headrace schema check schemas.jsonl
      headrace schema check schemas.jsonl --backend both --json > verdicts.jsonl
      headrace schema check schemas.jsonl --backend xgrammar --tokenizer ./my-model"""
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--backend",
    type=click.Choice(["guidance", "xgrammar", "both"]),
    default="guidance",
    show_default=True,
    help="What is to enforce the schemas.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of a model with tokenizer.json. Default: that of a tiny model, made on first use.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each schema and backend.")
def check(file: Path, backend: str, tokenizer: Path | None, as_json: bool) -> int:
    """Say for each schema in FILE how it would be held while text is generated.

    FILE has a JSON object on each line: "schema", and if you like "name" and "tests", a list of {"valid": true or
    false, "data": ...}. Each schema is compiled with the real backend and tokenizer, within the limits that a request
    has. The verdict is a tier (enforced, enforced_normalised, relaxed:KEYWORDS, validated_only) or the code of a
    refusal. Each instance is given to the validator and to the compiled grammar.

    Exits with 1 where the validator says otherwise than an instance's label.
    """
    from headrace.ops.bench.tiny_model import tiny_model

    directory = tokenizer or tiny_model(Settings.from_environment().cache_dir / "models")
    backends: list[Backend] = ["guidance", "xgrammar"] if backend == "both" else [backend]  # pyright: ignore[reportAssignmentType] (click has checked it)
    totals = asyncio.run(_check(file, backends, directory, as_json=as_json))
    if not as_json:
        _show(totals)
    return 1 if any(each.differing for each in totals.values()) else 0


async def _check(
    file: Path, backends: list[Backend], tokenizer: Path, *, as_json: bool
) -> dict[Backend, Totals]:
    from headrace.ops import schema_check

    totals: dict[Backend, Totals] = {backend: schema_check.Totals() for backend in backends}
    begun = shown = time.monotonic()
    number = 0
    with file.open("rb") as lines:
        async for verdicts in schema_check.check(schema_check.cases(lines), backends, tokenizer):
            number += 1
            for verdict in verdicts:
                totals[verdict.backend].add(verdict)
                if as_json:
                    click.echo(json.dumps(verdict.as_json()))
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                click.echo(f"{number} schemas, {shown - begun:.0f} s", err=True)
    click.echo(f"{number} schemas in {time.monotonic() - begun:.1f} s", err=True)
    return totals


# --- printing ---------------------------------------------------------------------------------------------------


def _show(totals: dict[Backend, Totals]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    table = Table("", *totals, box=SIMPLE_HEAD, pad_edge=False)
    for verdict in sorted({verdict for each in totals.values() for verdict in each.verdicts}, key=_rank):
        table.add_row(verdict, *(str(each.verdicts[verdict]) for each in totals.values()))
    for share, name in ((0.5, "p50"), (0.95, "p95"), (1.0, "max")):
        table.add_row(f"compile ms, {name}", *(f"{each.quantile_ms(share):.1f}" for each in totals.values()))
    for by in ("validator", "grammar"):
        for label, name in ((True, "valid"), (False, "invalid")):
            row = (_taken(each, by, label=label) for each in totals.values())
            table.add_row(f"{name} instances that the {by} takes", *row)
    console.print(table)
    for backend, each in totals.items():
        for verdict in each.refused:
            where = f" at {verdict.pointer}" if verdict.pointer else ""
            reason = f"{verdict.verdict}{where}: {verdict.message}"
            console.print(f"{backend}: {escape(verdict.title)}: {escape(reason)}")
        for verdict in each.differing:
            wrong = [number for number, one in enumerate(verdict.instances) if one.differs]
            said = f"the validator says otherwise than the label of tests {wrong}"
            console.print(f"{backend}: {escape(verdict.title)}: {escape(said)}")


def _taken(totals: Totals, by: str, *, label: bool) -> str:
    taken, refused = totals.instances[label, by, True], totals.instances[label, by, False]
    return f"{taken} of {taken + refused}"


def _rank(verdict: str) -> tuple[int, str]:
    tiers = ["enforced", "enforced_normalised", "relaxed", "validated_only"]
    return (tiers.index(verdict) if verdict in tiers else len(tiers), verdict)
