"""What every client promises its caller, held against the in-memory twin and the real one on Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import date
from typing import cast

import pytest
from conformance.client_parts import (
    ENOUGH,
    HEAT,
    OVERDUE,
    STORY,
    TAGS,
    ClientCase,
    Fate,
    Gate,
    Genre,
    Tags,
    until,
)

from headrace.producers.client import Client
from headrace.producers.sync_client import SyncClient
from headrace.schemas.errors import (
    Cancelled,
    Expired,
    Failed,
    InvalidField,
    InvalidOutput,
    NoReply,
    OutputDoesNotFit,
    Rejected,
    RequestFailed,
    StreamRestarted,
    Truncated,
    UsageError,
)
from headrace.schemas.messages import ChatMessage, Request, Result, Sampling, Status


class ClientPort(ClientCase):
    """Subclass it as `Test...` with a fixture `fate`."""

    # --- ask ---------------------------------------------------------------------------------------------

    def test_a_model_goes_in_as_variables_and_the_output_comes_back_as_a_model(self, fate: Fate) -> None:
        fate.answer_with(TAGS)

        async def work(client: Client) -> None:
            tags = await client.ask(HEAT, into=Tags, id="film-17", tenant="films", attributes={"run": "7"})
            assert tags == Tags(genre=Genre.DRAMA, seen=date(2024, 1, 31), moods=["tense"])

        self.run(fate, work)
        (request,) = fate.generated
        assert request.variables == {"title": "Heat", "released": "1995-12-15"}
        assert (request.id, request.tenant, request.attributes) == ("film-17", "films", {"run": "7"})

    def test_without_into_the_whole_result_is_returned(self, fate: Fate) -> None:
        fate.answer_with("It is a mill.")

        async def work(client: Client) -> None:
            result = await client.ask("What is it?", id="q", attributes={"page": "3"})
            assert (result.id, result.status, result.outputs[0].text) == ("q", "ok", "It is a mill.")
            assert result.attributes == {"page": "3"}
            assert await client.ask("What is it?", into=str) == "It is a mill."

        self.run(fate, work)
        assert [request.prompt for request in fate.generated] == ["What is it?", "What is it?"]

    def test_a_list_goes_in_as_a_conversation(self, fate: Fate) -> None:
        conversation = [{"role": "system", "content": "Be brief."}, ChatMessage(role="user", content="Hello")]

        async def work(client: Client) -> None:
            await client.ask(conversation, sampling={"max_tokens": 5})

        self.run(fate, work)
        (request,) = fate.generated
        assert request.messages is not None
        assert [message.content for message in request.messages] == ["Be brief.", "Hello"]
        assert request.sampling == Sampling(max_tokens=5)

    def test_the_deadline_lies_a_little_before_the_timeout(self, fate: Fate) -> None:
        async def work(client: Client) -> None:
            before = time.time()
            await client.ask("now", timeout=20)
            after = time.time()
            (request,) = fate.generated
            assert request.deadline is not None
            assert before + 19 <= request.deadline / 1000 + 0.001
            assert request.deadline / 1000 <= after + 19

        self.run(fate, work)

    @pytest.mark.parametrize(
        ("status", "failure"),
        [
            ("rejected", Rejected),
            ("invalid_output", InvalidOutput),
            ("truncated", Truncated),
            ("failed", Failed),
            ("expired", Expired),
            ("cancelled", Cancelled),
        ],
    )
    def test_what_is_not_ok_is_an_exception_with_the_whole_result(
        self, fate: Fate, status: Status, failure: type[RequestFailed]
    ) -> None:
        fate.fail_next(status, "because")

        async def work(client: Client) -> None:
            with pytest.raises(failure, match="because") as raised:
                await client.ask(HEAT, into=Tags, id="film-17")
            assert type(raised.value) is failure
            assert raised.value.result.id == "film-17"
            assert raised.value.result.status == status

        self.run(fate, work)

    def test_an_ok_output_that_does_not_fit_the_type_asked_for_says_where(self, fate: Fate) -> None:
        fate.answer_with({**TAGS, "genre": "opera"})

        async def work(client: Client) -> None:
            with pytest.raises(OutputDoesNotFit) as raised:
                await client.ask(HEAT, into=Tags)
            assert raised.value.path == "/genre"
            assert raised.value.result.status == "ok"

        self.run(fate, work)

    def test_a_request_that_is_wrong_is_refused_before_it_is_sent(self, fate: Fate) -> None:
        async def work(client: Client) -> None:
            with pytest.raises(InvalidField) as raised:
                await client.ask("x", sampling={"max_tokens": 0})
            assert raised.value.path == "/sampling/max_tokens"
            with pytest.raises(InvalidField):
                await client.ask({"score": float("nan")})
            with pytest.raises(UsageError, match="timeout"):
                await client.ask("x", timeout=0)

        self.run(fate, work)
        assert fate.generated == []

    def test_the_output_schema_is_sent_only_when_asked_for(self, fate: Fate) -> None:
        fate.answer_with(TAGS)

        async def work(client: Client) -> None:
            await client.ask(HEAT, into=Tags)
            await client.ask(HEAT, into=Tags, constrain=True)
            with pytest.raises(UsageError, match="into"):
                await client.ask(HEAT, constrain=True)

        self.run(fate, work)
        plain, constrained = fate.generated
        assert plain.output is None
        assert constrained.output is not None
        assert constrained.output.json_schema == Tags.model_json_schema()

    def test_a_reply_lost_in_a_crash_is_found_by_asking_again(self, fate: Fate) -> None:
        fate.answer_with("found")
        fate.lose_next_reply()

        async def work(client: Client) -> None:
            assert await client.ask("x", into=str, id="once", timeout=2 * OVERDUE) == "found"

        self.run(fate, work)
        assert [request.id for request in fate.generated] == ["once"]

    def test_no_reply_in_time_says_that_it_may_still_be_answered(self, fate: Fate) -> None:
        fate.ignore_next()

        async def work(client: Client) -> None:
            with pytest.raises(NoReply, match="results"):
                await client.ask("x", timeout=0.3)
            assert await client.ask("y", into=str) == ""

        self.run(fate, work)

    def test_an_id_asked_for_twice_is_generated_once_and_answered_twice(self, fate: Fate) -> None:
        fate.answer_with("one")

        async def work(client: Client) -> None:
            assert await client.ask("x", into=str, id="same") == "one"
            assert await client.ask("x", into=str, id="same") == "one"

        self.run(fate, work)
        assert [request.id for request in fate.generated] == ["same"]

    def test_an_id_that_is_being_generated_answers_whoever_else_asks_for_it(self, fate: Fate) -> None:
        gate = Gate("one")
        fate.answer_with(gate)

        async def work(client: Client) -> None:
            first = await client.submit("x", into=str, id="same")
            second = await client.submit("x", into=str, id="same")
            assert not first.done()
            gate.open = True
            assert [await first.result(), await second.result()] == ["one", "one"]

        self.run(fate, work)
        assert [request.id for request in fate.generated] == ["same"]

    # --- stream ------------------------------------------------------------------------------------------

    def test_a_stream_yields_pieces_that_make_up_the_text(self, fate: Fate) -> None:
        fate.answer_with(STORY)

        async def work(client: Client) -> None:
            pieces = [piece async for piece in client.stream("Tell me", timeout=ENOUGH)]
            assert "".join(pieces) == STORY
            assert len(pieces) > 5

        self.run(fate, work)
        assert [request.stream for request in fate.generated] == [True]

    def test_a_stream_whose_deltas_are_gone_yields_the_result_found_later(self, fate: Fate) -> None:
        fate.answer_with(STORY)

        async def work(client: Client) -> None:
            await client.ask("Tell me", id="story")
            pieces = [piece async for piece in client.stream("Tell me", id="story")]
            assert pieces == [STORY]

        self.run(fate, work)

    def test_a_stream_that_failed_raises_at_its_end(self, fate: Fate) -> None:
        fate.fail_next("failed", "the engine is gone")

        async def work(client: Client) -> None:
            with pytest.raises(Failed, match="the engine is gone"):
                _ = [piece async for piece in client.stream("Tell me")]

        self.run(fate, work)

    def test_a_stream_whose_worker_is_lost_amid_the_text_ends_with_an_error(self, fate: Fate) -> None:
        fate.answer_with(STORY)
        fate.restart_next_stream()

        async def work(client: Client) -> None:
            pieces: list[str] = []

            async def read() -> None:
                async for piece in client.stream("Tell me"):
                    pieces.append(piece)

            with pytest.raises(StreamRestarted, match="ask again"):
                await read()
            assert pieces == ["Once"]

        self.run(fate, work)

    def test_a_stream_of_several_choices_is_refused(self, fate: Fate) -> None:
        async def work(client: Client) -> None:
            with pytest.raises(UsageError, match="one choice"):
                await anext(client.stream("Tell me", sampling={"n": 2}))

        self.run(fate, work)

    def test_following_a_stream_yields_its_text_and_at_last_the_result(self, fate: Fate) -> None:
        fate.answer_with(STORY)

        async def work(client: Client) -> None:
            request = Request(id="followed", prompt="Tell me.", stream=True)
            *texts, result = [each async for each in client.follow(request, timeout=ENOUGH)]
            assert "".join(cast("list[str]", texts)) == STORY
            assert len(texts) > 1
            assert isinstance(result, Result)
            assert (result.status, result.outputs[0].text) == ("ok", STORY)

        self.run(fate, work)

    def test_following_gives_a_result_that_is_not_ok_as_it_is(self, fate: Fate) -> None:
        fate.fail_next("truncated", "it ran into max_tokens")

        async def work(client: Client) -> None:
            (result,) = [
                each async for each in client.follow(Request(id="cut", prompt="Tell me."), timeout=ENOUGH)
            ]
            assert isinstance(result, Result)
            assert (result.id, result.status) == ("cut", "truncated")

        self.run(fate, work)

    def test_whoever_stops_following_gives_the_request_up_unless_others_may_wait_for_it(
        self, fate: Fate
    ) -> None:
        fate.answer_with(STORY)

        async def leave(client: Client, id_: str, *, ours: bool) -> None:
            fate.ignore_next()
            following = client.follow(Request(id=id_, prompt="x"), timeout=ENOUGH, id_is_ours=ours)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(anext(following), 0.2)
            await following.aclose()

        async def work(client: Client) -> None:
            await leave(client, "shared", ours=False)
            await leave(client, "mine", ours=True)
            await until(lambda: "mine" in fate.cancelled)
            assert "shared" not in fate.cancelled

        self.run(fate, work)

    # --- submit ------------------------------------------------------------------------------------------

    def test_a_submitted_request_is_durable_before_it_is_answered(self, fate: Fate) -> None:
        gate = Gate(TAGS)
        fate.answer_with(gate)

        async def work(client: Client) -> None:
            pending = await client.submit(HEAT, into=Tags, id="film-17", lane="backfill")
            assert pending.id == "film-17"
            assert pending.location.topic.endswith(".requests.backfill")
            assert not pending.done()
            gate.open = True
            assert (await pending.result()).moods == ["tense"]
            assert (await pending.result()).moods == ["tense"]
            assert pending.done()

        self.run(fate, work)
        assert fate.generated[0].deadline is None

    def test_as_completed_yields_in_the_order_of_completion(self, fate: Fate) -> None:
        gate = Gate()

        async def answer(request: Request) -> str:
            return await gate(request) if request.prompt == "slow" else "quick"

        fate.answer_with(answer)

        async def work(client: Client) -> None:
            slow = await client.submit("slow", into=str)
            quick = await client.submit("quick", into=str)
            answers: list[str] = []
            async for done in client.as_completed([slow, quick]):
                answers.append(await done.result())
                gate.open = True
            assert answers == ["quick", "late"]

        self.run(fate, work)

    def test_one_failure_among_many_stops_none_of_the_others(self, fate: Fate) -> None:
        fate.answer_with("fine")
        fate.fail_next("rejected")

        async def work(client: Client) -> None:
            pendings = [await client.submit(f"n{n}", into=str) for n in range(5)]
            outcomes = await asyncio.gather(*(each.result() for each in pendings), return_exceptions=True)
            assert sum(outcome == "fine" for outcome in outcomes) == 4
            assert sum(isinstance(outcome, Rejected) for outcome in outcomes) == 1

        self.run(fate, work)

    def test_a_published_request_is_generated_though_nobody_waits(self, fate: Fate) -> None:
        async def work(client: Client) -> None:
            request_id, location = await client.publish(HEAT, id="film-17", lane="standard")
            assert request_id == "film-17"
            assert location.topic.endswith(".requests.standard")
            await until(lambda: [request.id for request in fate.generated] == ["film-17"])

        self.run(fate, work)

    def test_no_more_than_max_pending_are_sent_before_one_is_answered(self, fate: Fate) -> None:
        gate = Gate()
        fate.answer_with(gate)

        async def work(client: Client) -> None:
            pendings = [await client.submit("a"), await client.submit("b")]
            third = asyncio.ensure_future(client.submit("c"))
            await until(lambda: len(fate.generated) == 2)
            with pytest.raises(NoReply, match="max_pending"):
                await client.ask("d", timeout=0.05)
            assert not third.done()
            gate.open = True
            pendings.append(await third)
            await asyncio.gather(*(pending.result() for pending in pendings))

        self.run(fate, work, max_pending=2)
        assert [request.prompt for request in fate.generated] == ["a", "b", "c"]

    def test_closing_ends_what_waits_and_refuses_what_comes_later(self, fate: Fate) -> None:
        fate.ignore_next()

        async def work() -> None:
            client = fate.client()
            with pytest.raises(UsageError, match="async with"):
                await client.ask("too early")
            async with client:
                pending = await client.submit("x")
            with pytest.raises(NoReply, match="closed"):
                await pending.result()
            with pytest.raises(NoReply, match="closed"):
                await client.ask("too late")
            await client.close()

        asyncio.run(work())

    def test_a_caller_that_gives_up_cancels_the_request_unless_its_id_is_its_own(self, fate: Fate) -> None:
        fate.ignore_next(times=2)

        async def work(client: Client) -> None:
            for options in ({}, {"id": "mine"}):
                asking = asyncio.ensure_future(client.ask("x", **options))
                waiting = len(fate.generated) + 1
                await until(lambda waiting=waiting: len(fate.generated) == waiting)
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
            # Enough of them that each partition has one: what was sent before them has been read by then.
            for request_id in later:
                await client.cancel(request_id)
            await until(lambda: later <= set(fate.cancelled))

        later = {f"later-{n}" for n in range(20)}
        self.run(fate, work)
        assert set(fate.cancelled) - later == {fate.generated[0].id}

    # --- the synchronous twin ------------------------------------------------------------------------------

    def test_the_synchronous_twin_does_the_same(self, fate: Fate) -> None:
        fate.answer_with(lambda request: STORY if request.stream else TAGS)
        with SyncClient(fate.client()) as client:
            assert client.ask(HEAT, into=Tags).genre is Genre.DRAMA
            assert "".join(client.stream("Tell me")) == STORY
            pendings = [client.submit(HEAT, into=Tags, id=f"film-{n}") for n in range(5)]
            done = [(pending.id, pending.result().moods) for pending in client.as_completed(pendings)]
            assert sorted(done) == [(f"film-{n}", ["tense"]) for n in range(5)]
            fate.fail_next("truncated")
            with pytest.raises(Truncated):
                client.ask(HEAT, into=Tags)
            assert client.publish("x", id="p")[0] == "p"
        with pytest.raises(NoReply, match="closed"):
            client.ask("too late")

    def test_a_synchronous_stream_may_be_left_early(self, fate: Fate) -> None:
        fate.answer_with(STORY)
        with SyncClient(fate.client()) as client:
            for piece in client.stream("Tell me"):
                assert piece == "Once"
                break
            assert client.ask("again", into=str) == STORY
