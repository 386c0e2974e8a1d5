"""A terminal's Ctrl-C goes to the whole process group: the worker answers it, and the engine does not die of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from packages import write_package
from processes import descendants, is_running
from waiting import wait_until
from worker_processes import WorkerProcess, create_topics, generations, traffic

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

ENGINE = "\n[engine]\nmax_model_len = 512\ndtype = 'float32'\nenforce_eager = true\n"
IDS = [f"r{number}" for number in range(8)]


@pytest.mark.soak
def test_ctrl_c_while_requests_run_lets_them_finish_and_suspects_nobody(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path, needs_vllm: None
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(kafka_bootstrap, names)
    package = write_package(tmp_path / "package")
    with (package / "package.toml").open("a") as file:
        file.write(ENGINE)
    options = ("--weights", str(tiny_model(Settings.from_environment().cache_dir / "models")))
    log = tmp_path / "worker.log"
    with (
        traffic(kafka_bootstrap, names) as seen,
        WorkerProcess(
            kafka_bootstrap, package, prefix=names.prefix, log=log, engine="vllm", options=options
        ) as worker,
    ):
        worker.wait_ready(240)
        (core,) = (pid for pid, name in descendants(worker.process.pid).items() if "EngineCore" in name)
        for number, request_id in enumerate(IDS):
            seen.send_to(number % 4, request_id, sampling={"max_tokens": 400})
        wait_until(lambda: generations(worker) == len(IDS), 60, "all to run")
        seen.read()
        assert len(seen.answered()) < len(IDS), "some run"
        os.killpg(worker.process.pid, signal.SIGINT)
        assert worker.exit_code(90) == 0, worker.said()
        wait_until(lambda: not is_running(core), 20, "the engine to end with its worker")
        seen.wait_for(*IDS)
    assert {request_id: result.status for request_id, result in seen.by_id().items()} == dict.fromkeys(
        IDS, "ok"
    )
    assert {result.provenance.attempt for result in seen.by_id().values()} == {1}
