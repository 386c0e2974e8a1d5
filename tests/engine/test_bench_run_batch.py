"""The comparison's peer `vllm run-batch`, as a user would type it, on the real vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ops.bench.backfill_peer import EngineSettings
from headrace.ops.bench.backfill_peers import RunBatch
from headrace.ops.bench.backfill_rows import Asking, film_rows, film_schema
from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings

pytestmark = [pytest.mark.usefixtures("needs_vllm"), pytest.mark.soak]


@pytest.fixture
def run_batch() -> RunBatch:
    weights = tiny_model(Settings.from_environment().cache_dir / "models")
    return RunBatch(EngineSettings(weights, max_num_seqs=32), Asking(film_schema()))


def test_run_batch_answers_fifty_rows_as_the_schema_has_it(run_batch: RunBatch, tmp_path: Path) -> None:
    found = run_batch.run(film_rows(50), tmp_path)
    assert found.ok == found.rows == 50
    assert found.in_order
    assert found.prompt_tokens > 50 * 100
    assert 50 * 30 < found.completion_tokens <= 50 * run_batch.asking.max_tokens
    assert found.peak_rss >= found.peak_pss > 500_000_000


def test_run_batch_tells_of_a_prompt_that_is_too_long_and_answers_the_rest(
    run_batch: RunBatch, tmp_path: Path
) -> None:
    found = run_batch.with_bad_row(film_rows(5), "too long", tmp_path)
    assert (found.exit_code, found.ok) == (0, 4)
    assert "maximum" in str(found.said_of_it)
