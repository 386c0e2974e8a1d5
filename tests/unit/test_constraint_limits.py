"""What becomes of a constraint whose compilation runs into a limit, crashes, or is seen to lie.

The compiler is a stand-in that does what the constraint's text says. A process of its own forks, as in service.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, os, signal, sys, time
from headrace.workers import constraint_process as program
from headrace.workers.constraint_grammars import Refused

class Vocabulary:
    stops, closers = frozenset({9}), frozenset()
    def text_of(self, tokens): return "".join("{}[]01x"[token] for token in tokens)

class Grammar:
    # Writes its text and ends there; "dead" has nothing to go on with.
    def __init__(self, text): self.left = list(text)
    def allowed(self): return ["{}[]01x".index(self.left[0])] if self.left else []
    def take(self, token): self.left.pop(0)
    def is_accepting(self): return not self.left

class Dead(Grammar):
    def allowed(self): return []
    def is_accepting(self): return False

class Compiled:
    def __init__(self, text): self.text = text
    def start(self): return Dead("") if self.text == "dead" else Grammar(self.text)
    def accepts(self, pieces): return False

class Panic(BaseException): pass

class Compiler:
    vocabulary = Vocabulary()
    def compile(self, kind, text):
        if kind == "json": return Compiled(sys.argv[2])
        if text == "spin":
            while True: pass
        if text == "sleep": time.sleep(60)
        if text == "memory": bytearray(3 << 30)
        if text == "abort": os.abort()
        if text == "killed": os.kill(os.getpid(), signal.SIGKILL)
        if text == "panic": raise Panic("at the disco")
        if text == "refuse": raise Refused("no such thing")
        return Compiled("dead" if text == "dead" else "x")

program.CLOCK_S = 0.5 if sys.argv[1] == "sleep" else 60.0
schema = json.loads(sys.argv[1]) if sys.argv[1].startswith("{") else None
constraint = {"json_schema": schema} if schema is not None else {"regex": sys.argv[1]}
for each in (constraint, {"regex": "fine"}):
    print(json.dumps(program._bounded(json.dumps({"constraint": each}).encode(), Compiler(), "guidance")))
"""


def bounded(what: str, written: str = "") -> dict[str, Any]:
    """The answer for one constraint; one that is fine must be answered after it."""
    command = [sys.executable, "-c", PROGRAM, what, written]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    answer, afterwards = map(json.loads, done.stdout.splitlines())
    assert afterwards["enforcement"]["tier"] == "enforced"
    return answer


@pytest.mark.parametrize(
    ("what", "code", "said", "lasting"),
    [
        ("spin", "schema_too_complex", "2 s of CPU time", True),
        ("sleep", "schema_too_complex", "more than", False),
        ("memory", "schema_too_complex", "1,024 MiB", True),
        ("abort", "schema_too_complex", "SIGABRT", True),
        ("killed", "schema_too_complex", "was killed", False),
        ("panic", "invalid_schema", "Panic: at the disco", True),
        ("refuse", "invalid_schema", "no such thing", True),
        ("dead", "invalid_schema", "nothing may follow", True),
    ],
)
def test_each_end_has_its_verdict_and_the_next_is_answered(
    what: str, code: str, said: str, lasting: bool
) -> None:
    answer = bounded(what)
    assert answer["refused"]["code"] == code
    assert said in answer["refused"]["message"]
    assert answer["lasting"] is lasting


def test_a_grammar_that_is_seen_to_let_through_what_the_validator_refuses_is_not_called_enforced() -> None:
    assert bounded('{"type": "array"}', written="{}")["enforcement"]["tier"] == "relaxed:type"


def test_a_grammar_that_keeps_its_promise_is_enforced() -> None:
    assert bounded('{"type": "array"}', written="[]")["enforcement"]["tier"] == "enforced"


def test_a_grammar_that_dies_on_the_way_leaves_all_to_validation() -> None:
    answer = bounded('{"type": "array"}', written="dead")
    assert answer["enforcement"] == {"tier": "validated_only", "schema": None, "narrowed": []}
