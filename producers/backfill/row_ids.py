"""The ids of a job's requests: `<job>.<row>.<round>.<digest>`. Pure.

Whoever reads a result knows its row by its id alone, so that nothing has to be kept in memory for rows that are asked
about. The digest is of what is asked: equal requests of one contract have it alike.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import NamedTuple

from headrace.schemas.messages import JsonObject
from headrace.schemas.strict_json import dump

DIGEST_BYTES = 16  # of 10 million rows two have the same by chance once in 10^24 jobs
MAX_NAME = 60  # characters of a job's name

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
_ID = re.compile(r"(?P<row>[0-9]{1,12})\.(?P<round>[0-9]{1,4})\.(?P<digest>[0-9a-f]{32})", re.ASCII)


class RowId(NamedTuple):
    """What an id says: the row, counted from 0; the round in which it is asked; the digest of what is asked."""

    row: int
    round: int
    digest: str


def new_job_id(name: str) -> str:
    """The id of a job that begins now. A job that begins anew has another: what was answered to the former one is not
    answered again under its ids."""
    return f"{name_of(name)}-{secrets.token_hex(4)}"


def name_of(text: str) -> str:
    """A job's name from any text, a file's name for example."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:MAX_NAME]
    return plain if _NAME.fullmatch(plain) else "backfill"


def is_name(text: str) -> bool:
    """Whether it can be a job's name as it is."""
    return _NAME.fullmatch(text) is not None


def request_id(job: str, row: RowId) -> str:
    """The id of the request for a row."""
    return f"{job}.{row.row}.{row.round}.{row.digest}"


def row_id(job: str, text: str) -> RowId | None:
    """What an id says, where it is one of this job's."""
    if not text.startswith(job + "."):
        return None
    found = _ID.fullmatch(text, len(job) + 1)
    return None if found is None else RowId(int(found["row"]), int(found["round"]), found["digest"])


def digest_in(text: str) -> str | None:
    """The digest that an id of any job ends with."""
    digest = text.rpartition(".")[2]
    return digest if len(digest) == 2 * DIGEST_BYTES else None


class RequestDigests:
    """The digests of requests of one contract."""

    def __init__(self, model: str, contract: int, output: str | None) -> None:
        """`output` is the digest of the contract's output schema."""
        head = dump([model, contract, output]).encode()
        self._begun = hashlib.blake2b(head, digest_size=DIGEST_BYTES)

    def of(self, request: JsonObject) -> str:
        """Of a request's fields, hexadecimal. The order of the fields counts: models see it."""
        digest = self._begun.copy()
        digest.update(dump(request).encode())
        return digest.hexdigest()
