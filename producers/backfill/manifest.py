"""What is put down beside an output that is complete: what it was made of, by whom, and what it cost. Pure."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from headrace.producers.backfill.assembly import Assembled
from headrace.producers.backfill.state import JobState
from headrace.schemas.messages import JsonObject

if TYPE_CHECKING:
    from headrace.producers.backfill.job_files import JobFiles


def manifest_of(state: JobState, files: JobFiles, assembled: Assembled) -> JsonObject:
    """The manifest of a job whose output is there."""
    prompt, completion = state.tokens
    rejects = {"file": files.rejects_shown, "rows": assembled.rejects} if assembled.rejects else None
    return {
        "job": state.job,
        "release": metadata.version("headrace"),
        "model": state.model,
        "contract": state.contract,
        "versions": state.versions,
        "created_ms": state.created_ms,
        "finished_ms": state.updated_ms,
        "busy_ms": state.busy_ms,
        "rounds": state.round + 1,
        "identity": state.identity,
        "job_file": state.job_file,
        "input": {"location": state.input, "rows": state.rows, "digest": state.identity.get("input")},
        "output": _output(state, files, assembled),
        "rejects": rejects,
        "statuses": state.statuses,
        "codes": state.codes,
        "asked": sum(part.asked for part in state.parts),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
    }


def _output(state: JobState, files: JobFiles, assembled: Assembled) -> JsonObject:
    found: JsonObject = {"location": files.shown, "rows": assembled.rows, "bytes": assembled.bytes}
    if files.is_directory:
        parts = [
            {"file": part.file, "first_row": part.first_row, "rows": part.rows, "sha256": part.sha256}
            for part in state.parts
        ]
        return found | {"parts": parts}
    return found | {"sha256": assembled.sha256}
