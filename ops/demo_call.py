"""The demo's last call: through the OpenAI-compatible endpoint, with the official client."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.ops.http_process import EndpointFailed, EndpointProcess
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from headrace.ops.demo_view import View
    from headrace.schemas.settings import Settings

READY_WITHIN_S = 60.0
ANSWERED_WITHIN_S = 120.0
QUESTION = "A hotel keeper in Kigali shelters a thousand refugees. Tag that film."


def call(settings: Settings, names: ContractNames, log: Path, view: View) -> str:
    """Ask, and show the answer; the id of the request. Raises EndpointFailed."""
    openai: Any = importlib.import_module("openai")
    with view.stage("endpoint") as stage, EndpointProcess(settings, log=log) as endpoint:
        stage.says("starting")
        address = endpoint.wait_ready(READY_WITHIN_S)
        client = openai.OpenAI(
            base_url=f"{address}/v1", api_key="none is asked for", timeout=ANSWERED_WITHIN_S
        )
        stage.says("asking")
        try:
            answer = client.chat.completions.create(
                model=f"{names.model}@{names.contract}", messages=[{"role": "user", "content": QUESTION}]
            )
        except openai.OpenAIError as error:
            raise EndpointFailed(f"the call through the OpenAI client failed: {error}") from error
        finally:
            client.close()
        stage.done(f"through the openai client: {answer.choices[0].message.content}")
    return str(answer.id).removeprefix("chatcmpl-")
