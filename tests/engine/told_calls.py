"""Has a random model call the tools that the last message names, as the simulated engine does.

By itself it writes noise. Here a regex, which the caller does not see, makes it write the calls.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from conformance.http_parts import BADLY

from headrace.schemas.messages import OutputConstraint
from headrace.workers.engine import ChatPrompt, GenerationJob
from headrace.workers.vllm_engine import VllmEngine

# A regex of the arguments of each tool: such as it takes, and others.
ARGUMENTS = {
    "Weather": (r'\{"town": "(Kigali|Brno)", "days": [1-7]\}', r'\{"town": "(Kigali|Brno)", "days": [89]\}'),
    "Booking": (r'\{"nights": [1-9]\}', r'\{"nights": "[1-9]"\}'),
}


@contextmanager
def calls_as_told(engine: VllmEngine) -> Generator[None]:
    """For as long as this is open."""
    sampling_params: Any = vars(VllmEngine)["_sampling_params"]

    def told(job: GenerationJob) -> Any:
        regex = None if job.calls_of is None or job.constraint is not None else _regex(job.calls_of)
        if regex is not None:
            job = replace(job, constraint=OutputConstraint(regex=regex))
        return sampling_params(engine, job)

    with mock.patch.object(engine, "_sampling_params", told):
        yield


def _regex(prompt: ChatPrompt) -> str | None:
    said = str(prompt.messages[-1].content)
    calls = [
        rf'<tool_call>\{{"name": "{tool.function.name}", "arguments": {ARGUMENTS[tool.function.name][BADLY in said]}\}}'
        "</tool_call>"
        for tool in prompt.tools
        if tool.function.name in said
    ]
    return "\n".join([r"I look it up\.", *calls]) if calls else None
