"""What a job holds in memory while it waits: a bound, whatever its rows ask."""

from __future__ import annotations

import pytest
from property.backfill_world import World

from headrace.producers.backfill import rows_to_ask


def test_rows_that_all_wait_for_one_answer_do_not_draw_in_the_whole_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows_to_ask, "MAX_OPEN_ROWS", 50)
    world = World([("good", 1)] * 500, chunk_rows=10, partitions=2, dedupe=True)
    for _ in range(10):
        world.step()
    view = world.run.view()
    assert (view.asked, view.outstanding) == (1, 1)
    assert len(world.run._rows.open) == 6  # pyright: ignore[reportPrivateUsage]
    world.calm(turns=200)
    assert {row.status for file in world.written.values() for row in file.outcomes} == {"ok"}
    assert sum(len(file.outcomes) for file in world.written.values()) == 500
    assert sum(world.generations.values()) == 1
