"""What the bench of slow schemas counts, and when. On a loop whose time passes only while everybody waits."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from headrace.ops.bench.ground import BenchFailed
from headrace.ops.bench.slow_schema import (
    LEAST_GAPS,
    PHASES,
    Beside,
    Gaps,
    SlowSchemaFigures,
    SlowSchemaLoad,
    busy_process,
    gaps_of,
    measure,
    order_of,
    slow_schema,
)
from headrace.schemas.enforcement import Backend, Enforcement
from headrace.schemas.errors import EngineDead, InvalidSchema, SchemaTooComplex
from headrace.schemas.messages import OutputConstraint
from headrace.schemas.output_schema import OutputSchema
from headrace.workers.engine import Delta, GeneratedChoice, Generation, GenerationJob, Prompt

LOAD = SlowSchemaLoad(streams=3, rounds=3, seconds=10.0, settle_s=1.0, max_tokens=40)
GAP_S: dict[Beside, float] = {"nothing": 0.010, "busy process": 0.020, "slow schema": 0.024}
PROMPT_S = 0.050  # until a stream's first text
AFTER_2_S = "the constraint is too complex to be held: it takes more than 2 s of CPU time"


class PassingTime(selectors.SelectSelector):
    """Where a loop would wait, its clock goes on at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0  # seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else None)
        if not ready:
            self.now += timeout or 0.0
        return ready


class LoopOfPassingTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._passing = PassingTime()
        super().__init__(self._passing)

    def time(self) -> float:
        return self._passing.now


class Machine:
    """An engine whose texts come as slowly as what runs beside them has it, and notes what that was."""

    def __init__(self, verdict: Callable[[], Enforcement] | None = None) -> None:
        self._verdict = verdict
        self.beside: Beside = "nothing"
        self.phases: list[tuple[Beside, float]] = []  # what began, and when
        self.asked: list[Any] = []  # schemas
        self.running = self.most_running = 0
        self.dies_at: float | None = None
        self.busy_for_s: float | None = None

    @contextlib.contextmanager
    def _with(self, beside: Beside) -> Any:
        assert self.beside == "nothing", "one at a time"
        self.beside = beside
        self.phases.append((beside, asyncio.get_running_loop().time()))
        try:
            yield
        finally:
            self.beside = "nothing"

    @contextlib.asynccontextmanager
    async def busy(self) -> AsyncGenerator[asyncio.Task[object]]:
        ended = asyncio.create_task(asyncio.sleep(self.busy_for_s or 3600.0), name="busy process")
        with self._with("busy process"):
            yield ended
        ended.cancel()

    async def encode(self, prompt: Prompt) -> list[int]:
        return [1]

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        self.asked.append(constraint.json_schema)
        with self._with("slow schema"):
            await asyncio.sleep(2.5)
            if self._verdict is not None:
                return self._verdict()
            raise SchemaTooComplex(AFTER_2_S, path="/output")

    async def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        assert job.stream
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(PROMPT_S)
            for _ in range(job.sampling.max_tokens or 0):
                if self.dies_at is not None and asyncio.get_running_loop().time() >= self.dies_at:
                    raise EngineDead("the engine has died")
                yield Delta(0, "x")
                await asyncio.sleep(GAP_S[self.beside])
        finally:
            self.running -= 1
        yield Generation([GeneratedChoice("x", "length", 40)], prompt_tokens=1)


def measured(machine: Machine, load: SlowSchemaLoad = LOAD) -> SlowSchemaFigures:
    with asyncio.Runner(loop_factory=LoopOfPassingTime) as runner:
        return runner.run(
            measure(
                cast("Any", machine),
                "guidance",
                load,
                on_progress=lambda _: None,
                busy=machine.busy,
            )
        )


# --- the loop ---


def test_each_phase_counts_the_gaps_of_its_own_neighbour_and_no_others() -> None:
    found = measured(Machine())
    assert len(found.rounds) == 3
    for each in found.rounds:
        for beside in PHASES:
            gaps = each[beside]
            # None of another phase's, and none from one stream's end to the next one's first text.
            assert [gaps.p50_ms, gaps.p95_ms, gaps.longest_ms] == pytest.approx([GAP_S[beside] * 1000] * 3)
            # A stream's first text has no gap before it, and its last none after it that counts.
            stream_s = PROMPT_S + LOAD.max_tokens * GAP_S[beside]
            counted = LOAD.streams * LOAD.seconds / stream_s * (LOAD.max_tokens - 1)
            assert gaps.counted == pytest.approx(counted, rel=0.02)
    assert found.ratio == pytest.approx(1.2)
    assert [found.ratio_of_rounds.least, found.ratio_of_rounds.most] == pytest.approx([1.2, 1.2])


def test_streams_follow_each_other_all_the_while_so_many_at_a_time_and_are_given_up_at_the_end() -> None:
    machine = Machine()
    measured(machine)
    assert machine.most_running == LOAD.streams
    assert machine.running == 0


def test_a_check_is_always_under_way_each_of_another_schema_and_the_next_phase_waits_for_the_last() -> None:
    machine = Machine()
    found = measured(machine)
    begun = [at for beside, at in machine.phases if beside == "slow schema"]
    # 1 s until gaps count and 10 s of counting: five checks of 2.5 s, the fifth to its end.
    assert len(begun) == found.checks == 3 * 5
    assert [later - earlier for earlier, later in pairwise(begun[:5])] == [2.5] * 4
    assert len({str(schema) for schema in machine.asked}) == found.checks
    assert found.check_s == pytest.approx(2.5)
    assert found.verdicts == {"it takes more than 2 s of CPU time": 15}


def test_which_is_first_alternates() -> None:
    assert [order_of(number)[0] for number in range(4)] == [*PHASES, PHASES[0]]
    assert all(sorted(order_of(number)) == sorted(PHASES) for number in range(3))
    machine = Machine()
    measured(machine)
    kinds = [beside for beside, _ in machine.phases]
    in_turn = [kind for place, kind in enumerate(kinds) if place == 0 or kinds[place - 1] != kind]
    assert in_turn == ["busy process", "slow schema", "busy process", "slow schema", "busy process"]


# --- what is no measurement ---


def refuse(error: InvalidSchema) -> Enforcement:
    raise error


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (lambda: Enforcement("enforced", True), r"no slow one: guidance held it \(enforced\)"),
        (
            lambda: refuse(SchemaTooComplex("multipleOf is larger than 10,000", path="/output/json_schema")),
            "refused without a limit: multipleOf is larger",
        ),
        (lambda: refuse(InvalidSchema("it takes more than that", path="")), "refused without a limit"),
    ],
)
def test_a_schema_that_ends_at_no_limit_is_no_measurement(
    verdict: Callable[[], Enforcement], said: str
) -> None:
    machine = Machine(verdict)
    with pytest.raises(BenchFailed, match=said):
        measured(machine)
    assert machine.running == 0


def test_a_busy_process_that_ends_is_no_measurement() -> None:
    machine = Machine()
    machine.busy_for_s = 5.0
    with pytest.raises(BenchFailed, match="the busy process has ended before its time"):
        measured(machine)


def test_an_engine_that_dies_is_said_to_have_died() -> None:
    machine = Machine()
    machine.dies_at = 25.0
    with pytest.raises(EngineDead):
        measured(machine)


def test_streams_that_stand_still_are_no_measurement() -> None:
    seconds = [0.01] * (LEAST_GAPS - 1)
    with pytest.raises(BenchFailed, match="stand still: 99 gaps between their texts beside a slow schema"):
        gaps_of(seconds, "slow schema")
    assert gaps_of([*seconds, 0.5], "slow schema") == Gaps(10.0, 10.0, 500.0, 100)


def test_the_busy_process_goes_on_until_it_is_left() -> None:
    async def entered() -> asyncio.Task[object]:
        async with busy_process() as running:
            assert not running.done()
        return running

    assert asyncio.run(entered()).result() == -signal.SIGKILL


# --- pure figures ---


def a_round(busy_ms: float, slow_ms: float) -> dict[Beside, Gaps]:
    p95s: dict[Beside, float] = {"nothing": 1.0, "busy process": busy_ms, "slow schema": slow_ms}
    return {beside: Gaps(1.0, p95, 99.0, 1000) for beside, p95 in p95s.items()}


def test_the_ratio_is_that_of_the_medians_and_the_spread_that_of_the_rounds() -> None:
    rounds = (a_round(10.0, 10.0), a_round(2.0, 30.0), a_round(20.0, 12.0))
    found = SlowSchemaFigures(rounds, 3, 2.0, {})
    assert found.p95_ms("busy process").median == 10.0
    assert found.p95_ms("slow schema").most == 30.0
    assert found.ratio == pytest.approx(1.2)
    ratios = found.ratio_of_rounds
    assert (ratios.least, ratios.median, ratios.most) == pytest.approx((0.6, 1.0, 15.0))


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_slow_schemas_are_valid_within_all_bounds_and_differ(backend: Backend) -> None:
    schemas = [slow_schema(backend, number) for number in range(3)]
    for schema in schemas:
        OutputSchema.parse(schema)  # checks the bounds as well
    assert len({str(schema) for schema in schemas}) == 3
