"""What goes wrong, as the classes of the official client tell it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from conformance.http_parts import (
    FREE,
    TAGGED,
    Mood,
    Stage,
    ask,
    ask_raw,
    client_of,
    complete,
    id_of,
    raw_stream,
    says,
    streamed,
    text_of,
)
from openai.types.chat import ChatCompletionChunk

FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "mood", "schema": Mood.model_json_schema()}}
CHAT = "/chat/completions"
JSON = {"content-type": "application/json"}


class HttpFailures:
    """A part of `HttpPort`."""

    # --- 400 ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("fields", "param", "code"),
        [
            ({"temperature": -1}, "temperature", "invalid_value"),
            ({"max_tokens": 0}, "max_tokens", "invalid_value"),
            ({"n": 9}, "n", "invalid_value"),
            ({"extra_body": {"responseFormat": {}}}, "responseFormat", "unknown_parameter"),
            ({"extra_body": {"guided_json": {}}}, "guided_json", "unsupported_parameter"),
            ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
        ],
    )  # fmt: skip
    def test_a_parameter_at_fault_is_named(
        self, stage: Stage, fields: dict[str, Any], param: str, code: str
    ) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, **fields)
        error = refused.value
        assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
        assert error.request_id

    def test_what_only_a_worker_sees_is_refused_with_the_callers_own_parameter(self, stage: Stage) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "strin"}}}
        held: Any = {"type": "json_schema", "json_schema": {"name": "odd", "schema": schema}}
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, response_format=held)
        assert (refused.value.param, refused.value.code) == ("response_format", "invalid_schema")
        with pytest.raises(openai.BadRequestError) as template:
            ask(stage.client, messages=[{"role": "assistant", "content": "I begin."}])
        assert template.value.param == "messages"

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_that_is_too_long_says_so_as_openai_does(self, stage: Stage, stream: bool) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, "the mill " * 8_000, stream=stream)
        error = refused.value
        assert (error.code, error.param) == ("context_length_exceeded", "messages")
        assert f"This model's maximum context length is {stage.engine.context} tokens" in error.message

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            (b'{"model": ', "not JSON"),
            (b'{"model": "\xff"}', "not UTF-8"),
            (b'[{"model": "free"}]', "object"),
            (b'{"model": "free", "model": "free"}', "twice"),
            (b"", "not JSON"),
        ],
    )
    def test_a_body_that_is_no_json_object_is_refused(self, stage: Stage, body: bytes, said: str) -> None:
        with httpx.Client() as client:
            answer = client.post(stage.endpoint.url + CHAT, content=body, headers=JSON)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert said in error["message"]
        assert answer.headers["x-request-id"]

    @pytest.mark.parametrize(
        "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
    )
    def test_a_body_that_does_not_say_it_is_json_is_refused(self, stage: Stage, kind: str | None) -> None:
        """A page that its user looks at may send such bodies to any address without asking it first."""
        body = b'{"model": "free", "messages": [{"role": "user", "content": "Hi"}]}'
        with httpx.Client() as client:
            headers = {} if kind is None else {"content-type": kind}
            answer = client.post(stage.endpoint.url + CHAT, content=body, headers=headers)
        assert answer.status_code == 400
        assert "content-type: application/json" in answer.json()["error"]["message"]

    def test_a_body_that_is_too_large_is_refused_announced_or_not(self, stage: Stage) -> None:
        with pytest.raises(openai.APIStatusError) as refused:
            ask(stage.client, "x" * 6_000_000)
        assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")

        def pieces() -> Iterator[bytes]:
            for _ in range(600):
                yield b" " * 10_000

        with httpx.Client() as client:
            answer = client.post(stage.endpoint.url + CHAT, content=pieces(), headers=JSON)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"

    def test_a_request_that_kafka_would_not_take_is_refused_and_the_next_one_is_answered(
        self, stage: Stage
    ) -> None:
        with pytest.raises(openai.APIStatusError) as refused:
            ask(stage.client, "x" * 1_500_000)  # a body that is not too large for a body
        assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")
        assert ask(stage.client, max_tokens=3).choices

    def test_a_parameter_in_the_url_is_refused_by_name(self, stage: Stage) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, extra_query={"api-version": "2024-10-21", "seed": "1"})
        assert (refused.value.param, refused.value.code) == ("seed", "unknown_parameter")
        assert ask(stage.client, max_tokens=3, extra_query={"api-version": "2024-10-21"}).choices

    # --- 401 to 429 --------------------------------------------------------------------------------------

    def test_a_model_that_is_not_there_is_not_found(self, stage: Stage) -> None:
        for call in (
            lambda: ask(stage.client, model="fre"),
            lambda: complete(stage.client, "x", model="fre"),
            lambda: stage.client.models.retrieve("fre"),
        ):
            with pytest.raises(openai.NotFoundError, match="Did you mean `free`") as missing:
                call()
            assert (missing.value.code, missing.value.param) == ("model_not_found", "model")

    def test_an_address_that_is_not_there_and_a_wrong_method_are_told_in_the_same_shape(
        self, stage: Stage
    ) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            stage.client.embeddings.create(model=FREE, input="x")
        assert missing.value.code == "unknown_url"
        with httpx.Client() as client:
            answer = client.get(stage.endpoint.url + CHAT)
        assert answer.status_code == 405
        assert answer.json()["error"]["type"] == "invalid_request_error"

    def test_without_a_key_nobody_comes_in_where_keys_are_asked_for(self, stage: Stage) -> None:
        instance = stage.second()
        with client_of(instance, "hr-none-such") as stranger:
            for call in (lambda: ask(stranger), lambda: streamed(stranger), stranger.models.list):
                with pytest.raises(openai.AuthenticationError) as refused:
                    call()
                assert refused.value.code == "invalid_api_key"
        with httpx.Client() as client:
            answer = client.post(instance.url + CHAT, json=says())
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"]

    def test_a_key_opens_and_its_tenant_is_the_requests(self, stage: Stage) -> None:
        with stage.caller("films") as client:
            answer = ask(client, max_tokens=3)
            assert stage.seen.request(id_of(answer))[2].tenant == "films"
            with pytest.raises(openai.PermissionDeniedError) as refused:
                ask(client, extra_headers={"X-Headrace-Tenant": "others"})
            assert refused.value.param == "X-Headrace-Tenant"

    def test_whoever_calls_too_often_is_told_when_to_come_back(self, stage: Stage) -> None:
        with stage.caller("hasty", max_retries=0) as client:
            answer = ask_raw(client, max_tokens=3)
            assert answer.headers["x-ratelimit-limit-requests"] == "1"
            with pytest.raises(openai.RateLimitError) as refused:
                ask(client, max_tokens=3)
            assert refused.value.code == "rate_limit_exceeded"
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60

    def test_whoever_calls_too_much_at_once_has_to_wait_for_his_own(self, stage: Stage) -> None:
        with stage.caller("greedy", max_retries=0) as client:
            stream = streamed(client, **stage.engine.lasting(3))
            next(stream)
            with pytest.raises(openai.RateLimitError):
                ask(client, max_tokens=3)
            stream.close()
            # The client waits as long as Retry-After says; then his own has ended.
            patient = client.with_options(max_retries=2)
            assert ask(patient, max_tokens=3).choices

    # --- 422 ---------------------------------------------------------------------------------------------

    def test_an_output_that_was_cut_under_a_schema_is_an_error(self, stage: Stage) -> None:
        before = stage.endpoint.calls()
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            ask(stage.client, max_tokens=3, response_format=FORMAT)
        assert (refused.value.code, refused.value.param) == ("truncated", "max_tokens")
        assert stage.endpoint.calls() == before + 1

    def test_an_error_amid_a_stream_is_its_last_event(self, stage: Stage) -> None:
        asked = says(max_tokens=4, model=TAGGED)
        chunks: list[ChatCompletionChunk] = []
        stream = streamed(stage.client, **asked)
        with pytest.raises(openai.APIError) as failed:
            chunks.extend(stream)
        assert text_of(chunks)
        assert failed.value.code == "truncated"
        _, events = raw_stream(stage.client, **asked)
        assert events[-1]["error"]["code"] == "truncated"
        assert "[DONE]" not in events

    # --- 504 ---------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_deadline_that_passes_is_a_504_that_is_not_sent_again(self, stage: Stage, stream: bool) -> None:
        before, generated = stage.endpoint.calls(endpoint="chat"), stage.engine.generations()
        asked = stage.engine.lasting(4) | {"n": 2 if stream else 1, "temperature": 1.0}
        began = time.monotonic()
        with pytest.raises(openai.InternalServerError) as late:
            ask(stage.client, **asked, stream=stream, extra_headers={"X-Request-Timeout": "0.4"})
        assert late.value.status_code == 504
        assert late.value.response.headers["x-should-retry"] == "false"
        assert time.monotonic() - began < 3
        assert "X-Request-Timeout" in late.value.message
        assert "/deadline" not in late.value.message
        assert stage.endpoint.calls(endpoint="chat") == before + 1
        assert stage.endpoint.calls(status="504") >= 1
        stage.is_idle()
        assert stage.engine.generations() <= generated + 1

    def test_a_deadline_that_passes_amid_a_stream_is_its_last_event(self, stage: Stage) -> None:
        asked: Any = stage.engine.lasting(4) | {"extra_headers": {"X-Request-Timeout": "1.5"}}
        chunks: list[ChatCompletionChunk] = []
        stream = streamed(stage.client, **asked)
        with pytest.raises(openai.APIError) as late:
            chunks.extend(stream)
        assert text_of(chunks)
        assert late.value.code in ("expired", "no_reply")
        stage.is_idle()

    def test_the_answer_to_a_client_that_would_give_up_comes_before_it_does(self, stage: Stage) -> None:
        # It has two more tries: a machine that stands still for as long as an answer comes early must not fail this.
        with pytest.raises(openai.InternalServerError) as late:
            ask(stage.client.with_options(timeout=3), **stage.engine.lasting(8))
        assert late.value.status_code == 504, "an answer, and not the client's own APITimeoutError"
        stage.is_idle()

    @pytest.mark.parametrize("value", ["soon", "-1", "1e9", "nan"])
    def test_a_timeout_that_is_none_is_refused_by_its_name(self, stage: Stage, value: str) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, extra_headers={"X-Request-Timeout": value})
        assert refused.value.param == "X-Request-Timeout"

    # --- the same call again -----------------------------------------------------------------------------

    def test_an_idempotency_key_gives_the_same_answer_and_no_second_generation(self, stage: Stage) -> None:
        headers = {"Idempotency-Key": f"once-{time.time_ns()}"}
        asked: Any = {"max_tokens": 12, "temperature": 1.0, "extra_headers": headers}
        before = stage.engine.generations()
        first = ask_raw(stage.client, **asked)
        second = ask_raw(stage.client, **asked)
        chunks = list(streamed(stage.client, **asked))
        text = first.parse().choices[0].message.content
        assert second.parse().choices[0].message.content == text == text_of(chunks)
        request_id = first.headers["x-request-id"]
        assert first.parse().id == second.parse().id == chunks[0].id == f"chatcmpl-{request_id}"
        assert stage.engine.generations() == before + 1

        def sent() -> bool:
            return [request.id for _, _, request in stage.seen.requests].count(request_id) >= 3

        stage.seen.wait_for(sent, "the request of each of the three calls")
        assert [result.id for result in stage.seen.results].count(request_id) == 1

    def test_another_call_under_the_same_key_is_refused(self, stage: Stage) -> None:
        asked: Any = {"max_tokens": 6, "extra_headers": {"Idempotency-Key": f"reused-{time.time_ns()}"}}
        first = ask(stage.client, **asked)
        before = stage.engine.generations()
        for stream in (False, True):
            with pytest.raises(openai.UnprocessableEntityError) as refused:
                ask(stage.client, "Something else.", **asked, stream=stream)
            assert (refused.value.type, refused.value.code) == ("idempotency_error", "idempotency_key_reused")
        assert ask(stage.client, **asked).choices == first.choices
        assert stage.engine.generations() == before
