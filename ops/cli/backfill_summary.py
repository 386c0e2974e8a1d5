"""How a job has ended, as a small table or as JSON: counts that add up to the input."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.ops.cli.backfill_view import duration, rate, reasons_of, size
from headrace.producers.backfill.failures import BudgetSpent, TooManyFailures
from headrace.producers.backfill.locations import without_secrets
from headrace.producers.backfill.parts import reject_count

if TYPE_CHECKING:
    from headrace.producers.backfill.job import JobSpec
    from headrace.producers.backfill.job_process import Finished
    from headrace.schemas.errors import HeadraceError

WIDTH_OF_A_PIPE = 160
NO_ANSWER = "no answer yet"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job has ended in this process: with a state, or before it had one. `failure`: why it did not begin.

    `anew`: it was to be begun in another's place, and would be once more.
    """

    spec: JobSpec
    finished: Finished | None = None
    failure: HeadraceError | None = None
    anew: bool = False

    @property
    def error(self) -> HeadraceError | None:
        """Why it has not come to its end."""
        return self.failure if self.finished is None else self.finished.error

    @property
    def is_complete(self) -> bool:
        """Whether the output is there."""
        return self.finished is not None and self.finished.state.status == "done"

    @property
    def statuses(self) -> dict[str, int]:
        """All rows of the input by what became of them: they add up."""
        if self.finished is None:
            return {}
        state, view = self.finished.state, self.finished.view
        counts = dict(state.statuses if self.is_complete or view is None else view.statuses)
        found = {"ok": counts.pop("ok", 0)} | {name: counts[name] for name in sorted(counts) if counts[name]}
        if left := state.rows - sum(found.values()):
            found[NO_ANSWER] = left
        return found

    @property
    def has_all_failed(self) -> bool:
        """Whether there were rows and none has an output."""
        statuses = self.statuses
        return sum(statuses.values()) > 0 and not statuses.get("ok") and not statuses.get(NO_ANSWER)


def as_json(ended: Ended) -> str:
    """One line."""
    found: dict[str, Any] = {"job": None, "name": ended.spec.job_name, "status": "failed"}
    finished, error = ended.finished, ended.error
    if finished is not None:
        state, files, view = finished.state, finished.files, finished.view
        statuses = ended.statuses
        rejects = _rejects(ended)
        found |= {
            "job": state.job,
            "status": state.status,
            "model": state.model,
            "contract": state.contract,
            "rows": state.rows,
            "no_answer": statuses.pop(NO_ANSWER, 0),
            "statuses": statuses,
            "codes": _codes(ended),
            "asked": sum(part.asked for part in state.parts),
            "prompt_tokens": _tokens(ended)[0],
            "completion_tokens": _tokens(ended)[1],
            "seconds": round(state.busy_ms / 1000, 3),
            "rounds": state.round + 1,
            "this_process": None
            if view is None
            else {
                "settled": view.settled_here,
                "asked": view.asked,
                "shared": view.shared,
                "reused": view.reused,
                "seconds": round(view.seconds, 3),
            },
            "input": without_secrets(state.input),
            "output": files.shown if ended.is_complete or files.is_directory else None,
            "output_bytes": _output_bytes(ended),
            "rejects": None if not rejects else files.rejects_shown,
            "nothing_to_do": finished.nothing_to_do,
        }
    found["error"] = None if error is None else {"code": error.code, "message": error.message}
    return json.dumps(found, ensure_ascii=False)


def show(ended: Ended) -> None:
    """On standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=WIDTH_OF_A_PIPE)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for name, count, text in rows_of(ended):
        table.add_row(Text(name), Text("" if count is None else f"{count:,}"), Text(text))
    with console.capture() as captured:
        console.print(table)
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def rows_of(ended: Ended) -> Iterator[tuple[str, int | None, str]]:
    """(what, how many, what there is to say of it)."""
    finished = ended.finished
    assert finished is not None
    state = finished.state
    yield "job", None, f"{state.job}, {_how(ended)}"
    statuses = ended.statuses
    yield "rows", state.rows, f"of {without_secrets(state.input)}"
    codes = _codes(ended)
    failed = sum(count for name, count in statuses.items() if name not in ("ok", NO_ANSWER))
    for position, (name, count) in enumerate(statuses.items()):
        is_first_failure = failed and position == 1 and name != NO_ANSWER
        yield f"  {name}", count, reasons_of(codes) if is_first_failure else ""
    yield from _work(ended)
    yield from _files(ended, failed, statuses)


def _how(ended: Ended) -> str:
    finished = ended.finished
    assert finished is not None
    state, error = finished.state, finished.error
    model = f"{state.model}@{state.contract}"
    if finished.nothing_to_do:
        return f"{model}: was done before, and there is nothing to do"
    if ended.is_complete:
        return f"{model}: done" + (", and every row failed" if ended.has_all_failed else "")
    return f"{model}: {state.status}" + (f": {error.message}" if error is not None else "")


def _work(ended: Ended) -> Iterator[tuple[str, int | None, str]]:
    finished = ended.finished
    assert finished is not None
    state, view = finished.state, finished.view
    asked = sum(part.asked for part in state.parts) if ended.is_complete or view is None else view.asked
    here = f"{view.asked:,} of them by this process" if view is not None and view.asked != asked else ""
    yield "requests", asked, here
    if view is not None and view.shared:
        yield "  shared", view.shared, "rows that ask the same as another took its answer"
    if view is not None and view.reused:
        yield "  reused", view.reused, "rows took the answer of an earlier job"
    prompt, completion = _tokens(ended)
    yield "tokens", prompt + completion, f"{prompt:,} of prompts, {completion:,} generated"
    if view is not None:
        done = view.settled_here
        speed = f"{rate(done / view.seconds)} rows/s" if view.seconds > 0 and done else ""
        total = f"{duration(state.busy_ms / 1000)} with the runs before it" if _has_run_before(ended) else ""
        yield "time", None, ", ".join(filter(None, [duration(view.seconds), speed, total]))


def _has_run_before(ended: Ended) -> bool:
    finished = ended.finished
    assert finished is not None
    return finished.view is not None and finished.state.busy_ms / 1000 > finished.view.seconds + 1


def _files(ended: Ended, failed: int, statuses: dict[str, int]) -> Iterator[tuple[str, int | None, str]]:
    finished = ended.finished
    assert finished is not None
    files = finished.files
    if ended.is_complete:
        yield "output", None, f"{files.shown} ({size(_output_bytes(ended) or 0)})"
    else:
        written = sum(part.rows for part in finished.state.parts)
        yield "kept", written, f"rows in parts that are complete, beside {files.shown}"
    if failed:
        yield "rejects", None, f"{files.rejects_shown}: each row that failed, with its reason"
    shown = shlex.quote(files.shown)
    if failed > statuses.get("rejected", 0) and ended.is_complete:
        yield "again", None, f"headrace backfill retry failed {shown}"
    if statuses.get("rejected") and ended.is_complete:
        yield "again", None, f"headrace backfill retry rejects {shown}   # once what refuses them has changed"
    if not ended.is_complete:
        yield "to go on", None, _to_go_on(finished) + (", without --anew" if ended.anew else "")


def _to_go_on(finished: Finished) -> str:
    if isinstance(finished.error, BudgetSpent):
        return "run it again with a higher token_budget (--token-budget)"
    if isinstance(finished.error, TooManyFailures):
        return (
            "look at the rejects, then run it again, with a higher max_failures (--max-failures) if need be"
        )
    if finished.state.status == "cancelled":
        return f"`headrace backfill resume {finished.state.job}`, then run it again"
    return "run the same command again"


def _rejects(ended: Ended) -> int:
    assert ended.finished is not None
    if ended.is_complete:
        return sum(map(reject_count, ended.finished.state.parts))
    return sum(count for name, count in ended.statuses.items() if name not in ("ok", NO_ANSWER))


def _codes(ended: Ended) -> dict[str, int]:
    """Of the whole job where it is done; else as far as is known."""
    finished = ended.finished
    assert finished is not None
    if ended.is_complete or finished.view is None:
        return finished.state.codes
    return dict(finished.view.reasons) or finished.state.codes


def _tokens(ended: Ended) -> tuple[int, int]:
    finished = ended.finished
    assert finished is not None
    if ended.is_complete or finished.view is None:
        return finished.state.tokens
    return finished.view.prompt_tokens, finished.view.completion_tokens


def _output_bytes(ended: Ended) -> int | None:
    finished = ended.finished
    assert finished is not None
    if finished.files.is_directory:
        return sum(part.bytes for part in finished.state.parts)
    places = finished.files.places
    return places.folder.size(places.file) if ended.is_complete else None
