"""Which request goes when, and which not at all: keys, deadlines, cancels, lanes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from pathlib import Path

from waiting import wait_until
from worker_processes import PARTITIONS, generations, long_text, scene, units

HANG = json.dumps([{"kind": "hang", "prompt_contains": "hang"}])


def test_results_of_a_key_come_in_the_order_of_its_requests_even_across_a_kill(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    keys = [f"key-{number}" for number in range(2 * PARTITIONS)]
    rounds = 6
    with scene(kafka_bootstrap, unique_prefix, tmp_path, extra='order = "key"') as stage:
        seen = stage.seen
        for each in range(rounds):
            for number, key in enumerate(keys):
                # The longest first: without an order each would be overtaken by those that follow.
                value = {"id": f"{key}/{each}", "key": key, "prompt": "x", **long_text(8 * (rounds - each))}
                seen.send(value, key=key.encode(), partition=number % PARTITIONS)
        total = rounds * len(keys)
        first = stage.start(simulated_time_scale=1)
        seen.wait_for_results(total // 3)
        first.kill()
        second = stage.start(simulated_time_scale=1)
        seen.wait_for_results(total)
        assert len(seen.by_id()) == total
        assert generations(second) > 0
        came: dict[str, list[int]] = defaultdict(list)
        for record, result in seen.results:  # a key's in one partition, and so in the order in which they lie
            key, _, each = result.id.partition("/")
            assert record.key == key.encode()
            came[key].append(int(each))
        assert came == {key: list(range(rounds)) for key in keys}


def test_a_deadline_costs_no_generation_before_admission_and_ends_one_that_runs(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        worker = stage.start("slot-1", "--max-in-flight", "1", simulated_failures=HANG)
        worker.wait_ready(60)
        now = int(time.time() * 1000)
        stage.seen.send_to(0, "hang", deadline=now + 5_000)
        wait_until(lambda: generations(worker) == 1, 60, "it to run")
        stage.seen.send_to(0, "waits", deadline=now + 2_000)
        stage.seen.send_to(0, "next")
        waits, hung, following = stage.seen.wait_for("waits", "hang", "next")
        assert [each.id for _, each in stage.seen.results] == ["waits", "hang", "next"]
        assert (waits.status, hung.status, following.status) == ("expired", "expired", "ok")
        assert waits.error is not None
        assert hung.error is not None
        assert "before it was admitted" in waits.error.message
        assert "while it was generated" in hung.error.message
        assert generations(worker) == 2
        assert stage.seen.dead == []


def test_cancels_reach_whichever_worker_has_the_request_before_it_comes_while_it_waits_and_while_it_runs(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        seen = stage.seen
        early = [f"early-hang-{unit}" for unit in range(PARTITIONS)]
        for unit, request_id in enumerate(early):
            seen.send_to(unit, request_id, job="early" if unit % 2 else None)
        seen.cancel("changed my mind", job="early")
        for request_id in early[::2]:
            seen.cancel("changed my mind", id=request_id)
        workers = [stage.start(slot, "--max-in-flight", "1", simulated_failures=HANG) for slot in ("a", "b")]
        for worker in workers:
            wait_until(lambda worker=worker: units(worker) == PARTITIONS // 2, 60, "its share")
        assert {result.status for result in seen.wait_for(*early)} == {"cancelled"}
        begun = generations(*workers)

        owned = stage.units_of("a", "b")
        for slot, (unit, *_) in owned.items():
            seen.send_to(unit, f"hang-{slot}", job=f"runs in {slot}")
        for worker in workers:
            wait_until(lambda worker=worker: worker.metric("headrace_in_flight") == 1, 30, "one to run")
        for slot, (unit, *_) in owned.items():
            seen.send_to(unit, f"waits-{slot}", job="waits")
            seen.send_to(unit, f"goes-on-{slot}", job="goes on")
        waiting = [f"waits-{slot}" for slot in owned]
        for worker in workers:
            wait_until(lambda worker=worker: worker.metric("headrace_waiting") == 2, 30, "two to wait")
        seen.cancel("no longer needed", job="waits")
        seen.cancel("no longer needed", id="hang-a")
        seen.cancel("no longer needed", job="runs in b")
        cancelled = seen.wait_for("hang-a", "hang-b", *waiting)
        for result in cancelled:
            assert result.error is not None
            assert (result.status, result.error.code) == ("cancelled", "cancelled")
            assert "no longer needed" in result.error.message
        went_on = seen.wait_for("goes-on-a", "goes-on-b")
        assert [(each.status, each.provenance.slot) for each in went_on] == [("ok", "a"), ("ok", "b")]
        # Besides the probes: those that hung and those that went on. Who waited was never begun.
        assert generations(*workers) == begun + PARTITIONS + 2 + 2
        assert seen.dead == []
        assert len(seen.by_id()) == len(early) + PARTITIONS + 6


def test_interactive_requests_are_answered_while_a_backlog_of_backfill_waits(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    backlog = [f"row-{number}" for number in range(200)]
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        seen = stage.seen
        for number, request_id in enumerate(backlog):
            seen.send_to(number % PARTITIONS, request_id, "backfill", **long_text(100))
        places = 8
        stage.start("slot-1", "--max-in-flight", str(places), simulated_time_scale=1)
        seen.wait_for_results(places)
        before = len(seen.results)
        live = [f"live-{number}" for number in range(PARTITIONS)]
        for unit, request_id in enumerate(live):
            seen.send_to(unit, request_id, "interactive", sampling={"max_tokens": 1})
        assert {result.status for result in seen.wait_for(*live)} == {"ok"}
        meanwhile = len(seen.results) - before - len(live)
        assert meanwhile <= 3 * places, "they wait for what runs, not for what waits"
