"""What calls are translated to, beside vLLM: its parameters, and its backends with the schema of a forced call."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from engine.test_keyword_support_backends import accepted_by

from headrace.producers.http.parameters import parameters_of
from headrace.producers.http.tool_schema import any_call_schema
from headrace.schemas.keyword_support import Backend

DATA = Path(__file__).parent.parent / "data" / "real_schemas.jsonl"
SCHEMAS = [json.loads(line) for line in DATA.read_text().splitlines()]
OTHER = {
    "type": "object",
    "properties": {"x": {"$ref": "#/$defs/X"}},
    "required": ["x"],
    "additionalProperties": False,
    "$defs": {"X": {"type": "integer"}},
}

pytestmark = pytest.mark.usefixtures("needs_vllm")


@pytest.mark.parametrize(
    ("endpoint", "module", "name"),
    [
        ("chat", "chat_completion", "ChatCompletionRequest"),
        ("completions", "completion", "CompletionRequest"),
    ],
)
def test_every_parameter_of_vllm_has_a_row(endpoint: Any, module: str, name: str) -> None:
    protocol = importlib.import_module(f"vllm.entrypoints.openai.{module}.protocol")
    names = getattr(protocol, name).model_fields.keys()
    assert len(names) > 40
    assert names - parameters_of(endpoint).keys() == set()


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_a_backend_holds_a_call_of_one_of_two_tools_as_it_holds_the_arguments_alone(backend: Backend) -> None:
    compared = 0
    for row in SCHEMAS:
        alone = accepted_by(backend, row["schema"])
        both = accepted_by(backend, any_call_schema([("other", OTHER), ("this", row["schema"])]))
        assert (alone is None) == (both is None), row["name"]
        if alone is None or both is None:
            continue
        assert both(_text({"name": "other", "arguments": {"x": 1}}))
        assert not both(_text({"name": "other", "arguments": {"x": "1"}}))
        for test in row["tests"]:
            call = {"name": "this", "arguments": test["data"]}
            assert both(_text(call)) == alone(_text(test["data"])), (row["name"], test)
            compared += 1
    assert compared > 60


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
