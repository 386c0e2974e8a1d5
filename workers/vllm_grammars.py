"""Runs inside vLLM's engine process: a grammar is compiled once for a schema, not once for each request.

vLLM 0.32.0 caches compiled grammars for xgrammar alone; its guidance backend compiles the schema anew for every
request (0.5 to 3 ms for four fields; a copy of the compiled matcher takes 15 us), on the processors that generate.

Copies of a matcher share its lexer, whose states only grow, and where one runs into a limit of llguidance's ("too many
expressions constructed") all of them end at their next token, those not yet begun included. So a matcher is let go when
it has died, and after so many copies in any case.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections import OrderedDict
from typing import Any

KEPT = 256  # matchers; one of four fields takes about a hundred kB
COPIES = 64  # of one matcher

log = logging.getLogger(__name__)


class KeptMatchers:
    """The matchers of the schemas that were asked for last, each as it was before its first token."""

    def __init__(self, kept: int = KEPT, copies: int = COPIES) -> None:
        self._kept = kept
        self._copies = copies
        # Each with the copies that are still to be given of it.
        self._matchers: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()  # vLLM compiles in several threads

    def copy_of(self, key: tuple[Any, ...]) -> Any | None:
        """A matcher of one's own; None: not kept."""
        with self._lock:
            matcher, left = self._matchers.pop(key, (None, 0))
            if matcher is None or left == 0:
                return None
            copy = matcher.deep_copy()
            copy.compute_bitmask()  # whatever the lexer has run into shows only now
            if copy.is_error():
                return None
            self._matchers[key] = matcher, left - 1
            return copy

    def keep(self, key: tuple[Any, ...], matcher: Any) -> None:
        """Keep a copy of a matcher that has not moved yet. One that holds an error is not kept."""
        if matcher.get_error():
            return
        copy = matcher.deep_copy()
        with self._lock:
            self._matchers[key] = copy, self._copies
            self._matchers.move_to_end(key)
            while len(self._matchers) > self._kept:
                self._matchers.popitem(last=False)


def compile_once(backend: type[Any], grammar: type[Any]) -> None:
    """Let a backend class of vLLM's, and its class of grammars, keep what they compile."""
    compile_anew = backend.compile_grammar

    def compile_grammar(self: Any, request_type: Any, grammar_spec: str, stop_token_ids: Any = None) -> Any:
        matchers: KeptMatchers = self.__dict__.setdefault("_headrace_kept", KeptMatchers())
        key = (request_type, grammar_spec)
        matcher = matchers.copy_of(key)
        if matcher is not None:
            return grammar(ll_matcher=matcher, ll_tokenizer=self.ll_tokenizer, vocab_size=self.vocab_size)
        compiled = compile_anew(self, request_type, grammar_spec, stop_token_ids)
        matchers.keep(key, compiled.ll_matcher)
        return compiled

    backend.compile_grammar = compile_grammar


def compile_guidance_once() -> None:
    """The same for vLLM's guidance backend. Another vLLM's compiles as it always did, and the log says so."""
    try:
        module: Any = importlib.import_module("vllm.v1.structured_output.backend_guidance")
        compile_once(module.GuidanceBackend, module.GuidanceGrammar)
    except (ImportError, AttributeError) as error:
        log.warning(
            "every request's grammar is compiled anew: this vLLM has another guidance backend (%s)", error
        )
