"""What a backend makes of a constraint: compiled as vLLM compiles it, and walked as a model would walk it.

This runs in a process of its own (see `constraint_process`), which may be killed: nothing here is bounded in time.
"""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, Protocol

from headrace.schemas.enforcement import Backend
from headrace.schemas.messages import OutputConstraint

Kind = Literal["json", "json_object", "regex", "choice", "grammar"]

WALKS = 4
WALK_TOKENS = 200  # of each walk, at most
VLLM_GATE = ("vllm.v1.structured_output.backend_xgrammar", "vllm.sampling_params")
WALK_CPU_S = 0.5  # of all walks of a grammar together: large vocabularies have slow masks
CLOSERS = frozenset('"}],')  # what a token that closes something consists of
ANY_OBJECT = '{"type": "object"}'
SPACES = "Ġ▁ "  # as byte-level, sentencepiece and plain vocabularies write a leading blank


class Refused(Exception):
    """The backend, or vLLM before it, does not take this constraint. The message is the backend's own."""


class GrammarDied(Exception):
    """A compiled grammar came to a place where nothing may follow, though it is not at its end.

    vLLM would report `stop` for it, and the output would be cut short: an object of more than 500 optional properties
    and three patterns that hold for one string at once do this to llguidance.
    """


class Grammar(Protocol):
    """A compiled grammar, at one place of one text."""

    def allowed(self) -> list[int]:
        """The ids of the tokens that may come next. Raises GrammarDied."""
        ...

    def take(self, token: int) -> None:
        """Go on by a token. Raises GrammarDied."""
        ...

    def is_accepting(self) -> bool:
        """Whether the text may end here."""
        ...


class Compiled(Protocol):
    """A compiled constraint."""

    def start(self) -> Grammar:
        """At the beginning of a text."""
        ...

    def accepts(self, pieces: Sequence[str]) -> bool:
        """Whether it takes a whole text, given in pieces between which the backend may want a blank."""
        ...


class Compiler(Protocol):
    """One backend with one tokenizer, both loaded once."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the tokenizer."""
        ...

    def compile(self, kind: Kind, text: str) -> Compiled:
        """Compile behind vLLM's own gate. Raises Refused."""
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a walk needs to know of a tokenizer."""

    tokenizer: Any  # transformers' PreTrainedTokenizerFast
    size: int  # of the model's output, which may be larger than the tokenizer's
    stops: frozenset[int]
    closers: frozenset[int]

    @classmethod
    def load(cls, directory: str, size: int | None) -> Vocabulary:
        """From a directory with `tokenizer.json`. transformers' AutoTokenizer would load torch as well: 270 MB."""
        transformers: Any = importlib.import_module("transformers")
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
        closers = {
            number
            for token, number in tokenizer.get_vocab().items()
            if token.strip(SPACES) and CLOSERS.issuperset(token.strip(SPACES))
        }
        return cls(
            tokenizer,
            max(size or 0, len(tokenizer)),
            frozenset({tokenizer.eos_token_id} - {None}),
            frozenset(closers),
        )

    def text_of(self, tokens: list[int]) -> str:
        """What a model would have written with these tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def compiler_of(backend: Backend, vocabulary: Vocabulary) -> Compiler:
    """Load a backend. Raises ImportError where it is not installed."""
    return GuidanceCompiler(vocabulary) if backend == "guidance" else XgrammarCompiler(vocabulary)


def import_backend(backend: Backend) -> None:
    """What `compiler_of` and `Vocabulary.load` import: seconds of a processor. Raises ImportError."""
    _ = importlib.import_module("transformers").PreTrainedTokenizerFast
    for module in ("llguidance.hf",) if backend == "guidance" else ("xgrammar", *VLLM_GATE):
        importlib.import_module(module)


def kind_and_text(constraint: OutputConstraint) -> tuple[Kind, str]:
    """A constraint as vLLM's backends are given it."""
    if constraint.json_schema is not None:
        schema = constraint.json_schema
        return "json", json.dumps({} if schema is True else schema)
    if constraint.json_object:
        return "json_object", ""
    if constraint.regex is not None:
        return "regex", constraint.regex
    if constraint.choice is not None:
        return "choice", json.dumps(constraint.choice)
    return "grammar", constraint.grammar or ""


# --- walking ----------------------------------------------------------------------------------------------------


def walks(compiled: Compiled, vocabulary: Vocabulary) -> Iterator[str]:
    """Walk a compiled constraint several times, always the same way; gives the texts that came to an end.

    The first walk closes what it can as soon as it can, the others by chance: left to chance alone, strings hardly
    ever end. Raises GrammarDied.
    """
    until = time.process_time() + WALK_CPU_S
    for number in range(WALKS):
        if time.process_time() > until:
            return
        closing = 1.0 if number == 0 else 0.5
        tokens = _walk(compiled.start(), vocabulary, random.Random(number), closing, until)
        if tokens is not None:
            yield vocabulary.text_of(tokens)


def _walk(
    grammar: Grammar, vocabulary: Vocabulary, dice: random.Random, closing: float, until: float
) -> list[int] | None:
    """The tokens of a walk that came to an end, None of one that was given up."""
    taken: list[int] = []
    while len(taken) < WALK_TOKENS and time.process_time() < until:
        allowed = grammar.allowed()
        going_on = [token for token in allowed if token not in vocabulary.stops]
        may_end = grammar.is_accepting()
        if not going_on and not may_end:
            raise GrammarDied(f"after {len(taken)} tokens nothing may follow")
        if may_end and (not going_on or dice.random() < closing):
            return taken
        closers = [token for token in going_on if token in vocabulary.closers]
        token = dice.choice(closers if closers and dice.random() < closing else going_on)
        grammar.take(token)
        taken.append(token)
    return None


# --- guidance ---------------------------------------------------------------------------------------------------


class GuidanceCompiler:
    """llguidance as vLLM's `GuidanceBackend` uses it, without the blanks that a model could emit for ever."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._module: Any = importlib.import_module("llguidance")
        hf: Any = importlib.import_module("llguidance.hf")
        self._tokenizer = hf.from_tokenizer(vocabulary.tokenizer, vocabulary.size)

    def compile(self, kind: Kind, text: str) -> Compiled:
        """See `Compiler`."""
        try:
            grammar = self._serialised(kind, text)
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(str(error)) from None
        # vLLM's gate has no tokenizer, so that a grammar cannot name special tokens.
        error = self._module.LLMatcher.validate_grammar(grammar, None)
        if error:
            raise Refused(error)
        matcher = self._module.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise Refused(matcher.get_error())
        return _GuidanceCompiled(matcher, self._tokenizer)

    def _serialised(self, kind: Kind, text: str) -> str:
        if kind in ("json", "json_object"):
            schema = text if kind == "json" else ANY_OBJECT
            return self._module.LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_flexible": False}
            )
        return self._module.grammar_from(kind, text)


@dataclass(frozen=True, slots=True)
class _GuidanceCompiled:
    matcher: Any
    tokenizer: Any

    def start(self) -> Grammar:
        return _GuidanceGrammar(self.matcher.deep_copy())

    def accepts(self, pieces: Sequence[str]) -> bool:
        matcher, tokens = self.matcher.deep_copy(), self.tokenizer.tokenize_str("".join(pieces))
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@dataclass(frozen=True, slots=True)
class _GuidanceGrammar:
    """The matcher raises nothing: it goes into a state of error and stays there."""

    matcher: Any

    def allowed(self) -> list[int]:
        mask = self.matcher.compute_bitmask()
        self._check()
        return _set_bits(mask)

    def take(self, token: int) -> None:
        self.matcher.consume_token(token)
        self._check()

    def is_accepting(self) -> bool:
        return self.matcher.is_accepting()

    def _check(self) -> None:
        if self.matcher.is_error():
            raise GrammarDied(self.matcher.get_error())


# --- xgrammar ---------------------------------------------------------------------------------------------------


class XgrammarCompiler:
    """xgrammar as vLLM's `XgrammarBackend` uses it, behind vLLM's own gate."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._module: Any = importlib.import_module("xgrammar")
        gate, parameters = VLLM_GATE
        self._gate: Any = importlib.import_module(gate)
        self._parameters: Any = importlib.import_module(parameters).StructuredOutputsParams
        self._tokenizer = self._module.TokenizerInfo.from_huggingface(
            vocabulary.tokenizer, vocab_size=vocabulary.size
        )

    def compile(self, kind: Kind, text: str) -> Compiled:
        """See `Compiler`."""
        try:
            return _XgrammarCompiled(self._module, self._compiled(kind, text), self.vocabulary.size)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (xgrammar's errors and the gate's have no class in common)
            reason = str(error.args[0] if error.args else error)
            if "bad_alloc" in reason:
                raise MemoryError from None
            raise Refused(reason) from None

    def _compiled(self, kind: Kind, text: str) -> Any:
        value = True if kind == "json_object" else json.loads(text) if kind == "choice" else text
        asked = self._parameters(**{kind: value})
        self._gate.validate_xgrammar_grammar(SimpleNamespace(structured_outputs=asked))
        # One thread: each has memory of its own, and it is the CPU time of all together that is limited.
        # With its cache, as in vLLM: xgrammar 0.2.8 fails there on some repetitions that it compiles without.
        compiler = self._module.GrammarCompiler(self._tokenizer, max_threads=1, cache_enabled=True)
        if kind in ("json", "json_object"):
            schema = text if kind == "json" else ANY_OBJECT
            return compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        if kind == "regex":
            return compiler.compile_regex(text)
        grammar = asked.grammar  # into which the gate has turned choices
        if self._gate.grammar_is_likely_lark(grammar):
            return compiler.compile_lark(grammar)
        return compiler.compile_grammar(grammar)


@dataclass(frozen=True, slots=True)
class _XgrammarCompiled:
    module: Any
    compiled: Any
    vocabulary_size: int

    def start(self) -> Grammar:
        numpy: Any = importlib.import_module("numpy")
        mask = numpy.zeros((1, (self.vocabulary_size + 31) // 32), dtype=numpy.int32)
        return _XgrammarGrammar(self.module.GrammarMatcher(self.compiled), mask, self.vocabulary_size)

    def accepts(self, pieces: Sequence[str]) -> bool:
        # xgrammar 0.2.8 wants a blank after the commas of values of no declared type, and nowhere else.
        matcher = self.module.GrammarMatcher(self.compiled, terminate_without_stop_token=True)
        taken = all(
            matcher.accept_string(piece) or (matcher.accept_string(" ") and matcher.accept_string(piece))
            for piece in pieces
        )
        return taken and matcher.is_terminated()


@dataclass(frozen=True, slots=True)
class _XgrammarGrammar:
    matcher: Any
    mask: Any
    vocabulary_size: int

    def allowed(self) -> list[int]:
        self.mask.fill(-1)  # it is left as it is where everything is allowed
        self.matcher.fill_next_token_bitmask(self.mask)
        return [token for token in _set_bits(self.mask.tobytes()) if token < self.vocabulary_size]

    def take(self, token: int) -> None:
        if not self.matcher.accept_token(token):
            raise GrammarDied(f"token {token} was allowed and then refused")

    def is_accepting(self) -> bool:
        return self.matcher.is_completed()


def _set_bits(mask: bytes) -> list[int]:
    numpy: Any = importlib.import_module("numpy")
    bits = numpy.unpackbits(numpy.frombuffer(mask, dtype=numpy.uint8), bitorder="little")
    return numpy.flatnonzero(bits).tolist()
