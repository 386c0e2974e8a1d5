"""What becomes of the schemas of a file: how each backend holds them, and what it and the validator take."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from headrace.schemas.enforcement import Backend
from headrace.schemas.errors import OutputNotJson
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.output_json import parse_output
from headrace.workers.constraint_checks import ConstraintProcess

MALFORMED = "malformed_line"
_UNDER = "/json_schema"  # where the schema stands in the constraint


@dataclass(frozen=True, slots=True)
class Case:
    """A line of the file: `{"schema": ..., "name"?, "tests"?: [{"valid": bool, "data": ...}]}`."""

    line: int
    name: str | None = None
    schema: JsonValue = None
    instances: tuple[tuple[bool, JsonValue], ...] = ()  # (label, data)
    malformed: str | None = None  # why the line cannot be used


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance's label, and who takes it; None where it was not asked for: there is no grammar, or no schema."""

    label: bool
    validator: bool | None
    grammar: bool | None

    @property
    def differs(self) -> bool:
        """Whether the validator is of another opinion than the label."""
        return self.validator is not None and self.validator is not self.label


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a backend makes of a case. `verdict` is a tier, or the code of the refusal."""

    line: int
    name: str | None
    backend: Backend
    verdict: str
    keyword: str | None = None
    pointer: str | None = None
    message: str | None = None
    narrowed: tuple[str, ...] = ()
    compile_ms: float | None = None  # of CPU time: rewriting, compiling, walking
    instances: tuple[Instance, ...] = ()

    @property
    def title(self) -> str:
        """The name, or else the number of the line."""
        return self.name or f"line {self.line}"

    def as_json(self) -> JsonObject:
        """As one line of `--json`."""
        return {
            "line": self.line,
            "name": self.name,
            "backend": self.backend,
            "verdict": self.verdict,
            "keyword": self.keyword,
            "pointer": self.pointer,
            "message": self.message,
            "narrowed": list(self.narrowed),
            "compile_ms": self.compile_ms,
            "instances": [
                {"label": each.label, "validator": each.validator, "grammar": each.grammar}
                for each in self.instances
            ],
        }


# --- reading ----------------------------------------------------------------------------------------------------


def cases(lines: Iterable[bytes]) -> Iterator[Case]:
    """The cases of a file's lines; empty lines are left out. Raises nothing: a line may be malformed."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _case(number, line)


def _case(number: int, line: bytes) -> Case:
    try:
        value = parse_output(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        return Case(number, malformed=f"no UTF-8: {error.reason} at byte {error.start}")
    except OutputNotJson as error:
        return Case(number, malformed=f"no JSON: {error}")
    if not isinstance(value, dict) or "schema" not in value:
        return Case(number, malformed='the line is no object with "schema"')
    fields = cast("JsonObject", value)
    name, tests = fields.get("name"), fields.get("tests")
    if name is not None and not isinstance(name, str):
        return Case(number, malformed='"name" must be a string')
    if not isinstance(tests, list | None) or not all(
        _is_test(each) for each in cast("list[JsonValue]", tests or [])
    ):
        return Case(number, name, malformed='"tests" must be a list of {"valid": true or false, "data": ...}')
    instances = tuple((each["valid"], each["data"]) for each in cast("list[JsonObject]", tests or []))
    return Case(number, name, fields["schema"], instances)


def _is_test(value: JsonValue) -> bool:
    return isinstance(value, dict) and isinstance(value.get("valid"), bool) and "data" in value  # pyright: ignore[reportUnknownMemberType] (JSON)


# --- asking -----------------------------------------------------------------------------------------------------


async def check(
    all_cases: Iterable[Case], backends: Sequence[Backend], tokenizer: Path
) -> AsyncIterator[list[Verdict]]:
    """The verdicts of each case, one for each backend. Raises EngineUnavailable where one cannot be loaded."""
    async with AsyncExitStack() as stack:
        processes: dict[Backend, ConstraintProcess] = {}
        for backend in backends:
            processes[backend] = ConstraintProcess(backend, tokenizer)
            stack.push_async_callback(processes[backend].close)
        await asyncio.gather(*(process.start() for process in processes.values()))
        for case in all_cases:
            yield await asyncio.gather(*(_ask(case, *each) for each in processes.items()))


async def _ask(case: Case, backend: Backend, process: ConstraintProcess) -> Verdict:
    if case.malformed is not None:
        return Verdict(case.line, case.name, backend, MALFORMED, message=case.malformed)
    if not isinstance(case.schema, dict | bool):
        answer: JsonObject = {
            "refused": {
                "code": "invalid_schema",
                "message": "a JSON Schema is an object, true or false",
                "path": _UNDER,
            }
        }
    else:
        data = [value for _, value in case.instances]
        schema = cast("JsonObject | bool", case.schema)
        answer = await process.ask({"constraint": {"json_schema": schema}, "instances": data})
    return _verdict(case, backend, answer)


def _verdict(case: Case, backend: Backend, answer: JsonObject) -> Verdict:
    taken = answer.get("instances") or [(None, None)] * len(case.instances)
    instances = tuple(
        Instance(label, validator, grammar)
        for (label, _), (validator, grammar) in zip(case.instances, taken, strict=True)
    )
    if "refused" in answer:
        refused = answer["refused"]
        pointer = str(refused["path"] or "").removeprefix(_UNDER)
        return Verdict(
            case.line,
            case.name,
            backend,
            refused["code"],
            keyword=pointer.rpartition("/")[2] or None,
            pointer=pointer,
            message=refused["message"],
            instances=instances,
        )
    found = answer["enforcement"]
    return Verdict(
        case.line,
        case.name,
        backend,
        found["tier"],
        keyword=found["tier"].partition(":")[2] or None,
        narrowed=tuple(found["narrowed"]),
        compile_ms=round(answer["cpu_ms"], 3),
        instances=instances,
    )


# --- adding up --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """The sums over a file, for one backend."""

    verdicts: Counter[str] = field(default_factory=Counter[str])  # by tier without keywords, or code
    instances: Counter[tuple[bool, str, bool | None]] = field(
        default_factory=Counter[tuple[bool, str, bool | None]]
    )  # (label, "validator" or "grammar", whether it takes it)
    compile_ms: list[float] = field(default_factory=list[float])
    refused: list[Verdict] = field(default_factory=list[Verdict])
    differing: list[Verdict] = field(default_factory=list[Verdict])

    def add(self, verdict: Verdict) -> None:
        """Count one."""
        self.verdicts[verdict.verdict.partition(":")[0]] += 1
        for each in verdict.instances:
            self.instances[each.label, "validator", each.validator] += 1
            self.instances[each.label, "grammar", each.grammar] += 1
        if verdict.compile_ms is None:
            self.refused.append(verdict)
        else:
            self.compile_ms.append(verdict.compile_ms)
        if any(each.differs for each in verdict.instances):
            self.differing.append(verdict)

    def quantile_ms(self, share: float) -> float:
        """Of the compile times; nought where nothing was compiled."""
        ranked = sorted(self.compile_ms)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else 0.0
