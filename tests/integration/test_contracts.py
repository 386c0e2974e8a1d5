"""Contracts and aliases on a real Kafka: frozen once, refused otherwise, and what a worker starts with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_members import WITHIN_S, read_all, settings_for
from packages import TAGS_SCHEMA, a_package

from headrace.consumers.contracts import contract_key, read_contracts
from headrace.ops.contracts import (
    Comparison,
    compare_with_frozen,
    contract_to_serve,
    freeze,
    remove_alias,
    set_alias,
)
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.contract import Contract
from headrace.schemas.errors import PackageError, UsageError
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic
from headrace.topics.provision import LayoutOptions, bring_in_line

LOWER = {
    **TAGS_SCHEMA,
    "properties": {**TAGS_SCHEMA["properties"], "score": {"type": "integer", "minimum": 2, "maximum": 8}},
}
HIGHER = {
    **TAGS_SCHEMA,
    "properties": {**TAGS_SCHEMA["properties"], "score": {"type": "integer", "minimum": 1, "maximum": 10}},
}
OTHER_DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#", **TAGS_SCHEMA}


@pytest.fixture
def settings(kafka_bootstrap: str, unique_prefix: str) -> Settings:
    settings = settings_for(kafka_bootstrap, prefix=unique_prefix)
    bring_in_line(
        settings, ContractNames(unique_prefix, "tagger", 1), LayoutOptions(partitions=1, replication=1)
    )
    return settings


def write(settings: Settings, key: bytes, value: bytes) -> None:
    producer = PlainProducer(settings)
    producer.send(OutgoingRecord(control_topic(settings.prefix), key, value)).result(WITHIN_S)
    producer.close()


def test_a_contract_is_frozen_once_and_its_number_is_not_given_again(
    settings: Settings, tmp_path: Path
) -> None:
    package = a_package(tmp_path / "1", output=TAGS_SCHEMA)
    frozen, written = freeze(settings, package)
    assert written
    assert read_contracts(settings).contracts == {("tagger", 1): frozen}
    assert freeze(settings, package) == (frozen, False)
    [record] = [
        each
        for each in read_all(settings, control_topic(settings.prefix))
        if each.key == b"contract/tagger/1"
    ]
    assert json.loads(record.value or b"")["output"] == TAGS_SCHEMA
    other = a_package(tmp_path / "2", output=HIGHER)
    with pytest.raises(UsageError, match="contract = 2") as refused:
        freeze(settings, other)
    assert frozen.contract.digest in str(refused.value)
    assert read_contracts(settings).contracts == {("tagger", 1): frozen}


def test_a_worker_starts_only_with_a_package_that_speaks_the_contract(
    settings: Settings, tmp_path: Path
) -> None:
    packages: dict[str, Any] = {
        name: a_package(tmp_path / name, output=schema)
        for name, schema in (
            ("own", TAGS_SCHEMA),
            ("lower", LOWER),
            ("higher", HIGHER),
            ("draft", OTHER_DRAFT),
        )
    }
    assert contract_to_serve(settings, packages["higher"]) is None
    frozen, _ = freeze(settings, packages["own"])
    for name in ("own", "lower"):
        assert contract_to_serve(settings, packages[name]) == frozen
    with pytest.raises(
        PackageError, match=r"output\.score breaks readers of results.*contract = 2"
    ) as refused:
        contract_to_serve(settings, packages["higher"])
    assert "--override" not in str(refused.value)
    with pytest.raises(PackageError, match=r"may break readers of results.*--override"):
        contract_to_serve(settings, packages["draft"])

    pair = (frozen.contract.digest, Contract.of(packages["draft"]).digest)
    with pytest.raises(UsageError, match="nothing was changed"):
        freeze(settings, packages["draft"], override=(pair[1], pair[0]))
    higher = (frozen.contract.digest, Contract.of(packages["higher"]).digest)
    with pytest.raises(UsageError, match="nothing is certain"):
        freeze(settings, packages["higher"], override=higher)
    overridden, _ = freeze(settings, packages["draft"], override=pair)
    assert contract_to_serve(settings, packages["draft"]) == overridden
    assert replace(overridden, overrides=()) == frozen
    told = compare_with_frozen(settings, packages["draft"])
    assert isinstance(told, Comparison)
    assert told.check.is_overridden


def test_a_record_that_cannot_be_read_is_not_taken_for_none(settings: Settings, tmp_path: Path) -> None:
    package = a_package(tmp_path / "1", output=TAGS_SCHEMA)
    write(settings, contract_key("tagger", 1), b"{broken")
    write(settings, contract_key("other", 1), b"{broken")
    with pytest.raises(PackageError, match="cannot be read"):
        contract_to_serve(settings, package)
    with pytest.raises(UsageError, match="--replace-unreadable"):
        freeze(settings, package)
    frozen, _ = freeze(settings, package, replace_unreadable=True)
    assert contract_to_serve(settings, package) == frozen
    assert list(read_contracts(settings).unreadable) == ["contract/other/1"]


def test_an_alias_means_a_frozen_contract_until_it_is_taken_back(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not frozen"):
        set_alias(settings, "tagger", ("tagger", 1))
    freeze(settings, a_package(tmp_path / "1", output=TAGS_SCHEMA))
    set_alias(settings, "org/tagger", ("tagger", 1))
    assert read_contracts(settings).aliases_of(("tagger", 1)) == ["org/tagger"]
    with pytest.raises(UsageError, match="no alias 'tagger'"):
        remove_alias(settings, "tagger")
    remove_alias(settings, "org/tagger")
    assert read_contracts(settings).aliases == {}
