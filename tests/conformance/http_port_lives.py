"""Callers that go away, instances that end, and instances beside one another."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from conformance.http_parts import (
    FREE,
    IN_FLIGHT,
    READY_S,
    SOON_S,
    Instance,
    Stage,
    ask,
    client_of,
    held_to,
    id_of,
    says,
    streamed,
    text_of,
)
from waiting import wait_until

from headrace.ops.http_serving import Listening
from headrace.ops.ports import HOST
from headrace.schemas.messages import Cancel

AT_ONCE_S = 3.0  # on a busy machine; what is promised is 0.1


class HttpLives:
    """A part of `HttpPort`."""

    # --- a caller that goes away -------------------------------------------------------------------------

    def test_a_caller_that_leaves_a_stream_gives_its_request_up(self, stage: Stage) -> None:
        stream = streamed(stage.client, **stage.engine.lasting(5))
        request_id = id_of(next(chunk for chunk in stream if text_of([chunk])))
        stage.is_busy(1)
        gone = stage.endpoint.calls(status="499")
        left = time.time()
        stream.close()
        assert_at_once(stage.seen.cancel(request_id), left)
        assert stage.seen.result(request_id).status == "cancelled"
        assert stage.endpoint.calls(status="499") == gone + 1
        stage.is_idle()

    def test_callers_that_leave_while_they_wait_cost_nothing(self, stage: Stage) -> None:
        begun = stage.engine.generations()

        async def go() -> None:
            async with openai.AsyncOpenAI(base_url=stage.endpoint.url, api_key="k") as client:
                # Together: the first must not have ended before the last has begun.
                busy = await asyncio.gather(*(self._begun(client, stage) for _ in range(IN_FLIGHT)))
                create: Any = client.chat.completions.create
                asked = says(max_tokens=3, user="waiting")
                waiting = [asyncio.create_task(create(**asked, stream=stream)) for stream in (False, True)]
                ids = await asyncio.to_thread(stage.seen.of_user, "waiting", 2)
                await asyncio.to_thread(stage.is_busy, IN_FLIGHT)
                left = time.time()
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                for request_id in ids:
                    assert_at_once(await asyncio.to_thread(stage.seen.cancel, request_id), left)
                for stream in busy:
                    await stream.close()
                for request_id in ids:
                    assert (await asyncio.to_thread(stage.seen.result, request_id)).status == "cancelled"

        asyncio.run(go())
        stage.is_idle()
        assert stage.engine.generations() == begun + IN_FLIGHT

    async def _begun(self, client: openai.AsyncOpenAI, stage: Stage) -> Any:
        create: Any = client.chat.completions.create
        stream = await create(**says(**stage.engine.lasting(5)), stream=True)
        async for chunk in stream:
            if text_of([chunk]):
                break
        return stream

    def test_several_prompts_of_a_call_are_all_given_up(self, stage: Stage) -> None:
        lasting: Any = stage.engine.lasting(5)
        stream = stage.client.completions.create(
            model=FREE, prompt=["a", "b"], stream=True, user="both", **lasting
        )
        next(iter(stream))
        stream.close()
        for request_id in stage.seen.of_user("both", 2):
            stage.seen.cancel(request_id)
            assert stage.seen.result(request_id).status == "cancelled"
        stage.is_idle()

    # --- instances ---------------------------------------------------------------------------------------

    def test_instances_side_by_side_answer_their_own_callers(self, stage: Stage) -> None:
        with stage.caller("films") as other:
            clients = [stage.client, other]

            def got(number: int) -> str | None:
                client, mine = clients[number % 2], held_to(choice=[f"for-{number:03}"])
                if number % 3:
                    return ask(client, **mine).choices[0].message.content
                return text_of(streamed(client, **mine))

            with ThreadPoolExecutor(8) as pool:
                assert list(pool.map(got, range(32))) == [f"for-{number:03}" for number in range(32)]

    def test_an_instance_that_is_told_to_end_lets_a_stream_come_to_its_end(self, stage: Stage) -> None:
        ending = stage.second()
        with stage.caller("films", max_retries=0) as client:
            stream = streamed(client, **stage.engine.lasting(2.4))
            chunks = [next(stream), next(stream)]
            ending.process.send_signal(signal.SIGTERM)
            wait_until(lambda: _readiness(ending) == 503, SOON_S, "it to say that it is ending")
            with pytest.raises(openai.InternalServerError) as refused:
                ask(client)
            assert (refused.value.status_code, refused.value.code) == (503, "server_shutting_down")
            assert int(refused.value.response.headers["retry-after"]) > 0
            chunks += list(stream)
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert len(text_of(chunks)) > 100
        assert ending.process.wait(SOON_S) == 0, ending.said()
        assert "Traceback" not in ending.said()

    def test_a_stream_that_outlasts_the_drain_budget_ends_with_an_error_event(self, stage: Stage) -> None:
        log = stage.place / "endpoint-impatient.log"
        options = ("--no-auth", "--drain-budget", "1")
        with Instance(stage.settings, log=log, options=options) as ending:
            ending.wait_ready(READY_S)
            with client_of(ending, max_retries=0) as client:
                stream = streamed(client, **stage.engine.lasting(8))
                chunks = [next(stream), next(stream)]
                ending.process.send_signal(signal.SIGTERM)
                with pytest.raises(openai.APIError) as ended:
                    chunks.extend(stream)
            assert ended.value.code == "server_shutting_down", ended.value  # no error of the connection
            assert ending.process.wait(SOON_S) == 0, ending.said()
            assert "Traceback" not in ending.said()
        request_id = id_of(chunks[0])
        stage.seen.cancel(request_id)
        assert stage.seen.result(request_id).status == "cancelled"
        stage.is_idle()

    def test_a_connection_without_a_call_is_closed_after_the_time_that_was_said(self, stage: Stage) -> None:
        log = stage.place / "endpoint-idle.log"
        options = ("--no-auth", "--idle-timeout", "1")
        with Instance(stage.settings, log=log, options=options) as instance:
            instance.wait_ready(READY_S)
            with socket.create_connection((HOST, instance.port), timeout=SOON_S) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: endpoint\r\n\r\n")
                content = b""
                while piece := connection.recv(4096):
                    content += piece
        assert content.endswith(b"\r\n\r\nok\n")
        assert Listening().idle_timeout_s > 60  # what load balancers keep theirs for

    def test_an_instance_that_was_killed_and_is_back_answers_nobody_elses_callers(self, stage: Stage) -> None:
        doomed = stage.second(anew=True)
        with stage.caller("films", max_retries=0) as client, ThreadPoolExecutor(1) as pool:
            first = ask(client, **held_to(choice=["not for you"]))
            lost = pool.submit(ask, client, user="lost", **stage.engine.lasting(1))
            stage.seen.of_user("lost", 1)
            doomed.process.kill()
            doomed.process.wait(SOON_S)
            with pytest.raises(openai.APIConnectionError):
                lost.result(SOON_S)
        back = stage.second()
        assert (back is doomed, back.url == doomed.url) == (False, True)
        with stage.caller("films") as client, ThreadPoolExecutor(1) as pool:
            # The first call of its instance, as `first` was; and while it waits, the answer to `first` comes.
            mine = pool.submit(ask, client, user="mine", **stage.engine.lasting(1))
            (request_id,) = stage.seen.of_user("mine", 1)
            stage.reply_again(id_of(first))
            answer = mine.result(SOON_S)
        assert id_of(answer) == request_id
        assert answer.choices[0].message.content == stage.seen.result(request_id).outputs[0].text
        assert "Traceback" not in back.said()


def _readiness(instance: Instance) -> int:
    with httpx.Client(timeout=SOON_S) as client:
        return client.get(f"{instance.address}/readyz").status_code


def assert_at_once(cancel: Cancel, left: float) -> None:
    """`left`: when its caller went away, seconds since the epoch."""
    assert -0.05 < cancel.time / 1000 - left < AT_ONCE_S
