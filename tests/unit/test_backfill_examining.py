"""Every row is looked at before anything is asked: what is refused, what is spared, what a sample is of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packages import a_package

from headrace.producers.backfill.asking import RowAsker
from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.contract_view import ContractView
from headrace.producers.backfill.examining import SAMPLE, Examination, Examined
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.opening import open_source
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.prompt_sizes import PromptSizes, prompt_sizes
from headrace.producers.backfill.row_ids import RequestDigests
from headrace.producers.backfill.rows import RowMapping
from headrace.schemas.contract import Contract
from headrace.schemas.messages import JsonObject

VARIABLES: JsonObject = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 40}},
    "required": ["title"],
    "additionalProperties": False,
}


class Answers:
    """What an earlier job has answered."""

    def __init__(self, *digests: str) -> None:
        self._digests = digests

    def get(self, digest: str) -> Outcome | None:
        return Outcome("ok") if digest in self._digests else None

    def put(self, digest: str, outcome: Outcome) -> None:
        raise NotImplementedError


def examined(
    rows: Sequence[JsonObject | str],
    directory: Path,
    *,
    limit: str | int = "100%",
    trials: int = 20,
    dedupe: bool = True,
    answers: Answers | None = None,
    sizes: PromptSizes | None = None,
) -> Examined:
    """What becomes of these rows; a text is a line that is no row."""
    file = directory / "rows.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    view = ContractView(Contract("tagger", 1, VARIABLES, None), "frozen", frozenset({"title"}), False, None)
    job = job_of({"model": "tagger", "input": str(file), "output": "b.parquet"}, directory)
    source = open_source(str(file))
    asker = RowAsker(RowMapping(job, view, source.columns), RequestDigests("tagger", 1, None))
    told: list[int] = []
    examination = Examination(
        asker,
        sizes or prompt_sizes(None),
        limit=MaxFailures.parse(limit),
        rows=source.row_count,
        trials=trials,
        dedupe=dedupe,
        answers=answers,
    )
    found = examination.of(source, told.append)
    assert told[-1] == found.rows == len(rows)
    assert found.rejects + found.known + found.requests + (found.identical if dedupe else 0) == len(rows)
    return found


def titled(count: int) -> list[JsonObject]:
    return [{"title": f"film {number}"} for number in range(count)]


def test_rows_are_counted_by_what_becomes_of_them(tmp_path: Path) -> None:
    rows = [
        {"title": "Heat"},
        {"title": None},
        "{no row",
        {"title": "Heat"},
        {"title": "x" * 41},
        {"title": "Ran"},
    ]
    found = examined(rows, tmp_path)
    assert dict(found.refused) == {"missing_variable": 1, "undecodable": 1, "invalid_field": 1}
    assert (found.unreadable, found.identical, found.requests) == (1, 1, 2)
    [example] = found.examples["missing_variable"]
    assert (example.row, example.input) == (1, {"title": None})
    assert "title" in example.reason
    assert found.examples["undecodable"][0].input == "{no row"
    assert [each.row for each in found.chosen] == [0, 5]
    assert found.chosen[0].question.fields == {"variables": {"title": "Heat"}}


def test_of_each_reason_there_are_three_examples(tmp_path: Path) -> None:
    found = examined([{"title": None}] * 7 + titled(1), tmp_path)
    assert [each.row for each in found.examples["missing_variable"]] == [0, 1, 2]


def test_rows_that_ask_the_same_are_only_told_of_without_dedupe(tmp_path: Path) -> None:
    found = examined(titled(3) * 2, tmp_path, dedupe=False)
    assert (found.identical, found.requests, len(found.sample)) == (3, 6, 6)


def test_rows_that_an_earlier_job_has_answered_are_not_asked(tmp_path: Path) -> None:
    digest = RequestDigests("tagger", 1, None).of({"variables": {"title": "film 1"}})
    found = examined(titled(3) * 2, tmp_path, answers=Answers(digest))
    assert (found.known, found.identical, found.requests) == (2, 2, 2)
    assert [each.row for each in found.chosen] == [0, 2]


def test_the_sample_is_drawn_from_the_whole_input_and_from_what_is_asked(tmp_path: Path) -> None:
    """Nine rows in ten ask the same: of the requests to be made that is one."""
    rows = titled(12_000)
    for number in range(len(rows)):
        if number % 10:
            rows[number] = {"title": "the same"}
    found = examined(rows, tmp_path)
    assert found.requests == 1_201
    assert len(found.sample) == SAMPLE
    numbers = [each.row for each in found.sample]
    assert numbers == sorted(set(numbers))
    by_quarter = [sum(number // 3_000 == quarter for number in numbers) for quarter in range(4)]
    assert all(200 <= count <= 300 for count in by_quarter), by_quarter
    assert len(found.chosen) == 20
    assert {each.row for each in found.chosen} <= set(numbers)


@pytest.mark.parametrize(("limit", "stops_at"), [("5%", 150), (10, 110), (100, None), ("10%", None)])
def test_the_breaker_is_foreseen(tmp_path: Path, limit: str | int, stops_at: int | None) -> None:
    rows = titled(1_000)
    for number in range(100, 160):
        rows[number] = {"title": None}
    found = examined(rows, tmp_path, limit=limit)
    if stops_at is None:
        assert found.stops_at is None
    else:
        assert found.stops_at is not None
        assert found.stops_at[1] == stops_at
        assert f"max_failures is {limit}" in found.stops_at[0]


# --- sizes of prompts ---------------------------------------------------------------------------------------


def test_without_a_package_the_characters_of_what_is_asked_are_counted() -> None:
    sizes = prompt_sizes(None)
    assert not sizes.counts_tokens
    assert sizes.of({"variables": {"title": "Heat", "year": 1995, "note": None}}) == 8
    assert sizes.of({"prompt": "Say"}) == 3
    assert (
        sizes.of({"messages": [{"role": "user", "content": "abc"}, {"role": "user", "content": "de"}]}) == 5
    )


def test_the_packages_template_is_rendered(tmp_path: Path) -> None:
    sizes = prompt_sizes(a_package(tmp_path, user="Tag {{ title }}."))
    assert sizes.of({"variables": {"title": "Heat"}}) == len("Tag Heat.")
    assert sizes.of({"variables": {"name": "Heat"}}) == 0  # the worker refuses it


def test_the_models_own_tokenizer_counts_where_it_lies_with_the_weights(tmp_path: Path) -> None:
    library: Any = pytest.importorskip("tokenizers")
    words = library.models.WordLevel({"Tag": 0, "a": 1, "film": 2, ".": 3, "?": 4}, unk_token="?")
    tokenizer = library.Tokenizer(words)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    (tmp_path / "weights").mkdir()
    tokenizer.save(str(tmp_path / "weights" / "tokenizer.json"))
    package = a_package(tmp_path, user="Tag {{ title }}.", weights="./weights")
    sizes = prompt_sizes(package)
    assert sizes.counts_tokens, sizes.basis
    assert "weights/tokenizer.json" in sizes.basis
    assert sizes.of({"variables": {"title": "a film"}}) == 4


def test_a_tokenizer_that_cannot_be_read_is_said_and_done_without(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "tokenizer.json").write_text("{}")
    sizes = prompt_sizes(a_package(tmp_path, weights="./weights"))
    assert not sizes.counts_tokens
    assert "cannot be read" in sizes.basis
