"""What the simulated engine says: the same text for the same seed, held to a constraint where there is one.

A token is four bytes of UTF-8. A constraint is obeyed by walking the grammar that llguidance compiles for it,
byte by byte: at each step the dice fall among the bytes that it allows, loaded towards the end of strings,
numbers and lists.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import random
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import jsonschema_rs

from headrace.schemas.errors import EngineError, EngineRejected, EngineUnavailable
from headrace.schemas.messages import FinishReason, OutputConstraint

TOKEN_BYTES = 4
_PADDING = b"\xff"  # never occurs in UTF-8
_END = 256  # the token after the 256 bytes
_CACHED_GRAMMARS = 64
_VOCABULARY = """
water wheel mill stone river brook weir sluice gate flow grain flour miller valley meadow bridge bank reed
willow heron otter trout current pond spring summer winter autumn morning evening lantern harvest cellar
kitchen garden orchard market village road hill forest cloud thunder silver copper amber quiet steady narrow
"""
_WORDS = tuple(_VOCABULARY.split())


def to_tokens(text: str) -> list[int]:
    """Text as tokens: each four bytes, little-endian; the last one padded with a byte that UTF-8 does not
    have.
    """
    data = text.encode("utf-8", errors="surrogatepass")
    data += _PADDING * (-len(data) % TOKEN_BYTES)
    return list(struct.unpack(f"<{len(data) // TOKEN_BYTES}I", data))


def to_text(tokens: Sequence[int]) -> str:
    """The text that `to_tokens` made these of. Raises EngineRejected for a number that is no token."""
    return _to_bytes(tokens).rstrip(_PADDING).decode("utf-8", errors="replace")


def _to_bytes(tokens: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(tokens)}I", *tokens)
    except struct.error:
        raise EngineRejected("the engine refuses this request: a token id is out of vocabulary") from None


def pieces(text: str) -> list[str]:
    """Text cut into what each token adds; a character goes with the token that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    data = text.encode("utf-8", errors="replace")
    cuts = [decoder.decode(data[at : at + TOKEN_BYTES]) for at in range(0, len(data), TOKEN_BYTES)]
    return cuts or [""]


@dataclass(frozen=True, slots=True)
class Written:
    """A text, how it ended, and its tokens (at least one: ending is a token as well)."""

    text: str
    finish: FinishReason
    tokens: int


def written(text: str, finish: FinishReason) -> Written:
    """A text with its tokens counted."""
    return Written(text, finish, max(1, -(-len(text.encode("utf-8", errors="replace")) // TOKEN_BYTES)))


def cut(data: bytes, max_tokens: int, stop: Sequence[str]) -> Written:
    """A finished text as an engine would give it: ended before a stop string, or by `max_tokens`."""
    text = data[: max_tokens * TOKEN_BYTES].decode("utf-8", errors="ignore")
    stops = [at for at in (text.find(one) for one in stop) if at >= 0]
    if stops:
        return written(text[: min(stops)], "stop")
    return written(text, "length" if len(data) > max_tokens * TOKEN_BYTES else "stop")


def dice_for(token_ids: Sequence[int], seed: int | None, choice: int) -> random.Random:
    """The dice of one choice: they fall the same way for the same prompt, seed and choice."""
    digest = hashlib.blake2b(repr((seed, choice)).encode(), digest_size=8)
    digest.update(_to_bytes(token_ids))
    return random.Random(digest.digest())


def free_text(dice: random.Random, tokens: int) -> bytes:
    """Words, `tokens` tokens long."""
    size = tokens * TOKEN_BYTES
    words = dice.choices(_WORDS, k=size // 4 + 1)  # with its blank the shortest has five bytes
    return " ".join(words).encode()[:size]


class Grammars:
    """Compiled constraints, the last 64 kept. Usable from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._tokenizer: Any = None

    def matcher(self, constraint: OutputConstraint) -> Any:
        """A fresh matcher. Raises EngineRejected with llguidance's reason."""
        key = constraint.model_dump_json(exclude_none=True)
        with self._lock:
            found = self._compiled.get(key)
            if found is None:
                found = self._compiled[key] = self._compile(constraint)
            self._compiled.move_to_end(key)
            while len(self._compiled) > _CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
            return found.deep_copy()

    def _compile(self, constraint: OutputConstraint) -> Any:
        llguidance = _llguidance()
        if self._tokenizer is None:
            wrapper = llguidance.TokenizerWrapper(_ByteTokenizer())
            self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=_END + 1, eos_token=_END, slices=[])
        try:
            grammar = _grammar(llguidance, constraint)
        except ValueError as error:
            raise EngineRejected(f"the engine refuses this output constraint: {error}") from error
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            reason = " ".join(str(matcher.get_error()).split())
            raise EngineRejected(f"the engine refuses this output constraint: {reason}")
        return matcher


class _ByteTokenizer:
    """What llguidance asks of a tokenizer: here, each byte is a token."""

    eos_token_id = _END
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<end>")
    special_token_ids = (_END,)

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise EngineUnavailable(
            "the simulated engine obeys output constraints with llguidance: `pip install llguidance`"
        ) from error
    return llguidance


def _grammar(llguidance: Any, constraint: OutputConstraint) -> str:
    schema = constraint.json_schema
    if schema is False:
        raise EngineRejected("the output schema false accepts no output at all", path="/output/json_schema")
    if constraint.json_object:
        schema = {"type": "object"}
    if schema is not None:
        text = json.dumps({} if schema is True else schema)
        return llguidance.LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_flexible": False})
    if constraint.regex is not None:
        return llguidance.grammar_from("regex", constraint.regex)
    if constraint.choice is not None:
        return llguidance.LLMatcher.grammar_from_lark(
            "start: " + " | ".join(map(json.dumps, constraint.choice))
        )
    return llguidance.grammar_from("grammar", constraint.grammar)


def constrained_text(matcher: Any, dice: random.Random, max_bytes: int) -> tuple[bytes, bool]:
    """Walk a grammar to its end, or until there are more than `max_bytes`; False if the grammar died on the
    way.
    """
    out = bytearray()
    while len(out) <= max_bytes and not matcher.is_stopped():
        forced = matcher.compute_ff_bytes()
        if forced and (taken := matcher.try_consume_tokens(list(forced))):
            out += forced[:taken]
            continue
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if mask >> _END & 1 and (not allowed or dice.random() < (0.7 if out else 0.3)):
            break
        if not allowed:
            return bytes(out), False
        chosen = _throw(matcher, dice, bytes(allowed), out)
        if not matcher.consume_tokens(list(chosen)):
            return bytes(out), False
        out += chosen
    return bytes(out), not matcher.is_error()


def _throw(matcher: Any, dice: random.Random, allowed: bytes, out: bytearray) -> bytes:
    """The next bytes: one, or a word where words may stand."""
    eager = min(0.9, 0.35 + len(out) / 2000)  # the longer the text, the more it longs for its end
    letters = sum(97 <= byte <= 122 for byte in allowed)
    closing = [byte for byte in allowed if byte in b'"]},']
    if letters > 20:  # inside a string
        if 0x22 in allowed and not out.endswith(b'"') and dice.random() < 2 * eager:
            return b'"'
        fresh = [word for word in _WORDS if word.encode() not in out]  # a key must not come twice
        word = dice.choice(fresh or _WORDS).encode()
        return word[: matcher.validate_tokens(list(word))] or bytes([dice.choice(_plain(allowed))])
    digits = [byte for byte in allowed if 48 <= byte <= 57]
    if out.endswith(b":") and 0x36 in digits and 0x37 not in digits:
        # A leap second: the grammar of a time admits it everywhere, validators hardly ever.
        digits.remove(0x36)
    if digits and out[-1:].isdigit():  # inside a number
        after = closing or [byte for byte in _plain(allowed) if byte not in b"0123456789.eE"][:1]
        return bytes([dice.choice(after if after and dice.random() < 2 * eager else digits)])
    ending = [byte for byte in closing if byte in b"]}"]
    if ending and dice.random() < eager:
        return bytes([ending[0]])
    return bytes([dice.choice(digits or _plain(allowed))])


def _plain(allowed: bytes) -> bytes:
    """Without escapes, signs, controls and the bytes of other scripts, as long as anything is left."""
    plain = bytes(byte for byte in allowed if 0x20 <= byte < 0x7F and byte not in b"\\-+")
    return plain or allowed


def violation(constraint: OutputConstraint | None) -> str:
    """A JSON text that the schema does not accept where one is found, else something that is no JSON."""
    schema = None if constraint is None else constraint.json_schema
    if schema is not None:
        try:
            validator: Any = jsonschema_rs.validator_for(cast("Any", schema), offline=True)
        except (ValueError, TypeError) as error:
            raise EngineError(f"no violation of this schema can be made: {error}") from error
        for text, value in (("null", None), ("[]", cast("list[Any]", [])), ('"no"', "no"), ("-1.5", -1.5)):
            if not validator.is_valid(value):
                return text
    return "this is not what was asked for {"
