"""Output constraints on vLLM: checked in a process of their own, and not again in the worker's.

vLLM's front end checks each constraint as it takes a request, on the loop: xgrammar parses the whole schema there,
which takes up to seconds, and no stream moves meanwhile. What the process beside us has compiled behind the very same
gate needs no second look.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from headrace.schemas.enforcement import Backend, Enforcement
from headrace.schemas.messages import OutputConstraint
from headrace.workers.constraint_checks import ConstraintChecks, ConstraintProcess


class VllmConstraints:
    """The checks of one engine's constraints, with its own tokenizer."""

    def __init__(self, backend: Backend) -> None:
        self._backend: Backend = backend
        self._directory: Path | None = None
        self._process: ConstraintProcess | None = None
        self._checks: ConstraintChecks | None = None

    async def begin(self) -> None:
        """Let the process import what it needs while the engine loads: that takes seconds. Raises EngineUnavailable."""
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-tokenizer-"))
        self._process = ConstraintProcess(self._backend, self._directory)
        self._checks = ConstraintChecks(self._process)
        await self._checks.begin()

    async def start(self, llm: Any) -> None:
        """Give it a copy of the tokenizer that vLLM has loaded. After `begin()`. Raises EngineUnavailable."""
        assert self._directory is not None, "it has begun"
        assert self._checks is not None, "it has begun"
        assert self._process is not None, "it has begun"
        write = self._process.write_tokenizer = llm.get_tokenizer().save_pretrained
        await asyncio.to_thread(write, str(self._directory))
        await self._checks.start(llm.vllm_config.model_config.get_vocab_size())

    async def close(self) -> None:
        """End the process. Idempotent."""
        if self._checks is not None:
            await self._checks.close()
        if self._directory is not None:
            await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)

    async def enforcement_of(self, constraint: OutputConstraint) -> Enforcement:
        """See the engine port. After `start()`."""
        assert self._checks is not None, "the engine has been started"
        return await self._checks.enforcement_of(constraint)

    def sampling_params(self, base: Any, constraint: OutputConstraint | None) -> Any:
        """The class of a job's sampling parameters: vLLM's, or one that does not check what was checked.

        xgrammar's choices are not exempt: vLLM's check is also what turns them into a grammar.
        """
        if constraint is None or self._checks is None:
            return base
        exempt = self._backend == "guidance" or constraint.choice is None
        known = exempt and self._checks.is_known_to_compile(constraint)
        return _checked_sampling_params(base) if known else base


@functools.cache
def _checked_sampling_params(base: Any) -> Any:
    def is_checked(self: Any, model_config: Any, config: Any, tokenizer: Any) -> None:
        self.structured_outputs._backend = config.backend

    # vLLM 0.32 has no argument for it. What the method would have done besides checking is done here.
    return type("CheckedSamplingParams", (base,), {"_validate_structured_outputs": is_checked})
