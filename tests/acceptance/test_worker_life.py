"""A worker from its start to its end, as an operator sees it: pages, signals, exit codes, and what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition as KafkaTopicPartition
from packages import TAGS_SCHEMA, write_package
from waiting import wait_until
from worker_processes import PARTITIONS, Traffic, WorkerProcess, create_topics, traffic

from headrace.topics.names import ContractNames


@pytest.fixture
def names(kafka_bootstrap: str, unique_prefix: str) -> ContractNames:
    made = ContractNames(unique_prefix, "tagger", 1)
    create_topics(kafka_bootstrap, made)
    return made


@pytest.fixture
def seen(kafka_bootstrap: str, names: ContractNames) -> Iterator[Traffic]:
    with traffic(kafka_bootstrap, names) as made:
        yield made


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write_package(tmp_path / "package", output=TAGS_SCHEMA)


def start(seen: Traffic, package: Path, **options: object) -> WorkerProcess:
    slot = str(options.pop("slot", "slot-1"))
    extra = options.pop("options", ())
    assert isinstance(extra, tuple)
    return WorkerProcess(
        str(seen.settings.bootstrap_servers),
        package,
        prefix=seen.names.prefix,
        slot=slot,
        log=package.parent / f"{slot}.log",
        options=extra,
        **{name: str(value) for name, value in options.items()},
    )


def test_a_worker_serves_its_pages_and_ends_with_0_when_told_to(seen: Traffic, package: Path) -> None:
    with start(seen, package) as worker:
        worker.wait_ready(60)
        assert worker.get("/healthz") == (200, "ok\n")
        seen.send_many([f"r{number}" for number in range(20)])
        seen.wait_for_results(20)
        labels = '{lane="standard",model="tagger",model_version="1",status="ok"}'
        wait_until(
            lambda: f"headrace_requests_total{labels} 20.0" in worker.get("/metrics")[1], 10, "20 counted"
        )
        status, page = worker.get("/metrics")
        assert status == 200
        assert f'headrace_partitions{{lane="standard",model="tagger"}} {PARTITIONS}.0' in page
        assert worker.get("/nothing")[0] == 404
        worker.terminate()
        assert worker.exit_code() == 0, worker.said()


def test_sigterm_finishes_what_is_in_flight_and_leaves_the_rest(seen: Traffic, package: Path) -> None:
    ids = [f"r{number}" for number in range(40)]
    with start(seen, package, options=("--max-in-flight", "4"), HEADRACE_SIMULATED_TIME_SCALE="3") as worker:
        seen.send_many(ids)
        seen.wait_for_results(4)
        worker.terminate()
        assert worker.exit_code() == 0, worker.said()
        seen.read()
        before = len(seen.results)
        assert before < len(ids), "it drained its queue instead of its engine"
    with start(seen, package) as worker:
        seen.wait_for_results(len(ids))
    assert set(seen.answered().values()) == {1}


def test_a_second_sigterm_leaves_at_once(seen: Traffic, package: Path) -> None:
    failures = json.dumps([{"kind": "hang"}])
    with start(seen, package, HEADRACE_SIMULATED_FAILURES=failures) as worker:
        worker.wait_ready(60)
        seen.send_many(["stuck"])
        wait_until(
            lambda: 'headrace_in_flight{model="tagger"} 1.0' in worker.get("/metrics")[1], 20, "it to run"
        )
        worker.terminate()
        wait_until(lambda: "waiting for 1 requests in flight" in worker.said(), 20, "the drain")
        worker.terminate()
        assert worker.exit_code(10) == 130


def test_a_request_that_outlasts_the_drain_budget_is_answered_by_the_next_owner(
    seen: Traffic, package: Path
) -> None:
    failures = json.dumps([{"kind": "hang"}])
    with start(
        seen, package, options=("--drain-budget", "1"), HEADRACE_SIMULATED_FAILURES=failures
    ) as worker:
        worker.wait_ready(60)
        seen.send_many(["long"])
        wait_until(
            lambda: 'headrace_in_flight{model="tagger"} 1.0' in worker.get("/metrics")[1], 20, "it to run"
        )
        worker.terminate()
        assert worker.exit_code() == 0, worker.said()
    with start(seen, package):
        seen.wait_for_results(1)
    assert seen.answered() == {"long": 1}


def test_a_dead_engine_ends_the_worker_with_4_and_nothing_is_lost(seen: Traffic, package: Path) -> None:
    ids = [f"r{number}" for number in range(30)]
    failures = json.dumps([{"kind": "die", "prompt_contains": "film r17."}])
    with start(
        seen,
        package,
        options=("--max-in-flight", "2"),
        HEADRACE_SIMULATED_FAILURES=failures,
        HEADRACE_SIMULATED_TIME_SCALE="0.2",
    ) as worker:
        seen.send_many(ids)
        assert worker.exit_code(60) == 4, worker.said()
        assert "the engine has died" in worker.said()
    with start(seen, package):
        seen.wait_for_results(len(ids))
    assert set(seen.answered()) == set(ids)
    assert set(seen.answered().values()) == {1}


def test_the_older_of_two_workers_in_one_slot_stops_with_5(seen: Traffic, package: Path) -> None:
    with start(seen, package) as older:
        older.wait_ready(60)
        newer_package = package  # the same: a pod that was started twice
        with start(seen, newer_package) as newer:
            newer.wait_ready(60)
            assert older.exit_code(30) == 5, older.said()
            # It hears of it from a heartbeat or from its next commit, whichever comes first.
            assert "another process runs with" in older.said()
            assert "--slot" in older.said()
            seen.send_many(["after"])
            seen.wait_for_results(1)


def test_two_workers_share_the_units_and_one_takes_over_from_the_other(seen: Traffic, package: Path) -> None:
    half = f'headrace_partitions{{lane="standard",model="tagger"}} {PARTITIONS // 2}.0'
    with start(seen, package, slot="a") as a, start(seen, package, slot="b") as b:
        for worker in (a, b):
            wait_until(lambda worker=worker: half in worker.get("/metrics")[1], 60, "an equal share")
        seen.send_many([f"first-{number}" for number in range(100)])
        seen.wait_for_results(100)
        b.terminate()
        assert b.exit_code() == 0, b.said()
        seen.send_many([f"second-{number}" for number in range(100)])
        seen.wait_for_results(200)
    assert set(seen.answered().values()) == {1}
    assert {result.provenance.slot for _, result in seen.results} == {"a", "b"}


def test_offsets_that_retention_removed_park_their_partition_until_an_operator_accepts_the_loss(
    seen: Traffic, package: Path
) -> None:
    with start(seen, package) as worker:
        seen.send_many([f"r{number}" for number in range(50)])
        seen.wait_for_results(50)
        worker.terminate()
        assert worker.exit_code() == 0, worker.said()
    topic = seen.names.requests("standard")
    for number in range(50):
        seen.send({"id": f"gone{number}", "prompt": "x"}, partition=2)
    seen.send({"id": "left", "prompt": "x"}, partition=2)
    seen.read()
    admin = KafkaAdminClient(bootstrap_servers=seen.settings.bootstrap_servers)
    try:
        committed = admin.list_group_offsets(seen.names.group)[seen.names.group]
        first = committed[KafkaTopicPartition(topic, 2)].offset
        admin.delete_records({KafkaTopicPartition(topic, 2): first + 50})
    finally:
        admin.close()
    with start(seen, package) as worker:
        wait_until(lambda: worker.metric("headrace_parked_partitions") == 1, 30, "the partition to be parked")
        assert f"{topic}-2 is parked" in worker.said()
        assert 'headrace_lost_records_total{lane="standard",model="tagger"} 50.0' in worker.get("/metrics")[1]
        seen.send({"id": "elsewhere", "prompt": "x"}, partition=1)
        seen.wait_for_results(51)
        assert set(seen.answered().values()) == {1}
        assert "left" not in seen.answered()
        command = [sys.executable, "-m", "headrace.ops.cli", "offsets", "accept", "--model", "tagger"]
        command += ["--bootstrap-servers", str(seen.settings.bootstrap_servers)]
        command += ["--prefix", seen.settings.prefix, "--yes", "standard-2"]
        accepted = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert accepted.returncode == 0, accepted.stderr
        seen.wait_for_results(52)
        assert worker.metric("headrace_parked_partitions") == 0
    assert seen.answered()["left"] == 1


def test_no_committed_lag_is_left_when_all_is_answered(seen: Traffic, package: Path) -> None:
    admin = KafkaAdminClient(bootstrap_servers=seen.settings.bootstrap_servers)
    try:
        with start(seen, package) as worker:
            worker.wait_ready(60)
            seen.send_many([f"r{number}" for number in range(20)])
            seen.wait_for_results(20)
            sources = [
                KafkaTopicPartition(seen.names.requests("standard"), each) for each in range(PARTITIONS)
            ]

            def lag() -> int:
                committed = admin.list_group_offsets(seen.names.group)[seen.names.group]
                return 20 - sum(committed[each].offset for each in sources)

            wait_until(lambda: lag() == 0, 20, "the lag to reach nought")
    finally:
        admin.close()


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "says"),
    [
        (("--package", "no-such-folder"), {}, 2, "no-such-folder"),
        ((), {"HEADRACE_COMMIT_INTERVAL_MS": "soon"}, 2, "HEADRACE_COMMIT_INTERVAL_MS"),
        ((), {"HEADRACE_KAFKA_SASL_USERNAME": "me"}, 2, "HEADRACE_KAFKA_SASL_PLAIN_USERNAME"),
        ((), {"HEADRACE_SIMULATED_FAILURES": '[{"kind":"explode"}]'}, 2, "explode"),
        (("--prefix", "a b"), {}, 2, "HEADRACE_PREFIX"),
    ],
)
def test_a_mistake_is_one_clear_sentence_and_exit_code_2(
    package: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    environment: dict[str, str],
    code: int,
    says: str,
) -> None:
    with WorkerProcess(
        "127.0.0.1:1", package, prefix="x", log=tmp_path / "log", options=arguments, **environment
    ) as worker:
        assert worker.exit_code() == code
        assert says in worker.said()
        assert "Traceback" not in worker.said()
