"""Every way in which a call can fail, as OpenAI's clients meet it."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from typing import get_args

import openai
import pytest
from conformance.engine_port import collect, job
from openai_parts import a_chat, a_completion, a_failed_result, a_result, an_output, failing

from headrace.producers.http.answers import encode_json
from headrace.producers.http.failures import ROWS, failure_of, failure_of_error, no_such_model, param_of
from headrace.producers.http.wanted import ApiError, ForcedTool, Wanted
from headrace.schemas import errors
from headrace.schemas.errors import (
    BrokerNotFound,
    HeadraceError,
    InvalidField,
    KafkaFailed,
    KafkaUnavailable,
    MessageError,
    NoReply,
    OutputDoesNotFit,
    PromptTooLong,
    RegistryFailed,
    RequestFailed,
    ResultGone,
    ResultTooLarge,
    SettingsError,
    SideTaskDied,
    StreamRestarted,
    TopicMissing,
    TopicsError,
    Undecodable,
    UnknownField,
    UsageError,
)
from headrace.schemas.messages import Result, Status
from headrace.workers.simulated_engine import SimulatedEngine, SimulatedProfile

HELD = {"output": {"json_schema": {"type": "object"}}}
SECRET = "broker-7.internal:9092"  # what an operator's error says and a caller must not read


# All classes of `schemas/errors.py`.
ERRORS: list[type[HeadraceError]] = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HeadraceError) and kind.__module__ == errors.__name__
]
CODES = sorted({kind.code for kind in ERRORS} | {"internal_error", "aborted", "a_hooks_own"})
STATUSES: list[Status] = [status for status in get_args(Status) if status != "ok"]


def made(kind: type[HeadraceError], message: str) -> HeadraceError:
    if issubclass(kind, OutputDoesNotFit):
        return kind(a_result(), message)
    if issubclass(kind, RequestFailed):
        return kind(a_failed_result("failed", "engine_error", message))
    return kind(message)


def check_sane(error: ApiError) -> None:
    """What holds of every failure: a status that clients take for one, OpenAI's shape, one word on trying again."""
    assert 400 <= error.status < 600
    body = json.loads(encode_json(error.as_json()))["error"]
    assert set(body) == {"message", "type", "param", "code"}
    assert body["message"]
    assert body["code"]
    assert body["type"]
    assert not {"retry-after", "x-should-retry"} <= error.headers.keys()
    assert int(error.headers.get("retry-after", 1)) <= 120
    if error.status in (504, 499):
        assert error.headers["x-should-retry"] == "false"


# --- nothing is left out ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_code_of_ours_has_a_row(kind: type[HeadraceError]) -> None:
    assert kind.code in ROWS, "say how a call that ends with it is told"


def test_no_row_is_of_a_code_that_is_none() -> None:
    assert set(ROWS) <= set(CODES)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_of_ours_is_told(kind: type[HeadraceError]) -> None:
    check_sane(failure_of_error(made(kind, "so it is"), a_chat()))


@pytest.mark.parametrize("status", STATUSES)
def test_every_status_with_every_code_and_path_is_told(status: Status) -> None:
    paths = (None, "/messages/0/content", "/output/json_schema/properties/a", "/nowhere", "")
    for code, path in itertools.product(CODES, paths):
        error = failure_of(a_failed_result(status, code, path=path), a_chat(fields=HELD))
        check_sane(error)
        assert error.headers["x-request-id"] == "r-1"


@pytest.mark.parametrize("status", STATUSES)
def test_a_result_that_does_not_say_why_is_told(status: Status) -> None:
    check_sane(failure_of(a_result(status=status, outputs=[])))


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("rejected", 400),
        ("invalid_output", 422),
        ("truncated", 422),
        ("failed", 500),
        ("expired", 504),
        ("cancelled", 499),
    ],
)
def test_a_code_that_nobody_knows_is_told_by_its_status(status: Status, told: int) -> None:
    error = failure_of(a_failed_result(status, "a_hooks_own", "the film is unknown"))
    assert (error.status, error.reason, error.message) == (told, "a_hooks_own", "the film is unknown")


def test_an_error_of_a_class_without_a_row_is_told_as_the_class_above_it() -> None:
    class Newer(KafkaFailed):
        code = "newer"

    assert failure_of_error(Newer("x")).status == 503


def test_an_error_that_is_none_of_ours_says_nothing_of_itself() -> None:
    error = failure_of_error(ValueError(SECRET))
    assert (error.status, error.reason) == (500, "internal_error")
    assert SECRET not in error.message
    check_sane(error)


def test_what_is_told_already_stays() -> None:
    error = ApiError(429, "slower", reason="rate_limit_exceeded")
    assert failure_of_error(error) is error


@pytest.mark.parametrize(
    "kind",
    [
        KafkaFailed,
        KafkaUnavailable,
        BrokerNotFound,
        TopicsError,
        TopicMissing,
        SettingsError,
        SideTaskDied,
        HeadraceError,
    ],
)
def test_what_an_error_says_to_the_operator_is_not_told(kind: type[HeadraceError]) -> None:
    error = failure_of_error(kind(f"no answer from {SECRET}", path="/x"))
    assert SECRET not in error.message
    assert error.param is None


# --- results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("unknown_field", "unknown_parameter"),
        ("invalid_field", "invalid_value"),
        ("unsupported_field", "unsupported_parameter"),
        ("invalid_schema", "invalid_schema"),
        ("engine_rejected", "engine_rejected"),
    ],
)
def test_a_rejected_request_is_400_with_openais_word_where_it_has_one(code: str, reason: str) -> None:
    error = failure_of(a_failed_result("rejected", code, path="/sampling/max_tokens"))
    assert (error.status, error.kind, error.param, error.reason) == (
        400, "invalid_request_error", "max_tokens", reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "wanted", "message", "param"),
    [
        (
            "/messages",
            None,
            "This model's maximum context length is 512 tokens. However, your messages resulted in 700 tokens. "
            "Please reduce the length of the messages.",
            "messages",
        ),
        (
            "/prompt",
            None,
            "This model's maximum context length is 512 tokens. However, your prompt has 700 tokens. "
            "Please reduce your prompt.",
            "prompt",
        ),
        (
            None,
            a_completion(),
            "This model's maximum context length is 512 tokens. However, your prompt has 700 tokens. "
            "Please reduce your prompt.",
            "prompt",
        ),
    ],
)
def test_a_prompt_too_long_is_told_in_openais_words(
    path: str | None, wanted: Wanted | None, message: str, param: str
) -> None:
    said = "the prompt has 700 tokens; the model holds 512, prompt and output together"
    error = failure_of(a_failed_result("rejected", "prompt_too_long", said, path), wanted)
    assert (error.status, error.reason, error.param, error.message) == (
        400, "context_length_exceeded", param, message,
    )  # fmt: skip


def test_a_prompt_too_long_in_words_unknown_is_found_by_programs_all_the_same() -> None:
    error = failure_of(a_failed_result("rejected", "prompt_too_long", "far too long"))
    assert error.reason == "context_length_exceeded"
    assert error.message == "This model's maximum context length is exceeded: far too long"


async def words_of_an_engine() -> str:
    engine = SimulatedEngine(SimulatedProfile(time_scale=0, max_model_len=16))
    await engine.start()
    with pytest.raises(PromptTooLong) as caught:
        await collect(engine.generate(job(list(range(16)))))
    return caught.value.message


def test_the_words_of_the_engines_are_those_that_are_looked_for() -> None:
    error = failure_of(a_failed_result("rejected", "prompt_too_long", asyncio.run(words_of_an_engine())))
    assert error.message == (
        "This model's maximum context length is 16 tokens. However, your messages resulted in 16 tokens, which leaves "
        "no room for an answer. Please reduce the length of the messages."
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("invalid_output", "not_json"),
        ("invalid_output", "schema_violated"),
        ("invalid_output", "a_hooks_own"),
        ("truncated", "truncated"),
        ("failed", "constraint_error"),
        ("failed", "result_too_large"),
    ],
)
def test_an_output_that_could_not_be_held_is_422_and_not_sent_again(status: Status, code: str) -> None:
    error = failure_of(a_failed_result(status, code))
    assert (error.status, error.kind, error.reason) == (422, "output_error", code)


def test_the_place_in_an_output_is_not_taken_for_a_parameter() -> None:
    result = a_failed_result("invalid_output", "schema_violated", "'x' is no mood", "/messages/0")
    error = failure_of(result, a_chat(fields=HELD))
    assert error.message == "'x' is no mood (at /messages/0 of the output)"
    assert error.param == "response_format"
    hooked = failure_of(a_failed_result("invalid_output", "a_hooks_own", path="/tools"), a_chat(fields=HELD))
    assert hooked.param == "response_format"


def test_messages_that_the_chat_template_refuses_are_named() -> None:
    assert (
        failure_of(a_failed_result("rejected", "template_failed", "roles must alternate")).param == "messages"
    )


def test_an_output_that_ran_into_max_tokens_names_the_parameter() -> None:
    assert (
        failure_of(a_failed_result("truncated", "truncated", path="/sampling/max_tokens")).param
        == "max_tokens"
    )


@pytest.mark.parametrize(
    ("code", "told", "again"),
    [
        ("engine_error", 500, None),
        ("hook_failed", 500, None),
        ("internal_error", 500, None),
        ("poison_request", 500, "false"),
        ("aborted", 503, None),
        ("engine_unavailable", 503, None),
    ],
)
def test_what_failed_says_whether_it_may_be_sent_again(code: str, told: int, again: str | None) -> None:
    error = failure_of(a_failed_result("failed", code))
    assert (error.status, error.headers.get("x-should-retry")) == (told, again)
    assert ("retry-after" in error.headers) == (told == 503)


@pytest.mark.parametrize("code", ["undecodable", "unknown_writer_schema", "topic_not_allowed"])
def test_what_the_endpoint_did_wrong_is_not_laid_at_the_callers_door(code: str) -> None:
    error = failure_of(a_failed_result("rejected", code, SECRET, "/result_topic"))
    assert error.status in (500, 502)
    assert (error.param, error.headers["x-should-retry"]) == (None, "false")
    assert SECRET not in error.message


def test_a_failure_has_the_headers_of_its_result() -> None:
    headers = failure_of(a_failed_result("expired", "expired")).headers
    assert headers["x-headrace-model-version"] == "3"
    assert headers["x-headrace-queue-ms"] == "7"


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "told", "reason"),
    [
        (NoReply("r-1: no reply within 30 s"), 504, "no_reply"),
        (StreamRestarted("r-1: another attempt"), 502, "stream_restarted"),
        (KafkaUnavailable("x"), 503, "kafka_unavailable"),
        (TopicMissing("topic headrace.replies does not exist"), 503, "topic_missing"),
        (TopicMissing("topic headrace.m.c1.requests.standard does not exist"), 404, "model_not_found"),
        (TopicsError("there is no topic headrace.m.c1.requests.backfill: create it"), 404, "model_not_found"),
        (TopicsError("there is no topic headrace.replies: create it"), 503, "topics"),
        (UsageError("timeout is 0: a number of seconds above 0"), 400, "usage"),
        (InvalidField("must be a string", path="/messages/0/content"), 400, "invalid_value"),
        (ResultTooLarge("a record of 2,000,000 bytes"), 413, "request_too_large"),
        (Undecodable("no message of ours"), 502, "undecodable"),
        (SettingsError("HEADRACE_X"), 500, "bad_setting"),
    ],
)
def test_what_the_client_raises(error: HeadraceError, told: int, reason: str) -> None:
    answer = failure_of_error(error, a_chat())
    assert (answer.status, answer.reason) == (told, reason)
    assert ("retry-after" in answer.headers) == (told == 503)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (SideTaskDied(SECRET), "side_task_died"),
        (KafkaUnavailable(SECRET), "kafka_unavailable"),
        (RegistryFailed(SECRET), "registry"),
        # What these say of a call's own request does not hold of one that only waited beside it.
        (ResultGone(SECRET), "kafka"),
        (SettingsError(SECRET), "kafka"),
    ],
)
def test_no_reply_because_none_can_come_any_more_may_be_sent_again(cause: HeadraceError, reason: str) -> None:
    error = NoReply("the client's reply reader has stopped")
    error.__cause__ = cause
    answer = failure_of_error(error)
    assert (answer.status, answer.reason, answer.headers["retry-after"]) == (503, reason, "5")
    assert SECRET not in answer.message


@pytest.mark.parametrize(
    "error",
    [
        UnknownField("x", path="/result/surprise"),
        InvalidField("x", path="/seq"),
        MessageError("x", path="/kind"),
    ],
)
def test_a_reply_that_cannot_be_read_is_not_the_callers_fault(error: MessageError) -> None:
    assert failure_of_error(error).status == 502


def test_a_failed_result_is_told_the_same_whether_it_is_raised_or_not() -> None:
    result = a_failed_result("rejected", "invalid_field", path="/sampling/top_p")
    raised, plain = failure_of_error(errors.Rejected(result)), failure_of(result)
    assert (raised.status, raised.as_json(), raised.headers) == (plain.status, plain.as_json(), plain.headers)


def test_an_output_that_does_not_fit_is_told_though_its_result_is_ok() -> None:
    error = failure_of_error(OutputDoesNotFit(a_result(an_output("x")), "no date", path="/when"))
    assert (error.status, error.reason) == (422, "output_does_not_fit")
    assert error.message.endswith("(at /when of the output)")


def test_a_model_that_is_not_here_is_told_in_openais_words() -> None:
    error = no_such_model("tagger@9")
    assert error.message == "The model `tagger@9` does not exist or you do not have access to it."
    assert (error.status, error.reason, error.param) == (404, "model_not_found", "model")


# --- parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "param", "rest"),
    [
        ("/sampling/max_tokens", "max_tokens", ""),
        ("/sampling/stop/1", "stop[1]", ""),
        ("/sampling/logit_bias/17", "logit_bias[17]", ""),
        ("/messages", "messages", ""),
        ("/messages/0/content", "messages[0].content", ""),
        ("/messages/2/tool_calls/1/function/arguments", "messages[2].tool_calls[1].function.arguments", ""),
        ("/prompt", "prompt", ""),
        ("/tools/0/function/parameters", "tools[0].function.parameters", ""),
        ("/tool_choice/function", "tool_choice", ""),
        ("/reasoning/effort", "reasoning_effort", ""),
        ("/reasoning/max_tokens", "thinking_token_budget", ""),
        ("/output", "response_format", ""),
        ("/output/json_schema/properties/a~1b", "response_format", "/properties/a/b"),
        ("/output/regex", "structured_outputs", ""),
        ("/key", "prompt_cache_key", ""),
        ("/attributes/metadata.shop", "metadata.shop", ""),
        ("/attributes/user", "user", ""),
        ("/deadline", None, "/deadline"),
        ("/sampling", None, "/sampling"),
        ("/brand_new/1", None, "/brand_new/1"),
        ("", None, ""),
        (None, None, ""),
    ],
)
def test_a_path_into_the_request_is_the_callers_parameter(
    path: str | None, param: str | None, rest: str
) -> None:
    assert param_of(path) == (param, rest)


def test_what_the_parameter_does_not_say_stands_in_the_message() -> None:
    result = a_failed_result(
        "rejected", "invalid_schema", "no JSON Schema", "/output/json_schema/properties/a"
    )
    error = failure_of(result, a_chat(fields=HELD))
    assert (error.param, error.message) == ("response_format", "no JSON Schema (at /properties/a)")


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (a_chat(fields=HELD), "response_format"),
        (a_chat(fields=HELD, constraint_param="structured_outputs"), "structured_outputs"),
        (a_chat(fields={"output": {"choice": ["a"]}}), "structured_outputs"),
        (a_chat(fields=HELD, tool=ForcedTool("tag")), "tools"),
        (a_chat(), None),
    ],
)
def test_an_output_is_held_by_what_the_caller_sent(wanted: Wanted, param: str | None) -> None:
    for result in (
        a_failed_result("rejected", "invalid_schema", path="/output/json_schema"),
        a_failed_result("failed", "constraint_error"),
        a_failed_result("invalid_output", "not_json"),
    ):
        assert failure_of(result, wanted).param == param


def test_logprobs_are_top_logprobs_in_a_chat_and_logprobs_in_a_completion() -> None:
    assert param_of("/sampling/logprobs", a_chat()) == ("top_logprobs", "")
    assert param_of("/sampling/logprobs", a_completion()) == ("logprobs", "")


# --- on the caller's side ---------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openai._base_client.time.sleep", lambda _: None)


def call(error: ApiError) -> tuple[openai.APIStatusError, int]:
    """What the official client raises with its own defaults, and how often it has asked."""
    endpoint = failing(error)
    with endpoint.client() as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="tagger", messages=[{"role": "user", "content": "Hi"}])
    return caught.value, len(endpoint.calls)


def failed(status: Status, code: str, path: str | None = None) -> Result:
    return a_failed_result(status, code, path=path)


@pytest.mark.parametrize(
    ("error", "raised", "times"),
    [
        (failure_of(failed("rejected", "invalid_field")), openai.BadRequestError, 1),
        (failure_of(failed("invalid_output", "not_json")), openai.UnprocessableEntityError, 1),
        (failure_of(failed("truncated", "truncated")), openai.UnprocessableEntityError, 1),
        (failure_of(failed("failed", "constraint_error")), openai.UnprocessableEntityError, 1),
        (failure_of(failed("failed", "engine_error")), openai.InternalServerError, 3),
        (failure_of(failed("failed", "poison_request")), openai.InternalServerError, 1),
        (failure_of(failed("expired", "expired")), openai.InternalServerError, 1),
        (failure_of(failed("cancelled", "cancelled")), openai.APIStatusError, 1),
        (failure_of_error(NoReply("x")), openai.InternalServerError, 1),
        (failure_of_error(StreamRestarted("x")), openai.InternalServerError, 3),
        (failure_of_error(KafkaUnavailable("x")), openai.InternalServerError, 3),
        (no_such_model("x"), openai.NotFoundError, 1),
        (ApiError(429, "slower", headers={"retry-after": "1"}), openai.RateLimitError, 3),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_the_official_client_raises_the_right_class_and_asks_as_often_as_it_should(
    error: ApiError, raised: type[Exception], times: int
) -> None:
    caught, asked = call(error)
    assert type(caught) is raised
    assert asked == times
    assert caught.status_code == error.status


def test_the_official_client_shows_code_param_and_request_id() -> None:
    result = a_failed_result("rejected", "prompt_too_long", path="/messages")
    caught, _ = call(failure_of(result))
    assert (caught.code, caught.param, caught.type) == (
        "context_length_exceeded", "messages", "invalid_request_error",
    )  # fmt: skip
    assert caught.request_id == "r-1"
