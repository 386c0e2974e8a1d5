"""Every bad message ends as one `rejected` result where an id can be read, one dead letter with its bytes, and the
worker goes on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packages import TAGS_SCHEMA, write_package
from worker_processes import WorkerProcess, create_topics, traffic

from headrace.topics.names import ContractNames

HUGE = "x" * 40_000

# What is sent, the id it can be answered to, the code, and the field.
BAD: dict[str, tuple[bytes | dict[str, Any], str | None, str, str | None]] = {
    "not decodable": (b"\x07garbage", None, "undecodable", None),
    "empty": (b"", None, "undecodable", None),
    "no id": ({"prompt": "x"}, None, "invalid_field", "/id"),
    "unknown field": (
        {"id": "unknown", "prompt": "x", "max_tokens": 3},
        "unknown",
        "unknown_field",
        "/max_tokens",
    ),
    "both messages and prompt": (
        {"id": "both", "prompt": "x", "messages": [{"role": "user", "content": "y"}]},
        "both",
        "invalid_field",
        None,
    ),
    "neither": ({"id": "neither"}, "neither", "invalid_field", None),
    "a variable is missing": (
        {"id": "missing", "variables": {}},
        "missing",
        "missing_variable",
        "/variables/title",
    ),
    "a variable too many": (
        {"id": "many", "variables": {"title": "x", "titel": "y"}},
        "many",
        "unknown_field",
        "/variables/titel",
    ),
    "too long for the model": ({"id": "long", "prompt": HUGE}, "long", "prompt_too_long", "/prompt"),
    "max_tokens 0": (
        {"id": "zero", "prompt": "x", "sampling": {"max_tokens": 0}},
        "zero",
        "invalid_field",
        "/sampling/max_tokens",
    ),
    "a schema that is none": (
        {"id": "schema", "prompt": "x", "output": {"json_schema": {"type": "strin"}}},
        "schema",
        "invalid_schema",
        "/output/json_schema/type",
    ),
    "a schema beyond the bounds": (
        {
            "id": "bounds",
            "prompt": "x",
            "output": {"json_schema": {"type": "string", "pattern": "^[a-z]{1,10000}$"}},
        },
        "bounds",
        "schema_too_complex",
        "/output/json_schema/pattern",
    ),
    "a topic that is not allowed": (
        {"id": "topic", "prompt": "x", "result_topic": "payments"},
        "topic",
        "topic_not_allowed",
        "/result_topic",
    ),
}


@pytest.mark.parametrize("with_schema", [False, True])
def test_bad_input_never_kills_and_never_vanishes(
    broker_bootstrap: str, unique_prefix: str, tmp_path: Path, with_schema: bool
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(broker_bootstrap, names)
    package = write_package(tmp_path / "package", output=TAGS_SCHEMA if with_schema else None)
    cases = dict(BAD)
    if with_schema:
        # There a request's own schema is not asked about: the contract's holds.
        other = {"id": "schema", "prompt": "x", "output": {"json_schema": {"type": "string"}}}
        cases["a schema that is none"] = (other, "schema", "unsupported_field", "/output")
    sent = {
        name: value if isinstance(value, bytes) else json.dumps(value).encode()
        for name, (value, *_) in cases.items()
    }
    answered = {request_id: (code, path) for _, request_id, code, path in cases.values() if request_id}
    with (
        traffic(broker_bootstrap, names) as seen,
        WorkerProcess(broker_bootstrap, package, prefix=names.prefix, log=tmp_path / "log") as worker,
    ):
        for value in sent.values():
            seen.send(value)
        seen.send_many(["good"])
        seen.wait_for_results(len(answered) + 1)
        seen.wait_for_dead(len(cases))
        seen.read()
        assert worker.process.poll() is None, worker.said()
        assert "Traceback" not in worker.said()
    by_id = {result.id: result for _, result in seen.results}
    assert by_id.pop("good").status == "ok"
    assert {each: (r.error.code, r.error.path) for each, r in by_id.items() if r.error} == answered
    assert {result.status for result in by_id.values()} == {"rejected"}
    assert sorted(letter.value or b"" for _, letter in seen.dead) == sorted(sent.values())
    assert len(seen.results) == len(answered) + 1


def test_a_result_that_its_topic_does_not_take_fails_alone(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(kafka_bootstrap, names, results_max_message_bytes="20000")
    package = write_package(tmp_path / "package", user=None)
    large = {"id": "large", "prompt": "x", "attributes": {"note": "y" * 30_000}}
    with (
        traffic(kafka_bootstrap, names) as seen,
        WorkerProcess(kafka_bootstrap, package, prefix=names.prefix, log=tmp_path / "log") as worker,
    ):
        seen.send(large)
        for number in range(5):
            seen.send({"id": f"small{number}", "prompt": "x"})
        seen.wait_for_results(6)
        seen.wait_for_dead(1)
        assert worker.process.poll() is None, worker.said()
    by_id = {result.id: result for _, result in seen.results}
    refused = by_id.pop("large")
    assert refused.error is not None
    assert (refused.status, refused.error.code) == ("failed", "result_too_large")
    assert {result.status for result in by_id.values()} == {"ok"}
    ((_, letter),) = seen.dead
    assert f"{names.requests('standard')}-" in letter.message, "it says where the bytes lie"
    assert set(seen.answered().values()) == {1}


def test_a_result_larger_than_any_record_may_be_fails_before_its_commit(
    broker_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    names = ContractNames(unique_prefix, "tagger", 1)
    create_topics(broker_bootstrap, names)
    package = write_package(tmp_path / "package", user=None)
    sampling = {"max_tokens": 4_096, "logprobs": 20}
    with (
        traffic(broker_bootstrap, names) as seen,
        WorkerProcess(
            broker_bootstrap,
            package,
            prefix=names.prefix,
            log=tmp_path / "log",
            HEADRACE_MAX_RECORD_BYTES="3000",
        ),
    ):
        seen.send({"id": "logprobs", "prompt": "x", "sampling": sampling})
        seen.send({"id": "small", "prompt": "x"})
        seen.wait_for_results(2)
        seen.wait_for_dead(1)
    by_id = {result.id: result for _, result in seen.results}
    error = by_id["logprobs"].error
    assert error is not None
    assert error.code == "result_too_large"
    assert by_id["small"].status == "ok"
