"""The whole path with a real engine: vLLM in a worker process, and what is left when its core dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from packages import TAGS_SCHEMA, write_package
from processes import descendants, is_running
from waiting import wait_until
from worker_processes import WorkerProcess, create_topics, traffic

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

ENGINE = (
    "\n[engine]\nmax_model_len = 512\ndtype = 'float32'\nenforce_eager = true\n[sampling]\nmax_tokens = 120\n"
)


def start(bootstrap: str, names: ContractNames, package: Path, log: Path) -> WorkerProcess:
    weights = tiny_model(Settings.from_environment().cache_dir / "models")
    options = ("--weights", str(weights))
    return WorkerProcess(bootstrap, package, prefix=names.prefix, log=log, engine="vllm", options=options)


def engine_core(worker: WorkerProcess) -> int:
    (core,) = (pid for pid, name in descendants(worker.process.pid).items() if "EngineCore" in name)
    return core


def test_vllm_answers_through_kafka_and_neither_process_outlives_the_other(
    broker_bootstrap: str, unique_prefix: str, tmp_path: Path, needs_vllm: None
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(broker_bootstrap, names)
    package = write_package(tmp_path / "package", output=TAGS_SCHEMA)
    with (package / "package.toml").open("a") as file:
        file.write(ENGINE)
    ids = [f"r{number}" for number in range(24)]
    with traffic(broker_bootstrap, names) as seen:
        with start(broker_bootstrap, names, package, tmp_path / "first.log") as worker:
            worker.wait_ready(240)
            seen.send_many(ids)
            seen.wait_for_results(len(ids), 120)
            schema = OutputSchema.parse(TAGS_SCHEMA)
            for _, result in seen.results:
                assert result.status == "ok", result
                assert schema.check(result.outputs[0].text) == result.outputs[0].value
                assert (result.provenance.engine, result.provenance.backend) == ("vllm", "xgrammar")
            _, page = worker.get("/metrics")
            assert "vllm:generation_tokens_total" in page
            assert "headrace_requests_total" in page
            core = engine_core(worker)
            worker.kill()
            wait_until(lambda: not is_running(core), 20, "the engine to end after its worker was killed")
        with start(broker_bootstrap, names, package, tmp_path / "second.log") as worker:
            worker.wait_ready(240)
            os.kill(engine_core(worker), signal.SIGKILL)
            assert worker.exit_code(60) == 4, worker.said()
        assert set(seen.answered().values()) == {1}
