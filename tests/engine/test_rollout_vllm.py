"""A rollout between two real workers: one tokenizer, two sets of weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packages import TAGS_SCHEMA, write_package
from waiting import wait_until
from worker_processes import PARTITIONS, WorkerProcess, create_topics, traffic, units

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

pytestmark = pytest.mark.soak  # two more engines
ENGINE = (
    "\n[engine]\nmax_model_len = 512\ndtype = 'float32'\nenforce_eager = true\n[sampling]\nmax_tokens = 120\n"
)
READY_S = 240


def start(bootstrap: str, prefix: str, place: Path, version: str, seed: int) -> WorkerProcess:
    package = write_package(place / f"version-{version}", version=version, output=TAGS_SCHEMA)
    with (package / "package.toml").open("a") as file:
        file.write(ENGINE)
    weights = tiny_model(Settings.from_environment().cache_dir / "models", seed)
    return WorkerProcess(
        bootstrap,
        package,
        prefix=prefix,
        slot=f"gpu-{version}",
        log=place / f"version-{version}.log",
        engine="vllm",
        options=("--weights", str(weights)),
    )


def test_traffic_moves_from_one_set_of_weights_to_another_and_nothing_is_lost(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path, needs_vllm: None
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(kafka_bootstrap, names)
    sent: list[str] = []
    with (
        traffic(kafka_bootstrap, names) as seen,
        start(kafka_bootstrap, unique_prefix, tmp_path, "3", 0) as old,
        start(kafka_bootstrap, unique_prefix, tmp_path, "4", 1) as new,
    ):
        for worker in (old, new):
            worker.wait_ready(READY_S)
        command = [sys.executable, "-m", "headrace.ops.cli", "rollout", "start", "tagger", "--to", "4"]
        command += ["--steps", "50,100", "--hold", "4s"]
        place = ["--bootstrap-servers", kafka_bootstrap, "--prefix", unique_prefix]
        rollout = subprocess.Popen(
            [*command, *place],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"HEADRACE_SESSION_TIMEOUT_MS": "6000"},
        )
        try:

            def ended() -> bool:
                """Keep eight requests under way."""
                seen.read()
                while len(sent) < len(seen.results) + 8:
                    sent.append(f"r{len(sent)}")
                    seen.send_to(len(sent) % PARTITIONS, sent[-1], prompt=None, variables={"title": sent[-1]})
                return rollout.poll() is not None

            wait_until(ended, 180, "the rollout to end")
            said, _ = rollout.communicate()
            assert rollout.returncode == 0, said
        finally:
            if rollout.poll() is None:
                rollout.kill()
                rollout.communicate()
        wait_until(lambda: units(new) == PARTITIONS, 30, "version 4 to have all units")
        seen.wait_for(*sent)
        results = seen.by_id().values()
    assert {result.status for result in results} == {"ok"}
    weights = {result.provenance.version: result.provenance.weights_digest for result in results}
    assert weights.keys() == {"3", "4"}, said
    assert weights["3"] != weights["4"], "each version answered with its own weights"
