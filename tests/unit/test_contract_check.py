"""Whether a version speaks a contract: who is broken by what, what an override can do, and the control records."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.contracts import (
    Alias,
    ContractRecords,
    FrozenContract,
    Override,
    alias_key,
    alias_value,
    contract_id,
    contract_key,
    contract_value,
    frozen_contract,
)
from headrace.ops.cli.contracts import comparison_lines
from headrace.ops.contracts import compared, override_digests
from headrace.schemas.containment import Containment, Difference, containment
from headrace.schemas.contract import Contract
from headrace.schemas.contract_check import ContractCheck, check_contract
from headrace.schemas.errors import UsageError

OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"mood": {"enum": ["bright", "dark"]}},
    "required": ["mood"],
    "additionalProperties": False,
}
VARIABLES: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}
CONTRACT = Contract("tagger", 1, VARIABLES, OUTPUT)
FROZEN = FrozenContract(CONTRACT, None, "operator@host", 1_700_000_000_000)


def check(version: Contract, contract: Contract = CONTRACT, **options: Any) -> ContractCheck:
    return check_contract(contract, version, contains=containment, **options)


def unknown(outer: Any, inner: Any) -> Containment:
    return Containment("unknown", "cannot say", (Difference("/mood", "mood", "cannot say"),))


def test_the_same_and_what_is_narrower_for_readers_and_wider_for_senders_may_serve() -> None:
    narrower = {**OUTPUT, "properties": {"mood": {"enum": ["dark"]}}}
    wider = {**VARIABLES, "required": []}
    for version in (CONTRACT, replace(CONTRACT, output=narrower, variables=wider)):
        assert check(version).is_same
        assert check(version).breaks == ()


def test_the_directions_are_not_to_be_exchanged() -> None:
    wider = {**OUTPUT, "properties": {"mood": {"enum": ["bright", "dark", "calm"]}}}
    [of_output] = check(replace(CONTRACT, output=wider)).breaks
    assert (of_output.breaks, of_output.path, of_output.field) == (
        "readers of results",
        "/output/mood",
        "output.mood",
    )
    assert of_output.example == {"mood": "calm"}
    stricter = {**VARIABLES, "properties": {"title": {"type": "string", "maxLength": 5}}}
    [of_request] = check(replace(CONTRACT, variables=stricter)).breaks
    assert (of_request.breaks, of_request.field) == ("senders of requests", "variables.title")
    assert isinstance(of_request.example, dict)
    assert len(of_request.example["title"]) > 5


def test_a_variable_more_breaks_senders() -> None:
    more = {**VARIABLES, "required": ["title", "year"], "properties": {"title": {}, "year": {}}}
    [found] = check(replace(CONTRACT, variables=more)).breaks
    assert (found.field, found.is_proved) == ("variables.year", True)


@pytest.mark.parametrize(
    ("contract", "version", "path"),
    [
        ((VARIABLES, None), (VARIABLES, OUTPUT), "/output"),
        ((VARIABLES, OUTPUT), (VARIABLES, None), "/output"),
        ((VARIABLES, OUTPUT), (None, OUTPUT), "/variables"),
        ((None, OUTPUT), (VARIABLES, OUTPUT), None),
    ],
)
def test_what_only_one_of_them_has(contract: Any, version: Any, path: str | None) -> None:
    told = check(Contract("tagger", 1, *version), Contract("tagger", 1, *contract))
    assert [each.path for each in told.breaks] == ([] if path is None else [path])
    assert not told.can_be_overridden
    assert told.is_same == (path is None)


def test_unknown_is_another_contract_unless_overridden_for_these_two() -> None:
    version = replace(CONTRACT, output={**OUTPUT, "title": "x"})
    pair = (CONTRACT.digest, version.digest)
    told = check_contract(CONTRACT, version, contains=unknown)
    assert (told.is_same, told.can_be_overridden) == (False, True)
    for others in ({(pair[1], pair[0])}, {(pair[0], pair[0])}):
        assert not check_contract(CONTRACT, version, contains=unknown, overrides=others).is_same
    overridden = check_contract(CONTRACT, version, contains=unknown, overrides={pair})
    assert (overridden.is_same, overridden.is_overridden, len(overridden.breaks)) == (True, True, 2)


def test_what_is_certain_no_override_holds_against() -> None:
    version = replace(CONTRACT, output={**OUTPUT, "required": []})
    told = check(version, overrides={(CONTRACT.digest, version.digest)})
    assert (told.is_same, told.is_overridden, told.can_be_overridden) == (False, False, False)


def test_people_are_told_who_is_broken_where_with_an_example_and_what_to_do() -> None:
    version = replace(CONTRACT, output={**OUTPUT, "properties": {"mood": {"enum": ["bright", "calm"]}}})
    told = compared(FROZEN, version, "the frozen contract tagger/1", 3)
    text = "\n".join(comparison_lines(told))
    assert "not the same as the frozen contract tagger/1" in text
    assert "output.mood breaks readers of results" in text
    assert '{"mood": "calm"}' in text
    assert "contract = 3" in text
    assert told.as_json()["next_contract"] == 3
    same = compared(FROZEN, CONTRACT, "it", 3)
    assert comparison_lines(same) == ["Contract: the same as it (may shift traffic)"]


@pytest.mark.parametrize("given", ["", "a:b", "sha256:" + "0" * 64, "0" * 63 + ":" + "0" * 64])
def test_an_override_names_two_digests(given: str) -> None:
    with pytest.raises(UsageError, match="CONTRACT:VERSION"):
        override_digests(given)


def test_digests_of_an_override_may_leave_out_their_algorithm() -> None:
    one, other = "a" * 64, "b" * 64
    both = (f"sha256:{one}", f"sha256:{other}")
    assert override_digests(f"{one}:{other}") == override_digests(":".join(both)) == both


# --- the records ----------------------------------------------------------------------------------------------


def records(*written: tuple[bytes | None, bytes | None]) -> ContractRecords:
    read = ContractRecords()
    for key, value in written:
        read.take(key, value)
    return read


KEY = contract_key("tagger", 1)
VALUE = contract_value(FROZEN)


def test_a_contract_comes_back_as_it_was_in_its_order() -> None:
    output = {"properties": {"why": {}, "mood": {}, "a": {}}, "type": "object"}
    override = Override("sha256:a", "sha256:b", "b@host", 7)
    frozen = replace(
        FROZEN, contract=replace(CONTRACT, output=output), result_schema="{}", overrides=(override,)
    )
    read = records((contract_key("tagger", 1), contract_value(frozen)))
    assert read.contracts == {("tagger", 1): frozen}
    found = read.contracts["tagger", 1].contract.output
    assert json.dumps(found) == json.dumps(output)
    assert read.contracts["tagger", 1].overridden == {("sha256:a", "sha256:b")}


def test_fields_and_kinds_of_later_releases_are_passed_over() -> None:
    value = json.loads(VALUE) | {"later": {"more": 1}}
    read = records((KEY, json.dumps(value).encode()), (b"plan/tagger", b"?"), (None, b"?"), (b"\xff", None))
    assert read.contracts == {("tagger", 1): FROZEN}
    assert read.unreadable == {}


def edited(**changes: Any) -> bytes:
    return json.dumps(json.loads(VALUE) | changes).encode()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (KEY, b"\xff", ""),
        (KEY, b"[]", ""),
        (KEY, edited(number="1"), "number"),
        (KEY, edited(output=5), "output"),
        (KEY, edited(output={"type": "string"}), "digest"),
        (contract_key("tagger", 2), VALUE, "tagger/1"),
        (b"contract/tagger/one", VALUE, "MODEL/NUMBER"),
        (b"contract/tagger", VALUE, "MODEL/NUMBER"),
        (b"alias/tagger", b"{}", "model"),
    ],
)
def test_a_malformed_record_is_reported_and_hides_no_other(key: bytes, value: bytes, why: str) -> None:
    other = replace(FROZEN, contract=replace(CONTRACT, number=7))
    read = records((contract_key("tagger", 7), contract_value(other)), (key, value))
    assert read.contracts == {("tagger", 7): other}
    [(unreadable, said)] = read.unreadable.items()
    assert unreadable == key.decode()
    assert why in said


def test_the_last_record_of_a_key_counts_and_one_without_a_value_takes_it_back() -> None:
    assert records((KEY, VALUE), (KEY, b"?")).contracts == {}
    assert records((KEY, b"?"), (KEY, VALUE)).unreadable == {}
    taken_back = records((KEY, VALUE), (KEY, b"?"), (KEY, None))
    assert (taken_back.contracts, taken_back.unreadable) == ({}, {})


def test_aliases_by_contract_with_names_that_have_slashes() -> None:
    alias = Alias("org/tagger", "tagger", 1, "a@b", 5)
    read = records((alias_key("org/tagger"), alias_value(alias)), (KEY, VALUE))
    assert read.aliases == {"org/tagger": alias}
    assert read.aliases_of(("tagger", 1)) == ["org/tagger"]
    assert records((alias_key("x"), alias_value(alias)), (alias_key("x"), None)).aliases == {}


def test_the_next_number_is_above_all_of_the_model_the_unreadable_too() -> None:
    assert records().next_number("tagger") == 1
    assert records((KEY, VALUE)).next_number("tagger") == 2
    assert records((KEY, VALUE), (b"contract/tagger/4", b"?")).next_number("tagger") == 5
    assert records((KEY, VALUE), (b"contract/tagger2/9", b"?")).next_number("tagger") == 2


@pytest.mark.parametrize(
    "given", ["tagger", "tagger/", "/1", "tagger/0", "tagger/x", "tagger/²", "a b/1", "a/b/1"]
)
def test_what_is_no_contract_s_name_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="MODEL/NUMBER"):
        contract_id(given)


def test_what_show_prints_is_read_back() -> None:
    assert frozen_contract(json.dumps(FROZEN.as_json(), indent=2)) == FROZEN
