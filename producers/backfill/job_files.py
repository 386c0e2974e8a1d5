"""Where a job's files lie, and what is in them: its state, its parts, what they are put together to, its manifest.

The output is a file: beside it lies the folder `<output>.headrace`, with all that belongs to the job; its parts are put
together when the last one is written. Or it is a directory: its parts are files of it, complete as they come, and all
else lies in its folder `_headrace`, which readers of datasets pass over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from headrace.producers.backfill.assembly import Assembled, Places, assemble, remove_parts
from headrace.producers.backfill.failures import JobTaken
from headrace.producers.backfill.folder import Folder
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
        return cls(spec.output_path, REJECTS if spec.openai_batch is None else "errors")

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
        for folder in (self.own, places.parts, places.rejects, places.waiting, places.folder):
            folder.sweep()

    def set_aside(self, state: JobState) -> None:
        """Make room for a new job. The former one's state and parts stay, under its id, until the next is set aside.

        Raises OutputFailed.
        """
        put_all_in_place(self.places, state.parts)
        for name in self.own.names(FORMER):
            self.own.delete(name)
        at = self.places.folder if self.is_directory else self.own
        of, to = ("", f"{INSIDE}/{FORMER}/") if self.is_directory else ("parts/", f"{FORMER}/")
        for part in state.parts:
            if self.places.parts.size(part.file) is not None:
                at.move(of + part.file, to + part.file)
        self.own.write(f"{FORMER}/{FILE_NAME}", state_bytes(state))
        self.own.delete(FILE_NAME)
        self.own.delete(MANIFEST)

    def former(self, job: str) -> tuple[JobState, Places] | None:
        """The job that was set aside here, if it is this one: its state, and where its parts, or its file, are."""
        text = self.own.read(f"{FORMER}/{FILE_NAME}")
        if text is None:
            return None
        state = read_state(text, self.own.shown(f"{FORMER}/{FILE_NAME}"))
        return (state, replace(self.places, parts=self.own.child(FORMER))) if state.job == job else None

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
        """Once they have been put together. Raises OutputFailed."""
        self.places.waiting.delete_if_empty()
        if not self.is_directory:
            remove_parts(self.places, state.parts)

    def write_open_failures(self, failures: Iterable[bytes], state: JobState) -> None:
        """All rows that have failed so far, those of parts and these of chunks that have none yet, as one file.

        `failures` are lines. For people who look why a job has stopped: the next run does without it. Raises
        OutputFailed.
        """
        lines: list[bytes] = []
        for part in state.parts:
            if reject_count(part):
                lines.append(self.places.rejects.read(rejects_name(part.number)) or b"")
        lines.extend(failures)
        if lines:
            self.places.folder.write(self.places.rejects_file, b"".join(lines))

    def write_manifest(self, manifest: JsonObject) -> None:
        """Raises OutputFailed."""
        self.own.write(MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
