"""What the control topic says can be asked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace.consumers.catalogue import (
    MAX_SCHEMAS_BYTES,
    CatalogueRecords,
    ServingVersion,
    serving_key,
    serving_value,
)
from headrace.consumers.contracts import Alias, alias_key, alias_value
from headrace.schemas.contract import Contract

ONE = ServingVersion("tagger", 1, "2026/a", "vllm", 2048, True, False, 1_000)
LATER = ServingVersion("tagger", 1, "2", "vllm", 4096, True, False, 2_000, calls_tools=True)


def records(*servings: ServingVersion) -> CatalogueRecords:
    found = CatalogueRecords()
    for each in servings:
        assert found.take(serving_key(each), serving_value(each)) is None
    return found


def test_a_version_comes_back_as_it_was_written_and_the_latest_counts() -> None:
    found = records(LATER, ONE)
    assert found.versions == {("tagger", 1): {"2": LATER, "2026/a": ONE}}
    assert found.latest(("tagger", 1)) == LATER
    assert found.known == [("tagger", 1)]
    assert found.latest(("tagger", 2)) is None


def test_without_a_value_a_record_takes_its_key_back() -> None:
    found = records(ONE)
    assert found.take(serving_key(ONE), None) is None
    assert (found.known, found.latest(("tagger", 1))) == ([], None)


def test_aliases_and_contracts_are_read_beside() -> None:
    found = records(ONE)
    found.take(alias_key("films"), alias_value(Alias("films", "tagger", 1, "me", 5)))
    assert found.contracts.aliases["films"].model == "tagger"


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        (b"serving/tagger/x/1", b"{}", "its key is not"),
        (b"serving/tagger", b"{}", "its key is not"),
        (b"serving/tagger/1/1", b"{}", "engine: Field required"),
        (b"serving/tagger/1/1", b"no json", "its value"),
    ],
)
def test_what_cannot_be_read_is_said_and_hides_nothing(key: bytes, value: bytes, wrong: str) -> None:
    found = records(LATER)
    assert wrong in (found.take(key, value) or "")
    assert found.latest(("tagger", 1)) == LATER


def test_a_version_that_an_earlier_release_wrote_calls_no_tools() -> None:
    found = CatalogueRecords()
    written = json.loads(serving_value(LATER))
    del written["tools"]
    assert found.take(serving_key(LATER), json.dumps(written).encode()) is None
    latest = found.latest(("tagger", 1))
    assert latest is not None
    assert not latest.calls_tools


def test_fields_that_a_later_release_has_added_are_passed_over() -> None:
    found = CatalogueRecords()
    value = json.dumps(json.loads(serving_value(ONE)) | {"gpus": 8}).encode()
    assert found.take(serving_key(ONE), value) is None
    assert found.latest(("tagger", 1)) is not None


CONTRACT = Contract("tagger", 1, {"properties": {"title": {}, "a": {}}}, {"type": "object"})


def test_a_version_says_the_contract_as_its_package_has_it_its_order_kept() -> None:
    found = records(replace(ONE, speaks=CONTRACT), LATER)
    spoken = found.spoken(("tagger", 1))
    assert spoken is not None
    assert spoken == CONTRACT
    assert json.dumps(spoken.variables) == json.dumps(CONTRACT.variables)
    assert found.spoken(("tagger", 2)) is None


def test_schemas_that_are_very_large_are_left_out_of_the_record() -> None:
    large = replace(CONTRACT, output={"enum": ["x" * MAX_SCHEMAS_BYTES]})
    found = records(replace(ONE, speaks=large))
    assert found.latest(("tagger", 1)) == ONE
    assert found.spoken(("tagger", 1)) is None


def test_a_version_that_an_earlier_release_wrote_says_no_contract() -> None:
    found = CatalogueRecords()
    written = json.loads(serving_value(replace(ONE, speaks=CONTRACT)))
    del written["schemas"]
    assert found.take(serving_key(ONE), json.dumps(written).encode()) is None
    assert found.latest(("tagger", 1)) == ONE
