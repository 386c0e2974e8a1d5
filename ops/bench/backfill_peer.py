"""One peer of `headrace backfill`: a command that a user would type, and what is measured of it."""

from __future__ import annotations

import abc
import contextlib
import re
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.ops.bench.backfill_contenders import (
    Answer,
    BadRowFigures,
    KilledFigures,
    Progress,
    RunFigures,
    is_in_order,
    lost_and_doubled,
    steady_rows_per_s,
)
from headrace.ops.bench.backfill_rows import Asking, BadRow, FilmRow, too_long, write_lines
from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.watched_process import WatchedProcess
from headrace.schemas.errors import OutputError
from headrace.schemas.output_schema import OutputSchema

WITHIN_S = 3_600.0  # of a whole run
LOOK_EVERY_S = 0.2
SAID = 300  # characters that are kept of what a contender says of a bad row
LINES_SEARCHED = 400  # of the end of a log, for what ended the job


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The same of every contender."""

    weights: Path
    dtype: str = "float32"
    max_model_len: int = 1024
    max_num_seqs: int = 256
    enforce_eager: bool = True
    enable_prefix_caching: bool = False
    backend: str = "xgrammar"  # that `headrace` takes for the rows' schema
    threads: int | None = None  # that a model on CPUs runs in; None: as many as there are processors

    @property
    def arguments(self) -> dict[str, int | bool | str]:
        """vLLM's, except for the next."""
        return {
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "enforce_eager": self.enforce_eager,
            "enable_prefix_caching": self.enable_prefix_caching,
        }

    @property
    def environment(self) -> dict[str, str]:
        """Of the engine's process."""
        return {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}

    @property
    def structured_outputs_config(self) -> dict[str, str | bool]:
        """As a worker of ours has it: without this, a model of random weights writes blanks for ever."""
        return {"backend": self.backend, "disable_any_whitespace": True}


class Peer(abc.ABC):
    """What the measurements of both peers have in common."""

    steady_by: str

    def __init__(self, name: str, engine: EngineSettings, asking: Asking) -> None:
        self.name = name
        self.engine = engine
        self.asking = asking
        self._admits = OutputSchema.parse(asking.schema)

    @abc.abstractmethod
    def command(self, source: Path, target: Path, place: Path) -> list[str]:
        """What a user would type."""

    @abc.abstractmethod
    def environment(self, scratch: Path) -> dict[str, str]:
        """Of the command. `scratch` is an empty folder with a short path, which is gone after the run."""

    @abc.abstractmethod
    def input_lines(self, rows: Sequence[FilmRow]) -> list[str]:
        """The rows in the form that it reads."""

    @abc.abstractmethod
    def target(self, place: Path) -> Path:
        """The file or folder that it writes."""

    @abc.abstractmethod
    def answers(self, target: Path) -> list[Answer]:
        """What stands in the output, in its order; nothing where there is no output."""

    @abc.abstractmethod
    def done_by(self, line: str) -> int | None:
        """How many rows are done, if that is what a printed line says."""

    def progress(self, process: WatchedProcess, target: Path) -> Progress:
        """Of a run that has ended: as finely as it can be seen."""
        del target
        return list(_told(self, process))

    def run(self, rows: Sequence[FilmRow], place: Path) -> RunFigures:
        """See the port."""
        source, target = place / "rows.jsonl", self.target(place)
        write_lines(self.input_lines(rows), source)
        with self._start(source, target, place) as process:
            code = process.wait(WITHIN_S)
            exit_seconds = process.seconds
        if code != 0:
            raise BenchFailed(f"{self.name} ended with {code}; its log: {process.log}")
        answers = self.answers(target)
        good = [answer for answer in answers if answer.text is not None and self._admitted(answer.text)]
        progress = self.progress(process, target)
        rate = steady_rows_per_s(progress, len(rows))
        completion = sum(answer.completion_tokens for answer in answers)
        return RunFigures(
            contender=self.name,
            rows=len(rows),
            ok=len(good),
            seconds=_written_at(target) - process.began,
            exit_seconds=exit_seconds,
            first_row_seconds=next((at for at, done in progress if done > 0), None),
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            completion_tokens=completion,
            steady_tokens_per_s=None if rate is None else rate * completion / len(rows),
            steady_by=self.steady_by,
            peak_rss=process.peak_rss,
            peak_pss=process.peak_pss,
            in_order=is_in_order(rows, answers),
        )

    def killed_halfway(self, rows: Sequence[FilmRow], place: Path) -> KilledFigures:
        """See the port."""
        source, target = place / "rows.jsonl", self.target(place)
        write_lines(self.input_lines(rows), source)
        with self._start(source, target, place) as process:
            done = self._wait_for_half(process, len(rows))
            seconds_until_kill = process.seconds
        kept = self.answers(target)
        with self._start(source, target, place) as again:
            code = again.wait(WITHIN_S)
            seconds_again = again.seconds
        if code != 0:
            raise BenchFailed(f"{self.name}, run again, ended with {code}; its log: {again.log}")
        after = self.answers(target)
        lost, doubled = lost_and_doubled(rows, after)
        is_kept = self.keeps_output()
        return KilledFigures(
            contender=self.name,
            rows=len(rows),
            done_at_kill=max(done, len(kept)),  # what it prints comes late
            kept=len(kept),
            asked_again=len(after) - (len(kept) if is_kept else 0),
            lost=lost,
            doubled=doubled,
            seconds_until_kill=seconds_until_kill,
            seconds_again=seconds_again,
        )

    def keeps_output(self) -> bool:
        """Whether a second run leaves what the first has written, and adds to it."""
        return False

    def with_bad_row(self, rows: Sequence[FilmRow], bad: BadRow, place: Path) -> BadRowFigures:
        """See the port."""
        source, target = place / "rows.jsonl", self.target(place)
        middle = len(rows) // 2
        given = [*rows[:middle], too_long(rows[middle]), *rows[middle + 1 :]] if bad == "too long" else rows
        write_lines(self.input_lines(given), source, cut=middle if bad == "not JSON" else None)
        with self._start(source, target, place) as process:
            code = process.wait(WITHIN_S)
            seconds = process.seconds
        answers = self.answers(target)
        said = next((answer.error for answer in answers if answer.id == rows[middle].id), None)
        return BadRowFigures(
            contender=self.name,
            rows=len(rows),
            bad=bad,
            exit_code=code,
            ok=sum(answer.text is not None for answer in answers),
            said_of_it=None if said is None else said[:SAID],
            last_words="" if code == 0 else last_words(process.last_lines(LINES_SEARCHED))[:SAID],
            seconds=seconds,
        )

    @contextlib.contextmanager
    def _start(self, source: Path, target: Path, place: Path) -> Generator[WatchedProcess]:
        with (
            tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as scratch,
            WatchedProcess(
                self.command(source, target, place),
                environment=self.environment(Path(scratch)),
                log=place / "job.log",
                directory=place,
            ) as process,
        ):
            yield process

    def _wait_for_half(self, process: WatchedProcess, rows: int) -> int:
        deadline = time.monotonic() + WITHIN_S
        while True:
            done = max((count for _, count in _told(self, process)), default=0)
            if process.process.poll() is not None:
                raise BenchFailed(
                    f"{self.name} had ended before half of its rows were seen to be done (take more rows)"
                )
            if done >= rows / 2:
                return done
            if time.monotonic() > deadline:
                raise BenchFailed(f"{self.name} had not done half of its rows after {WITHIN_S:.0f} s")
            time.sleep(LOOK_EVERY_S)

    def _admitted(self, text: str) -> bool:
        try:
            self._admits.check(text)
        except OutputError:
            return False
        return True


def last_words(lines: Sequence[str]) -> str:
    """Of the lines that a failed job has printed, the one that says why: where the last traceback ends."""
    return next(
        (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)),
        lines[-1] if lines else "",
    )


def _told(peer: Peer, process: WatchedProcess) -> Iterator[tuple[float, int]]:
    for at, line in list(process.lines):
        done = peer.done_by(line)
        if done is not None:
            yield at, done


def _written_at(target: Path) -> float:
    """When the last of it was written, in seconds since the epoch."""
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.is_file()]
    if not files:
        raise BenchFailed(f"there is no output in {target}")
    return max(file.stat().st_mtime for file in files)
