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


@pytest.mark.parametrize("chunk_rows", [100, 10])
def test_a_job_that_was_killed_with_more_answers_than_are_held_goes_on(
    monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    """They are answers of chunks that the next process has not begun: it has to begin one to be rid of any."""
    monkeypatch.setattr(rows_to_ask, "MAX_OPEN_ROWS", 50)
    world = World([("good", value) for value in range(200)], chunk_rows=chunk_rows, partitions=2)
    for _ in range(3):
        world.step()
    unanswered = 1 if chunk_rows == 100 else 0  # of the first chunk, which cannot be written then
    while sum(len(lane.results) for lane in world.lanes) < 60:
        world.serve(unanswered)
    world.deliver(60)
    world.kill()
    world.calm(turns=300)
    assert sum(len(file.outcomes) for file in world.written.values()) == 200
    assert max(world.generations.values()) == 1
