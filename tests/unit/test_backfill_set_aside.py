"""A job makes room for a new one in its place, whenever the process is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backfill_rows import KEPT, numbered, ok

from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.output_parts import TableOutput
from headrace.producers.backfill.parts import read_part
from headrace.producers.backfill.state import JobState, state_bytes

COLUMNS = OutputColumns.of(KEPT, None)
ABOUT = {"job": "tags-00000000", "model": "tagger", "contract": "1"}
BAD = Outcome("failed", code="engine_error", error="it broke")
OUTPUTS = pytest.mark.parametrize("output", ["tags.parquet", "tags"])


class Killed(Exception):
    """The process ends here."""


def begun(files: JobFiles, job: str = "tags-00000000", parts: int = 3) -> JobState:
    """A job with parts, the first of which has a reject."""
    output = TableOutput(files.places, COLUMNS, "parquet", ABOUT | {"job": job})
    first = output.write(numbered(2, 0, 2), [BAD, ok("a")], 0)
    others = [output.write(numbered(2, number, 2), [ok("a"), ok("b")], 0) for number in range(1, parts)]
    state = JobState(
        job=job,
        model="tagger",
        contract=1,
        identity={},
        rows=20,
        rows_per_part=2,
        lane_partitions=1,
        results_topic="results",
        offsets={0: 0},
        created_ms=0,
        updated_ms=0,
        parts=[first, *others],
    )
    files.save(state)
    files.write_manifest({"job": job})
    return state


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def killed_after(patch: pytest.MonkeyPatch, operations: int) -> None:
    """Let so many operations on files be done."""
    left = operations

    def counted(do: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return do(*arguments)

        return done

    for name in ("write", "delete", "move"):
        patch.setattr(Folder, name, counted(getattr(Folder, name)))


def set_aside_until(files: JobFiles, state: JobState, operations: int) -> bool:
    """Whether it was killed on the way."""
    with pytest.MonkeyPatch.context() as patch:
        killed_after(patch, operations)
        try:
            files.set_aside(state)
        except Killed:
            return True
    return False


@OUTPUTS
def test_killed_at_any_step_and_repeated_it_keeps_every_part(tmp_path: Path, output: str) -> None:
    """There is a job that was set aside before it, too: that one goes."""
    operations, is_through = 0, False
    while not is_through:
        files = JobFiles(str(tmp_path / str(operations) / output))
        files.set_aside(begun(files, "tags-11111111", parts=4))
        state = begun(files)
        parts = {part.file: files.places.parts.read(part.file) for part in state.parts}
        is_through = not set_aside_until(files, state, operations)
        found = files.state()
        if found is not None:
            files.set_aside(found)
        former = files.former(state.job)
        assert former is not None
        assert former[0] == state
        assert {
            name: former[1].parts.read(name) for name in former[1].parts.names() if name in parts
        } == parts
        assert "part-000003.parquet" not in former[1].parts.names(), "of the job before"
        assert files.places.parts.names() == files.places.rejects.names() == []
        operations += 1
    assert operations > 8


@OUTPUTS
def test_killed_at_any_step_a_job_that_is_to_go_on_after_all_is_as_it_was(
    tmp_path: Path, output: str
) -> None:
    operations, is_killed = 0, True
    while is_killed:
        place = tmp_path / str(operations)
        files = JobFiles(str(place / output))
        state = begun(files)
        before = contents(place)
        is_killed = set_aside_until(files, state, operations)
        found = files.state()
        assert (found is None) != is_killed
        if found is not None:
            for again in range(3):
                with pytest.MonkeyPatch.context() as patch:
                    killed_after(patch, again)
                    try:
                        files.bring_back(found)
                    except Killed:
                        continue
            files.bring_back(found)
            assert contents(place) == before
        operations += 1
    assert operations > 5


@OUTPUTS
def test_parts_that_no_state_names_do_not_stay_among_the_new_jobs(tmp_path: Path, output: str) -> None:
    """A killed process has written them and not said so; the new job may have fewer."""
    files = JobFiles(str(tmp_path / output))
    state = begun(files)
    TableOutput(files.places, COLUMNS, "parquet", ABOUT).write(numbered(2, 9, 2), [BAD, BAD], 0)
    others = ["part-1.parquet", "rejects-000000.jsonl", "somebody-elses.parquet"]
    for name in others:
        files.places.parts.write(name, b"")
    files.set_aside(state)
    assert files.places.parts.names() == others
    assert files.places.rejects.names() == []
    former = files.former(state.job)
    assert former is not None
    assert [read_part(former[1].parts, part, COLUMNS).num_rows for part in state.parts] == [2, 2, 2]


def test_a_job_that_goes_on_is_not_mixed_with_one_that_was_set_aside(tmp_path: Path) -> None:
    files = JobFiles(str(tmp_path / "tags"))
    files.set_aside(begun(files, "tags-11111111"))
    state = begun(files)
    before = contents(tmp_path)
    files.bring_back(state)
    assert contents(tmp_path) == before
    (tmp_path / "tags/_headrace/former/state.json").write_bytes(
        state_bytes(state).replace(b'"format": 1', b'"format": 99')
    )
    files.bring_back(state)
    files.set_aside(state)
    assert files.former(state.job) is not None
