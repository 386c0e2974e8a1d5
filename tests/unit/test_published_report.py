"""The judge of published outputs finds what does not fit."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from engine import published_report
from engine.published_outputs import schemas_of
from engine.published_report import Report, judge, report_of

HARD = schemas_of(Path(__file__).parent.parent / "data" / "hard_schemas.jsonl")
ONE_OR_TWO = {"name": "one or two", "schema": {"enum": [1, 2]}}


def judged(schema: Any, text: str) -> Report:
    report = Report()
    judge(report, {"name": "a schema", "schema": schema}, text)
    return report


@pytest.mark.parametrize("named", HARD, ids=[named["name"] for named in HARD])
def test_both_validators_tell_valid_outputs_from_invalid_ones(named: dict[str, Any]) -> None:
    labels = {test["valid"] for test in named["tests"]}
    assert labels == {True, False}
    for test in named["tests"]:
        report = judged(named["schema"], json.dumps(test["data"]))
        assert (bool(report.wrong), bool(report.doubted)) == (not test["valid"], not test["valid"])


@pytest.mark.parametrize(
    "text",
    ["1e999", "NaN", "[1", '"a\nb"', r'"\ud800"', '{"a": 1, "a": 2}', "9" * 5_000],
    ids=[
        "beyond a double",
        "not a number",
        "cut short",
        "control character",
        "lone surrogate",
        "key twice",
        "digits",
    ],
)
def test_what_not_every_reader_takes_is_wrong_under_any_schema(text: str) -> None:
    assert judged(True, text).wrong


def test_a_report_counts_what_came_and_quotes_what_is_wrong() -> None:
    def result(id_: str, status: str, **fields: Any) -> dict[str, Any]:
        return {"id": id_, "status": status, "provenance": {"tier": "enforced"}} | fields

    refused = {"code": "schema_violated", "message": "enum: 4 is not one of 1 or 2"}
    half_held = {"tier": "relaxed:enum"}
    report = report_of(
        [ONE_OR_TWO, {"name": "any", "schema": True}],
        [
            result("0/0", "invalid_output", error=refused, outputs=[{"text": "4"}]),
            result("0/1", "invalid_output", error=refused, outputs=[{"text": "5"}], provenance=half_held),
            result("1/0", "ok", outputs=[{"text": "[]"}]),
            result("1/1", "ok", outputs=[{"text": "[}"}]),
        ],
    )
    assert (report.schemas, report.generations, report.with_an_ok) == (2, 4, 1)
    assert report.statuses == {"ok": 2, "invalid_output": 2}
    assert report.codes == {"schema_violated": 2}
    assert report.tiers == {"enforced": 2}
    assert report.without_an_ok == {"one or two": ["invalid_output: enum: 4 is not one of 1 or 2: 2"]}
    assert [quoted.partition(": not")[0] for quoted in report.wrong] == ["any: [}"]
    assert report.leaked == ["one or two: 4"]


def test_a_judgement_that_takes_long_is_cut_short_and_other_timers_run_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(published_report, "ONE_JUDGEMENT_S", 0.2)
    handler = signal.getsignal(signal.SIGALRM)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 200)
    try:
        report = judged({"type": "string", "pattern": "^(a+)+$"}, json.dumps("a" * 40 + "b"))
        assert 100 < signal.getitimer(signal.ITIMER_REAL)[0] < 200
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
    assert len(report.undecided) == 1
    assert report.doubted == []
    assert signal.getsignal(signal.SIGALRM) is handler
