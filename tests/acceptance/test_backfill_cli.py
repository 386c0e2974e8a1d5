"""`headrace backfill` on a real Kafka: to the end, stopped and gone on with, ordered about, and refused."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from backfill_desk import MODEL, Desk, lines_of, titles
from packages import TAGS_SCHEMA
from waiting import wait_until
from worker_processes import Scene, scene

from headrace.consumers.catalogue import read_catalogue

ROWS = 60
UNLUCKY = 3  # rows whose first answer is cut off
FAILURES = json.dumps([{"kind": "truncated", "prompt_contains": "Unlucky", "times": UNLUCKY}])


@pytest.fixture(scope="module")
def served(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A contract with a worker."""
    place = tmp_path_factory.mktemp("served")
    with scene(kafka_bootstrap, f"t{uuid.uuid4().hex[:12]}", place, output=TAGS_SCHEMA) as stage:
        stage.start(simulated_failures=FAILURES)
        wait_until(lambda: read_catalogue(stage.seen.settings).known == [(MODEL, 1)], 60, "a ready worker")
        yield stage


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def desk(served: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    made = Desk(served, tmp_path, capsys)
    yield made
    made.close()


@pytest.fixture
def unserved(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    """A contract without a worker, so that a job waits for as long as a test wants."""
    with scene(kafka_bootstrap, unique_prefix, tmp_path, output=TAGS_SCHEMA) as stage, ExitStack() as stack:
        made = Desk(stage, tmp_path, capsys)
        stack.callback(made.close)
        yield made


# --- with a worker ------------------------------------------------------------------------------------------


def test_a_job_by_options_lines_up_with_its_input_and_its_summary_adds_up(desk: Desk) -> None:
    films, output = desk.films("films.jsonl", titles(ROWS)), desk.path("tags.jsonl")
    command = ("run", "--model", MODEL, "--input", films, "--output", output, "--keep", "number")
    out, err = desk.said(*command, "--sampling", "max_tokens=100", "--rows-per-part", "25")
    assert f"rows {ROWS}" in " ".join(out.split())
    assert f"ok {ROWS}" in " ".join(out.split())
    assert output in out
    assert f"{ROWS} of {ROWS} rows (100 %)" in err
    rows = lines_of(output)
    assert [row["number"] for row in rows] == list(range(ROWS))
    assert "title" not in rows[0]
    assert {row["headrace_status"] for row in rows} == {"ok"}
    assert {row["mood"] for row in rows} <= {"bright", "dark", "calm"}
    out, _ = desk.said(*command, "--sampling", "max_tokens=100", "--rows-per-part", "25")
    assert "there is nothing to do" in out
    _, err = desk.said(*command, "--sampling", "max_tokens=90", "--rows-per-part", "25", code=2)
    assert "begun with another prompt or parameters" in err
    assert "--anew" in err


def test_options_come_before_the_keys_of_a_file_and_their_mistakes_are_theirs(desk: Desk) -> None:
    desk.films("films.jsonl", titles(5))
    file = desk.place / "tags.toml"
    file.write_text(
        f'model = "{MODEL}"\ninput = "films.jsonl"\noutput = "tags.jsonl"\n[sampling]\nmax_tokens = "a"\n'
    )
    _, err = desk.said("run", str(file), code=2)
    assert f"{file}:5: sampling.max_tokens" in err
    _, err = desk.said("run", str(file), "--sampling", "max_tokens=100", "--max-failures", "some", code=2)
    assert "error: --max-failures: 'some'" in err
    found = desk.run(str(file), "--sampling", "max_tokens=100", "--output", "other/")
    assert found["output"] == desk.path("other")
    assert found["statuses"] == {"ok": 5}
    for options, said in (
        (("--sampling", "max_tokens=100", "--model", "taggr"), "Did you mean `tagger`?"),
        (("--sampling", "max_tokens=100", "--keep", "titel"), "has no column `titel`"),
        (("--sampling", "max_tokens=100", "--input", "no.jsonl"), f"there is no {desk.path('no.jsonl')}"),
        (("--sampling", "max_tokens=100", "--reuse", "nix"), "no job is called 'nix'"),
        (("--sampling", "max_tokens=100", str(file)), "options go with one job"),
    ):
        _, err = desk.said("run", str(file), *options, code=2)
        assert said in err


def test_rows_that_cannot_be_asked_about_are_listed_and_too_many_stop_the_job(desk: Desk) -> None:
    given = titles(ROWS)
    given[7] = given[11] = given[40] = None
    films, output = desk.films("films.jsonl", given), desk.path("tags.parquet")
    command = ("--model", MODEL, "--input", films, "--output", output)
    found = desk.run(*command, "--max-failures", "2", code=1)
    assert found["error"]["code"] == "too_many_failures"
    assert found["statuses"]["rejected"] == 3
    rejects = lines_of(found["rejects"])
    assert [row["row_index"] for row in rejects] == [7, 11, 40]
    out, _ = desk.said("run", *command, "--max-failures", "3")
    assert "rejected 3" in " ".join(out.split())
    assert "tags.parquet.rejects.jsonl" in out
    assert "headrace backfill retry rejects" in out
    out, _ = desk.said("retry", "failed", output)
    assert not out, "no row has failed: nothing is done"


def test_a_job_in_which_every_row_failed_says_so_by_its_exit_code(desk: Desk) -> None:
    films, output = desk.films("films.jsonl", [None, None]), desk.path("tags.jsonl")
    command = ("run", "--model", MODEL, "--input", films, "--output", output, "--max-failures", "100%")
    out, _ = desk.said(*command, code=1)
    assert "done, and every row failed" in out
    assert len(lines_of(output)) == 2


def test_rows_that_ask_the_same_are_asked_once_and_an_earlier_job_is_reused(desk: Desk) -> None:
    first = desk.films("first.jsonl", titles(10, "Twin") * 2)
    command = ("--model", MODEL, "--input", first, "--keep", "number")
    both = desk.run(*command, "--output", desk.path("first.jsonl.tags.jsonl"))
    assert (both["rows"], both["asked"], both["this_process"]["shared"]) == (20, 10, 10)
    each = desk.run(*command, "--output", desk.path("each.jsonl"), "--no-dedupe")
    assert each["asked"] == 20
    more = desk.films("more.jsonl", [*titles(10, "Twin"), *titles(4, "New")])
    third = desk.run(
        "--model", MODEL, "--input", more, "--output", desk.path("more.tags.jsonl"), "--reuse", both["job"]
    )
    assert (third["rows"], third["asked"], third["this_process"]["reused"]) == (14, 4, 10)
    assert third["statuses"] == {"ok": 14}


def test_a_budget_of_tokens_stops_a_job_and_a_higher_one_goes_on(desk: Desk) -> None:
    films, output = desk.films("films.jsonl", titles(ROWS)), desk.path("tags.jsonl")
    command = ("--model", MODEL, "--input", films, "--output", output)
    stopped = desk.run(*command, "--token-budget", "1000", code=1)
    assert stopped["error"]["code"] == "budget_spent"
    assert stopped["prompt_tokens"] + stopped["completion_tokens"] > 0
    assert 0 < stopped["no_answer"] < ROWS
    found = desk.run(*command, "--token-budget", "1000000")
    assert found["statuses"] == {"ok": ROWS}
    assert found["this_process"]["asked"] == stopped["no_answer"]


def test_what_was_cut_off_is_asked_for_again_and_put_in_its_place(desk: Desk) -> None:
    given = titles(ROWS)
    for number in range(UNLUCKY):
        given[10 * number] = f"Unlucky {number}"
    films, output = desk.films("films.jsonl", given), desk.path("tags.parquet")
    found = desk.run("--model", MODEL, "--input", films, "--output", output, "--max-failures", "100%")
    assert found["statuses"] == {"ok": ROWS - UNLUCKY, "truncated": UNLUCKY}
    out, err = desk.said("retry", "failed", output, "--json")
    assert f"{UNLUCKY} rows of {ROWS} have failed, asked about again" in err
    again = json.loads(out)
    assert (again["statuses"], again["rounds"], again["rejects"]) == ({"ok": ROWS}, 2, None)
    assert again["this_process"]["asked"] == UNLUCKY
    _, err = desk.said("retry", "failed", output)
    assert "nothing to do" in err


def test_several_jobs_run_side_by_side(desk: Desk) -> None:
    for name in ("one", "two"):
        desk.films(f"{name}.jsonl", titles(30, name))
        text = f'model = "{MODEL}"\ninput = "{name}.jsonl"\noutput = "{name}.tags.jsonl"\nname = "{name}"\n'
        (desk.place / f"{name}.toml").write_text(text)
    out, err = desk.said("run", "one.toml", "two.toml", "--json")
    ended = [json.loads(line) for line in out.splitlines()]
    assert [(each["name"], each["statuses"]) for each in ended] == [("one", {"ok": 30}), ("two", {"ok": 30})]
    assert "one-" in err
    assert "two-" in err
    _, err = desk.said("run", "one.toml", "one.toml", code=2)
    assert "two of the jobs have the output" in err
    listed = [json.loads(line) for line in desk.said("list", "--all", "--json")[0].splitlines()]
    assert {each["stage"] for each in listed if each["job"] in [ended[0]["job"], ended[1]["job"]]} == {"done"}


# --- without a worker ---------------------------------------------------------------------------------------


def test_a_job_that_waits_is_seen_paused_and_let_go_on_from_elsewhere(unserved: Desk) -> None:
    films, output = unserved.films("films.jsonl", titles(ROWS)), unserved.path("tags.jsonl")
    package = unserved.path("package")
    process = unserved.start(
        "run", "--model", MODEL, "--package", package, "--input", films, "--output", output, "--json"
    )
    assert process.stderr is not None
    line = next(each for each in process.stderr if "no worker" in each)
    assert f"no worker serves {MODEL}: {ROWS} rows wait for one" in line
    job = unserved.wait_for("tags", "running").id.job
    assert f"{job} is paused, 0 of {ROWS} rows are through" in unserved.said("pause", "tags")[0]
    assert "was paused already, by " in unserved.said("pause", job)[0]
    line = next(each for each in process.stderr if "paused by" in each)
    assert f"`headrace backfill resume {job}` lets it go on" in line
    [listed] = [json.loads(each) for each in unserved.said("list", "--json")[0].splitlines()]
    assert (listed["job"], listed["stage"], listed["is_attended"]) == (job, "paused", True)
    shown, _ = unserved.said("status", output)
    assert f"{job}, {MODEL}@1: paused" in shown
    assert "pause, by " in shown
    assert f"{job} goes on, 0 of {ROWS} rows are through" in unserved.said("resume", job)[0]
    unserved.stage.start()
    ended = json.loads(unserved.ended(process)[0])
    assert ended["statuses"] == {"ok": ROWS}
    _, err = unserved.said("pause", job, code=1)
    assert f"job {job} is done: there is nothing to pause" in err


def test_a_cancelled_job_keeps_away_until_it_is_resumed(unserved: Desk) -> None:
    films, output = unserved.films("films.jsonl", titles(ROWS)), unserved.path("tags.jsonl")
    command = ("--model", MODEL, "--package", unserved.path("package"), "--input", films, "--output", output)
    process = unserved.start("run", *command)
    job = unserved.wait_for("tags", "running").id.job
    out, _ = unserved.said("cancel", job)
    assert f"{job} is cancelled, 0 of {ROWS} rows are through" in out
    out, _ = unserved.ended(process, code=1)
    assert "cancelled: the job was cancelled by" in out
    _, err = unserved.said("run", *command, code=2)
    assert f"`headrace backfill resume {job}` lets it go on" in err
    assert unserved.said("list")[0] == ""
    out, _ = unserved.said("resume", job)
    assert "no process runs it" in out
    assert f"headrace backfill resume {job} --run" in out
    unserved.stage.start()
    found = json.loads(unserved.said("resume", output, "--run", "--json")[0])
    assert found["statuses"] == {"ok": ROWS}
    assert [row["headrace_status"] for row in lines_of(output)] == ["ok"] * ROWS


def test_a_job_that_nobody_runs_is_cancelled_all_the_same(unserved: Desk) -> None:
    films, output = unserved.films("films.jsonl", titles(ROWS)), unserved.path("tags.jsonl")
    command = (
        "run",
        "--model",
        MODEL,
        "--package",
        unserved.path("package"),
        "--input",
        films,
        "--output",
        output,
    )
    process = unserved.start(*command)
    job = unserved.wait_for("tags", "running").id.job
    process.terminate()
    out, _ = unserved.ended(process, code=128 + signal.SIGTERM)
    assert "stopped: interrupted" in out
    assert "no process runs" in unserved.said("pause", job)[0]
    out, _ = unserved.said("cancel", job, "--json")
    told = json.loads(out)
    assert (told["job"], told["obeyed"]) == (job, None)
    assert "what it had asked for is taken back" in told["message"]
    assert "was cancelled already" in unserved.said("cancel", job)[0]


def test_interrupted_and_run_again_each_row_is_asked_once(unserved: Desk) -> None:
    films, output = unserved.films("films.jsonl", titles(ROWS)), unserved.path("tags.jsonl")
    command = ("--model", MODEL, "--package", unserved.path("package"), "--input", films, "--output", output)
    process = unserved.start("run", *command, "--json")
    assert process.stderr is not None
    next(each for each in process.stderr if "rows wait" in each)
    process.send_signal(signal.SIGINT)
    out, err = unserved.ended(process, code=130)
    assert "Run the same command again to go on" in err
    stopped = json.loads(out)
    assert (stopped["status"], stopped["no_answer"], stopped["this_process"]["asked"]) == (
        "stopped",
        ROWS,
        ROWS,
    )
    unserved.stage.start()
    unserved.stage.seen.wait_for_results(ROWS)
    found = unserved.run(*command)
    assert (found["job"], found["statuses"]) == (stopped["job"], {"ok": ROWS})
    assert found["this_process"]["asked"] == 0
    unserved.stage.seen.read()
    assert len(unserved.stage.seen.by_id()) == ROWS


# --- mistakes -----------------------------------------------------------------------------------------------


def test_a_job_that_is_not_there_is_not_guessed(unserved: Desk) -> None:
    _, err = unserved.said("status", "tags-1", code=2)
    assert "no job is called 'tags-1'" in err
    _, err = unserved.said("retry", "failed", unserved.path("no.parquet"), code=2)
    assert "there is no job beside" in err
    assert "there are no jobs" in unserved.said("list")[1]
