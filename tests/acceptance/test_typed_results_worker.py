"""A contract that is frozen: its worker writes results with columns, and everybody can read them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastavro
from packages import TAGS_SCHEMA
from waiting import wait_until
from worker_processes import PARTITIONS, Scene, scene

from headrace.consumers.records import Record, TopicPartition
from headrace.consumers.tail_reader import TailReader
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.messages import Request

HEADRACE = [sys.executable, "-c", "from headrace.ops.cli import main; main()"]
SINGLE_OBJECT_HEADER = 10  # bytes: a marker and the schema's fingerprint
WITHIN_S = 60.0


def headrace(stage: Scene, *arguments: str) -> str:
    variables = {"HEADRACE_BOOTSTRAP_SERVERS": stage.bootstrap, "HEADRACE_PREFIX": stage.names.prefix}
    done = subprocess.run(
        [*HEADRACE, *arguments], env=os.environ | variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def raw_results(stage: Scene, count: int) -> list[Record]:
    places = [TopicPartition(stage.names.results, number) for number in range(PARTITIONS)]
    reader = TailReader(stage.seen.settings, places, "beginning")
    found: list[Record] = []
    try:

        def enough() -> bool:
            found.extend(reader.poll(0.2))
            return len(found) >= count

        wait_until(enough, WITHIN_S, f"{count} results")
    finally:
        reader.close()
    return found


def test_results_of_a_frozen_contract_have_columns_for_other_teams_and_for_our_own_command(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    with scene(kafka_bootstrap, unique_prefix, tmp_path, output=TAGS_SCHEMA) as stage:
        package = str(tmp_path / "package")
        headrace(stage, "contracts", "freeze", package)
        stage.start()
        codec = Codec()
        for name in ("a", "b"):
            request = Request.model_validate({"id": name, "variables": {"title": f"film {name}"}})
            stage.seen.send(codec.encode(request, Encoding.SINGLE_OBJECT), key=name.encode())
        stage.seen.send({"id": "j", "variables": {"title": "film j"}}, key=b"j")
        records = raw_results(stage, 3)

        headrace(stage, "schemas", "export", "--package", package, "--dir", str(tmp_path / "exported"))
        (file,) = (tmp_path / "exported").glob("tagger.c1.result.avsc")
        schema = fastavro.parse_schema(json.loads(file.read_text()))
        typed: dict[str, Any] = {}
        for record in records:
            assert record.value is not None
            if record.value.startswith(b"{"):
                assert json.loads(record.value)["id"] == "j", "a request in JSON has its result in JSON"
                continue
            datum: Any = fastavro.schemaless_reader(
                io.BytesIO(record.value[SINGLE_OBJECT_HEADER:]), schema, None
            )
            typed[datum["id"]] = datum
        assert typed.keys() == {"a", "b"}
        for datum in typed.values():
            (output,) = datum["outputs"]
            assert output["value"]["mood"] in ("bright", "dark", "calm")
            assert 1 <= output["value"]["score"] <= 9
            assert json.loads(output["text"])["tags"] == output["value"]["tags"]

        read = [
            json.loads(line)
            for line in headrace(stage, "results", "--model", "tagger", "--json").splitlines()
        ]
        values = {each["id"]: each["outputs"][0]["value"] for each in read}
        assert values.keys() == {"a", "b", "j"}
        assert values["a"] == json.loads(typed["a"]["outputs"][0]["text"])
