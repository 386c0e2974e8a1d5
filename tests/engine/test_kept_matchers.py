"""vLLM's guidance backend keeps what it compiled; what it keeps is as good as new."""

from __future__ import annotations

import importlib
import json
from dataclasses import MISSING, dataclass, fields
from inspect import signature
from typing import Any

import pytest

from headrace.ops.bench.tiny_model import tiny_model
from headrace.schemas.settings import Settings
from headrace.workers.vllm_grammars import KeptMatchers, compile_guidance_once, compile_once

pytestmark = pytest.mark.usefixtures("needs_vllm")

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
OTHER = json.dumps({"type": "array", "items": {"type": "boolean"}})


@dataclass
class Grammar:
    """As vLLM's GuidanceGrammar is made."""

    ll_matcher: Any
    ll_tokenizer: Any
    vocab_size: int


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers: Any = importlib.import_module("transformers")
    llguidance_hf: Any = importlib.import_module("llguidance.hf")
    directory = tiny_model(Settings.from_environment().cache_dir / "models")
    return llguidance_hf.from_tokenizer(transformers.AutoTokenizer.from_pretrained(str(directory)))


@pytest.fixture
def backend(tokenizer: Any) -> Any:
    """A backend of its own for each test: what vLLM's own class does here would stay for all others."""
    llguidance: Any = importlib.import_module("llguidance")

    class Backend:
        def __init__(self) -> None:
            self.ll_tokenizer = tokenizer
            self.vocab_size = tokenizer.vocab_size
            self.compiled: list[str] = []

        def compile_grammar(self, request_type: Any, grammar_spec: str, stop_token_ids: Any = None) -> Any:
            self.compiled.append(grammar_spec)
            grammar = llguidance.LLMatcher.grammar_from_json_schema(grammar_spec)
            return Grammar(llguidance.LLMatcher(tokenizer, grammar), tokenizer, self.vocab_size)

    compile_once(Backend, Grammar)
    return Backend()


def takes(grammar: Any, text: str) -> bool:
    tokens = grammar.ll_tokenizer.tokenize_str(text)
    return bool(grammar.ll_matcher.consume_tokens(tokens)) and bool(grammar.ll_matcher.is_accepting())


def test_a_schema_is_compiled_once_and_each_request_has_a_matcher_of_its_own(backend: Any) -> None:
    first = backend.compile_grammar("json", SCHEMA)
    assert takes(first, '{"a": 1}')
    second, third = backend.compile_grammar("json", SCHEMA), backend.compile_grammar("json", SCHEMA)
    assert takes(second, '{"a": 22}')  # from its beginning, although the first has ended
    assert not takes(third, '{"b": 1}')
    assert takes(backend.compile_grammar("json", OTHER), "[true]")
    assert backend.compiled == [SCHEMA, OTHER]


def test_the_same_text_of_another_kind_is_another_grammar(backend: Any) -> None:
    backend.compile_grammar("json", SCHEMA)
    backend.compile_grammar("regex", SCHEMA)
    assert backend.compiled == [SCHEMA, SCHEMA]


def test_what_did_not_compile_is_not_kept(backend: Any) -> None:
    broken = json.dumps({"type": "string", "pattern": "^(?=a)b$"})
    for _ in range(2):
        assert backend.compile_grammar("json", broken).ll_matcher.get_error()
    assert backend.compiled == [broken, broken]


def test_the_schema_that_was_asked_for_longest_ago_is_let_go(backend: Any) -> None:
    kept = KeptMatchers(kept=2)
    matcher = backend.compile_grammar("json", SCHEMA).ll_matcher
    for key in ("a", "b"):
        kept.keep((key,), matcher)
    assert kept.copy_of(("a",)) is not None
    kept.keep(("c",), matcher)
    assert [kept.copy_of((key,)) is not None for key in "abc"] == [True, False, True]


def test_a_matcher_that_died_is_compiled_anew_for_the_requests_after_it(backend: Any) -> None:
    llguidance: Any = importlib.import_module("llguidance")
    grammar = llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps({"type": "string", "pattern": "^[a-z]{9}$"})
    )
    limits = llguidance.LLParserLimits(step_lexer_fuel=1, precompute_large_lexemes=False)
    matcher = llguidance.LLMatcher(backend.ll_tokenizer, grammar, log_level=0, limits=limits)
    kept = KeptMatchers()
    kept.keep(("a",), matcher)
    matcher.consume_tokens(backend.ll_tokenizer.tokenize_str('"abc'))
    matcher.compute_bitmask()
    assert matcher.is_error(), "it has run into its limit"
    assert kept.copy_of(("a",)) is None


def test_a_matcher_is_compiled_anew_after_so_many_copies_for_they_share_a_lexer_that_grows(
    backend: Any,
) -> None:
    kept = KeptMatchers(copies=2)
    kept.keep(("a",), backend.compile_grammar("json", SCHEMA).ll_matcher)
    assert [kept.copy_of(("a",)) is not None for _ in range(3)] == [True, True, False]


def test_this_vllm_is_one_whose_guidance_backend_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("vllm.v1.structured_output.backend_guidance")
    as_it_was = module.GuidanceBackend.compile_grammar
    assert list(signature(as_it_was).parameters) == ["self", "request_type", "grammar_spec", "stop_token_ids"]
    needed = {each.name for each in fields(module.GuidanceGrammar) if each.default is MISSING}
    assert needed == {"ll_matcher", "ll_tokenizer", "vocab_size"}
    monkeypatch.setattr(module.GuidanceBackend, "compile_grammar", as_it_was)  # and so again at the end
    compile_guidance_once()
    assert module.GuidanceBackend.compile_grammar is not as_it_was
