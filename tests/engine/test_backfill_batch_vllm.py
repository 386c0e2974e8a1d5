"""A batch file's answers beside those of `vllm run-batch` to the same calls: one format, read by vLLM's own code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from waiting import wait_until
from worker_processes import scene

from headrace.consumers.catalogue import read_catalogue
from headrace.ops.bench.backfill_peer import EngineSettings
from headrace.ops.bench.backfill_peers import RunBatch
from headrace.ops.bench.backfill_rows import Asking
from headrace.ops.bench.tiny_model import tiny_model
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.job_process import JobProcess
from headrace.schemas.settings import Settings

pytestmark = [pytest.mark.usefixtures("needs_vllm"), pytest.mark.soak]
PEER_WITHIN_S = 240.0
CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several turns": {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    },
    "two choices": {"n": 2, "temperature": 1.0, "seed": 7},
}
# Of OpenAI's fields: vLLM leaves them null, the last one unless it is asked for it.
OURS_ALONE = {"service_tier", "system_fingerprint", "prompt_tokens_details"}
VALIDATES = """
import sys
from vllm.entrypoints.launchers.run_batch import BatchRequestOutput
for line in open(sys.argv[1]):
    BatchRequestOutput.model_validate_json(line)
"""


def batch_file(file: Path, model: str) -> Path:
    with file.open("w") as lines:
        for custom_id, more in CALLS.items():
            body = {
                "model": model,
                "messages": [{"role": "user", "content": "Name a film."}],
                "max_tokens": 8,
                "temperature": 0,
            } | more
            call = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
            lines.write(json.dumps(call) + "\n")
    return file


def assert_alike(ours: Any, theirs: Any, path: str) -> None:
    """The same names and types. vLLM may say more, and a null is as good as nothing."""
    assert type(ours) is type(theirs), path
    if isinstance(ours, dict):
        said = {name: each for name, each in cast("dict[str, Any]", ours).items() if each is not None}
        more = {name for name in said if theirs.get(name) is None}
        assert more <= OURS_ALONE, f"{path}: vLLM does not say {more}"
        for name in said.keys() - more:
            assert_alike(said[name], theirs[name], f"{path}/{name}")
    elif isinstance(ours, list):
        pairs = zip(cast("list[Any]", ours), theirs, strict=True)
        for place, (one, other) in enumerate(pairs):
            assert_alike(one, other, f"{path}/{place}")


def by_id(file: Path) -> dict[str, Any]:
    return {line["custom_id"]: line for line in map(json.loads, file.read_text().splitlines())}


def test_answers_are_in_the_format_of_run_batch(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    """Ours come from the simulated engine: of interest is what is around the texts."""
    weights = tiny_model(Settings.from_environment().cache_dir / "models")
    peer = RunBatch(EngineSettings(weights, max_num_seqs=8), Asking({}))
    theirs, ours, scratch = tmp_path / "theirs.jsonl", tmp_path / "ours.jsonl", tmp_path / "scratch"
    scratch.mkdir()
    environment = peer.environment(scratch)
    command = peer.command(batch_file(tmp_path / "peer.jsonl", str(weights)), theirs, tmp_path)
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=PEER_WITHIN_S)

    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=unique_prefix)
    fields = {"openai_batch": str(batch_file(tmp_path / "calls.jsonl", "tagger")), "output": str(ours)}
    with scene(kafka_bootstrap, unique_prefix, tmp_path) as stage:
        stage.start()
        wait_until(lambda: read_catalogue(settings).known == [("tagger", 1)], 60, "what is served")
        finished = JobProcess(settings, job_of(fields, tmp_path)).run()
    assert finished.state.statuses == {"ok": len(CALLS)}

    assert list(by_id(ours)) == list(by_id(theirs)) == list(CALLS)
    for custom_id, line in by_id(ours).items():
        assert set(line) == set(by_id(theirs)[custom_id])
        assert_alike(line, by_id(theirs)[custom_id], custom_id)
    read = [sys.executable, "-c", VALIDATES, str(ours)]
    subprocess.run(read, env=environment, check=True, capture_output=True, timeout=PEER_WITHIN_S)
