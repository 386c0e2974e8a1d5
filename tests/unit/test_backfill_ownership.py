"""Whoever has lost a job, or has never had it, changes nothing of it: not its parts, its state or its rejects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from backfill_rows import KEPT, numbered, ok

from headrace.producers.backfill import job_process
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.failures import JobTaken
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.job_files import JobFiles
from headrace.producers.backfill.job_process import JobProcess
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.output_parts import TableOutput
from headrace.producers.backfill.rounds import begin_again
from headrace.producers.backfill.state import JobState
from headrace.schemas.settings import Settings

COLUMNS = OutputColumns.of(KEPT, None)
ABOUT = {"job": "tags-00000000", "model": "tagger", "contract": "1"}
BAD = Outcome("failed", code="engine_error", error="it broke")


def a_state(job: str = "tags-00000000", **fields: Any) -> JobState:
    return JobState(
        job=job,
        model="tagger",
        contract=1,
        identity={},
        rows=10,
        rows_per_part=5,
        lane_partitions=1,
        results_topic="results",
        offsets={0: 0},
        created_ms=0,
        updated_ms=0,
        **fields,
    )


def files_in(directory: Path, file: str = "tags.parquet") -> JobFiles:
    return JobFiles(str(directory / file))


def done(files: JobFiles) -> JobState:
    """A job of two parts, each with a reject, that was put together; its parts are still there."""
    output = TableOutput(files.places, COLUMNS, "parquet", ABOUT)
    parts = [output.write(numbered(5, number, 5), [ok("a")] * 4 + [BAD], 0) for number in range(2)]
    state = a_state(parts=parts, status="done")
    files.put_together(state, COLUMNS, ABOUT, lambda _: None)
    files.write_manifest({"job": state.job})
    return files.take_over(state, "first")


def part_files(files: JobFiles) -> list[str]:
    return [*files.places.parts.names(), *files.places.rejects.names()]


ALL = ["part-000000.parquet", "part-000001.parquet", "rejects-000000.jsonl", "rejects-000001.jsonl"]


class Link:
    """`OrdersLink` without a broker."""

    incarnation = "this"
    said: list[str]
    other: object = None

    def __init__(self, *_: object) -> None:
        self.said.append("opened")

    def order(self) -> None: ...

    def other_process(self) -> object:
        return self.other

    def tell(self, status: str, **_: int) -> None:
        self.said.append(status)

    def check(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> type[Link]:
    """What a process says, and hears of another."""
    found = type("ThisLink", (Link,), {"said": []})
    view = SimpleNamespace(id=("tagger", 1))
    source = SimpleNamespace(row_count=10)
    names = SimpleNamespace(results="results")
    job = SimpleNamespace(identity={}, columns=COLUMNS, names=names, view=view, source=source)
    wire = SimpleNamespace(partitions=1, close=lambda: None)
    monkeypatch.setattr(job_process, "OrdersLink", found)
    for name, is_always in (("prepare", job), ("KafkaWire", wire), ("end_of_results", {0: 0})):
        monkeypatch.setattr(job_process, name, _always(is_always))
    return found


def _always(found: object) -> Callable[..., object]:
    def called(*_: object, **__: object) -> object:
        return found

    return called


def _raises(error: type[BaseException]) -> Callable[..., object]:
    def called(*_: object, **__: object) -> object:
        raise error

    return called


def a_process(files: JobFiles, **fields: Any) -> JobProcess:
    spec: Any = SimpleNamespace(
        output_path=files.shown,
        openai_batch=None,
        lane="backfill",
        dedupe=False,
        reuse=None,
        job_name="tags",
        rows_per_part=5,
        input_path="films.jsonl",
        model_dump=_always({}),
    )
    return JobProcess(Settings(), spec, **fields)


# --- parts of a job that is done ----------------------------------------------------------------------------------


def test_parts_that_another_process_lays_out_again_stay_when_there_is_nothing_to_do(
    tmp_path: Path, link: type[Link]
) -> None:
    """It has them out for a round; its state says done until all are there."""
    files = files_in(tmp_path)
    state = done(files)
    link.other = object()
    assert a_process(files).run().nothing_to_do
    assert part_files(files) == ALL
    assert files.state() == state


def test_parts_that_a_killed_process_has_left_are_removed_by_who_has_claimed_the_job(
    tmp_path: Path, link: type[Link]
) -> None:
    files = files_in(tmp_path)
    done(files)
    assert a_process(files).run().nothing_to_do
    assert part_files(files) == []
    found = files.state()
    assert found is not None
    assert (found.writer, link.said) == ("this", ["opened", "running", "done"])
    assert a_process(files).run().nothing_to_do
    assert link.said == ["opened", "running", "done"], "nothing was left: it needs no claim"


@pytest.mark.parametrize("deleted", range(4))
def test_who_is_frozen_while_it_removes_parts_leaves_those_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: int
) -> None:
    files, second = files_in(tmp_path), files_in(tmp_path)
    state = done(files)
    delete: Callable[[Folder, str], None] = Folder.delete
    count = 0

    def deletes(folder: Folder, name: str) -> None:
        nonlocal count
        delete(folder, name)
        count += 1
        if count == deleted:  # here it is frozen, and another one begins a round
            second.take_over(begin_again(second.laid_out(state, COLUMNS, ABOUT), "failed"), "second")

    monkeypatch.setattr(Folder, "delete", deletes)
    if not deleted:
        second.take_over(begin_again(state, "failed"), "second")
    files.remove_parts(state)
    assert part_files(files) == ALL


def test_a_process_that_has_never_had_the_job_removes_nothing(tmp_path: Path) -> None:
    state = done(files_in(tmp_path))
    files_in(tmp_path).remove_parts(state)
    assert part_files(files_in(tmp_path)) == ALL


def test_who_has_lost_the_job_when_it_is_done_does_not_say_so(tmp_path: Path, link: type[Link]) -> None:
    """That word would take it from the process that has it now."""
    files = files_in(tmp_path)
    done(files)

    def loses(_: Folder, __: str) -> None:
        files_in(tmp_path).take_over(a_state(), "second")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "delete", loses)
        a_process(files).run()
    assert link.said == ["opened", "running"]


# --- parts of a round ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gone", [ALL, ALL[1:2], [ALL[0], ALL[2]]], ids=["all", "one", "with its rejects"])
def test_whoever_goes_on_with_a_round_lays_out_what_is_missing(tmp_path: Path, gone: list[str]) -> None:
    files = files_in(tmp_path)
    state = begin_again(done(files), "failed")
    before = {name: (files.places.parts.read(name), files.places.rejects.read(name)) for name in ALL}
    for name in gone:
        files.places.parts.delete(name)
        files.places.rejects.delete(name)
    assert files.laid_out(state, COLUMNS, ABOUT) == state
    assert before == {name: (files.places.parts.read(name), files.places.rejects.read(name)) for name in ALL}


@pytest.mark.parametrize("redo", [None, "failed"])
def test_a_run_goes_on_with_a_round_whose_parts_are_missing(
    tmp_path: Path, link: type[Link], monkeypatch: pytest.MonkeyPatch, redo: Any
) -> None:
    files = files_in(tmp_path)
    files.save(begin_again(done(files), "failed"))
    for name in ALL:
        files.places.parts.delete(name)
        files.places.rejects.delete(name)

    class Worked(Exception):
        """As far as this goes."""

    def work(*_: object) -> None:
        assert part_files(files) == ALL
        raise Worked

    monkeypatch.setattr(JobProcess, "_work", work)
    with pytest.raises(Worked):
        a_process(files, redo=redo).run()


def test_nothing_is_laid_out_of_an_output_that_is_not_what_the_parts_were(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    state = begin_again(done(files), "failed")
    files.places.parts.delete(ALL[0])
    anew = TableOutput(files.places, COLUMNS, "parquet", ABOUT).write(numbered(5, 1, 5), [ok("a")] * 5, 1)
    assert files.laid_out(state.model_copy(update={"parts": state.with_part(anew)}), COLUMNS, ABOUT)
    files.write_manifest({"job": "tags-11111111"})  # of the job that was set aside
    files.laid_out(state, COLUMNS, ABOUT)
    assert ALL[0] not in part_files(files)


@pytest.mark.parametrize("status", ["running", "done"])
@pytest.mark.parametrize("output", ["tags.parquet", "tags"])
def test_a_job_that_was_half_set_aside_is_as_it_was_when_it_goes_on(
    tmp_path: Path, link: type[Link], monkeypatch: pytest.MonkeyPatch, output: str, status: Any
) -> None:
    """By a process that was killed; and then somebody runs the job without --anew."""
    files = files_in(tmp_path, output)
    state = done(files).model_copy(update={"status": status})
    files.save(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Folder, "delete", _raises(KeyboardInterrupt))  # its last step, of the state
        with pytest.raises(KeyboardInterrupt):
            files.set_aside(state)
    assert part_files(files) == []
    monkeypatch.setattr(JobProcess, "_work", _raises(KeyboardInterrupt))
    try:
        assert a_process(files).run().nothing_to_do
    except KeyboardInterrupt:
        assert status == "running"
    assert part_files(files) == ([] if (output, status) == ("tags.parquet", "done") else ALL)
    assert files.former(state.job) is None


# --- what else a process writes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["running", "done"])
def test_a_job_that_has_begun_meanwhile_is_not_written_over(
    tmp_path: Path, link: type[Link], monkeypatch: pytest.MonkeyPatch, status: Any
) -> None:
    """Between the look for a state and the first one that is written lies all that is asked of Kafka."""
    files = files_in(tmp_path)
    other = a_state("tags-11111111", status=status)

    def ends(*_: object, **__: object) -> dict[int, int]:
        files.save(other)
        return {0: 0}

    monkeypatch.setattr(job_process, "end_of_results", ends)
    with pytest.raises(JobTaken, match="another process has begun tags-11111111 here meanwhile: run the job"):
        a_process(files).run()
    assert files.state() == other


def test_who_is_frozen_before_it_writes_its_rejects_leaves_the_complete_ones(tmp_path: Path) -> None:
    files, second = files_in(tmp_path), files_in(tmp_path)
    state = done(files)
    complete = files.places.folder.read(files.places.rejects_file)
    second.take_over(state, "second")
    with pytest.raises(JobTaken):
        files.write_open_failures([b"{}\n"], state)
    assert files.places.folder.read(files.places.rejects_file) == complete
    second.write_open_failures([b"{}\n"], state)
    assert files.places.folder.read(files.places.rejects_file) == (complete or b"") + b"{}\n"


def test_who_is_frozen_before_it_writes_the_manifest_leaves_the_one_that_is_there(
    tmp_path: Path, link: type[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(tmp_path)
    files.save(done(files).model_copy(update={"status": "written"}))
    manifest = files.own.read("manifest.json")
    put_together = JobFiles.put_together

    def is_frozen_then(of: JobFiles, *arguments: Any) -> object:
        assembled = put_together(of, *arguments)
        files_in(tmp_path).take_over(a_state(), "second")
        return assembled

    monkeypatch.setattr(JobFiles, "put_together", is_frozen_then)
    with pytest.raises(JobTaken, match="is run by another process now"):
        a_process(files).run()
    assert files.own.read("manifest.json") == manifest


def test_who_is_frozen_while_it_puts_parts_together_leaves_the_output(
    tmp_path: Path, link: type[Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_in(tmp_path)
    done(files)
    files.save(a_state(parts=done(files).parts, status="written"))
    files.places.folder.write("tags.parquet", b"the next one's")

    def joining(rows: int) -> None:
        if rows == 5:  # of ten
            files_in(tmp_path).take_over(a_state(), "second")

    process = a_process(files)
    process.tell.joining = joining
    with pytest.raises(JobTaken, match="is run by another process now"):
        process.run()
    assert files.places.folder.read("tags.parquet") == b"the next one's"
