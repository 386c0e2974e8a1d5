"""Jobs that run in this process: a thread each, one reader of the results, one place for signals."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from headrace.ops.cli.backfill_display import Display
from headrace.ops.cli.backfill_summary import Ended, as_json, show
from headrace.ops.cli.backfill_view import JobLine
from headrace.producers.backfill.failures import BackfillError
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.job_process import Feeds, JobProcess, Tellers
from headrace.schemas.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.producers.backfill.job import JobSpec
    from headrace.producers.backfill.progress import JobView
    from headrace.producers.backfill.rounds import Redo
    from headrace.schemas.settings import Settings

JOIN_S: Final = 0.2
FAILED: Final = 1
SIGNALLED: Final = 128  # plus the signal's number


class Interrupted(BackfillError):
    """Somebody has stopped the process."""

    code = "interrupted"


@dataclass(slots=True)
class JobsProcess:
    """Jobs that run side by side until all have ended, or a signal stops them."""

    settings: Settings
    specs: Sequence[JobSpec]
    anew: bool = False
    redo: Redo | None = None
    quiet: bool = False
    signalled: int | None = None
    _processes: list[JobProcess] = field(default_factory=list[JobProcess])
    _ended: dict[int, Ended] = field(default_factory=dict[int, Ended])

    def run(self) -> list[Ended]:
        """How each has ended, in order. Raises UsageError where two have one output."""
        _check_outputs(self.specs)
        feeds = Feeds(self.settings)
        jobs = [JobLine(spec.job_name, spec.model or "its model") for spec in self.specs]
        with Display(jobs, quiet=self.quiet) as display:
            for index, spec in enumerate(self.specs):
                tellers = self._tellers(display, index)
                self._processes.append(
                    JobProcess(self.settings, spec, tellers, anew=self.anew, redo=self.redo)
                )
            threads = [
                threading.Thread(target=self._one, args=(index, feeds, display), name=f"job {job.name}")
                for index, job in enumerate(jobs)
            ]
            with self.signals(display):
                for thread in threads:
                    thread.start()
                for thread in threads:
                    while thread.is_alive():
                        thread.join(JOIN_S)
        return [self._ended[index] for index in range(len(self.specs))]

    def _tellers(self, display: Display, index: int) -> Tellers:
        def say(sentence: str) -> None:
            display.say(index, sentence)

        def look(seen: JobView) -> None:
            display.look(index, seen)

        def reading(read: int, of: int | None) -> None:
            self._check()
            display.reading(index, read, of)

        def joining(rows: int) -> None:
            self._check()
            display.joining(index, rows)

        return Tellers(say, look, reading, joining)

    def _one(self, index: int, feeds: Feeds, display: Display) -> None:
        process = self._processes[index]
        try:
            ended = Ended(process.spec, process.run(feeds), anew=self.anew)
        except HeadraceError as error:
            ended = Ended(process.spec, failure=error)
        except Exception as error:
            logging.getLogger(__name__).exception("job %s", process.spec.job_name)
            ended = Ended(process.spec, failure=HeadraceError(f"an error of our own: {error!r}"))
        self._ended[index] = ended
        display.ended(index, "done" if ended.error is None else "ended")

    # --- signals ---

    def _check(self) -> None:
        """Raises Interrupted while a job reads its input or puts its output together."""
        if self.signalled is not None:
            raise Interrupted(_WHY)

    @contextmanager
    def signals(self, display: Display) -> Generator[None]:
        """The first stops the jobs, the second the process."""

        def stop(number: int, _: FrameType | None) -> None:
            if self.signalled is not None:
                os._exit(
                    SIGNALLED + number
                )  # what is written is whole, and the rest is found by the next run
            self.signalled = number
            # Not from here: this may have interrupted the main thread while it held the display's locks.
            threading.Thread(target=self._stop, args=(display,), daemon=True).start()

        before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _stop(self, display: Display) -> None:
        for process in self._processes:
            process.stop(_WHY)
        if not self.quiet:
            command = "the same command again" + (", without --anew," if self.anew else "")
            display.print(
                f"stopping: nothing more is asked. Run {command} to go on: what is on its way then is "
                "found, and nothing is lost. A second time ends it at once, which loses nothing either"
            )


_WHY: Final = "interrupted"


def _check_outputs(specs: Sequence[JobSpec]) -> None:
    seen: dict[str, JobSpec] = {}
    for spec in specs:
        place = JobFiles(spec.output_path).shown
        if place in seen:
            raise UsageError(f"two of the jobs have the output {place}: give each its own")
        seen[place] = spec


def run_jobs(
    settings: Settings,
    specs: Sequence[JobSpec],
    *,
    anew: bool = False,
    redo: Redo | None = None,
    quiet: bool = False,
    json_wanted: bool = False,
) -> int:
    """Run jobs to their end and say how they ended; the exit code."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what goes wrong there is raised or retried here
    process = JobsProcess(settings, specs, anew, redo, quiet)
    ended = process.run()
    for index, each in enumerate(ended):
        if json_wanted:
            click.echo(as_json(each))
        elif each.finished is not None:
            if index:
                click.echo()
            show(each)
    for each in ended:
        if each.finished is None and each.error is not None and not isinstance(each.error, Interrupted):
            name = f"{each.spec.job_name}: " if len(ended) > 1 else ""
            click.echo(f"error: {name}{each.error}", err=True)
    if process.signalled is not None and any(not each.is_complete for each in ended):
        return SIGNALLED + process.signalled
    return max(map(exit_code, ended))


def exit_code(ended: Ended) -> int:
    """Of one job."""
    if ended.error is not None:
        return ended.error.exit_code
    return FAILED if not ended.is_complete or ended.has_all_failed else 0
