"""Judges what was published as `ok` under JSON Schemas, from its bytes, with two validators that share no code."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import jsonschema.validators

from headrace.schemas.errors import InvalidSchema, OutputError, OutputViolatesSchema
from headrace.schemas.output_schema import OutputSchema

ONE_JUDGEMENT_S = 5.0  # jsonschema has no bound of its own on patterns
QUOTED = 200  # characters of an output, of a message
WHOLLY = ("enforced", "enforced_normalised")  # tiers


@dataclass
class Report:
    """What came of all schemas. Names are those of the schemas."""

    schemas: int = 0
    generations: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    codes: Counter[str] = field(default_factory=Counter[str])
    tiers: Counter[str] = field(default_factory=Counter[str])  # of schemas
    with_an_ok: int = 0  # schemas
    without_an_ok: dict[str, list[str]] = field(default_factory=dict[str, list[str]])  # and what came instead
    wrong: list[str] = field(default_factory=list[str])  # published as ok, and not accepted by our validator
    doubted: list[str] = field(default_factory=list[str])  # the same of jsonschema
    leaked: list[str] = field(default_factory=list[str])  # not accepted, though all was said to be enforced
    undecided: list[str] = field(default_factory=list[str])  # jsonschema took longer than it may


def report_of(schemas: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]) -> Report:
    """Judge published results.

    `schemas`: each `{"name", "schema"}`. `results`: as their bytes say them, with the id `<index of schema>/<round>`.
    For the main thread: only there a judgement can be cut short.
    """
    report = Report(schemas=len(schemas), generations=len(results))
    outcomes: dict[int, Counter[str]] = defaultdict(Counter)
    for result in results:
        number, round_ = (int(part) for part in result["id"].split("/"))
        status, error = result["status"], result.get("error") or {"message": ""}
        report.statuses[status] += 1
        if "code" in error:
            report.codes[error["code"]] += 1
        tier = str(result["provenance"].get("tier"))
        if round_ == 0:
            report.tiers[tier] += 1
        if status == "ok":
            judge(report, schemas[number], result["outputs"][0]["text"])
        elif error.get("code") == OutputViolatesSchema.code and tier in WHOLLY:
            report.leaked.append(f"{schemas[number]['name']}: {result['outputs'][0]['text'][:QUOTED]}")
        outcomes[number]["ok" if status == "ok" else f"{status}: {error['message'][:QUOTED]}"] += 1
    for number, each in enumerate(schemas):
        if outcomes[number]["ok"]:
            report.with_an_ok += 1
        else:
            report.without_an_ok[each["name"]] = [f"{what}: {n}" for what, n in outcomes[number].items()]
    return report


def judge(report: Report, named: dict[str, Any], text: str) -> None:
    """Hold a published output against its schema, with both validators. `named`: `{"name", "schema"}`."""
    quoted = f"{named['name']}: {text[:QUOTED]}"
    try:
        OutputSchema.parse(named["schema"]).check(text)
    except (OutputError, InvalidSchema) as error:
        report.wrong.append(f"{quoted}: {error}")
    try:
        with _limited():
            _jsonschema_of(named["schema"]).validate(json.loads(text))
    except TimeoutError:
        report.undecided.append(quoted)
    except Exception as error:  # noqa: BLE001  (whatever it has against the text or the schema)
        report.doubted.append(f"{quoted}: {type(error).__name__}: {str(error)[:QUOTED]}")


def _jsonschema_of(schema: Any) -> Any:
    kind: Any = jsonschema.validators.validator_for(schema)  # pyright: ignore[reportUnknownMemberType]
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


@contextmanager
def _limited() -> Generator[None]:
    """Raises TimeoutError in what takes too long. A timer that runs already (pytest-timeout's) runs on after it."""

    def over(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, over)
    left, _ = signal.setitimer(signal.ITIMER_REAL, ONE_JUDGEMENT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)))
