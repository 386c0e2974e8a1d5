"""A real schema registry: registering, reading by id, compatibility, and the command that sets it all up."""

from __future__ import annotations

import io
import json
import uuid

import fastavro
import pytest
from click.testing import CliRunner

from headrace.ops.cli.schemas import COMPATIBILITY, schemas, subjects
from headrace.schemas.avro_schema import shipped_text
from headrace.schemas.codec import SCHEMA_NAMES, Codec, Encoding
from headrace.schemas.errors import RegistryFailed, UnknownWriterSchema
from headrace.schemas.messages import Cancel, Request, Result
from headrace.schemas.registry import SchemaRegistry
from headrace.topics.names import ContractNames


def fresh(what: str) -> str:
    """A name that no other test has."""
    return f"{what}-{uuid.uuid4().hex[:12]}"


def test_a_message_goes_through_a_real_registry(registry_url: str) -> None:
    request = Request(id="r", variables={"title": "The General"})
    topic = fresh("topic")
    with SchemaRegistry(registry_url) as ours, SchemaRegistry(registry_url) as theirs:
        data = Codec(ours).encode(request, topic=topic)
        decoded = Codec(theirs).decode(Request, data)
        assert ours.id_of(f"{topic}-value", shipped_text("request")) == int.from_bytes(data[1:5], "big")
    assert decoded.message == request
    assert decoded.encoding is Encoding.CONFLUENT


def test_a_message_of_a_foreign_producers_own_schema_is_read(registry_url: str) -> None:
    writer = {
        "type": "record",
        "name": fresh("Ask").replace("-", "_"),
        "namespace": "com.acme",
        "fields": [{"name": "id", "type": "string"}, {"name": "prompt", "type": "string"}],
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), {"id": "r", "prompt": "a"})
    with SchemaRegistry(registry_url) as registry:
        id_ = registry.register(fresh("theirs"), json.dumps(writer))
        data = b"\x00" + id_.to_bytes(4, "big") + out.getvalue()
        assert Codec(registry).decode(Request, data).message == Request(id="r", prompt="a")


def test_an_id_that_the_registry_does_not_have_is_the_messages_fault(registry_url: str) -> None:
    with SchemaRegistry(registry_url) as registry, pytest.raises(UnknownWriterSchema, match="2147483647"):
        registry.writer_schema(2**31 - 1)


def test_a_subject_without_the_schema_has_no_id_and_no_level(registry_url: str) -> None:
    with SchemaRegistry(registry_url) as registry:
        subject = fresh("none")
        assert registry.id_of(subject, shipped_text("cancel")) is None
        assert registry.compatibility(subject) is None
        registry.register(subject, shipped_text("cancel"))
        assert registry.id_of(subject, shipped_text("request")) is None


def test_an_incompatible_schema_is_refused_once_the_level_is_set(registry_url: str) -> None:
    narrower = json.loads(shipped_text("cancel"))
    narrower["fields"].append({"name": "extra", "type": "string"})  # a new reader cannot read old messages
    with SchemaRegistry(registry_url) as registry:
        subject = fresh("cancels")
        registry.register(subject, shipped_text("cancel"))
        registry.set_compatibility(subject, COMPATIBILITY[Cancel])
        with pytest.raises(RegistryFailed, match="409"):
            registry.register(subject, json.dumps(narrower))


def test_schemas_register_does_all_once_and_says_so(registry_url: str) -> None:
    model = fresh("m")
    arguments = ["register", "--model", model, "--contract", "2", "--registry", registry_url, "--json"]
    first = CliRunner().invoke(schemas, arguments, catch_exceptions=False)
    again = CliRunner().invoke(schemas, arguments, catch_exceptions=False)

    expected = subjects(ContractNames("headrace", model, 2))
    done = {entry["subject"]: entry for entry in json.loads(first.output)}
    assert set(done) == {subject.name for subject in expected}
    assert all(entry["action"] == "unchanged" for entry in json.loads(again.output))
    with SchemaRegistry(registry_url) as registry:
        for subject in expected:
            assert registry.id_of(subject.name, shipped_text(SCHEMA_NAMES[subject.kind])) is not None
            assert registry.compatibility(subject.name) == COMPATIBILITY[subject.kind]
            if model in subject.name:  # replies are shared, and may be there already
                assert done[subject.name]["action"] == "registered"


def test_schemas_register_sets_a_level_that_was_changed(registry_url: str) -> None:
    model = fresh("m")
    arguments = ["register", "--model", model, "--contract", "1", "--registry", registry_url]
    CliRunner().invoke(schemas, arguments, catch_exceptions=False)
    results = f"headrace.{model}.c1.results-value"
    with SchemaRegistry(registry_url) as registry:
        registry.set_compatibility(results, "NONE")
        output = CliRunner().invoke(schemas, arguments, catch_exceptions=False).output
        assert registry.compatibility(results) == COMPATIBILITY[Result] == "FORWARD_TRANSITIVE"
    assert f"level set  {results}" in output
    assert output.endswith("1 of 7 subjects changed\n")
