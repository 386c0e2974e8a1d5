"""The engine port without a model: for tests, benches, and machines where vLLM cannot be installed.

Texts depend on the prompt, the seed and the choice alone. Output constraints are obeyed. Time passes as the
profile says, or not at all.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib import metadata

from headrace.schemas.enforcement import Enforcement
from headrace.schemas.errors import (
    EngineDead,
    EngineRejected,
    EngineUnavailable,
    InvalidSchema,
    PromptTooLong,
    TemplateFailed,
    UnsupportedField,
)
from headrace.schemas.messages import ChatMessage, OutputConstraint, TokenLogprob, TopLogprob
from headrace.schemas.output_schema import OutputCheck
from headrace.workers import simulated_calls
from headrace.workers import simulated_text as texts
from headrace.workers.engine import (
    ChatPrompt,
    Delta,
    EngineIdentity,
    GeneratedChoice,
    Generation,
    GenerationJob,
    Prompt,
    TextPrompt,
)
from headrace.workers.simulated_failures import Failure, Fate, Script

_SLICE = 8  # tokens between two looks at the clock where nobody watches the stream


@dataclass(frozen=True, slots=True)
class SimulatedProfile:
    """How a simulated model behaves. The times are those of a small model on a small GPU."""

    max_model_len: int = 8192  # tokens (of four bytes), prompt and completion together
    prefill_seconds_per_token: float = 0.00005
    decode_seconds_per_token: float = 0.01  # of one sequence alone
    batch_slowdown: float = 0.01  # what each further running sequence adds to a step, as a fraction of it
    max_running: int = 256  # sequences at a time; more wait, by priority and arrival
    kv_tokens: int = (
        1_048_576  # what admission is told that the KV cache holds; nothing runs short of it in here
    )
    completion_tokens: tuple[int, int] = (16, 64)  # least and most of a text without a constraint
    load_seconds: float = 0.0
    time_scale: float = 1.0  # 0: no time passes, a job takes one turn of the loop


@dataclass(slots=True, eq=False)
class _Running:
    """A job inside the engine."""

    aborted: bool = False
    admitted: bool = False
    wake: asyncio.Future[None] | None = None
    shown: list[list[str]] = field(default_factory=list[list[str]])  # by choice, the pieces generated so far

    def stir(self) -> None:
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)


class SimulatedEngine:
    """See the port. `script` says which jobs fail, and may be added to at any time."""

    def __init__(self, profile: SimulatedProfile | None = None, script: Script | None = None) -> None:
        self.profile = profile or SimulatedProfile()
        self.script = script or Script()
        self._grammars = texts.Grammars()
        self._jobs: dict[str, _Running] = {}
        self._waiting: list[tuple[int, int, _Running]] = []
        self._arrivals = itertools.count()
        self._active = 0
        self._started = False
        self._closed = False
        self._cause_of_death: str | None = None
        self._identity = EngineIdentity(
            engine="simulated",
            engine_version=metadata.version("headrace"),
            backend="guidance",
            weights_digest=None,
            max_model_len=self.profile.max_model_len,
            max_sequences=self.profile.max_running,
            kv_tokens=self.profile.kv_tokens,
        )

    @property
    def identity(self) -> EngineIdentity:
        """The profile's; the version is Headrace's own."""
        return self._identity

    @property
    def running_jobs(self) -> int:
        """How many jobs are inside, those that wait for a place included."""
        return len(self._jobs)

    # --- life ---

    async def start(self) -> None:
        """Takes the profile's `load_seconds`."""
        await asyncio.sleep(self.profile.load_seconds * self.profile.time_scale)
        self._started = True

    async def probe(self) -> None:
        """One token, past the script: a failure that is meant for a request must not hit the probe."""
        self.check_health()
        await asyncio.sleep(0)

    def check_health(self) -> None:
        """Raises EngineDead once it was told to die, or shut down."""
        if self._closed:
            raise EngineDead("the engine has been shut down")
        if self._cause_of_death is not None:
            raise EngineDead(f"the engine has died: {self._cause_of_death}")
        if not self._started:
            raise EngineUnavailable("the engine has not been started")

    def die(self, cause: str = "it was told to") -> None:
        """From now on everything raises EngineDead, what is running first."""
        self._cause_of_death = cause
        self._stir_all()

    def release(self) -> None:
        """Let every job that hangs go on, now and later."""
        self.script.released = True
        self._stir_all()

    async def abort(self, request_id: str) -> None:
        """End a job: its Generation comes with finish_reason `abort`. An unknown id is no error."""
        running = self._jobs.get(request_id)
        if running is not None:
            running.aborted = True
            running.stir()

    async def shutdown(self) -> None:
        """Abort what runs. Idempotent."""
        self._closed = True
        for running in self._jobs.values():
            running.aborted = True
        self._stir_all()
        await asyncio.sleep(0)

    def _stir_all(self) -> None:
        for running in self._jobs.values():
            running.stir()

    # --- prompts ---

    async def encode(self, prompt: Prompt) -> list[int]:
        """Four bytes of UTF-8 are a token. A template that names each role; it wants no assistant at the
        start, and it does not reason.
        """
        if prompt.reasoning is not None:
            raise UnsupportedField("the simulated engine does not reason", path="/reasoning")
        if isinstance(prompt, TextPrompt):
            return texts.to_tokens(prompt.text)
        if prompt.messages[0].role == "assistant":
            raise TemplateFailed("the chat template refuses these messages: the first is the assistant's")
        return texts.to_tokens(_chat_text(prompt))

    # --- generation ---

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        """There is no backend: whatever is a constraint at all is held as it is."""
        try:
            OutputCheck(constraint)
        except InvalidSchema as error:
            raise type(error)(error.message, path=f"/output{error.path or ''}") from None
        return Enforcement("enforced", constraint.json_schema)

    async def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        """See the port."""
        self.check_health()
        self._check(job)
        fate = None
        if not self.script.empty:
            fate = self.script.take(job.request_id, texts.to_text(job.token_ids))
        failure = None if fate is None else fate.kind
        if failure == "reject":
            raise EngineRejected("the engine refuses this request: it was told to")
        running = _Running()
        self._jobs[job.request_id] = running
        try:
            planned = await self._plan(job, failure)
            running.shown = [[] for _ in planned]
            await self._admit(running, job.priority)
            if fate is not None and fate.kind in ("die", "vanish"):
                await self._kill(running, fate, job.request_id)
            async for delta in self._play(job, running, planned, hang=failure == "hang"):
                if job.stream:
                    yield delta
        finally:
            if self._jobs.get(job.request_id) is running:
                del self._jobs[job.request_id]
            self._leave(running)
        yield Generation(
            [
                _choice(text, shown, running.aborted, job)
                for text, shown in zip(planned, running.shown, strict=True)
            ],
            prompt_tokens=len(job.token_ids),
        )

    async def _kill(self, running: _Running, fate: Fate, request_id: str) -> None:
        """End the engine, or the whole process, unless the job is aborted before."""
        if fate.after_s > 0:
            await self._pass_time(running, fate.after_s)
        if running.aborted:
            return
        if fate.kind == "vanish":
            os.kill(os.getpid(), signal.SIGKILL)
        self.die(f"it was told to by request {request_id}")

    def _check(self, job: GenerationJob) -> None:
        length, limit = len(job.token_ids), self.profile.max_model_len
        if length == 0:
            raise EngineRejected("the prompt is empty: it has no token")
        if length >= limit:
            raise PromptTooLong(
                f"the prompt has {length} tokens; the model holds {limit}, prompt and output together"
            )
        if (job.sampling.n or 1) > 1 and job.sampling.temperature == 0:
            raise EngineRejected("the engine refuses this request: n must be 1 when using greedy sampling")

    async def _plan(self, job: GenerationJob, failure: Failure | None) -> list[texts.Written]:
        """The whole text of each choice. A constraint is walked in a thread: a big one takes a while."""
        room = self.profile.max_model_len - len(job.token_ids)
        limit = min(job.sampling.max_tokens or room, room)
        if job.constraint is not None:
            planned = await asyncio.to_thread(self._constrained_texts, job, job.constraint, limit)
        elif job.calls_of is not None:
            planned = await asyncio.to_thread(self._free_texts, job, limit)
        else:
            planned = self._free_texts(job, limit)
        return planned if failure is None else [_spoil(text, failure, job) for text in planned]

    def _free_texts(self, job: GenerationJob, limit: int) -> list[texts.Written]:
        planned: list[texts.Written] = []
        for choice in range(job.sampling.n or 1):
            dice = texts.dice_for(job.token_ids, job.sampling.seed, choice)
            called = job.calls_of and simulated_calls.calls_text(job.calls_of, self._grammars, dice)
            data = called or texts.free_text(dice, dice.randint(*self.profile.completion_tokens))
            planned.append(texts.cut(data, limit, job.sampling.stop or ()))
        return planned

    def _constrained_texts(
        self, job: GenerationJob, constraint: OutputConstraint, limit: int
    ) -> list[texts.Written]:
        planned: list[texts.Written] = []
        for choice in range(job.sampling.n or 1):
            dice = texts.dice_for(job.token_ids, job.sampling.seed, choice)
            matcher = self._grammars.matcher(constraint)
            data, held = texts.constrained_text(matcher, dice, limit * texts.TOKEN_BYTES)
            end = texts.cut(data, limit, job.sampling.stop or ())
            planned.append(end if held else texts.written(end.text, "error"))
        return planned

    async def _play(
        self, job: GenerationJob, running: _Running, planned: list[texts.Written], *, hang: bool
    ) -> AsyncIterator[Delta]:
        """Let the time of prefill and of each token pass, and give what each adds."""
        await self._pass_time(running, len(job.token_ids) * self.profile.prefill_seconds_per_token)
        while hang and not (running.aborted or self.script.released):
            await self._sleep(running, None)
        cuts = [texts.pieces(text.text) for text in planned]
        steps = max(map(len, cuts))
        stride = 1 if job.stream else _SLICE if self.profile.time_scale > 0 else steps
        for step in range(0, steps, stride):
            await self._pass_time(running, stride * self._step_seconds())
            if running.aborted:
                return
            for choice, parts in enumerate(cuts):
                added = "".join(parts[step : step + stride])
                if added:
                    running.shown[choice].append(added)
                    yield Delta(choice, added)

    def _step_seconds(self) -> float:
        slowed = 1 + self.profile.batch_slowdown * (self._active - 1)
        return self.profile.decode_seconds_per_token * slowed

    async def _pass_time(self, running: _Running, seconds: float) -> None:
        if running.aborted:
            return
        if self.profile.time_scale > 0:
            await self._sleep(running, seconds * self.profile.time_scale)
        else:
            await asyncio.sleep(0)
        if self._cause_of_death is not None:
            self.check_health()

    async def _sleep(self, running: _Running, seconds: float | None) -> None:
        """Until the time has passed, or something stirs the job."""
        loop = asyncio.get_running_loop()
        running.wake = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, running.stir)
        try:
            await running.wake
        finally:
            running.wake = None
            if timer is not None:
                timer.cancel()
        if self._cause_of_death is not None:
            self.check_health()

    async def _admit(self, running: _Running, priority: int) -> None:
        """Wait for one of the `max_running` places: the lowest priority first, then who came first."""
        if self._active < self.profile.max_running:
            self._active += 1
            running.admitted = True
            return
        heapq.heappush(self._waiting, (priority, next(self._arrivals), running))
        while not (running.admitted or running.aborted):
            await self._sleep(running, None)

    def _leave(self, running: _Running) -> None:
        """Hand the place to the next, who keeps it even if it is woken later."""
        if not running.admitted:
            running.aborted = True  # its entry in the queue is void
            return
        self._active -= 1
        while self._waiting and self._active < self.profile.max_running:
            _, _, following = heapq.heappop(self._waiting)
            if not following.aborted:
                following.admitted = True
                self._active += 1
                following.stir()


def _chat_text(prompt: ChatPrompt) -> str:
    tools = "".join(f"<|tool|>\n{tool.model_dump_json(exclude_none=True)}\n" for tool in prompt.tools)
    return tools + "".join(map(_turn, prompt.messages)) + "<|assistant|>\n"


def _turn(message: ChatMessage) -> str:
    content = message.content or ""
    if isinstance(content, list):
        content = "\n".join(part.text for part in content)
    calls = "".join(f"\n{call.model_dump_json()}" for call in message.tool_calls or ())
    return f"<|{message.role}|>\n{content}{calls}\n"


def _choice(text: texts.Written, shown: list[str], aborted: bool, job: GenerationJob) -> GeneratedChoice:
    so_far = "".join(shown)
    if aborted and so_far != text.text:
        text = texts.written(so_far, "abort")
    sampling = job.sampling
    logprobs = None if sampling.logprobs is None else _logprobs(text.text, sampling.logprobs)
    parted = None
    if job.calls_of is not None:
        parted = simulated_calls.parted(text.text, cut=text.finish != "stop")
    return GeneratedChoice(text.text, text.finish, text.tokens, logprobs, parted=parted)


def _logprobs(text: str, top: int) -> list[TokenLogprob]:
    """Every token is as likely as a toss of a coin, and the only one to be named."""
    coin = -0.6931471805599453
    return [
        TokenLogprob(token=piece, logprob=coin, top=[TopLogprob(token=piece, logprob=coin)][:top])
        for piece in texts.pieces(text)
    ]


def _spoil(text: texts.Written, failure: Failure, job: GenerationJob) -> texts.Written:
    half = text.text[: len(text.text) // 2]
    if failure == "error":
        return texts.written("", "error")
    if failure == "abort":
        return texts.written(half, "abort")
    if failure == "truncated":
        return texts.written(half, "length")
    if failure == "invalid_output":
        if job.calls_of is not None:
            return texts.written(simulated_calls.invalid_call(job.calls_of), "stop")
        return texts.written(texts.violation(job.constraint), "stop")
    return text
