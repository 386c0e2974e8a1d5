"""Tokens on their way to a caller: none waits that need not, and those that come fast leave together."""

from __future__ import annotations

import asyncio

import pytest
from serving_parts import Sent, a_work, until

from headrace.schemas.codec import Codec
from headrace.workers import replying
from headrace.workers.engine import Delta
from headrace.workers.replying import DeltaStream, ReplySender


def texts_of(sent: Sent) -> list[tuple[int, str | None]]:
    return [(each.seq, each.delta) for each in sent.deltas()]


def begin() -> tuple[Sent, ReplySender, DeltaStream]:
    sent = Sent()
    sender = ReplySender(sent, Codec(), model="m")
    work = a_work('{"id": "a", "prompt": "b", "stream": true}', stream=True)
    return sent, sender, DeltaStream(sender, work)


def run_out(sender: ReplySender) -> None:
    sender.stop()
    sender.run()


def test_the_first_token_leaves_at_once_and_what_follows_fast_leaves_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replying, "COALESCE_S", 3600.0)
    sent, sender, stream = begin()

    async def generate() -> None:
        for text in ("mill ", "", "pond ", "weir"):
            stream.add(Delta(0, text))
        run_out(sender)
        assert texts_of(sent) == [(0, "mill ")]
        assert stream.close() == 2
        run_out(sender)

    asyncio.run(generate())
    assert texts_of(sent) == [(0, "mill "), (1, "pond weir")]


def test_what_was_gathered_leaves_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replying, "COALESCE_S", 0.01)
    sent, sender, stream = begin()

    async def generate() -> None:
        stream.add(Delta(0, "mill "))
        stream.add(Delta(0, "pond "))
        stream.add(Delta(0, "weir"))

        def all_left() -> bool:
            run_out(sender)
            return "".join(text or "" for _, text in texts_of(sent)) == "mill pond weir"

        await until(all_left)

    asyncio.run(generate())


def test_tokens_that_come_slowly_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replying, "COALESCE_S", 0.0)
    sent, sender, stream = begin()

    async def generate() -> None:
        for text in ("mill ", "pond ", "weir"):
            stream.add(Delta(0, text))
        run_out(sender)

    asyncio.run(generate())
    assert texts_of(sent) == [(0, "mill "), (1, "pond "), (2, "weir")]


def test_each_choice_has_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replying, "COALESCE_S", 3600.0)
    sent, sender, stream = begin()

    async def generate() -> None:
        for choice, text in ((0, "mill"), (1, "pond"), (0, "stone"), (1, "weed")):
            stream.add(Delta(choice, text))
        stream.close()
        run_out(sender)

    asyncio.run(generate())
    found = {(each.choice, each.delta) for each in sent.deltas()}
    assert found == {(0, "mill"), (0, "stone"), (1, "pondweed")}
