"""Headrace's side of the comparison, as a user would type it, on the real vLLM and a real Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ops.bench.backfill_headrace import HeadraceCold, HeadraceUp, fleet
from headrace.ops.bench.backfill_peer import EngineSettings
from headrace.ops.bench.backfill_rows import Asking, film_rows, film_schema
from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings

pytestmark = [
    pytest.mark.usefixtures("needs_vllm"),
    pytest.mark.kafka,
    pytest.mark.soak,
    pytest.mark.timeout(900),
]

ASKING = Asking(film_schema())


@pytest.fixture
def engine(kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> EngineSettings:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", kafka_bootstrap)
    return EngineSettings(tiny_model(Settings.from_environment().cache_dir / "models"), max_num_seqs=16)


def test_beside_a_worker_that_is_up_rows_are_answered_a_kill_repeats_none_and_a_bad_row_costs_no_other(
    engine: EngineSettings, tmp_path: Path
) -> None:
    for name in ("run", "killed", "not-JSON", "too-long"):
        (tmp_path / name).mkdir()
    with fleet(engine, ASKING, print) as on:
        headrace = HeadraceUp(on, engine, ASKING)
        found = headrace.run(film_rows(40), tmp_path / "run")
        killed = headrace.killed_halfway(film_rows(200), tmp_path / "killed")
        bad = [
            headrace.with_bad_row(film_rows(40), "not JSON", tmp_path / "not-JSON"),
            headrace.with_bad_row(film_rows(40), "too long", tmp_path / "too-long"),
        ]
    assert (found.ok, found.in_order) == (40, True)
    assert found.prompt_tokens > 40 * 100
    assert 40 * 30 < found.completion_tokens <= 40 * ASKING.max_tokens
    assert found.steady_tokens_per_s is not None
    assert found.peak_rss_beside > 500_000_000 > found.peak_rss
    assert killed.done_at_kill >= 100
    assert (killed.regenerated, killed.lost, killed.doubled) == (0, 0, 0)
    assert [(each.exit_code, each.ok) for each in bad] == [(0, 39), (0, 39)]
    assert "not JSON" in str(bad[0].said_of_it)
    assert "prompt_too_long" in str(bad[1].said_of_it)


def test_from_nothing_rows_are_answered_and_nothing_is_left_running(
    engine: EngineSettings, tmp_path: Path
) -> None:
    found = HeadraceCold(engine, ASKING).run(film_rows(40), tmp_path)
    assert (found.ok, found.in_order) == (40, True)
    assert found.first_row_seconds is not None
    assert found.first_row_seconds < found.seconds <= found.exit_seconds
    assert found.peak_rss > 500_000_000
