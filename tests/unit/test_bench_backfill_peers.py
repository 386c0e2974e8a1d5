"""What the comparison with the peers reads off their outputs, and what it makes of that."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from waiting import wait_until

from headrace.ops.bench.backfill_contenders import (
    Answer,
    BadRowFigures,
    KilledFigures,
    Measured,
    Plan,
    RunFigures,
    is_in_order,
    lost_and_doubled,
    measure,
    steady_rows_per_s,
)
from headrace.ops.bench.backfill_peer import EngineSettings, Peer, last_words
from headrace.ops.bench.backfill_peers import RayDataLlm, RunBatch, batch_answer, ray_answer
from headrace.ops.bench.backfill_rows import (
    Asking,
    FilmRow,
    batch_lines,
    film_rows,
    film_schema,
    table_lines,
    too_long,
    write_lines,
)
from headrace.ops.bench.backfill_table import comparison_table
from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.watched_process import WatchedProcess

ASKING = Asking({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
ENGINE = EngineSettings(Path("weights"))

# Answers a row each time that its input has one, and keeps them in a file until the end, as run-batch does; with
# `--append` it adds each to the output at once.
PRETENDER = """
import json, pathlib, sys, time
source, target, append = sys.argv[1], pathlib.Path(sys.argv[2]), "--append" in sys.argv
lines, said = pathlib.Path(source).read_text().splitlines(), []
rows = [json.loads(line) for line in lines]
pause = 0.0 if target.with_suffix(".slow").exists() else 0.02
target.with_suffix(".slow").touch()
for number, row in enumerate(rows, 1):
    if "and then and then" in row["prompt"]:
        answer = {"custom_id": row["custom_id"], "error": "too long"}
    else:
        answer = {"custom_id": row["custom_id"], "text": '{"n": 1}'}
    if append:
        with target.open("a") as file:
            file.write(json.dumps(answer) + chr(10))
    said.append(answer)
    print("done", number, flush=True)
    time.sleep(pause)
if not append:
    target.write_text("".join(json.dumps(answer) + chr(10) for answer in said))
"""


class Pretender(Peer):
    """A peer that takes no time, as a process of its own."""

    steady_by = "its lines"

    def __init__(self, *, append: bool = False) -> None:
        super().__init__("pretender", ENGINE, ASKING)
        self.append = append

    def command(self, source: Path, target: Path, place: Path) -> list[str]:
        return [
            sys.executable,
            "-c",
            PRETENDER,
            str(source),
            str(target),
            *(["--append"] if self.append else []),
        ]

    def environment(self, scratch: Path) -> dict[str, str]:
        return dict(os.environ)

    def input_lines(self, rows: Sequence[FilmRow]) -> list[str]:
        return table_lines(rows)

    def target(self, place: Path) -> Path:
        return place / "answers.jsonl"

    def answers(self, target: Path) -> list[Answer]:
        if not target.exists():
            return []
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        return [Answer(line["custom_id"], line.get("text"), 10, 4, error=line.get("error")) for line in lines]

    def done_by(self, line: str) -> int | None:
        return int(line.removeprefix("done ")) if line.startswith("done ") else None

    def keeps_output(self) -> bool:
        return self.append


def test_rows_are_the_same_each_time_and_no_two_are_alike() -> None:
    rows = film_rows(5_000)
    assert rows[:100] == film_rows(100)
    assert len({row.prompt for row in rows}) == len({row.id for row in rows}) == 5_000


def test_both_peers_are_asked_the_same() -> None:
    row = film_rows(1)[0]
    asking = dataclasses.replace(ASKING, seed=3)
    body = json.loads(batch_lines([row], "m", asking)[0])["body"]
    assert body["messages"] == [{"role": "user", "content": row.prompt}]
    assert json.loads(table_lines([row])[0])["prompt"] == row.prompt
    assert {name: body[name] for name in asking.sampling} == asking.sampling
    assert body["seed"] == 3
    assert body["response_format"]["json_schema"]["schema"] == asking.schema
    batch = RunBatch(ENGINE, asking).command(Path("i"), Path("o"), Path())
    ray = RayDataLlm(Path("python"), ENGINE, asking).command(Path("i"), Path("o"), Path())
    engine = json.loads(ray[ray.index("--engine") + 1])
    assert (
        json.loads(batch[batch.index("--structured-outputs-config") + 1])
        == engine["structured_outputs_config"]
    )
    assert batch[batch.index("--max-num-seqs") + 1] == str(engine["max_num_seqs"])
    assert "--no-enable-prefix-caching" in batch
    assert engine["enable_prefix_caching"] is False
    assert json.loads(ray[ray.index("--sampling") + 1]) == asking.sampling


def test_a_row_that_is_too_long_and_a_line_that_is_no_json_differ_from_the_rest_in_that_alone(
    tmp_path: Path,
) -> None:
    rows = film_rows(3)
    assert too_long(rows[1]).id == rows[1].id
    assert len(too_long(rows[1]).prompt.split()) > 10_000
    write_lines(table_lines(rows), tmp_path / "rows", cut=1)
    first, bad, last = (tmp_path / "rows").read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in (first, last)] == [rows[0].id, rows[2].id]
    with pytest.raises(json.JSONDecodeError):
        json.loads(bad)


def test_answers_of_a_batch_file_are_read_with_their_tokens_and_failures_without_a_text() -> None:
    usage = {"prompt_tokens": 211, "completion_tokens": 105, "total_tokens": 316}
    body = {"choices": [{"message": {"content": "{}"}}], "usage": usage}
    good = {"custom_id": "a", "response": {"status_code": 200, "body": body}, "error": None}
    assert batch_answer(good) == Answer("a", "{}", 211, 105)
    error = {"error": {"message": "maximum context length", "code": 400}}
    bad = batch_answer({"custom_id": "b", "response": {"status_code": 400, "body": None}, "error": error})
    assert bad.text is None
    assert "maximum context length" in str(bad.error)


def test_answers_of_ray_are_read_with_their_tokens_and_failures_without_a_text() -> None:
    row = {"custom_id": "a", "text": "{}", "prompt_tokens": 211, "completion_tokens": 105, "ended": 1.0}
    assert ray_answer({**row, "__inference_error__": ""}) == Answer("a", "{}", 211, 105)
    failed = {"custom_id": "b", "__inference_error__": "ValueError: too long", "text": None}
    assert ray_answer(failed) == Answer("b", None, error="ValueError: too long")


def test_progress_is_seen_in_what_the_peers_print() -> None:
    batch, ray = RunBatch(ENGINE, ASKING), RayDataLlm(Path("python"), ENGINE, ASKING)
    assert batch.done_by("Running batch:  52% Completed | 262/500 [00:10<00:07, 29.94req/s]") == 262
    assert batch.done_by("Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00]") is None
    assert ray.done_by("INFO logging_progress.py:231 -- MapBatches(vLLMEngineStageUDF): 64/500") == 64
    assert ray.done_by("INFO logging_progress.py:231 -- Map(_postprocess)->Write: 64/500") is None


def test_the_steady_rate_leaves_out_the_start_and_the_end() -> None:
    # 30 s of loading, 10 rows a second, and a tail that takes 100 s.
    progress = [(30.0, 0), (35.0, 50), (40.0, 100), (80.0, 500), (121.0, 910), (221.0, 1_000)]
    assert steady_rows_per_s(progress, 1_000) == pytest.approx(10.0)


@pytest.mark.parametrize("progress", [[], [(30.0, 0), (60.0, 100)], [(30.0, 0), (60.0, 50)]])
def test_without_progress_between_start_and_end_there_is_no_steady_rate(
    progress: list[tuple[float, int]],
) -> None:
    assert steady_rows_per_s(progress, 100) is None


def test_lost_doubled_and_disordered_rows_are_told_apart() -> None:
    rows = film_rows(4)
    answers = [Answer(rows[number].id, "{}") for number in (1, 0, 0, 3)]
    assert lost_and_doubled(rows, answers) == (1, 1)
    assert not is_in_order(rows, answers)
    assert is_in_order(rows, [Answer(row.id, "{}") for row in rows])


def test_a_run_counts_what_the_schema_admits_and_when_the_file_was_finished(tmp_path: Path) -> None:
    found = Pretender().run(film_rows(50), tmp_path)
    assert (found.rows, found.ok, found.prompt_tokens, found.completion_tokens) == (50, 50, 500, 200)
    assert 50 * 0.02 < found.seconds <= found.exit_seconds + 0.1
    assert found.steady_tokens_per_s is not None
    assert 4 * 10 < found.steady_tokens_per_s <= 4 / 0.02
    assert found.in_order


@pytest.mark.parametrize(("append", "kept_all", "doubled"), [(False, False, False), (True, True, True)])
def test_killed_at_half_a_peer_that_begins_anew_generates_again_what_was_done(
    tmp_path: Path, append: bool, kept_all: bool, doubled: bool
) -> None:
    found = Pretender(append=append).killed_halfway(film_rows(100), tmp_path)
    assert 50 <= found.done_at_kill < 100
    assert found.asked_again == 100
    assert found.regenerated == found.done_at_kill
    assert (found.kept >= found.done_at_kill) is kept_all
    assert (found.doubled > 0) is doubled
    assert found.lost == 0


def test_a_peer_that_ends_before_half_is_seen_cannot_be_killed_there(tmp_path: Path) -> None:
    silent = Pretender()
    silent.done_by = lambda line: None  # type: ignore[method-assign]
    with pytest.raises(BenchFailed, match="take more rows"):
        silent.killed_halfway(film_rows(2), tmp_path)


def test_a_bad_row_either_ends_the_job_or_is_told_of(tmp_path: Path) -> None:
    for place in ("long", "broken"):
        (tmp_path / place).mkdir()
    long = Pretender().with_bad_row(film_rows(9), "too long", tmp_path / "long")
    assert (long.exit_code, long.ok, long.said_of_it, long.ends_the_job) == (0, 8, "too long", False)
    broken = Pretender().with_bad_row(film_rows(9), "not JSON", tmp_path / "broken")
    assert (broken.ok, broken.said_of_it, broken.ends_the_job) == (0, None, True)
    assert broken.exit_code == 1
    assert "JSONDecodeError" in broken.last_words


def test_all_that_the_plan_names_is_measured_each_in_a_folder_of_its_own(tmp_path: Path) -> None:
    said: list[str] = []
    found = measure(Pretender(), Plan(rows=20, times=2, killed_rows=60, bad_rows=4), tmp_path, said.append)
    assert [run.rows for run in found.runs] == [20, 20]
    assert found.killed is not None
    assert found.killed.rows == 60
    assert [bad.bad for bad in found.bad] == ["too long", "not JSON"]
    assert {folder.name for folder in tmp_path.iterdir()} == {
        "run-0",
        "run-1",
        "killed",
        "too-long",
        "not-JSON",
    }
    assert len(said) == 5


def test_of_a_failed_job_the_line_is_kept_that_says_why() -> None:
    printed = [
        "Traceback (most recent call last):",
        "  raise x",
        "pydantic.ValidationError: one",
        "  Invalid JSON",
        "leaked",
    ]
    assert last_words(printed) == "pydantic.ValidationError: one"
    assert last_words(["killed"]) == "killed"
    assert last_words([]) == ""


def test_a_line_that_a_kill_has_torn_is_no_answer(tmp_path: Path) -> None:
    whole = json.dumps({"custom_id": "a", "text": "{}", "prompt_tokens": 1, "completion_tokens": 2})
    (tmp_path / "b.json").write_text(f"{whole}\n{whole[:20]}")
    answers = RayDataLlm(Path("python"), ENGINE, ASKING).answers(tmp_path)
    assert answers == [Answer("a", "{}", 1, 2)]


def test_a_watched_process_is_ended_with_all_that_it_has_started(tmp_path: Path) -> None:
    parent = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('child', child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with WatchedProcess(
        [sys.executable, "-c", parent], environment=os.environ, log=tmp_path / "log", directory=tmp_path
    ) as process:
        wait_until(
            lambda: bool(process.lines) and process.peak_pss > 0, 20, "a child and a look at its memory"
        )
        child = int(process.lines[0][1].split()[1])
        assert process.peak_rss >= process.peak_pss > 1_000_000
    assert process.process.returncode == -signal.SIGKILL
    wait_until(lambda: not is_running(child), 10, "the child has ended")
    assert (tmp_path / "log").read_text().startswith("child ")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_table_says_what_each_lost_and_where_a_bad_row_ended_the_job() -> None:
    run = RunFigures(
        "x",
        100,
        100,
        30.0,
        31.0,
        20.0,
        1_000,
        2_000,
        1_234.4,
        "its lines",
        2_000_000_000,
        1_500_000_000,
        True,
    )
    killed = KilledFigures("x", 100, 60, 32, 100, 0, 32, 20.0, 30.0)
    bad = [
        BadRowFigures("x", 100, "too long", 0, 99, "too long", "", 30.0),
        BadRowFigures("x", 100, "not JSON", 1, 0, None, "JSONDecodeError", 5.0),
    ]
    runs = [run, dataclasses.replace(run, seconds=28.0), dataclasses.replace(run, seconds=40.0)]
    table = comparison_table([Measured("x", runs, killed, bad), Measured("y", [])])
    first, second = table.splitlines()[2:]
    for said in (
        "30.0 (28.0 to 40.0)",
        "1,234",
        "2,000 (shared pages once: 1,500)",
        "60 generated again; **32 twice in the output**",
        "the others are answered; it has a line with an error",
        "**ends the job** (exit code 1): 0 of 99 good rows answered",
    ):
        assert said in first
    assert second.startswith("| y | not measured | not seen |")


def test_the_example_schema_bounds_its_answers() -> None:
    assert film_schema()["additionalProperties"] is False
