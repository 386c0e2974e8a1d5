"""A process that serves does not look through its modules again and again."""

from __future__ import annotations

import gc

from headrace.ops.heap import freeze_heap


def test_what_is_there_is_taken_out_of_the_collectors_sight() -> None:
    kept = [[number] for number in range(1000)]
    try:
        freeze_heap()
        assert gc.get_freeze_count() > len(kept)
        assert not any(each is kept for each in gc.get_objects())
    finally:
        gc.unfreeze()
