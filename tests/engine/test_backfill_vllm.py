"""The example's job on the demo's model: a slice of the films, the awkward ones among them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from kafka_fixtures import not_to_be_had
from worker_processes import WorkerProcess, create_topics

from headrace.ops.demo_model import prepare_demo_model
from headrace.schemas.errors import EngineUnavailable
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

EXAMPLES = Path(__file__).parents[2] / "examples"
FILMS = 8
READY_S = 240.0
DONE_S = 180.0
parquet: Any = import_module("pyarrow.parquet")  # its stubs are partly unknown


@pytest.fixture
def weights(needs_vllm: None) -> Path:
    """SmolLM2, in the cache that the demo uses."""
    try:
        return prepare_demo_model(Settings.from_environment().cache_dir / "models", print)
    except EngineUnavailable as error:
        not_to_be_had(str(error))


def a_slice(folder: Path) -> list[dict[str, Any]]:
    """The job in a folder of its own, with films of each kind: as numbers, without title, a century late, plain."""
    shutil.copy(EXAMPLES / "backfill" / "films.toml", folder)
    lines = (EXAMPLES / "backfill" / "films.jsonl").read_text(encoding="utf-8").splitlines()
    films = [json.loads(line) for line in lines]
    numbered = [film for film in films if isinstance(film["Title"], int)][:2]
    untitled = [film for film in films if film["Title"] is None]
    late = [film for film in films if film["Title"] == "Gone with the Wind"]
    odd = [*numbered, *untitled, *late]
    plain = [film for film in films if film["Director"] and film["Major Genre"] and film not in odd]
    found = [*odd, *plain][:FILMS]
    (folder / "films.jsonl").write_text("".join(json.dumps(film) + "\n" for film in found))
    return found


def test_a_slice_of_the_films_comes_back_as_a_table_whose_rows_are_valid(
    broker_bootstrap: str, unique_prefix: str, tmp_path: Path, weights: Path
) -> None:
    films = a_slice(tmp_path)
    package = load_package(EXAMPLES / "movie-tagger")
    create_topics(broker_bootstrap, ContractNames(unique_prefix, package.model, package.contract))
    command = [
        sys.executable,
        "-m",
        "headrace.ops.cli",
        "backfill",
        "run",
        str(tmp_path / "films.toml"),
        "--json",
    ]
    command += ["--max-failures", "1"]  # one of eight is more than the 5 % that a job allows by default
    place = ["--bootstrap-servers", broker_bootstrap, "--prefix", unique_prefix]
    options = ("--weights", str(weights))
    with WorkerProcess(
        broker_bootstrap,
        EXAMPLES / "movie-tagger",
        prefix=unique_prefix,
        log=tmp_path / "worker.log",
        engine="vllm",
        options=options,
    ) as worker:
        worker.wait_ready(READY_S)
        done = subprocess.run([*command, *place], capture_output=True, text=True, timeout=DONE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + worker.said()
    assert json.loads(done.stdout)["statuses"] == {"ok": FILMS - 1, "rejected": 1}

    table = cast("list[dict[str, Any]]", parquet.read_table(tmp_path / "tags.parquet").to_pylist())
    assert [row["Release Date"] for row in table] == [film["Release Date"] for film in films]
    assert package.output is not None
    properties = cast("dict[str, Any]", package.output.schema)["properties"]
    for film, row in zip(films, table, strict=True):
        if film["Title"] is None:
            assert (row["headrace_status"], row["pitch"]) == ("rejected", None)
            continue
        assert row["headrace_status"] == "ok", row
        package.output.check_value({name: row[name] for name in properties})
        assert row["headrace_version"] == package.version
        assert row["headrace_completion_tokens"] > 0
    assert len({row["pitch"] for row in table}) == FILMS, "a real model says something else of each film"
