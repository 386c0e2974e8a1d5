"""Which contract a model's name means at the endpoint."""

from __future__ import annotations

import pytest

from headrace.consumers.catalogue import CatalogueRecords, ServingVersion, serving_key, serving_value
from headrace.consumers.contracts import Alias, alias_key, alias_value
from headrace.producers.http.models import described, listed, resolve
from headrace.producers.http.wanted import ApiError


def records(
    *contracts: tuple[str, int], aliases: dict[str, tuple[str, int]] | None = None
) -> CatalogueRecords:
    found = CatalogueRecords()
    for model, number in contracts:
        one = ServingVersion(model, number, "1", "vllm", 100 * number, number == 2, False, 5_000)
        found.take(serving_key(one), serving_value(one))
    for name, (model, number) in (aliases or {}).items():
        found.take(alias_key(name), alias_value(Alias(name, model, number, "me", 1)))
    return found


@pytest.mark.parametrize(
    ("name", "contract"),
    [
        ("films", ("tagger", 2)),
        ("tagger@1", ("tagger", 1)),
        ("tagger/1", ("tagger", 1)),
        ("lone", ("lone", 7)),
        ("unheard-of@3", ("unheard-of", 3)),
        ("org/films-4", ("lone", 7)),
    ],
)
def test_a_name_is_an_alias_or_a_contract_or_a_model_with_one_contract(
    name: str, contract: tuple[str, int]
) -> None:
    known = records(
        ("tagger", 1),
        ("tagger", 2),
        ("lone", 7),
        aliases={"films": ("tagger", 2), "org/films-4": ("lone", 7)},
    )
    assert resolve(name, known).contract == contract


def test_a_model_with_two_contracts_needs_an_alias_or_a_pin() -> None:
    known = records(("tagger", 1), ("tagger", 2))
    with pytest.raises(ApiError, match="tagger@1 or tagger@2") as refusal:
        resolve("tagger", known)
    assert (refusal.value.status, refusal.value.param, refusal.value.reason) == (
        404,
        "model",
        "model_not_found",
    )
    with_alias = records(("tagger", 1), ("tagger", 2), aliases={"tagger": ("tagger", 2)})
    assert resolve("tagger", with_alias).contract == ("tagger", 2)


@pytest.mark.parametrize(
    ("name", "says"), [("tager", "Did you mean `tagger`"), ("gpt-4o", "There are: tagger"), ("", "")]
)
def test_a_name_that_is_not_known_is_told_what_there_is(name: str, says: str) -> None:
    with pytest.raises(ApiError, match="does not exist") as refusal:
        resolve(name, records(("tagger", 1)))
    assert says in refusal.value.message


def test_what_is_known_of_a_contract_comes_with_it() -> None:
    found = resolve("tagger@2", records(("tagger", 2)))
    assert (found.has_output, found.max_model_len) == (True, 200)
    assert described("tagger", records(("tagger", 2))) == {
        "id": "tagger",
        "object": "model",
        "created": 5,
        "owned_by": "headrace",
        "root": "tagger@2",
        "parent": None,
        "max_model_len": 200,
    }


def test_everything_that_can_be_asked_for_is_listed_and_resolves() -> None:
    known = records(("tagger", 1), ("tagger", 2), ("lone", 7), aliases={"films": ("tagger", 2)})
    ids = [each["id"] for each in listed(known)["data"]]
    assert ids == ["films", "lone", "lone@7", "tagger@1", "tagger@2"]
    for name in ids:
        resolve(name, known)
