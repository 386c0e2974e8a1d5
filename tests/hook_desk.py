"""Serves requests of a package with hooks, loaded as the worker loads them, on the simulated engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

from packages import a_package
from serving_parts import Sent, a_work

from headrace.schemas.codec import Codec
from headrace.schemas.messages import Reply
from headrace.topics.names import ContractNames
from headrace.workers.answers import Answers, Served
from headrace.workers.cancels import Cancels
from headrace.workers.hooks import Hooks, load_hooks
from headrace.workers.replying import ReplySender
from headrace.workers.serving import Serving
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile
from headrace.workers.simulated_failures import Failure

T = TypeVar("T")
ASKED = '{"id":"a","variables":{"title":"Heat"}}'


class Desk:
    """Serves requests of one package, its hooks loaded as the worker loads them."""

    def __init__(self, directory: Path, code: str, *, extra: str = "", **options: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "own.py").write_text(dedent(code))
        self.package = a_package(directory, extra=f'hooks = "own:Own"\n{extra}', **options)
        self.engine = SimulatedEngine(SimulatedProfile(time_scale=0, max_model_len=256))
        self._sent = Sent()
        self._replies = ReplySender(self._sent, Codec(), model="tagger")
        answers = Answers(
            package=self.package,
            names=ContractNames("headrace", "tagger", 1),
            slot="s",
            codec=Codec(),
            check_size=lambda record: None,
        )
        self.answers = answers
        hooks = Hooks.of(load_hooks(self.package), self.package, answers.result)
        assert hooks is not None
        self.hooks = hooks
        self.serving = Serving(
            package=self.package, engine=self.engine, replies=self._replies, cancels=Cancels(), hooks=hooks
        )

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        async def go() -> T:
            await self.engine.start()
            return await coroutine

        try:
            return asyncio.run(go())
        finally:
            self.hooks.threads.close()

    def serve(self, value: str = ASKED, *, stream: bool = False, failure: Failure | None = None) -> Served:
        if failure is not None:
            self.engine.script.fail_next(failure)
        return self.run(self.serving.serve(a_work(value, stream=stream)))

    def replies(self) -> list[Reply]:
        self._replies.stop()
        self._replies.run()
        return self._sent.deltas()
