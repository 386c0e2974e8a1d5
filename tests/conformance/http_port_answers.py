"""The answers of both endpoints, whole and streamed."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import httpx
import openai
import pytest
from conformance.http_parts import (
    FREE,
    LETTERS,
    TAGGED,
    Stage,
    ask,
    ask_raw,
    complete,
    held_to,
    id_of,
    raw_stream,
    says,
    streamed,
    text_of,
)
from waiting import wait_until

from headrace.consumers.contracts import Alias
from headrace.producers.control import ContractWriter

END_OF_TURN = "<|im_end|>"  # vLLM has it among the tokens whose log probabilities it tells
PROMPT = "Once upon a time there was a mill"


class HttpAnswers:
    """A part of `HttpPort`."""

    # --- models ------------------------------------------------------------------------------------------

    def test_the_models_are_listed_and_each_can_be_looked_up(self, stage: Stage) -> None:
        models = {model.id: model for model in stage.client.models.list()}
        assert {FREE, f"{FREE}@1", TAGGED, f"{TAGGED}@1"} <= models.keys()
        found = stage.client.models.retrieve(FREE)
        assert (found.id, found.object, found.owned_by) == (FREE, "model", "headrace")
        assert found == models[FREE]
        assert found.model_extra is not None
        assert found.model_extra["max_model_len"] == stage.engine.context
        assert abs(found.created - time.time()) < 3600
        assert stage.client.models.retrieve(f"{FREE}/1").id == f"{FREE}/1"

    def test_an_alias_stands_for_its_contract_and_a_pinned_name_for_its_own(self, stage: Stage) -> None:
        writer = ContractWriter(stage.producer, prefix=stage.settings.prefix)
        writer.alias(Alias("the-usual", TAGGED, 1, "tests", int(time.time() * 1000)))
        wait_until(lambda: "the-usual" in {model.id for model in stage.client.models.list()}, 10, "the alias")
        answer = ask(stage.client, model="the-usual")
        assert answer.model == "the-usual"
        assert '"mood"' in (answer.choices[0].message.content or "")
        assert ask(stage.client, model=f"{FREE}@1", max_tokens=3).choices

    def test_the_other_pages_are_there(self, stage: Stage) -> None:
        with httpx.Client(base_url=stage.endpoint.address or "") as client:
            assert (client.get("/healthz").text, client.get("/readyz").text) == ("ok\n", "ok\n")
            page = client.get("/docs")
            assert page.status_code == 200
            assert "//" not in page.text.replace(str(client.base_url).rstrip("/"), ""), (
                "all of it comes from here"
            )
            for asset in re.findall(r'(?:src|href)="([^"]+)"', page.text):
                assert client.get(asset).status_code == 200, asset
            paths = client.get("/openapi.json").json()["paths"]
        assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= paths.keys()

    # --- whole -------------------------------------------------------------------------------------------

    def test_a_chat_has_all_that_an_answer_has(self, stage: Stage) -> None:
        answer = ask(stage.client, seed=1)
        assert (answer.object, answer.model, answer.service_tier) == ("chat.completion", FREE, "default")
        assert answer.id.startswith("chatcmpl-")
        assert abs(answer.created - time.time()) < 60
        assert re.fullmatch("fp_[0-9a-f]{12}", answer.system_fingerprint or "")
        (choice,) = answer.choices
        assert (choice.index, choice.message.role, choice.message.refusal) == (0, "assistant", None)
        assert choice.message.content
        assert choice.message.tool_calls is None
        assert choice.finish_reason in ("stop", "length")
        assert choice.logprobs is None
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > 0
        assert answer.usage.completion_tokens > 0
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    def test_the_asynchronous_client_gets_the_same(self, stage: Stage) -> None:
        whole = ask(stage.client, seed=1).choices[0].message.content
        text = complete(stage.client, PROMPT, seed=1).choices[0].text

        async def go() -> None:
            async with openai.AsyncOpenAI(base_url=stage.endpoint.url, api_key="k") as client:
                assert FREE in [model.id async for model in client.models.list()]
                create: Any = client.chat.completions.create
                answer = await create(**says(seed=1))
                assert answer.choices[0].message.content == whole
                stream = await create(**says(seed=1), stream=True)
                assert text_of([chunk async for chunk in stream]) == whole
                completion = await client.completions.create(model=FREE, prompt=PROMPT, seed=1)
                assert completion.choices[0].text == text
                many = await asyncio.gather(*(create(**says(seed=seed, max_tokens=9)) for seed in range(12)))
                assert len({answer.id for answer in many}) == 12

        asyncio.run(go())

    def test_a_completion_has_all_that_an_answer_has(self, stage: Stage) -> None:
        answer = complete(stage.client, PROMPT, seed=1, max_tokens=9)
        assert (answer.object, answer.model) == ("text_completion", FREE)
        assert answer.id.startswith("cmpl-")
        (choice,) = answer.choices
        assert (choice.index, choice.finish_reason) == (0, "length")
        assert choice.text
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 9

    def test_each_of_several_prompts_is_answered_in_its_place(self, stage: Stage) -> None:
        prompts = [PROMPT, "The wheel", "The weir"]
        alone = [complete(stage.client, prompt, seed=1, max_tokens=9) for prompt in prompts]
        answer = complete(stage.client, prompts, seed=1, max_tokens=9)
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert [choice.text for choice in answer.choices] == [each.choices[0].text for each in alone]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == sum(each.usage.prompt_tokens for each in alone if each.usage)
        chunks = list(
            stage.client.completions.create(model=FREE, prompt=prompts, seed=1, max_tokens=9, stream=True)
        )
        assert len({chunk.id for chunk in chunks}) == 1
        for index, choice in enumerate(answer.choices):
            pieces = [each for chunk in chunks for each in chunk.choices if each.index == index]
            assert "".join(piece.text for piece in pieces) == choice.text
            assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]

    def test_headers_tell_the_request_and_what_answered_it(self, stage: Stage) -> None:
        response = ask_raw(stage.client, max_tokens=3)
        answer = response.parse()
        assert answer.id == f"chatcmpl-{response.headers['x-request-id']}"
        assert response.request_id == response.headers["x-request-id"]
        assert response.headers["x-headrace-model-version"] == "1"
        assert int(response.headers["x-headrace-queue-ms"]) >= 0
        assert int(response.headers["openai-processing-ms"]) >= 0
        assert response.headers["openai-version"]
        assert stage.seen.result(response.headers["x-request-id"]).status == "ok"

    # --- streams -----------------------------------------------------------------------------------------

    def test_a_stream_is_what_openai_sends_and_adds_up_to_the_whole_answer(self, stage: Stage) -> None:
        whole = ask(stage.client, seed=3)
        headers, events = raw_stream(stage.client, **says(seed=3, stream_options={"include_usage": True}))
        assert headers["content-type"].startswith("text/event-stream")
        *chunks, usage, done = events
        assert done == "[DONE]"
        assert {chunk["id"] for chunk in [*chunks, usage]} == {f"chatcmpl-{headers['x-request-id']}"}
        assert {chunk["object"] for chunk in [*chunks, usage]} == {"chat.completion.chunk"}
        assert {chunk["created"] for chunk in chunks} == {usage["created"]}
        assert {chunk["model"] for chunk in chunks} == {FREE}
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks[1:])
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None] * (len(chunks) - 1) + [whole.choices[0].finish_reason]
        assert all(chunk["usage"] is None for chunk in chunks)
        assert usage["choices"] == []
        assert whole.usage is not None
        assert usage["usage"]["completion_tokens"] == whole.usage.completion_tokens
        assert usage["usage"]["total_tokens"] == whole.usage.total_tokens
        assert usage["system_fingerprint"] == whole.system_fingerprint

    def test_a_stream_comes_piece_by_piece_while_it_is_generated(self, stage: Stage) -> None:
        came: list[float] = []
        for chunk in streamed(stage.client, **stage.engine.lasting(0.6)):
            if chunk.choices[0].delta.content:
                came.append(time.monotonic())
        assert len(came) > 5
        assert came[-1] - came[0] > 0.25

    def test_a_stream_has_its_usage_only_where_it_is_asked_for(self, stage: Stage) -> None:
        chunks = list(streamed(stage.client, max_tokens=3))
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)
        with pytest.raises(openai.BadRequestError, match="stream: true") as refused:
            ask(stage.client, stream_options={"include_usage": True})
        assert refused.value.param == "stream_options"

    def test_a_completion_streams_as_well(self, stage: Stage) -> None:
        whole = complete(stage.client, PROMPT, seed=5, max_tokens=30)
        *chunks, usage = stage.client.completions.create(
            model=FREE,
            prompt=PROMPT,
            seed=5,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
        assert len({chunk.id for chunk in chunks}) == 1
        assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
        assert (usage.choices, usage.usage) == ([], whole.usage)

    def test_text_is_never_split_within_a_character(self, stage: Stage) -> None:
        text = "žluťoučký kůň 🐎 水車 " * 4
        answer = says(seed=1, max_tokens=300, **held_to(choice=[text]))
        whole = ask(stage.client, **answer)
        assert whole.choices[0].message.content == text
        chunks = list(streamed(stage.client, **answer))
        assert text_of(chunks) == text
        assert all("�" not in text_of([chunk]) for chunk in chunks)

    # --- several choices ---------------------------------------------------------------------------------

    def test_several_choices_come_whole_and_streamed(self, stage: Stage) -> None:
        asked = says(n=2, seed=7, temperature=1.0, max_tokens=12)
        whole = ask(stage.client, **asked)
        assert [choice.index for choice in whole.choices] == [0, 1]
        assert whole.choices[0].message.content != whole.choices[1].message.content
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 24
        chunks = list(streamed(stage.client, **asked))
        assert len({chunk.id for chunk in chunks}) == 1
        for choice in whole.choices:
            mine = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
            assert mine[0].delta.role == "assistant"
            assert text_of(chunks, choice.index) == choice.message.content
            assert [each.finish_reason for each in mine if each.finish_reason] == [choice.finish_reason]
        texts = stage.client.completions.create(
            model=FREE, prompt=["a", "b"], n=2, seed=7, temperature=1.0, max_tokens=4
        )
        assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]

    # --- sampling ----------------------------------------------------------------------------------------

    def test_log_probabilities_of_a_chat(self, stage: Stage) -> None:
        asked = says(seed=1, logprobs=True, top_logprobs=2, **LETTERS)
        choice = ask(stage.client, **asked).choices[0]
        assert choice.logprobs is not None
        assert choice.logprobs.content
        spelt = "".join(token.token for token in choice.logprobs.content)
        assert spelt.removesuffix(END_OF_TURN) == choice.message.content
        for token in choice.logprobs.content:
            assert token.logprob <= 0
            assert bytes(token.bytes or []).decode() == token.token
            assert len(token.top_logprobs) <= 2
        chunks = list(streamed(stage.client, **asked))
        assert text_of(chunks) == choice.message.content
        came = [
            token
            for chunk in chunks
            if chunk.choices[0].logprobs
            for token in chunk.choices[0].logprobs.content or []
        ]
        assert [token.token for token in came] == [token.token for token in choice.logprobs.content]
        none = ask(stage.client, max_tokens=3, logprobs=True)
        assert none.choices[0].logprobs is not None
        assert none.choices[0].logprobs.content
        assert all(token.top_logprobs == [] for token in none.choices[0].logprobs.content)

    def test_log_probabilities_of_a_completion(self, stage: Stage) -> None:
        choice = complete(stage.client, PROMPT, seed=1, logprobs=2, **LETTERS).choices[0]
        found = choice.logprobs
        assert found is not None
        assert found.tokens is not None
        assert "".join(found.tokens).removesuffix(END_OF_TURN) == choice.text
        assert found.token_logprobs is not None
        assert found.top_logprobs is not None
        assert found.text_offset is not None
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
        spelt = "".join(found.tokens)
        assert all(
            spelt.startswith(token, at) for at, token in zip(found.text_offset, found.tokens, strict=True)
        )
        assert all(token in top for token, top in zip(found.tokens, found.top_logprobs, strict=True))

    def test_a_stop_text_ends_an_answer_before_itself(self, stage: Stage) -> None:
        whole = ask(stage.client, seed=11, max_tokens=40)
        text = whole.choices[0].message.content or ""
        stop = next(each for each in re.findall("[a-z]{3}", text[len(text) // 3 :]))
        before = text[: text.index(stop)]
        for given in (stop, [stop], ["never to be seen", stop]):
            cut = ask(stage.client, seed=11, max_tokens=40, stop=given)
            assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == (before, "stop")
        chunks = list(streamed(stage.client, seed=11, max_tokens=40, stop=stop))
        assert text_of(chunks) == before

    def test_a_seed_gives_the_same_text_each_time(self, stage: Stage) -> None:
        def text(seed: int) -> str | None:
            answer = ask(stage.client, seed=seed, temperature=1.0, max_tokens=10)
            return answer.choices[0].message.content

        texts = [text(seed) for seed in (1, 2, 3)]
        assert len(set(texts)) == 3
        assert [text(seed) for seed in (1, 2, 3)] == texts

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_the_length_of_an_answer_is_bounded_under_either_name(self, stage: Stage, name: str) -> None:
        wish: Any = {name: 5}
        answer = ask(stage.client, **wish)
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 5

    def test_both_names_of_the_length_go_together_only_where_they_agree(self, stage: Stage) -> None:
        answer = ask(stage.client, max_tokens=5, max_completion_tokens=5)
        assert answer.choices[0].finish_reason == "length"
        with pytest.raises(openai.BadRequestError) as refused:
            ask(stage.client, max_tokens=5, max_completion_tokens=6)
        assert refused.value.param == "max_tokens"

    # --- what calls may hold -----------------------------------------------------------------------------

    def test_null_means_absent(self, stage: Stage) -> None:
        names = ("temperature", "seed", "stop", "tools", "tool_choice", "response_format", "n", "logprobs")
        nulls: Any = dict.fromkeys((*names, "audio", "best_of_all"))
        asked = says(max_tokens=3, extra_body=nulls)
        assert ask(stage.client, **asked).choices[0].message.content

    def test_past_messages_may_hold_what_answers_hold_and_more(self, stage: Stage) -> None:
        answer = ask(stage.client, max_tokens=5)
        past: Any = answer.choices[0].message
        messages: Any = [
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Hello", "cache_control": {"type": "ephemeral"}},
            past,
            {**past.model_dump(), "reasoning_content": "hm", "provider_specific_fields": {"a": [1]}},
            {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
        ]
        again = stage.client.chat.completions.create(model=FREE, messages=messages, max_tokens=5)
        assert again.choices[0].message.content
        _, _, request = stage.seen.request(id_of(again))
        assert request.messages is not None
        assert [message.role for message in request.messages] == [
            "developer", "user", "assistant", "assistant", "user",
        ]  # fmt: skip

    def test_what_a_call_says_of_itself_is_recorded_and_its_lane_and_key_are_kept(self, stage: Stage) -> None:
        answer = ask(
            stage.client,
            max_tokens=3,
            user="ada",
            safety_identifier="s-1",
            metadata={"film": "heat"},
            prompt_cache_key="films",
            service_tier="flex",
        )
        assert answer.service_tier == "flex"
        lane, key, request = stage.seen.request(id_of(answer))
        assert (lane, key) == ("standard", b"films")
        recorded = {"user": "ada", "safety_identifier": "s-1", "metadata.film": "heat"}
        assert request.attributes == recorded
        assert stage.seen.result(request.id).attributes == recorded
        late = ask(stage.client, max_tokens=3, extra_body={"priority": 5})
        assert stage.seen.request(id_of(late))[0] == "backfill"
