"""What a job knows of its contract: from its package, from the frozen contract, or from what a worker said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packages import TAGS_SCHEMA, a_package

from headrace.consumers.catalogue import CatalogueRecords, ServingVersion, serving_key, serving_value
from headrace.consumers.contracts import (
    Alias,
    FrozenContract,
    Override,
    alias_key,
    alias_value,
    contract_key,
    contract_value,
)
from headrace.consumers.retirements import Retirement, retirement_key, retirement_value
from headrace.producers.backfill.contract_view import contract_view
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job import JobSpec, job_of
from headrace.schemas.contract import Contract
from headrace.schemas.package import Package

TITLE = {
    "type": "object",
    "properties": {"title": {"type": "string"}},
    "required": ["title"],
    "additionalProperties": False,
}
CONTRACT = Contract("tagger", 1, TITLE, TAGS_SCHEMA)
FROZEN = FrozenContract(CONTRACT, None, "me", 1)
SERVED = ServingVersion("tagger", 1, "1", "vllm", 2048, True, False, 1_000, True, CONTRACT)


def a_job(model: str | None = "tagger", **fields: Any) -> JobSpec:
    return job_of({"model": model, "input": "a.csv", "output": "b.parquet", **fields}, Path("/work"))


def records(*said: ServingVersion | FrozenContract | Alias) -> CatalogueRecords:
    found = CatalogueRecords()
    for each in said:
        match each:
            case ServingVersion():
                found.take(serving_key(each), serving_value(each))
            case FrozenContract():
                found.take(contract_key(*each.id), contract_value(each))
            case Alias():
                found.take(alias_key(each.name), alias_value(each))
    return found


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return a_package(tmp_path / "tagger", output=TAGS_SCHEMA)


def test_a_contract_that_was_frozen_counts_before_what_a_worker_says() -> None:
    later = replace(SERVED, version="2", at_ms=2_000, speaks=replace(CONTRACT, output=None))
    view = contract_view(a_job(), records(later, FROZEN))
    assert (view.source, view.contract, view.known) == ("frozen", CONTRACT, frozenset({"title"}))
    assert (view.has_tool_parser, view.max_model_len, view.name) == (True, 2048, "tagger@1")


def test_what_a_worker_said_last_of_its_contract_is_enough() -> None:
    silent = replace(SERVED, version="3", at_ms=3_000, speaks=None)
    view = contract_view(a_job(), records(SERVED, silent))
    assert (view.source, view.contract, view.has_tool_parser) == ("served", CONTRACT, True)


def test_a_package_is_enough_where_nobody_has_said_anything(package: Package) -> None:
    view = contract_view(a_job(), records(), package)
    assert (view.source, view.contract, view.known) == ("package", Contract.of(package), {"title"})
    assert (view.has_tool_parser, view.max_model_len) == (False, None)


def test_a_package_that_says_what_is_frozen_is_no_conflict(package: Package) -> None:
    assert contract_view(a_job(), records(FROZEN), package).source == "frozen"


def test_a_package_at_odds_with_the_frozen_contract_is_an_error(package: Package) -> None:
    frozen = replace(FROZEN, contract=replace(CONTRACT, output=None))
    with pytest.raises(JobInvalid, match=r"package: .*\(in its output\) than was frozen: leave package out"):
        contract_view(a_job(), records(frozen), package)
    with pytest.raises(JobInvalid, match="than workers serve"):
        contract_view(a_job(), records(replace(SERVED, speaks=frozen.contract)), package)
    override = Override(frozen.contract.digest, Contract.of(package).digest, "me", 1)
    view = contract_view(a_job(), records(replace(frozen, overrides=(override,))), package)
    assert view.contract == frozen.contract


@pytest.mark.parametrize("name", ["films", "tagger", "tagger@1", "tagger/1"])
def test_a_model_goes_by_its_name_its_contract_and_its_aliases(name: str) -> None:
    known = records(FROZEN, Alias("films", "tagger", 1, "me", 1))
    assert contract_view(a_job(name), known).id == ("tagger", 1)
    assert contract_view(a_job(name, contract=1), known).id == ("tagger", 1)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (a_job("tager"), r"model: The model `tager` does not exist. Did you mean `tagger`\?"),
        (a_job("films", contract=2), "contract: is 2, and 'films' means tagger@1"),
        (a_job("tagger", contract=9), "model: nothing is known of the contract tagger@9. Start a worker"),
    ],
)
def test_a_model_that_means_nothing_here_is_told_with_what_there_is(job: JobSpec, said: str) -> None:
    with pytest.raises(JobInvalid, match=said):
        contract_view(job, records(FROZEN, Alias("films", "tagger", 1, "me", 1)))


def test_where_nothing_is_known_it_is_said_what_to_do() -> None:
    advice = r'Start a worker of it, freeze its contract .*, or give package = "DIR"'
    with pytest.raises(JobInvalid, match=advice):
        contract_view(a_job(), records())
    with pytest.raises(JobInvalid, match=r"has not written down its schemas .*freeze the contract"):
        contract_view(a_job(), records(replace(SERVED, speaks=None)))


def test_a_package_of_another_model_is_an_error(package: Package) -> None:
    with pytest.raises(JobInvalid, match="package: is of tagger@1, and 'tagger@2' means tagger@2"):
        contract_view(a_job("tagger@2"), records(), package)


def test_a_retired_contract_is_not_asked() -> None:
    known = records(FROZEN)
    gone = Retirement("tagger", 1, "removed", "me", 5)
    known.take(retirement_key("tagger", 1), retirement_value(gone))
    with pytest.raises(JobInvalid, match="tagger@1 was retired"):
        contract_view(a_job(), known)


def test_a_contract_whose_record_cannot_be_read_is_not_guessed() -> None:
    known = records(SERVED)
    known.take(contract_key("tagger", 1), b"{}")
    with pytest.raises(JobInvalid, match="cannot be read: model: Field required"):
        contract_view(a_job(), known)


def test_a_batch_without_a_model_asks_the_one_that_its_lines_name() -> None:
    job = job_of({"openai_batch": "calls.jsonl", "output": "answers.jsonl"}, Path("/work"))
    assert contract_view(job, records(FROZEN), name="tagger").id == ("tagger", 1)
    with pytest.raises(JobInvalid, match="model: is missing"):
        contract_view(job, records(FROZEN))
