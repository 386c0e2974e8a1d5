"""A sample of `test_published_outputs`, on the session's engine: what is published as `ok` fits its schema."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from conformance.engine_port import Port
from engine.closing_bias import closing_bias
from engine.published_outputs import Questions, published, schemas_of
from engine.published_report import Report, report_of

from headrace.schemas.output_schema import OutputCheck
from headrace.workers import serving
from headrace.workers.engine import GeneratedChoice
from headrace.workers.vllm_engine import VllmEngine

DATA = Path(__file__).parent.parent / "data"
HARD = schemas_of(DATA / "hard_schemas.jsonl")
REAL = {
    "Github_easy---o44188",  # a pattern without ends
    "Github_easy---o9863",  # an array of objects
    "Github_trivial---o48762",  # an enum and nothing else
    "Github_trivial---o53906",  # strings of a pattern
    "Glaiveai2K---search_news_22cfe64d",  # dates
    "Handwritten---pnmp7",  # patterns of names, and `not` of them
    "Kubernetes---kb_510_Normalized",  # values that may be null
    "MCPspec---JSONRPCRequest",  # references
    "Snowplow---sp_403_Normalized",  # bounds
}

Ask = Callable[[Sequence[dict[str, Any]]], Report]


@pytest.fixture
def ask(broker_bootstrap: str, port: Port, vllm_engine: VllmEngine) -> Generator[Ask]:
    """Has a worker on the session's engine, which it neither loads nor ends, answer under some schemas."""

    async def nothing() -> None:
        pass

    def ask(schemas: Sequence[dict[str, Any]]) -> Report:
        questions = Questions(schemas, generations=4, max_tokens=120, silence_s=60)
        return report_of(schemas, port.run(published(vllm_engine, questions, broker_bootstrap)))

    with ExitStack() as lent:
        lent.enter_context(closing_bias(vllm_engine))
        for name in ("start", "shutdown"):
            lent.enter_context(mock.patch.object(vllm_engine, name, nothing))
        yield ask


def test_every_ok_of_the_sample_is_accepted_by_its_schema_and_most_schemas_have_one(ask: Ask) -> None:
    real = [named for named in schemas_of(DATA / "real_schemas.jsonl") if named["name"] in REAL]
    report = ask(real + HARD)
    assert (report.schemas, report.generations) == (len(REAL) + len(HARD), 4 * report.schemas)
    assert (report.wrong, report.doubted, report.undecided, report.leaked) == ([], [], [], [])
    assert report.statuses.keys() <= {"ok", "invalid_output", "truncated"}
    assert report.with_an_ok >= 0.8 * report.schemas, report.without_an_ok


def test_what_a_worker_publishes_unvalidated_is_found_out(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = serving.judge

    def takes_all(choice: GeneratedChoice, check: OutputCheck | None, **how: Any) -> Any:
        return replace(judge(choice, check, **how), status="ok", error=None)

    monkeypatch.setattr(serving, "judge", takes_all)
    anything_but = {"not": {"type": ["object", "array", "string", "number", "boolean", "null"]}}
    report = ask([{"name": "nothing fits", "schema": anything_but}])
    assert report.statuses == {"ok": 4}
    assert len(report.wrong) == len(report.doubted) == 4
