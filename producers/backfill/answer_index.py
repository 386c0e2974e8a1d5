"""Answers by the digest of what was asked, on disk: for rows that ask the same, and for those of an earlier job.

SQLite in a temporary file of this machine, so that memory does not grow with the rows. It is no state: it is filled
again from the parts that were written.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from pathlib import Path

from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.outcome import Outcome
from headrace.schemas.messages import JsonObject

COMMIT_EVERY = 10_000  # answers


class AnswerIndex:
    """`ok` outcomes by digest. For one thread."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory`: of the temporary file; by default the system's. Raises OutputFailed."""
        self._folder = tempfile.TemporaryDirectory(
            prefix="headrace-answers-", dir=directory, ignore_cleanup_errors=True
        )
        try:
            self._database = sqlite3.connect(
                Path(self._folder.name) / "answers.sqlite", isolation_level=None, check_same_thread=False
            )
            # Nothing of it outlives the process, so nothing has to reach the disk.
            for pragma in (
                "journal_mode=OFF",
                "synchronous=OFF",
                "cache_size=-16000",
                "locking_mode=EXCLUSIVE",
            ):
                self._database.execute(f"PRAGMA {pragma}")
            self._database.execute(
                "CREATE TABLE answers (digest BLOB PRIMARY KEY, answer TEXT) WITHOUT ROWID"
            )
            self._database.execute("BEGIN")
        except sqlite3.Error as error:
            self._folder.cleanup()
            raise OutputFailed(f"no index of answers can be made in {self._folder.name}: {error}") from None
        self._uncommitted = 0

    def __len__(self) -> int:
        return self._database.execute("SELECT count(*) FROM answers").fetchone()[0]

    def get(self, digest: str) -> Outcome | None:
        """The outcome of a request that asked this, if there is one."""
        found = self._database.execute(
            "SELECT answer FROM answers WHERE digest = ?", (bytes.fromhex(digest),)
        ).fetchone()
        return None if found is None else _outcome(json.loads(found[0]))

    def put(self, digest: str, outcome: Outcome) -> None:
        """Remember an `ok` outcome; what is there already stays. Raises OutputFailed where the disk is full."""
        try:
            self._database.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?)", (bytes.fromhex(digest), _text(outcome))
            )
            self._uncommitted += 1
            if self._uncommitted >= COMMIT_EVERY:
                self._database.execute("COMMIT")
                self._database.execute("BEGIN")
                self._uncommitted = 0
        except sqlite3.Error as error:
            raise OutputFailed(
                f"the index of answers in {self._folder.name} cannot be written: {error}"
            ) from None

    def close(self) -> None:
        """Remove it."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._folder.cleanup()


def _text(outcome: Outcome) -> str:
    kept: JsonObject = {"version": outcome.version, "id": outcome.request_id}
    if outcome.columns is not None:
        kept["columns"] = outcome.columns
    else:
        kept["value"] = outcome.value
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def _outcome(kept: JsonObject) -> Outcome:
    return Outcome(
        "ok",
        kept.get("value"),
        version=kept["version"],
        request_id=kept["id"],
        asked=False,
        columns=kept.get("columns"),
    )
