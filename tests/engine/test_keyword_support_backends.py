"""Every row of the table of keywords, on the backends' own matchers behind vLLM's own checks."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.schemas.keyword_support import SUPPORT, Backend, Support
from headrace.schemas.messages import JsonObject

Accepts = Callable[[str], bool]
BYTES = [bytes([value]) for value in range(256)]  # the tokens of a least vocabulary


def accepted_by(backend: Backend, schema: JsonObject) -> Accepts | None:
    """Whether a text is one that the backend would let a model write; None where it refuses the schema."""
    return _guidance(schema) if backend == "guidance" else _xgrammar(schema)


def _guidance(schema: JsonObject) -> Accepts | None:
    backend: Any = importlib.import_module("vllm.v1.structured_output.backend_guidance")
    options: Any = importlib.import_module("vllm.v1.structured_output.backend_types").StructuredOutputOptions
    llguidance: Any = importlib.import_module("llguidance")
    text = backend.serialize_guidance_grammar(options.JSON, json.dumps(schema), disable_any_whitespace=True)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), text, log_level=0)
    if matcher.get_error():
        return None

    def accepts(text: str) -> bool:
        one = matcher.deep_copy()
        return one.consume_tokens(list(text.encode())) and one.is_accepting()

    return accepts


def _xgrammar(schema: JsonObject) -> Accepts | None:
    backend: Any = importlib.import_module("vllm.v1.structured_output.backend_xgrammar")
    xgrammar: Any = importlib.import_module("xgrammar")
    testing: Any = importlib.import_module("xgrammar.testing")
    if backend.has_xgrammar_unsupported_json_features(schema):
        return None
    try:
        grammar = xgrammar.Grammar.from_json_schema(
            json.dumps(schema), any_whitespace=False, separators=(",", ":")
        )
        # Compiled as vLLM does it, with the cache: some grammars fail only then.
        xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(BYTES), cache_enabled=True).compile_grammar(grammar)
    except RuntimeError:
        return None
    return lambda text: testing._is_grammar_accept_string(grammar, text)


@pytest.mark.usefixtures("needs_vllm")
@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
@pytest.mark.parametrize("row", SUPPORT, ids=[row.name for row in SUPPORT])
def test_a_backend_does_with_a_keyword_what_the_table_says(row: Support, backend: Backend) -> None:
    accepts = accepted_by(backend, row.schema)
    verdict = row.verdict(backend)
    if verdict == "refused":
        assert accepts is None
        return
    assert accepts is not None
    assert accepts(row.rejected) == (verdict == "ignored")
    if verdict != "ignored":  # what it takes for something else it may well forbid
        assert accepts(row.accepted)
    if row.forbidden is not None:
        assert accepts(row.forbidden) == (verdict == "enforced")
