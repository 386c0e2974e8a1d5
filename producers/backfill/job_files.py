"""Where a job's files lie, and what is in them: its state, its parts, what they are put together to, its manifest.

The output is a file: beside it lies the folder `<output>.headrace`, with all that belongs to the job; its parts are put
together when the last one is written. Or it is a directory: its parts are files of it, complete as they come, and all
else lies in its folder `_headrace`, which readers of datasets pass over.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from headrace.producers.backfill.assembly import Assembled, Places, assemble, remove_parts
from headrace.producers.backfill.failures import JobTaken, StateUnreadable
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.output_parts import lay_out_again
from headrace.producers.backfill.parts import reject_count, rejects_name
from headrace.producers.backfill.replacing import put_all_in_place
from headrace.producers.backfill.state import FILE_NAME, JobState, read_state, state_bytes

if TYPE_CHECKING:
    from headrace.producers.backfill.columns import OutputColumns
    from headrace.producers.backfill.job import JobSpec
    from headrace.schemas.messages import JsonObject

MANIFEST = "manifest.json"
BESIDE = ".headrace"
INSIDE = "_headrace"
FORMER = "former"
REJECTS = "rejects"
ERRORS = "errors"  # what a batch's are called, after OpenAI's file
_PART: Final = re.compile(r"part-\d{6,}\.(parquet|jsonl)")
_REJECTS_OF_PART: Final = re.compile(r"rejects-\d{6,}\.jsonl")


class JobFiles:
    """The files of the job whose output is to be at this place."""

    def __init__(self, output: str, rejects: str = "rejects") -> None:
        """`output`: a path or URI; with a suffix it is a file, without one, or with a slash at its end, a directory.

        `rejects`: what the file of rows without an output is called after. Raises OutputFailed.
        """
        self.output = output
        path = output.partition("?")[0] if "://" in output else output
        self.is_directory = path.endswith("/") or not PurePosixPath(path).suffix
        if self.is_directory:
            folder = Folder.at(output.replace(path, path.rstrip("/"), 1))
            self.own = folder.child(INSIDE)
            parts, file, rejects_file = folder, "", f"{INSIDE}/{rejects}.jsonl"
        else:
            folder, file = Folder.of_file(output)
            self.own = folder.child(file + BESIDE)
            # Of the whole name: `tags.jsonl` may lie beside `tags.parquet`. OpenAI's error file is none of that.
            name = file if rejects == REJECTS else PurePosixPath(file).stem
            parts, rejects_file = self.own.child("parts"), f"{name}.{rejects}.jsonl"
        rejected, waiting = self.own.child("rejects"), self.own.child("waiting")
        self.places = Places(parts, rejected, waiting, folder, file, rejects_file)
        self._writer = ""

    @classmethod
    def of(cls, spec: JobSpec) -> JobFiles:
        """The files of a job; what a batch's calls came to instead of an answer is called as OpenAI does. Raises
        OutputFailed."""
        return cls(spec.output_path, REJECTS if spec.openai_batch is None else ERRORS)

    @property
    def shown(self) -> str:
        """The output, for people."""
        return self.places.folder.uri if self.is_directory else self.places.folder.shown(self.places.file)

    @property
    def rejects_shown(self) -> str:
        """The file of rows without an output, for people."""
        return self.places.folder.shown(self.places.rejects_file)

    def state(self) -> JobState | None:
        """Of the job that has begun here; None where there is none. Raises StateUnreadable, OutputFailed."""
        text = self.own.read(FILE_NAME)
        return None if text is None else read_state(text, self.own.shown(FILE_NAME))

    def begin(self, state: JobState) -> None:
        """Write the first state of a job: minutes may have passed since somebody has looked whether there is any.

        Raises OutputFailed, StateUnreadable, and JobTaken where another job has begun here.
        """
        if (found := self.state()) is not None:
            raise JobTaken(
                f"{self.shown}: another process has begun {found.job} here meanwhile: run the job again to go on"
            )
        self._write(state)

    def save(self, state: JobState) -> None:
        """Write the state. Raises OutputFailed, and JobTaken where another process has taken it over."""
        if self._writer:
            self.check_ours(state.job)
        self._write(state)

    def take_over(self, state: JobState, writer: str) -> JobState:
        """Write the state as this process's: whoever had it before finds so when it is to write the next.

        It might not hear of it otherwise: one that was frozen goes on where it stood, before it has heard anything.
        Raises OutputFailed.
        """
        self._writer = writer
        return self._write(state)

    def _write(self, state: JobState) -> JobState:
        state = state.model_copy(update={"writer": self._writer})
        self.own.write(FILE_NAME, state_bytes(state))
        return state

    def check_ours(self, job: str) -> None:
        """Raises JobTaken where another process has written the state since `take_over`."""
        found = self.state()
        if found is None:
            raise JobTaken(f"job {job} was set aside meanwhile: {self.own.shown(FILE_NAME)} is gone")
        if found.job != job:
            raise JobTaken(
                f"job {job} was set aside meanwhile: {self.shown} is the output of {found.job} now"
            )
        if found.writer != self._writer:
            raise JobTaken(
                f"job {job} is run by another process now: it has written {self.own.shown(FILE_NAME)}"
            )

    def sweep(self) -> None:
        """Remove what killed processes have left half written. Raises OutputFailed."""
        places = self.places
        former = self.own.child(FORMER)
        for folder in (self.own, former, places.parts, places.rejects, places.waiting, places.folder):
            folder.sweep()

    def set_aside(self, state: JobState) -> None:
        """Make room for a new job. The former one's state and parts stay, under its id, until the next is set aside.

        Its state goes last. Until then this may be done again, and goes on where it was; or `bring_back`. Parts that
        the state does not name were written by a killed process: the new job might not write others in their place.
        Raises OutputFailed.
        """
        put_all_in_place(self.places, state.parts)
        if not self.is_set_aside(state.job):
            for name in self.own.names(FORMER):
                self.own.delete(name)
        self.own.write(f"{FORMER}/{FILE_NAME}", state_bytes(state))
        named = _files_of(state)
        for name in self._written():
            folder, place, aside = self._place_aside(name)
            if name in named:
                folder.move(place, aside)
            else:
                folder.delete(place)
        if self.own.size(MANIFEST) is not None:
            self.own.move(MANIFEST, f"{FORMER}/{MANIFEST}")
        self.own.delete(FILE_NAME)

    def bring_back(self, state: JobState) -> None:
        """Let a job go on after all that a killed process was setting aside. Raises OutputFailed."""
        if not self.is_set_aside(state.job):
            return
        for path in self.own.names(FORMER):
            name = path.rpartition("/")[2]
            if name != FILE_NAME:
                folder, place, aside = self._place_aside(name)
                folder.move(aside, place)
        self.own.delete(f"{FORMER}/{FILE_NAME}")

    def is_set_aside(self, job: str) -> bool:
        """Whether this is the job that was set aside, though perhaps not all of it. Raises OutputFailed."""
        with contextlib.suppress(StateUnreadable):  # of another release: another job
            return self.former(job) is not None
        return False

    def _written(self) -> Iterator[str]:
        """The files of parts, and of their rejects; in a directory others may lie beside them."""
        yield from filter(_PART.fullmatch, self.places.parts.names())
        yield from filter(_REJECTS_OF_PART.fullmatch, self.places.rejects.names())

    def _place_aside(self, name: str) -> tuple[Folder, str, str]:
        """A folder, and what such a file is called in it while the job has it, and when it is set aside."""
        if name == MANIFEST:
            return self.own, name, f"{FORMER}/{name}"
        if _REJECTS_OF_PART.fullmatch(name):
            return self.own, f"rejects/{name}", f"{FORMER}/{name}"
        if self.is_directory:
            return self.places.folder, name, f"{INSIDE}/{FORMER}/{name}"
        return self.own, f"parts/{name}", f"{FORMER}/{name}"

    def former(self, job: str | None) -> tuple[JobState, Places] | None:
        """The job that was set aside here, if it is this one: its state, and where its parts, or its file, are.

        None: whichever it is.
        """
        text = self.own.read(f"{FORMER}/{FILE_NAME}")
        if text is None:
            return None
        state = read_state(text, self.own.shown(f"{FORMER}/{FILE_NAME}"))
        return (
            (state, replace(self.places, parts=self.own.child(FORMER))) if job in (None, state.job) else None
        )

    def put_together(
        self,
        state: JobState,
        columns: OutputColumns,
        about: Mapping[str, str],
        progress: Callable[[int], None],
    ) -> Assembled:
        """The output and the rejects of a job whose parts are all there. Raises OutputFailed."""
        return assemble(self.places, state.parts, columns, about, progress)

    def remove_parts(self, state: JobState) -> None:
        """Once they have been put together, as far as the job is this process's: who has it now may need them.

        A process that was frozen meanwhile, or is slow, finds parts that the next one has laid out again for a round.
        Raises OutputFailed.
        """

        def check() -> None:
            self.check_ours(state.job)

        with contextlib.suppress(JobTaken):
            check()
            self.places.waiting.delete_if_empty()
            if not self.is_directory:
                remove_parts(self.places, state.parts, check)

    def has_parts_left(self, state: JobState) -> bool:
        """Whether parts lie beside the file that was put together of them. Raises OutputFailed."""
        return not self.is_directory and not _files_of(state).isdisjoint(self._written())

    def laid_out(self, state: JobState, columns: OutputColumns, about: Mapping[str, str]) -> JobState:
        """The state once the parts of a job that was put together, which a round reads, are files again.

        Whoever runs the job does so, until the round has written a part: from then on the parts are others than those
        that the output was put together of. Raises OutputFailed.
        """
        is_new_round = state.redo is not None and all(part.round < state.round for part in state.parts)
        if state.status == "done" or (is_new_round and self._was_put_together(state.job)):
            return lay_out_again(self.places, state, columns, about)
        return state

    def _was_put_together(self, job: str) -> bool:
        """Whether the output is this job's; it may be another's that was set aside."""
        text = self.own.read(MANIFEST)
        return text is not None and json.loads(text).get("job") == job

    def write_open_failures(self, failures: Iterable[bytes], state: JobState) -> None:
        """All rows that have failed so far, those of parts and these of chunks that have none yet, as one file.

        `failures` are lines. For people who look why a job has stopped: the next run does without it. Raises
        OutputFailed, and JobTaken where another process has taken the job over.
        """
        lines: list[bytes] = []
        for part in state.parts:
            if reject_count(part):
                lines.append(self.places.rejects.read(rejects_name(part.number)) or b"")
        lines.extend(failures)
        if lines:
            self.check_ours(state.job)  # or a complete file of the next process's might be replaced
            self.places.folder.write(self.places.rejects_file, b"".join(lines))

    def write_manifest(self, manifest: JsonObject) -> None:
        """Raises OutputFailed."""
        self.own.write(MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def _files_of(state: JobState) -> set[str]:
    """What a state's parts, and their rejects if there are any, are called."""
    return {name for part in state.parts for name in (part.file, rejects_name(part.number))}
