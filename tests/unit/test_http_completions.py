"""From a call to /v1/completions to what it wants."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.wanted import ApiError, Wanted
from headrace.schemas.messages import Request


def completion(prompt: Any = "Hello", **given: Any) -> Wanted:
    return wanted_of_completion({"model": "m", "prompt": prompt, **given}, contract_has_output=False)


def refusal(prompt: Any = "Hello", **given: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        completion(prompt, **given)
    assert caught.value.status == 400
    return caught.value


def test_the_least_call_says_no_more_than_its_prompt() -> None:
    assert completion() == Wanted("completions", "m", {}, ({"prompt": "Hello"},))


def test_a_list_of_prompts_is_a_request_each_in_its_order() -> None:
    assert completion(["a", "b", "a"]).asked == ({"prompt": "a"}, {"prompt": "b"}, {"prompt": "a"})
    assert completion(["a"]).asked == ({"prompt": "a"},)
    assert len(completion(["a"] * 64).asked) == 64


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ("", "prompt"),
        ([], "prompt"),
        (["a"] * 65, "prompt"),
        (["a", ""], "prompt[1]"),
        (["a", None], "prompt[1]"),
        (["a", {"b": 1}], "prompt[1]"),
        ([True], "prompt[0]"),
        ({"text": "a"}, "prompt"),
        (7, "prompt"),
    ],
)
def test_a_prompt_that_is_none_is_named(prompt: Any, param: str) -> None:
    assert refusal(prompt).param == param


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2], [3]], ["a", [1]], [[]], [0] * 1000])
def test_token_ids_are_refused_with_a_sentence(prompt: Any) -> None:
    error = refusal(prompt)
    assert (error.param, error.reason) == ("prompt", "unsupported_parameter")
    assert "a request has text" in error.message


@pytest.mark.parametrize("given", [{}, {"model": None}])
def test_a_call_names_its_model(given: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        wanted_of_completion({"prompt": "Hello", **given}, contract_has_output=False)
    assert (caught.value.status, caught.value.param) == (400, "model")


@pytest.mark.parametrize("top", [0, 5, 20])
def test_logprobs_are_a_number(top: int) -> None:
    wanted = completion(logprobs=top)
    assert (wanted.logprobs, wanted.top_logprobs) == (True, top)
    assert wanted.fields == {"sampling": {"logprobs": top}}


@pytest.mark.parametrize("value", [True, False, -1, 21, 1.5, "1"])
def test_logprobs_that_are_no_number_in_range_are_refused(value: Any) -> None:
    assert refusal(logprobs=value).param == "logprobs"


def test_a_limit_that_is_absent_is_not_16() -> None:
    assert completion().fields == {}
    assert completion(max_tokens=16).fields == {"sampling": {"max_tokens": 16}}


def test_what_a_chat_alone_has_is_refused() -> None:
    for name in ("messages", "tools", "max_completion_tokens", "top_logprobs", "reasoning_effort"):
        error = refusal(**{name: 1})
        assert error.param == name
        assert "/v1/chat/completions has it" in error.message


def test_the_body_of_the_official_client() -> None:
    bodies: list[dict[str, Any]] = []

    def take(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(
            200, json={"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": []}
        )

    transport = httpx.Client(transport=httpx.MockTransport(take))
    with openai.OpenAI(api_key="k", base_url="http://localhost/v1", http_client=transport) as client:
        client.completions.create(
            model="m",
            prompt=["a", "b"],
            best_of=2,
            echo=False,
            frequency_penalty=1,
            logit_bias={"17": 5},
            logprobs=3,
            max_tokens=9,
            n=2,
            presence_penalty=1,
            seed=1,
            stop="\n",
            stream=False,
            suffix=None,
            temperature=0,
            top_p=1,
            user="u",
            extra_body={
                "priority": 5,
                "structured_outputs": {"choice": ["x", "y"]},
                "repetition_penalty": 1.1,
            },
        )
    wanted = wanted_of_completion(bodies[0], contract_has_output=False)
    assert wanted.lane == "backfill"
    assert wanted.choices == 2
    assert wanted.recorded == ("user",)
    assert wanted.fields == {
        "sampling": {
            "temperature": 0,
            "top_p": 1,
            "seed": 1,
            "presence_penalty": 1,
            "frequency_penalty": 1,
            "repetition_penalty": 1.1,
            "n": 2,
            "logit_bias": {"17": 5},
            "stop": ["\n"],
            "max_tokens": 9,
            "logprobs": 3,
        },
        "output": {"choice": ["x", "y"]},
        "attributes": {"user": "u"},
    }
    for one in wanted.asked:
        Request.model_validate({"id": "r", **wanted.fields, **one})


def test_streams() -> None:
    wanted = completion(stream=True, stream_options={"include_usage": True})
    assert (wanted.stream, wanted.include_usage) == (True, True)
