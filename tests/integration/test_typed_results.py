"""Typed results as another team reads them: by a real registry, with fastavro alone, and from a real Kafka with the
.avsc that the command exports."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import fastavro
import pytest
from click.testing import CliRunner
from conformance.kafka_responder import create_topics
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from packages import TAGS_SCHEMA, write_package

from headrace.consumers.contracts import FrozenContract, contract_key, contract_value
from headrace.ops.cli.results import results
from headrace.ops.cli.schemas import schemas
from headrace.schemas.avro_form import contract_result_schema
from headrace.schemas.avro_schema import parse_schema, shipped_text
from headrace.schemas.codec import Codec, TypedResults
from headrace.schemas.contract import Contract
from headrace.schemas.errors import SchemaIncompatible
from headrace.schemas.messages import Output, Provenance, Request, Result
from headrace.schemas.registry import SchemaRegistry
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic

ENOUGH_S = 30.0
# Everything that the registry must keep: marked JSON text, escaped names, what has no field.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "film-title": {"type": "string", "description": "As on the poster."},
        "mood": {"enum": ["bright", "dark"]},
        "note": {},
        "parts": {"type": "array", "items": {"type": ["integer", "string"]}},
        "year": {"type": ["integer", "null"]},
    },
    "required": ["film-title", "mood"],
}
VALUE = {
    "film-title": "The General",
    "mood": "dark",
    "note": None,
    "parts": [1, "a"],
    "year": None,
    "more": {},
}


def typed(names: ContractNames, output: dict[str, Any] = SCHEMA) -> TypedResults:
    text = contract_result_schema(output, names.model, names.contract)
    assert text is not None
    return TypedResults(names.results, text)


def a_result(value: Any) -> Result:
    return Result(
        id="r-1",
        status="ok",
        outputs=[Output(text=json.dumps(value), finish_reason="stop", value=value)],
        provenance=Provenance(
            model="tagger", version="1", contract=1, engine="e", engine_version="1", slot="s",
            source_topic="t", source_partition=0, source_offset=0,
        ),
    )  # fmt: skip


def foreign_read(text: str, datum: bytes) -> Any:
    """The datum as fastavro reads it, with nothing of ours."""
    read: Any = fastavro.schemaless_reader(io.BytesIO(datum), fastavro.parse_schema(json.loads(text)), None)
    return read


@pytest.fixture
def names() -> ContractNames:
    """A contract that no other test has."""
    return ContractNames(f"t{uuid.uuid4().hex[:12]}", "tagger", 1)


def test_a_typed_result_goes_through_a_real_registry_and_is_read_by_its_id_alone(
    registry_url: str, names: ContractNames
) -> None:
    with SchemaRegistry(registry_url) as ours, SchemaRegistry(registry_url) as theirs:
        data = Codec(ours, typed_results=typed(names)).encode(a_result(VALUE), topic=names.results)
        assert Codec(theirs).decode(Result, data).message == a_result(VALUE)
        kept = theirs.writer_schema(int.from_bytes(data[1:5], "big"))
        assert ours.compatibility(f"{names.results}-value") == "FORWARD_TRANSITIVE"
    seen = foreign_read(kept.text, data[5:])["outputs"][0]["value"]
    assert seen == {
        "film_title": "The General",
        "mood": "dark",
        "note": "null",
        "parts": ["1", '"a"'],
        "year": None,
        "_additional": {"more": "{}", "year": "null"},
    }


def test_requests_are_registered_backward_by_their_first_sender(
    registry_url: str, names: ContractNames
) -> None:
    topic = names.requests("standard")
    with SchemaRegistry(registry_url) as registry:
        Codec(registry).encode(Request(id="r", prompt="a"), topic=topic)
        assert registry.compatibility(f"{topic}-value") == "BACKWARD"


def test_where_readers_of_json_text_are_promised_it_results_go_on_so(
    registry_url: str, names: ContractNames, caplog: pytest.LogCaptureFixture
) -> None:
    with SchemaRegistry(registry_url) as registry:
        Codec(registry).encode(a_result(VALUE), topic=names.results)  # before the contract was frozen
        with pytest.raises(SchemaIncompatible):
            registry.register(f"{names.results}-value", typed(names).schema)
        data = Codec(registry, typed_results=typed(names)).encode(a_result(VALUE), topic=names.results)
        assert Codec(registry).decode(Result, data).message == a_result(VALUE)
        assert registry.id_of(f"{names.results}-value", typed(names).schema) is None
    assert "without types" in caplog.text
    assert json.loads(foreign_read(shipped_text("result"), data[5:])["outputs"][0]["value"]) == VALUE


def test_register_with_a_package_registers_what_its_workers_write(registry_url: str, tmp_path: Path) -> None:
    model = f"m-{uuid.uuid4().hex[:12]}"
    package = write_package(tmp_path, model=model, output=TAGS_SCHEMA)
    arguments = ["register", "--package", str(package), "--registry", registry_url, "--json"]
    CliRunner().invoke(schemas, arguments, catch_exceptions=False)
    again = CliRunner().invoke(schemas, arguments, catch_exceptions=False)
    names = ContractNames("headrace", model, 1)
    entries = {entry["subject"]: entry for entry in json.loads(again.output)}
    assert {entry["action"] for entry in entries.values()} == {"unchanged"}
    entry = entries[f"{names.results}-value"]
    with SchemaRegistry(registry_url) as registry:
        codec = Codec(registry, typed_results=typed(names, TAGS_SCHEMA))
        data = codec.encode(a_result({"mood": "calm", "score": 1, "tags": ["aa"]}), topic=names.results)
    assert int.from_bytes(data[1:5], "big") == entry["id"]
    assert entry["compatibility"] == "FORWARD_TRANSITIVE"


def test_plain_kafka_python_and_the_exported_file_read_columns(
    kafka_bootstrap: str, tmp_path: Path, names: ContractNames
) -> None:
    package = write_package(tmp_path / "package", output=SCHEMA)
    arguments = ["export", "--dir", str(tmp_path), "--package", str(package)]
    CliRunner().invoke(schemas, arguments, catch_exceptions=False)
    text = (tmp_path / "tagger.c1.result.avsc").read_text()

    create_topics(Settings(bootstrap_servers=kafka_bootstrap, prefix=names.prefix), names)
    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap)
    data = Codec(typed_results=typed(names)).encode(a_result(VALUE), topic=names.results)
    producer.send(names.results, value=data).get(timeout=ENOUGH_S)
    producer.close()

    consumer = KafkaConsumer(
        names.results, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest",
        consumer_timeout_ms=ENOUGH_S * 1000,
    )  # fmt: skip
    record = next(consumer)
    consumer.close()
    assert record.value[:2] == b"\xc3\x01"
    assert record.value[2:10] == parse_schema(text).fingerprint
    result = foreign_read(text, record.value[10:])
    assert result["status"] == "ok"
    assert result["outputs"][0]["value"]["film_title"] == "The General"
    assert result["outputs"][0]["value_json"] is None


def test_the_command_reads_typed_results_by_the_schema_that_the_frozen_contract_holds(
    kafka_bootstrap: str, names: ContractNames
) -> None:
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=names.prefix)
    create_topics(settings, names)
    admin = KafkaAdminClient(bootstrap_servers=kafka_bootstrap)
    admin.create_topics([NewTopic(control_topic(names.prefix), 1, 1)])
    admin.close()
    frozen = FrozenContract(Contract(names.model, 1, None, SCHEMA), typed(names).schema, "me@here", 1)
    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap)
    data = Codec(typed_results=typed(names)).encode(a_result(VALUE), topic=names.results)
    producer.send(names.results, value=data).get(timeout=ENOUGH_S)
    arguments = ["--model", names.model, "--prefix", names.prefix, "--json"]
    arguments += ["--bootstrap-servers", kafka_bootstrap]
    before = CliRunner().invoke(results, arguments, catch_exceptions=False)
    key, value = contract_key(names.model, 1), contract_value(frozen)
    producer.send(control_topic(names.prefix), key=key, value=value).get(timeout=ENOUGH_S)
    producer.close()
    after = CliRunner().invoke(results, arguments, catch_exceptions=False)
    assert "fingerprint" in before.stderr
    assert json.loads(after.stdout)["outputs"][0]["value"] == VALUE
