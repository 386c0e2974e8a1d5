"""vLLM's engine process is killed with requests in flight: the worker says so, and its successor answers them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from packages import write_package
from processes import descendants
from waiting import wait_until
from worker_processes import WorkerProcess, create_topics, generations, traffic

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

ENGINE = "\n[engine]\nmax_model_len = 512\ndtype = 'float32'\nenforce_eager = true\n"


def start(bootstrap: str, names: ContractNames, package: Path, log: Path, engine: str) -> WorkerProcess:
    weights = tiny_model(Settings.from_environment().cache_dir / "models")
    options = ("--weights", str(weights))
    return WorkerProcess(bootstrap, package, prefix=names.prefix, log=log, engine=engine, options=options)


def test_a_killed_engine_process_ends_the_worker_with_4_and_its_successor_answers_everything_once(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path, needs_vllm: None
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(kafka_bootstrap, names)
    package = write_package(tmp_path / "package")
    with (package / "package.toml").open("a") as file:
        file.write(ENGINE)
    short = [f"short-{number}" for number in range(8)]
    long = [f"long-{number}" for number in range(8)]
    with traffic(kafka_bootstrap, names) as seen:
        with start(kafka_bootstrap, names, package, tmp_path / "first.log", "vllm") as worker:
            worker.wait_ready(240)
            (core,) = (pid for pid, name in descendants(worker.process.pid).items() if "EngineCore" in name)
            for number, request_id in enumerate(long):
                seen.send_to(number % 4, request_id, sampling={"max_tokens": 400})
            wait_until(lambda: generations(worker) == len(long), 60, "all to run")
            os.kill(core, signal.SIGKILL)
            assert worker.exit_code(60) == 4, worker.said()
            said = worker.said()
            assert "the engine has died" in said or "EngineDead" in said
            assert "SIGKILL" in said
            seen.read()
            unanswered = set(long) - seen.answered().keys()
            assert unanswered, "some were in flight"
        for number, request_id in enumerate(short):
            seen.send_to(number % 4, request_id, sampling={"max_tokens": 4})
        # Which engine it has is all the same to what is tested, and loading vLLM again takes long.
        with start(kafka_bootstrap, names, package, tmp_path / "second.log", "simulated") as worker:
            seen.wait_for(*short, *long)
            assert worker.metric("headrace_suspects") == 0, "a first death suspects nobody"
            assert generations(worker) == len(unanswered) + len(short)
        results = seen.by_id()
    assert {result.status for result in results.values()} == {"ok"}
    assert results.keys() == {*short, *long}
