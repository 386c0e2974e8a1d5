"""What a job knows of the processes before this one when it decides whether to go on."""

from __future__ import annotations

import pytest
from property.backfill_stand_ins import RowKind
from property.backfill_world import World

from headrace.producers.backfill import breaker
from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.rounds import begin_again


def test_rows_that_failed_for_a_killed_process_are_held_against_all_that_it_had_taken_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not against the few that its successor has taken up so far: 4 of 100 are no more than 5 %."""
    monkeypatch.setattr(breaker, "FIRST_ROWS", 5)
    rows: list[tuple[RowKind, int]] = [
        ("fails" if row in (20, 30, 40, 50) else "good", row) for row in range(100)
    ]
    world = World(rows, chunk_rows=100, partitions=1, max_failures=MaxFailures(share=0.05))
    world.step()
    for _ in range(90):
        world.serve(0)
    world.kill()
    world.deliver(90)
    world.step()
    world.calm(turns=50)
    assert [end.error for end in world.ends] == [None]
    assert world.ends[-1].state.statuses == {"ok": 96, "failed": 4}


def test_rows_that_fail_for_it_and_its_predecessor_stop_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breaker, "FIRST_ROWS", 5)
    rows: list[tuple[RowKind, int]] = [("fails" if row % 10 == 9 else "good", row) for row in range(100)]
    world = World(rows, chunk_rows=100, partitions=1, max_failures=MaxFailures(share=0.05))
    world.step()
    for _ in range(60):
        world.serve(0)
    world.kill()
    for _ in range(40):
        world.serve(0)
        world.deliver(100)
        if world.ends:
            break
    assert "6 of " in str(world.ends[0].error)


def test_rows_that_cost_nothing_do_not_make_the_others_look_cheap() -> None:
    rows: list[tuple[RowKind, int]] = [("bad" if row < 300 else "good", row) for row in range(500)]
    world = World(rows, chunk_rows=50, partitions=1, token_budget=200)
    for turn in range(400):
        if world.ends:
            break
        world.serve(turn)
        world.deliver(1)
        world.look()
        world.now += 1
    (end,) = world.ends
    assert end.error is not None
    assert end.error.code == "budget_spent"
    assert 5 * sum(world.generations.values()) <= 200


def test_a_round_that_is_stopped_lists_each_failed_row_once() -> None:
    """Those of a part that it has not written anew stand beside that part."""
    rows: list[tuple[RowKind, int]] = [("fails" if row % 5 == 0 else "good", row) for row in range(20)]
    rows[7] = ("refused", 7)
    world = World(rows, chunk_rows=10, partitions=1)
    world.calm(turns=50)
    world.state = begin_again(world.state, "failed")
    world.ends.clear()
    world.start()
    world.step()
    world.serve(0)
    world.deliver(100)
    assert {each.round for each in world.state.parts} == {0}
    assert world.run._rows.open  # pyright: ignore[reportPrivateUsage]
    assert list(world.run.open_failures()) == []
