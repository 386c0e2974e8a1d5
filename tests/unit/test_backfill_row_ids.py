"""Ids of a job's requests: the row is read off them, and nobody else's id passes for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.producers.backfill.row_ids import (
    RequestDigests,
    RowId,
    digest_in,
    is_name,
    name_of,
    new_job_id,
    request_id,
    row_id,
)
from headrace.schemas.messages import Request


@given(st.text(max_size=200), st.integers(0, 10**12 - 1), st.integers(0, 9_999))
def test_an_id_says_its_row(name: str, row: int, round_: int) -> None:
    job = new_job_id(name)
    digest = RequestDigests("m", 1, None).of({"prompt": name.encode("utf-8", "replace").decode()})
    found = request_id(job, RowId(row, round_, digest))
    assert row_id(job, found) == RowId(row, round_, digest)
    assert digest_in(found) == digest
    Request.model_validate({"id": found, "prompt": "x", "job": job})  # not too long


def test_ids_of_others_are_none_of_a_jobs() -> None:
    digest = "0" * 32
    for text in (
        "tags-1.5.0." + digest,  # another job
        "tags.5.0",
        "tags.5.0." + digest[:-1],
        "tags.-5.0." + digest,
        "tags.5.0." + digest + ".x",
        "tags.５.0." + digest,  # a digit, but none of ours
        "",
    ):
        assert row_id("tags", text) is None


def test_a_job_that_begins_anew_has_other_ids() -> None:
    assert new_job_id("tags") != new_job_id("tags")


@given(st.text(max_size=200))
def test_any_text_gives_a_name(text: str) -> None:
    assert is_name(name_of(text))


def test_digests_differ_by_what_is_asked_and_of_whom() -> None:
    asked = {"variables": {"a": "1", "b": "2"}}
    digests = {
        RequestDigests("m", 1, None).of(asked),
        RequestDigests("m", 2, None).of(asked),
        RequestDigests("n", 1, None).of(asked),
        RequestDigests("m", 1, "sha256:1").of(asked),
        RequestDigests("m", 1, None).of({"variables": {"a": "1", "b": "3"}}),
        RequestDigests("m", 1, None).of({**asked, "sampling": {"max_tokens": 5}}),
    }
    assert len(digests) == 6
    assert RequestDigests("m", 1, None).of(asked) in digests
