"""The endpoint against its own OpenAPI document: Schemathesis sends what the document calls valid, and what not.

The application runs in this process, on the client's in-memory twin; a script stands for the workers. Held are: no
error of ours (5xx) but those that a worker's result stands for; every answer is of a status, a content type and a
schema that the document has, and has no member that it has not, event by event where it is streamed; what the
document calls invalid is refused.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openai_parts import a_result
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from headrace.consumers.catalogue import CatalogueRecords, ServingVersion, serving_key, serving_value
from headrace.consumers.contracts import ContractId
from headrace.producers.http import openapi_answers
from headrace.producers.http.app import create_app
from headrace.producers.http.failures import ROWS
from headrace.producers.http.gateway import IDEMPOTENCY_KEY, TIMEOUT
from headrace.producers.http.keys import KeyRing
from headrace.producers.http.service import Service, ServiceOptions
from headrace.producers.testing import WORDS, InMemoryClient
from headrace.schemas.messages import (
    ErrorDetail,
    FunctionCall,
    Output,
    Request,
    Result,
    Status,
    TokenLogprob,
    ToolCall,
    TopLogprob,
)

T = TypeVar("T")

CALLS = ("POST /v1/chat/completions", "POST /v1/completions")
PAGES = ("GET /v1/models", "GET /v1/models/{name}", "GET /healthz", "GET /readyz", "GET /metrics")
FREE, WITH_OUTPUT = "free", "tagger"  # models; the contract of the second has an output schema
UNKNOWN_HEADER = "x-schemathesis-unknown-property"  # these pass, as everywhere

EXAMPLES = 15  # of each kind and endpoint
MORE_EXAMPLES = 400

TEXTS = (
    "",
    "Hello",
    " two  words\n",
    "drei Wörter, 漢字 und 🙂",
    "\u2028\u0085",
    '{"genre": "drama"}',
    "\x00",
)
PATHS = (
    None,
    "/messages/0/content",
    "/sampling/top_k",
    "/output/json_schema/type",
    "/deadline",
    "/attributes/user",
)
STATUSES: tuple[Status, ...] = ("invalid_output", "truncated", "rejected", "failed", "expired", "cancelled")

AS_DOCUMENTED = [
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]

# What a valid body may be refused for: two parameters are at odds, the model's package lacks what is asked for, a text
# is no JSON. The document says none of these. Neither does it tell 1.0 from 1.
AT_ODDS = re.compile(
    r"(best_of|chat_template_kwargs|max_tokens|priority|reasoning|response_format|stream_options|structured_outputs|thinking_token_budget"
    r"|tool_choice|tools|top_logprobs)\b"
)
NOT_WHOLE = "must be a whole number"


# --- the workers ----------------------------------------------------------------------------------------------------


def served(request: Request) -> Result:
    """A result of all that a result can have; what of it, follows from the request."""
    luck = random.Random(request.model_dump_json(exclude={"id"}))
    sampling = request.sampling
    count = 1 if sampling is None or sampling.n is None else sampling.n
    outputs = [_output(request, luck) for _ in range(count)]
    return a_result(*outputs, id=request.id)


def _output(request: Request, luck: random.Random) -> Output:
    text = luck.choice(TEXTS)
    calls = luck.choice((None, None, None, [_call("look"), _call("up")]))
    choice = request.tool_choice
    if choice is not None and choice.mode in ("named", "required"):
        assert request.tools
        call = {"name": request.tools[0].function.name, "arguments": {}}
        text, calls = ("{}" if choice.mode == "named" else json.dumps(call)), None
    sampling = request.sampling
    top = None if sampling is None else sampling.logprobs
    return Output(
        text=text,
        finish_reason=luck.choice(("stop", "length", "abort", "error", "tool_calls")),
        reasoning=luck.choice((None, "Let me see.")),
        tool_calls=calls,
        logprobs=None if top is None else [_logprob(token, top) for token in WORDS.findall(text)],
    )


def _call(name: str) -> ToolCall:
    return ToolCall(id=f"call_{name}", function=FunctionCall(name=name, arguments="{}"))


def _logprob(token: str, top: int) -> TokenLogprob:
    others = [TopLogprob(token=f"{token}{place}", logprob=-1e30) for place in range(top)]
    return TokenLogprob(token=token, logprob=-0.5, top=others)


def failing(request: Request) -> Result:
    """A result of any of the ways in which a request can fail."""
    luck = random.Random(request.model_dump_json(exclude={"id"}))
    detail = ErrorDetail(
        code=luck.choice([*ROWS, "of_a_hook"]), message=luck.choice(TEXTS), path=luck.choice(PATHS)
    )
    return a_result(id=request.id, status=luck.choice(STATUSES), error=detail)


# --- the endpoint ---------------------------------------------------------------------------------------------------


class Known:
    """Two models."""

    ready = True

    def __init__(self) -> None:
        self._records = CatalogueRecords()
        for model in (FREE, WITH_OUTPUT):
            one = ServingVersion(model, 1, "1", "vllm", 4_096, model == WITH_OUTPUT, False, 5_000)
            self._records.take(serving_key(one), serving_value(one))

    def asked(self, ask: Callable[[CatalogueRecords], T]) -> T:
        return ask(self._records)


def the_endpoint(worker: Callable[[Request], Result], keys: KeyRing | None = None) -> schemathesis.BaseSchema:
    """The document of an endpoint whose requests this worker answers."""

    def connect(contract: ContractId) -> InMemoryClient:
        return InMemoryClient(worker, model=contract[0], contract=contract[1])

    app = create_app(Service(ServiceOptions(keys), Known(), connect), version="1")
    document = json.loads(json.dumps(app.openapi()))
    for name in openapi_answers.components():
        close(document["components"]["schemas"][name])
    schema = schemathesis.openapi.from_dict(document)
    schema.app = app
    return schema


def close(schema: Any) -> None:
    """Take all objects of a schema for objects of just the members that it names."""
    if isinstance(schema, list):
        for each in schema:
            close(each)
    elif isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            close(each)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[schemathesis.BaseSchema]:
    yield the_endpoint(served)
    asgi.shutdown_lifespans()


@pytest.fixture(scope="module")
def failing_endpoint() -> Iterator[schemathesis.BaseSchema]:
    yield the_endpoint(failing)
    asgi.shutdown_lifespans()


def operation(schema: schemathesis.BaseSchema, label: str) -> schemathesis.APIOperation[Any, Any, Any, Any]:
    found = (each.ok() for each in schema.get_all_operations())
    return next(each for each in found if each.label == label)


# --- sending --------------------------------------------------------------------------------------------------------


def checked(case: schemathesis.Case, *, may_fail: bool = False) -> schemathesis.Response:
    """Send it and hold the answer to the document."""
    make_servable(case)
    response = case.call()
    case.validate_response(response, checks=[*AS_DOCUMENTED, *([] if may_fail else [not_a_server_error])])
    if not may_fail and mode_of(case) is GenerationMode.POSITIVE:
        check_refusal(response)
    return response


def mode_of(case: schemathesis.Case) -> GenerationMode:
    assert case.meta is not None
    return case.meta.generation.mode


def make_servable(case: schemathesis.Case) -> None:
    """Ask for a model that there is, for no answer so soon that a slow machine would not have it, and mostly for one
    of the call's own (many cases have the same key); and have enough of them streamed.
    """
    body, headers = case.body, case.headers or {}
    luck = zlib.crc32(json.dumps(body, sort_keys=True, default=str).encode())
    if isinstance(body, dict) and isinstance(body.get("model"), str) and 0 < len(body["model"]) <= 512:
        body["model"] = WITH_OUTPUT if luck % 4 == 0 else FREE
        if mode_of(case) is GenerationMode.POSITIVE and luck % 3 == 0:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
    if mode_of(case) is GenerationMode.POSITIVE and luck % 8:
        headers.pop(IDEMPOTENCY_KEY, None)
    if re.fullmatch(r"\d+(\.\d+)?", str(headers.get(TIMEOUT, ""))) and 0.1 <= float(headers[TIMEOUT]) <= 3600:
        headers[TIMEOUT] = "30"


def check_refusal(response: schemathesis.Response) -> None:
    """A valid body may be refused for some reasons only."""
    if response.status_code == 400:
        error = json.loads(response.content)["error"]
        assert AT_ODDS.match(error["param"] or "") or NOT_WHOLE in error["message"], error


def boundary_values(schema: schemathesis.BaseSchema, label: str) -> Iterator[schemathesis.Case]:
    """A value at each bound, one beyond it, one of each other type, and so on, for each place of a call."""
    of = operation(schema, label)
    config = schema.config.generation_for(operation=of, phase="coverage")
    cases = schema.iter_coverage_cases(of, generation_modes=list(GenerationMode), generation_config=config)
    return (case for case in cases if UNKNOWN_HEADER not in (case.headers or {}))


def send_generated(
    schema: schemathesis.BaseSchema, label: str, mode: GenerationMode, count: int, *, may_fail: bool = False
) -> Counter[int]:
    """How many were answered with each status."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation(schema, label).as_strategy(generation_mode=mode))
    def send(case: schemathesis.Case) -> None:
        statuses[checked(case, may_fail=may_fail).status_code] += 1

    send()
    return statuses


# --- the tests ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", CALLS)
def test_boundary_values_are_answered_as_documented(endpoint: schemathesis.BaseSchema, label: str) -> None:
    """Most of the valid ones must be served: else the document promises too much."""
    valid: Counter[bool] = Counter()
    for case in boundary_values(endpoint, label):
        response = checked(case)
        if mode_of(case) is GenerationMode.POSITIVE:
            valid[response.status_code == 200] += 1
    assert valid[True] > 0.8 * valid.total(), f"of {valid.total()} valid calls {valid[True]} were served"


@pytest.mark.parametrize("label", PAGES)
def test_models_and_pages_are_as_documented(endpoint: schemathesis.BaseSchema, label: str) -> None:
    for case in boundary_values(endpoint, label):
        checked(case)


@pytest.mark.parametrize("model", [FREE, WITH_OUTPUT, f"{FREE}@1"])
def test_a_model_is_as_documented(endpoint: schemathesis.BaseSchema, model: str) -> None:
    case = operation(endpoint, "GET /v1/models/{name}").Case(path_parameters={"name": model})
    response = case.call_and_validate(checks=[status_code_conformance, response_schema_conformance])
    assert (response.status_code, json.loads(response.content)["id"]) == (200, model)


@pytest.mark.parametrize("label", [*CALLS, *PAGES[:2]])
def test_whoever_has_no_key_is_told_as_documented(tmp_path: Path, label: str) -> None:
    schema = the_endpoint(served, KeyRing(tmp_path / "api_keys.json"))
    case = operation(schema, label).Case(path_parameters={"name": FREE} if "{name}" in label else {})
    response = case.call()
    assert response.status_code == 401
    case.validate_response(response, checks=[status_code_conformance, response_schema_conformance])


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("label", CALLS)
def test_generated_calls_are_answered_as_documented(
    endpoint: schemathesis.BaseSchema, label: str, mode: GenerationMode
) -> None:
    statuses = send_generated(endpoint, label, mode, EXAMPLES)
    assert (mode is GenerationMode.POSITIVE) == (statuses[200] > 0)


@pytest.mark.soak
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("label", CALLS)
def test_many_generated_calls_are_answered_as_documented(
    endpoint: schemathesis.BaseSchema, label: str, mode: GenerationMode
) -> None:
    send_generated(endpoint, label, mode, MORE_EXAMPLES)


@pytest.mark.parametrize("label", CALLS)
def test_whatever_goes_wrong_in_a_worker_is_told_as_documented(
    failing_endpoint: schemathesis.BaseSchema, label: str
) -> None:
    statuses = send_generated(failing_endpoint, label, GenerationMode.POSITIVE, EXAMPLES, may_fail=True)
    assert max(statuses) >= 422


@pytest.mark.soak
@pytest.mark.parametrize("label", CALLS)
def test_every_way_of_going_wrong_is_told_as_documented(
    failing_endpoint: schemathesis.BaseSchema, label: str
) -> None:
    statuses = send_generated(failing_endpoint, label, GenerationMode.POSITIVE, MORE_EXAMPLES, may_fail=True)
    assert statuses.keys() >= {row.status for row in ROWS.values()}
