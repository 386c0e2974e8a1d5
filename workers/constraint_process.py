"""Finds out how a constraint is held, under limits: a process beside the worker, and one more for each constraint.

Compiling a schema of a hundred bytes may take half a minute, and rewriting one of a kilobyte 800 MB. So each is done
in a process that is forked off this one, which has loaded backend and tokenizer, and that is killed at its limits.

Reads a job on each line of standard input, `{"constraint": {...}, "instances": [...]}`, and answers each with a line
on standard output:

    {"enforcement": {"tier", "schema", "narrowed"}, "cpu_ms": 1.2, "instances": [[valid, accepted], ...]}
    {"refused": {"code", "message", "path"}, "lasting": true}

`valid` is the validator's verdict on an instance, `accepted` the compiled grammar's (null where there is none).
`lasting` is false where the same job may be answered differently another time. The first line of all is
`{"ready": true}`, or `{"failed": "why"}`. The process ends at the end of its input, and with its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, cast

from pydantic import ValidationError

from headrace.schemas.enforcement import Backend, Enforcement, candidates
from headrace.schemas.errors import (
    InvalidSchema,
    OutputError,
    OutputNotJson,
    OutputViolatesSchema,
    SchemaTooComplex,
)
from headrace.schemas.messages import JsonObject, JsonValue, OutputConstraint
from headrace.schemas.output_schema import OutputCheck, OutputSchema
from headrace.schemas.schema_bounds import pointer_to
from headrace.workers.constraint_grammars import (
    Compiled,
    Compiler,
    GrammarDied,
    Refused,
    Vocabulary,
    compiler_of,
    import_backend,
    kind_and_text,
    walks,
)

NICENESS = 19
CPU_S = 2  # of one constraint: validation, rewriting, compiling and walking
CLOCK_S = 10.0  # of the same
INSTANCES_S = 30  # of CPU and of clock, more, where instances are given
MEMORY_BYTES = 1 << 30  # of one constraint, beyond what this process has
WHOLLY = ("enforced", "enforced_normalised")
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description="Find out how constraints are held, under limits.")
    parser.add_argument("--backend", choices=["guidance", "xgrammar"], required=True)
    parser.add_argument("--tokenizer", required=True, help="directory with tokenizer.json")
    parser.add_argument("--vocabulary-size", type=int, help="of the model's output; default: the tokenizer's")
    parser.add_argument(
        "--await-tokenizer",
        action="store_true",
        help="meanwhile import the backend; the first line of standard input says that the directory is filled:"
        ' {"vocabulary_size": 32000}',
    )
    parser.add_argument("--load-nicely", action="store_true", help="give way to others while loading, too")
    options = parser.parse_args(arguments)
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints
    if options.load_nicely:
        os.nice(NICENESS)
    try:
        if options.await_tokenizer:
            import_backend(options.backend)
            filled = sys.stdin.buffer.readline()
            if not filled:
                return 0
            options.vocabulary_size = json.loads(filled)["vocabulary_size"]
        compiler = compiler_of(options.backend, Vocabulary.load(options.tokenizer, options.vocabulary_size))
    except Exception as error:  # noqa: BLE001 (whatever it is, the parent is to say it)
        _write(answers, {"failed": " ".join(f"{type(error).__name__}: {error}".split())})
        return 3
    if not options.load_nicely:
        os.nice(NICENESS)
    _write(answers, {"ready": True})
    for line in sys.stdin.buffer:
        _write(answers, _bounded(line, compiler, options.backend))
    return 0


def _write(answers: Any, answer: JsonObject) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was faster
            os._exit(1)


# --- one constraint, in a process that may be killed --------------------------------------------------------------


def _bounded(line: bytes, compiler: Compiler, backend: Backend) -> JsonObject:
    """What a forked process answers, or why it was killed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            _limit()
            with os.fdopen(theirs, "w", encoding="utf-8") as answers:
                for part in _answer(line, compiler, backend):
                    _write(answers, part)
        finally:
            os._exit(0)
    os.close(theirs)
    parts, in_time = _read(ours, CLOCK_S)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if parts:
        return {name: value for part in parts for name, value in part.items()}
    return _killed(status) if in_time else _too_complex(f"it takes more than {CLOCK_S:.0f} s", lasting=False)


def _limit() -> None:
    _end_with_parent()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + INSTANCES_S))
    if sys.platform == "linux":
        with open("/proc/self/statm", encoding="ascii") as statm:
            here = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (here + MEMORY_BYTES, here + MEMORY_BYTES))


def _read(pipe: int, clock_s: float) -> tuple[list[JsonObject], bool]:
    """The lines that come through a pipe, and whether it was closed in time."""
    until = time.monotonic() + clock_s
    text = b""
    with os.fdopen(pipe, "rb", buffering=0) as end:
        while (left := until - time.monotonic()) > 0:
            if select.select([end], [], [], left)[0]:
                chunk = end.read(1 << 16)
                if not chunk:
                    return _parts(text), True
                if (
                    b"\n" in chunk and b"\n" not in text
                ):  # how it is held is known: what follows are instances
                    until += INSTANCES_S
                text += chunk
    return _parts(text), False


def _parts(text: bytes) -> list[JsonObject]:
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def _killed(status: int) -> JsonObject:
    if status == -signal.SIGXCPU:
        return _too_complex(f"it takes more than {CPU_S} s of CPU time", lasting=True)
    if status == -signal.SIGKILL:  # not by us: by the system, which was short of memory, or by hand
        return _too_complex("the process that looked at it was killed", lasting=False)
    how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
    return _too_complex(f"the compiler dies of it ({how})", lasting=True)


def _too_complex(reason: str, *, lasting: bool) -> JsonObject:
    message = f"the constraint is too complex to be held: {reason}"
    refused = {"code": SchemaTooComplex.code, "message": message, "path": ""}
    return {"refused": refused, "lasting": lasting}


# --- what is found out --------------------------------------------------------------------------------------------


def _answer(line: bytes, compiler: Compiler, backend: Backend) -> Iterator[JsonObject]:
    """First how it is held, then what becomes of the instances."""
    try:
        job = json.loads(line)
        constraint = _constraint(job["constraint"])
        check = OutputCheck(constraint)
        begun = time.process_time()
        enforcement, compiled = _found(constraint, check, compiler, backend)
        yield {
            "enforcement": {
                "tier": enforcement.tier,
                "schema": enforcement.schema,
                "narrowed": list(enforcement.narrowed),
            },
            "cpu_ms": (time.process_time() - begun) * 1000,
        }
    except InvalidSchema as error:
        yield {"refused": {"code": error.code, "message": error.message, "path": error.path}, "lasting": True}
        return
    except MemoryError:
        yield _too_complex(f"it takes more than {MEMORY_BYTES >> 20:,} MiB", lasting=True)
        return
    except BaseException as error:  # noqa: BLE001 (a Rust library's panic is no Exception)
        message = f"it cannot be looked at: {type(error).__name__}: {error}"[:500]
        yield {"refused": {"code": InvalidSchema.code, "message": message, "path": ""}, "lasting": True}
        return
    instances = job.get("instances")
    if instances is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S + INSTANCES_S, CPU_S + INSTANCES_S))
        yield {"instances": [_instance(value, check.output_schema, compiled) for value in instances]}


def _constraint(value: JsonValue) -> OutputConstraint:
    try:
        return OutputConstraint.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidSchema(first["msg"], path=pointer_to(list(first["loc"]))) from None


def _found(
    constraint: OutputConstraint, check: OutputCheck, compiler: Compiler, backend: Backend
) -> tuple[Enforcement, Compiled | None]:
    """The first candidate that compiles and can be walked.

    One that claims to let through only what the validator accepts, and is seen to let through something else, is
    taken only if no later one keeps that promise, and then for what it is.
    """
    if check.output_schema is None:
        return _as_it_is(constraint, compiler)
    if check.output_schema.schema is False:
        raise InvalidSchema("the output schema false accepts no output at all", path="/json_schema")
    leaking: tuple[Enforcement, Compiled] | None = None
    for candidate in candidates(check.output_schema, backend):
        wholly = candidate.tier in WHOLLY
        if leaking is not None and not wholly:
            return leaking
        if candidate.schema is None:
            return candidate, None
        try:
            compiled = compiler.compile(*kind_and_text(OutputConstraint(json_schema=candidate.schema)))
            leaks = [_leak(check.output_schema, text) for text in walks(compiled, compiler.vocabulary)]
        except (Refused, GrammarDied):
            continue
        keywords = sorted({keyword for keyword in leaks if keyword is not None})
        if not wholly or not keywords:
            return candidate, compiled
        leaking = Enforcement(f"relaxed:{','.join(keywords)}", candidate.schema, candidate.narrowed), compiled
    return leaking or (Enforcement("validated_only", None), None)


def _leak(schema: OutputSchema, text: str) -> str | None:
    """The keyword that a walked text breaks. Numbers and strings that no schema can speak of are left to the parser."""
    try:
        schema.check(text)
    except OutputNotJson:
        return None
    except OutputViolatesSchema as error:
        return error.message.partition(":")[0]
    return None


def _as_it_is(constraint: OutputConstraint, compiler: Compiler) -> tuple[Enforcement, Compiled]:
    kind, text = kind_and_text(constraint)
    try:
        compiled = compiler.compile(kind, text)
        for _ in walks(compiled, compiler.vocabulary):
            pass
    except (Refused, GrammarDied) as error:
        reason = " ".join(str(error).split())[:500]
        raise InvalidSchema(
            f"the engine cannot hold an output to this {kind}: {reason}", path=f"/{kind}"
        ) from None
    return Enforcement("enforced", None), compiled


def _instance(value: JsonValue, schema: OutputSchema | None, compiled: Compiled | None) -> list[bool | None]:
    valid = None
    if schema is not None:
        valid = True
        try:
            schema.check_value(value)
        except OutputError:
            valid = False
    if compiled is None:
        return [valid, None]
    ordered = _ordered(value, list(_property_names(schema.schema if schema else True)))
    with contextlib.suppress(UnicodeEncodeError):  # a lone surrogate
        return [valid, any(compiled.accepts(list(_pieces(each))) for each in (value, ordered))]
    return [valid, False]


def _property_names(schema: JsonValue) -> Iterator[list[str]]:
    """The names of each object's properties, in their order."""
    left = [schema]
    while left:
        place = left.pop()
        if isinstance(place, dict):
            members = cast("JsonObject", place)
            if isinstance(members.get("properties"), dict):
                yield list(members["properties"])
            left += members.values()
        elif isinstance(place, list):
            left += cast("list[JsonValue]", place)


def _ordered(value: JsonValue, orders: list[list[str]]) -> JsonValue:
    """The value with the members of each object in the order of the properties that they most look like.

    Grammars take declared properties in the schema's order alone, and the others after them.
    """
    if isinstance(value, list):
        return [_ordered(each, orders) for each in cast("list[JsonValue]", value)]
    if not isinstance(value, dict):
        return value
    members = cast("JsonObject", value)
    order = max([[], *orders], key=lambda names: len(members.keys() & set(names)))
    names = [*(name for name in order if name in members), *(name for name in members if name not in order)]
    return {name: _ordered(members[name], orders) for name in names}


def _pieces(value: JsonValue) -> Iterator[str]:
    """A value's JSON text without blanks, cut beside each comma and colon."""
    for chunk in json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).iterencode(value):
        if chunk.startswith(","):
            yield ","
        if rest := chunk.removeprefix(","):
            yield rest


if __name__ == "__main__":
    sys.exit(main())
