"""How each output constraint is held, asked of a process beside the worker, one at a time and each once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import cast

from headrace.schemas.enforcement import Backend, Enforcement
from headrace.schemas.errors import EngineDead, EngineUnavailable, InvalidSchema, SchemaTooComplex
from headrace.schemas.messages import JsonObject, OutputConstraint

log = logging.getLogger(__name__)

LOAD_S = 300.0  # for backend and tokenizer, with the machine busy
ANSWER_S = 60.0  # the process answers in 40 s, whatever it is given
STOP_S = 5.0
MAX_LINE_BYTES = 256 << 20
CACHED_BYTES = 16 << 20  # of all answers that are kept
COMPILED = 4_096  # constraints of which it is known that they compile


class _Broken(Exception):
    """The process has ended, or says what it should not."""


class ConstraintProcess:
    """The process, which answers job by job. For one task at a time.

    `program` stands for the interpreter's arguments; a test has its own.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Path,
        vocabulary_size: int | None = None,
        *,
        program: Sequence[str] = ("-m", "headrace.workers.constraint_process"),
    ) -> None:
        self._arguments = [*program, "--backend", backend, "--tokenizer", str(tokenizer)]
        self._tokenizer = tokenizer
        # Writes the tokenizer's files into the directory once more, should they be gone when it is started anew:
        # temporary files of some age are tidied away on many machines.
        self.write_tokenizer: Callable[[str], object] | None = None
        self._vocabulary_size = vocabulary_size
        self._process: asyncio.subprocess.Process | None = None

    async def begin(self) -> None:
        """Let it import its backend while the tokenizer's directory is still empty; `start` follows.

        Raises EngineUnavailable.
        """
        try:
            self._process = await self._spawn("--await-tokenizer")
        except OSError as error:
            raise _unavailable(error) from error

    async def start(self, vocabulary_size: int | None = None) -> None:
        """Start it, or go on with what was begun, and wait until it has loaded. The tokenizer is there by now.

        `vocabulary_size` stands for the constructor's. Raises EngineUnavailable with its reason.
        """
        self._vocabulary_size = vocabulary_size or self._vocabulary_size
        await self._started()

    async def _spawn(self, *more: str) -> asyncio.subprocess.Process:
        # A group of its own: a terminal's Ctrl-C is the worker's to answer. Not a session of its own: where Linux
        # groups processes by session (`sched_autogroup_enabled`), niceness counts within one alone.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *self._arguments,
            *more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            process_group=0,
        )

    async def _started(self, *more: str) -> asyncio.subprocess.Process:
        try:
            async with asyncio.timeout(LOAD_S):
                process, said = await self._begun() or await self._anew(*more)
        except (OSError, TimeoutError, _Broken) as error:
            await self.close()
            raise _unavailable(error) from error
        if "failed" in said:
            await self.close()
            raise EngineUnavailable(f"output constraints cannot be checked: {said['failed']}")
        return process

    async def _begun(self) -> tuple[asyncio.subprocess.Process, JsonObject] | None:
        """The process that was begun with the engine, and its first word; None where there is none (any more)."""
        if (process := self._process) is None:
            return None
        try:
            with contextlib.suppress(OSError):  # it may have ended by now, and have said why
                await self._write(process, {"vocabulary_size": self._vocabulary_size})
            return process, await self._line(process)
        except _Broken as error:  # killed, while the engine took memory to load
            log.warning("the process that checks output constraints is started anew: %s", error)
            await self.close()
            return None

    async def _anew(self, *more: str) -> tuple[asyncio.subprocess.Process, JsonObject]:
        if self.write_tokenizer is not None:
            await asyncio.to_thread(self._restore_tokenizer, self.write_tokenizer)
        size = self._vocabulary_size
        sized = [] if size is None else ["--vocabulary-size", str(size)]
        process = self._process = await self._spawn(*sized, *more)
        return process, await self._line(process)

    def _restore_tokenizer(self, write: Callable[[str], object]) -> None:
        if not self._tokenizer.is_dir() or not any(self._tokenizer.iterdir()):
            self._tokenizer.mkdir(parents=True, exist_ok=True)
            write(str(self._tokenizer))

    async def ask(self, job: JsonObject) -> JsonObject:
        """Its answer, as `constraint_process` describes it, or {"failed": why} where it could not be asked.

        It is started again where it has ended.

        Never raises for what the job holds: a job that ends the process twice is answered as too complex.
        """
        found = _unanswered("the process that does it ended")
        for _ in range(2):
            try:
                # Others generate by now: it gives way to them while it loads, too.
                process = self._process or await self._started("--load-nicely")
                async with asyncio.timeout(ANSWER_S):
                    await self._write(process, job)
                    return await self._line(process)
            except (OSError, TimeoutError, _Broken, EngineUnavailable) as error:
                log.warning(
                    "the process that checks output constraints is started anew: %s", error or "it hangs"
                )
                await self.close()
                if isinstance(error, EngineUnavailable):  # it does not start, whatever the job
                    found = {"failed": str(error), "lasting": False}
            except asyncio.CancelledError:
                await self.close()  # its answer would be taken for the next job's
                raise
        return found

    async def _write(self, process: asyncio.subprocess.Process, message: JsonObject) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()

    async def _line(self, process: asyncio.subprocess.Process) -> JsonObject:
        assert process.stdout is not None
        try:
            line = await process.stdout.readline()
            said = json.loads(line) if line.endswith(b"\n") else None
        except ValueError as error:  # a line beyond the limit, or no JSON
            raise _Broken(str(error)) from None
        if not isinstance(said, dict):
            raise _Broken("it ended")
        return cast("JsonObject", said)

    async def close(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()  # it keeps nothing, and whatever it has forked ends with it
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), STOP_S)


@dataclass(slots=True, eq=False)
class _Job:
    constraint: JsonObject
    answer: asyncio.Future[JsonObject]
    waiting: int = 0


class ConstraintChecks:
    """Answers how constraints are held. On one loop, which it never blocks.

    Answers are kept under a digest of the constraint's text (its order of properties counts: models write in it),
    but for those that might have been different another time.
    """

    def __init__(self, process: ConstraintProcess) -> None:
        self._process = process
        self._queue: asyncio.Queue[_Job] = asyncio.Queue()
        self._asked: dict[bytes, _Job] = {}
        self._answers: OrderedDict[bytes, tuple[JsonObject, int]] = OrderedDict()
        self._bytes = 0
        self._compiled: OrderedDict[bytes, None] = OrderedDict()
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def begin(self) -> None:
        """See `ConstraintProcess.begin`."""
        await self._process.begin()

    async def start(self, vocabulary_size: int | None = None) -> None:
        """Raises EngineUnavailable where the process cannot be started."""
        await self._process.start(vocabulary_size)
        self._runner = asyncio.create_task(self._run(), name="constraint checks")

    async def close(self) -> None:
        """End the process; whoever waits gets EngineDead. Idempotent."""
        self._closed = True
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])
        await self._process.close()
        for job in self._asked.values():
            if not job.answer.done():
                job.answer.set_exception(EngineDead("the engine has been shut down"))
                job.answer.exception()  # it may be that nobody waits any more

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        """How a constraint is held.

        Raises InvalidSchema, of it SchemaTooComplex, with a path into the request: `/output/json_schema/type`; and
        EngineUnavailable where nothing can be looked at.
        """
        asked = constraint.model_dump(exclude_none=True)
        key = _key(asked)
        answer = self._kept(key)
        if answer is None:
            answer = await self._answer(key, asked)
        if "failed" in answer:
            raise EngineUnavailable(answer["failed"])
        if "refused" in answer:
            raise _error(answer["refused"])
        found = answer["enforcement"]
        enforcement = Enforcement(found["tier"], found["schema"], tuple(found["narrowed"]))
        held = held_constraint(constraint, enforcement)
        if held is not None:
            self._remember_compiled(_key(held.model_dump(exclude_none=True)))
        return enforcement

    def is_known_to_compile(self, constraint: OutputConstraint) -> bool:
        """Whether the backend has compiled just this, behind vLLM's own gate, when it was asked for."""
        return _key(constraint.model_dump(exclude_none=True)) in self._compiled

    # --- asking ---

    async def _answer(self, key: bytes, asked: JsonObject) -> JsonObject:
        if self._closed:
            raise EngineDead("the engine has been shut down")
        job = self._asked.get(key)
        if job is None:
            job = self._asked[key] = _Job(asked, asyncio.get_running_loop().create_future())
            self._queue.put_nowait(job)
        job.waiting += 1
        try:
            return await asyncio.shield(job.answer)
        finally:
            job.waiting -= 1
            if job.waiting == 0 and self._asked.get(key) is job:
                del self._asked[key]

    async def _run(self) -> None:
        while True:
            job = await self._queue.get()
            if job.waiting == 0:
                continue  # whoever asked has given up
            try:
                answer = await self._process.ask({"constraint": job.constraint})
                self._keep(_key(job.constraint), answer)
            except Exception as error:  # (a defect of ours must not leave everybody waiting)
                log.exception("a constraint could not be looked at")
                answer = _unanswered(f"{type(error).__name__}: {error}")
            if not job.answer.done():
                job.answer.set_result(answer)

    # --- remembering ---

    def _kept(self, key: bytes) -> JsonObject | None:
        kept = self._answers.get(key)
        if kept is None:
            return None
        self._answers.move_to_end(key)
        return kept[0]

    def _keep(self, key: bytes, answer: JsonObject) -> None:
        if not answer.get("lasting", True) or key in self._answers:
            return
        size = len(json.dumps(answer))
        self._answers[key] = (answer, size)
        self._bytes += size
        while self._bytes > CACHED_BYTES:
            _, (_, freed) = self._answers.popitem(last=False)
            self._bytes -= freed

    def _remember_compiled(self, key: bytes) -> None:
        self._compiled[key] = None
        self._compiled.move_to_end(key)
        if len(self._compiled) > COMPILED:
            self._compiled.popitem(last=False)


def held_constraint(constraint: OutputConstraint, enforcement: Enforcement) -> OutputConstraint | None:
    """What the backend is to compile for a constraint; None where all is left to the validation."""
    if enforcement.tier == "validated_only":
        return None
    if constraint.json_schema is None:
        return constraint
    return OutputConstraint(json_schema=enforcement.schema)


def _unavailable(error: Exception) -> EngineUnavailable:
    reason = str(error) or f"it has not loaded in {LOAD_S:.0f} s"
    return EngineUnavailable(f"the process that checks output constraints does not start: {reason}")


def _unanswered(reason: str) -> JsonObject:
    message = f"the constraint could not be looked at: {reason}"
    return {"refused": {"code": SchemaTooComplex.code, "message": message, "path": ""}, "lasting": False}


def _key(constraint: JsonObject) -> bytes:
    return sha256(json.dumps(constraint).encode()).digest()


def _error(refused: JsonObject) -> InvalidSchema:
    kind = SchemaTooComplex if refused["code"] == SchemaTooComplex.code else InvalidSchema
    return kind(refused["message"], path=f"/output{refused['path'] or ''}")
