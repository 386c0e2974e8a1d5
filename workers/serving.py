"""One request's life in the loop: prompt, engine, validation, and again where trying again can differ."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.schemas import metrics
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.errors import (
    ConstraintFailed,
    EngineDead,
    EngineError,
    HeadraceError,
    InvalidSchema,
    MessageError,
    OutputError,
    OutputNotJson,
    OutputUnparsable,
    PackageError,
    PromptTooLong,
    SchemaTooComplex,
)
from headrace.schemas.messages import (
    STATUS_ORDER,
    ErrorDetail,
    Output,
    OutputConstraint,
    Request,
    Sampling,
    Status,
    Usage,
)
from headrace.schemas.output_schema import OutputCheck
from headrace.schemas.package import Package
from headrace.schemas.prompt import calls_of, constraint_of, prompt_of, sampling_of
from headrace.schemas.toml_lines import line_of
from headrace.schemas.tool_calls import ToolCallCheck
from headrace.workers.answers import Served, detail, milliseconds_since
from headrace.workers.cancels import Cancelled, Cancels
from headrace.workers.constraint_checks import held_constraint
from headrace.workers.engine import (
    PRIORITY,
    ChatPrompt,
    Delta,
    Engine,
    GeneratedChoice,
    Generation,
    GenerationJob,
    Prompt,
    TextPrompt,
)
from headrace.workers.hooks import Hooks
from headrace.workers.judged_calls import judged_calls
from headrace.workers.replying import DeltaStream, ReplySender
from headrace.workers.work import Work

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Judged:
    """One choice, held against what was asked for."""

    output: Output
    status: Status
    error: ErrorDetail | None


def _nothing(_: int) -> None:
    pass


def judge(
    choice: GeneratedChoice,
    check: OutputCheck | None,
    *,
    by_grammar: bool = False,
    calls: ToolCallCheck | None = None,
) -> _Judged:
    """A choice's status. `calls` is what calls of tools are held to, where the model may make some.

    `length` is `ok` where no output schema was asked for (the caller set max_tokens), else `truncated`. Output that
    does not parse although a grammar ended it with `stop` is the grammar's death, not the model's fault (`by_grammar`:
    there was one): vLLM was seen to end a generation so when a grammar failed in mid-generation.
    """
    output = Output(
        text=choice.text,
        finish_reason=choice.finish_reason,
        reasoning=choice.reasoning,
        logprobs=choice.logprobs,
    )
    if choice.finish_reason == "error":
        error = ConstraintFailed("the grammar of the output schema did not compile in the engine")
        return _Judged(output, "failed", detail(error))
    if choice.finish_reason == "abort":
        return _Judged(
            output, "failed", ErrorDetail(code="aborted", message="the engine ended the generation early")
        )
    if calls is not None:
        return _Judged(*judged_calls(choice, output, calls))
    if check is None:
        return _Judged(output, "ok", None)
    if choice.finish_reason == "length":
        message = "the output ran into max_tokens before it was whole; raise sampling.max_tokens or bound the schema"
        return _Judged(
            output, "truncated", ErrorDetail(code="truncated", message=message, path="/sampling/max_tokens")
        )
    if choice.reasoning and not choice.text:
        return _Judged(
            output,
            "invalid_output",
            detail(OutputNotJson("the model ended within its reasoning: no answer came")),
        )
    try:
        value = check.check(choice.text)
    except OutputUnparsable as error:
        if not by_grammar:
            return _Judged(output, "invalid_output", detail(error))
        died = ConstraintFailed(f"the grammar of the output schema ended before its text was whole: {error}")
        return _Judged(output, "failed", detail(died))
    except OutputError as error:
        return _Judged(output, "invalid_output", detail(error))
    return _Judged(output.model_copy(update={"value": value}), "ok", None)


def _prompt_of(request: Request, package: Package) -> Prompt:
    rendered = prompt_of(request, package)
    if isinstance(rendered, str):
        return TextPrompt(rendered, request.reasoning)
    return ChatPrompt(rendered, request.tools or [], request.reasoning)


def worst(judged: Sequence[_Judged]) -> tuple[Status, ErrorDetail | None]:
    """The status of a result: the worst of its outputs, with that one's reason."""
    each = max(judged, key=lambda one: STATUS_ORDER.index(one.status))
    return each.status, each.error


def may_try_again(
    status: Status, request: Request, sampling: Sampling, attempt: int, max_attempts: int
) -> bool:
    """Whether another generation can differ: invalid, sampled (temperature above 0), and no seed of the caller's."""
    if status != "invalid_output" or attempt >= max_attempts or sampling.temperature == 0:
        return False
    return request.sampling is None or request.sampling.seed is None


def _may_stream(enforcement: Enforcement | None) -> bool:
    """Whether tokens may leave before the end: where nothing was promised that decoding does not hold.

    `enforcement` of the output schema; None: there is none.
    """
    return enforcement is None or enforcement.tier in ("enforced", "enforced_normalised")


def seed_of_attempt(sampling: Sampling, attempt: int) -> Sampling:
    """The sampling of a later attempt: the next seed, where there is one."""
    if attempt == 1 or sampling.seed is None:
        return sampling
    return sampling.model_copy(update={"seed": sampling.seed + attempt - 1})


async def own_enforcement(package: Package, engine: Engine) -> Enforcement | None:
    """How a package's own output schema is held; None where it has none.

    Asked before the worker joins: what cannot be held would make every request a dead letter. Raises PackageError.
    """
    if package.constraint is None:
        return None
    for last in (False, False, True):  # what takes long while an engine loads may be quick afterwards
        try:
            return await engine.enforcement_of(package.constraint)
        except InvalidSchema as error:
            if last or not isinstance(error, SchemaTooComplex):
                message = f"outputs cannot be held to it: {error}"
                line = line_of(package.file.read_text(encoding="utf-8-sig"), ("output",))
                raise PackageError(message, file=package.file, line=line, key="output") from None
    raise AssertionError("unreachable")


class Serving:
    """Serves requests with one engine. Its methods run on the loop."""

    def __init__(
        self,
        *,
        package: Package,
        engine: Engine,
        replies: ReplySender,
        cancels: Cancels,
        hooks: Hooks | None = None,
        own: Enforcement | None = None,
    ) -> None:
        """`own`: how the package's own output schema is held, as `own_enforcement` gave it."""
        self._package = package
        self._engine = engine
        self._replies = replies
        self._cancels = cancels
        self._hooks = hooks
        self._own = own
        self._labels = (package.model, package.version)

    def expired_before(self, work: Work) -> Served:
        """What becomes of a request whose deadline passed before it was admitted."""
        return Served(
            "expired",
            error=_expired("before it was admitted"),
            queued_ms=milliseconds_since(work.appended_ms),
        )

    async def serve(self, work: Work, measured: Callable[[int], None] = _nothing) -> Served:
        """What becomes of one request. Raises only EngineDead (and CancelledError): everything else is an answer.

        `measured` is told how many tokens its prompt has, before they are generated from.
        """
        assert work.request is not None, "what did not decode is rejected before it comes here"
        queued_ms = milliseconds_since(work.appended_ms)
        metrics.child(metrics.QUEUE_SECONDS, self._package.model, work.lane).observe(queued_ms / 1000)
        cancelled = self._cancels.of(work)
        if cancelled is not None:
            return Served("cancelled", error=_cancelled(cancelled), queued_ms=queued_ms)
        remaining_s = _seconds_until(work.request.deadline)
        if remaining_s is not None and remaining_s <= 0:
            return self.expired_before(work)
        stream = DeltaStream(self._replies, work)
        try:
            return await self._before_deadline(work, work.request, queued_ms, stream, remaining_s, measured)
        except asyncio.CancelledError:
            cancelled = self._cancels.of(work)
            if cancelled is None:
                raise  # given up: another worker does it anew
            return Served(
                "cancelled", error=_cancelled(cancelled), queued_ms=queued_ms, next_seq=stream.close()
            )
        except EngineDead:
            raise
        except MessageError as error:
            return Served("rejected", error=detail(error), queued_ms=queued_ms, next_seq=stream.close())
        except HeadraceError as error:
            return Served("failed", error=detail(error), queued_ms=queued_ms, next_seq=stream.close())
        except Exception as error:
            # A defect of ours, or of a library: this request fails, with its reason; the others go on.
            log.exception("request %s failed in a way that was not foreseen", work.request_id)
            unforeseen = ErrorDetail(code="internal_error", message=f"{type(error).__name__}: {error}"[:2000])
            return Served("failed", error=unforeseen, queued_ms=queued_ms, next_seq=stream.close())
        finally:
            stream.close()

    async def _before_deadline(
        self,
        work: Work,
        request: Request,
        queued_ms: int,
        stream: DeltaStream,
        remaining_s: float | None,
        measured: Callable[[int], None],
    ) -> Served:
        deadline = asyncio.timeout(remaining_s)
        try:
            async with deadline:
                return await self._attempts(work, request, queued_ms, stream, measured)
        except TimeoutError:
            if not deadline.expired():
                raise  # something within has timed out, not the request
        error = _expired("while it was generated")
        return Served("expired", error=error, queued_ms=queued_ms, next_seq=stream.close())

    async def _attempts(
        self,
        work: Work,
        request: Request,
        queued_ms: int,
        stream: DeltaStream,
        measured: Callable[[int], None],
    ) -> Served:
        if self._hooks is not None:
            request = await self._hooks.before(request)
        prompt = _prompt_of(request, self._package)
        constraint, check = constraint_of(request, self._package)
        calls = calls_of(request, self._package)
        sampling = sampling_of(request, self._package)
        token_ids = await self._encode(prompt)
        measured(len(token_ids))
        enforcement = None if constraint is None else await self._enforcement_of(constraint)
        streams = request.stream and work.reply_to is not None and _may_stream(enforcement)
        if calls is not None or (self._hooks is not None and self._hooks.change_results):
            streams = False
        held = held_constraint(constraint, enforcement) if constraint and enforcement else None
        attempt = 1
        while True:
            metrics.child(metrics.ATTEMPTS, *self._labels).inc()
            job = GenerationJob(
                request_id=f"{work.source.topic}-{work.source.partition}-{work.offset}-{work.epoch}-{attempt}",
                token_ids=token_ids,
                sampling=seed_of_attempt(sampling, attempt),
                constraint=held,
                priority=PRIORITY[work.lane],
                stream=streams,
                reasoning=request.reasoning,
                calls_of=prompt if calls is not None and isinstance(prompt, ChatPrompt) else None,
            )
            generation = await self._generate(job, stream)
            served = self._judged(
                generation, check, calls, work, attempt, queued_ms, stream, by_grammar=held is not None
            )
            served = replace(served, tier=enforcement.tier if enforcement else None)
            again = may_try_again(served.status, request, sampling, attempt, self._package.max_attempts)
            if not again or stream.has_begun:  # whoever has read a beginning wants no other
                return served if self._hooks is None else await self._hooks.after(work, served, check, calls)
            attempt += 1

    async def _enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        if self._own is not None and constraint is self._package.constraint:
            return self._own
        return await self._engine.enforcement_of(constraint)

    async def _encode(self, prompt: Prompt) -> list[int]:
        token_ids = await self._engine.encode(prompt)
        limit = self._engine.identity.max_model_len
        if len(token_ids) >= limit:
            path = "/messages" if isinstance(prompt, ChatPrompt) else "/prompt"
            raise PromptTooLong(
                f"the prompt has {len(token_ids)} tokens; the model holds {limit}, prompt and output together",
                path=path,
            )
        return token_ids

    async def _generate(self, job: GenerationJob, stream: DeltaStream) -> Generation:
        async for event in self._engine.generate(job):
            if isinstance(event, Delta):
                stream.add(event)
            else:
                return event
        raise EngineError("the engine ended a generation without a word")

    def _judged(
        self,
        generation: Generation,
        check: OutputCheck | None,
        calls: ToolCallCheck | None,
        work: Work,
        attempt: int,
        queued_ms: int,
        stream: DeltaStream,
        *,
        by_grammar: bool,
    ) -> Served:
        judged = [judge(choice, check, by_grammar=by_grammar, calls=calls) for choice in generation.choices]
        if check is not None or calls is not None:
            for each in judged:
                verdict = {"ok": "valid", "invalid_output": "invalid"}.get(each.status, each.status)
                metrics.child(metrics.OUTPUTS_CHECKED, *self._labels, verdict).inc()
        status, error = worst(judged)
        completion_tokens = sum(choice.completion_tokens for choice in generation.choices)
        metrics.child(metrics.PROMPT_TOKENS, *self._labels).inc(generation.prompt_tokens)
        metrics.child(metrics.COMPLETION_TOKENS, *self._labels).inc(completion_tokens)
        metrics.child(metrics.TOTAL_SECONDS, self._package.model, work.lane).observe(
            milliseconds_since(work.appended_ms) / 1000
        )
        return Served(
            status,
            outputs=[each.output for each in judged],
            usage=Usage(
                prompt_tokens=generation.prompt_tokens,
                cached_tokens=generation.cached_tokens,
                completion_tokens=completion_tokens,
            ),
            error=error,
            attempt=work.deaths + attempt,
            queued_ms=queued_ms,
            first_token_ms=stream.first_token_ms,
            output_schema_digest=check.digest if check else None,
            next_seq=stream.close(),
        )


def _cancelled(cancelled: Cancelled) -> ErrorDetail:
    why = f": {cancelled.reason[:500]}" if cancelled.reason else ""
    return ErrorDetail(code="cancelled", message=f"the request was cancelled{why}")


def _expired(when: str) -> ErrorDetail:
    return ErrorDetail(code="expired", message=f"the deadline passed {when}", path="/deadline")


def _seconds_until(deadline_ms: int | None) -> float | None:
    return None if deadline_ms is None else deadline_ms / 1000 - time.time()
