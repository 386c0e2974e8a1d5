"""Random histories of admission, held against a model that knows what waits, what runs, and what each takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.consumers.records import TopicPartition
from headrace.schemas.codec import Encoding
from headrace.schemas.messages import LANES, Lane, Request, Sampling
from headrace.workers.admission import Admission, Room
from headrace.workers.work import Work


def a_work(
    lane: Lane,
    offset: int,
    *,
    partition: int = 0,
    key: str | None = None,
    prompt: int = 1,
    max_tokens: int | None = 1,
    n: int | None = None,
    tenant: str | None = None,
    deadline: int | None = None,
    alone: bool = False,
) -> Work:
    """A request whose prompt is estimated at `prompt` tokens."""
    # Not validated: a history makes tens of thousands of them.
    sampling = Sampling.model_construct(max_tokens=max_tokens, n=n)
    request = Request.model_construct(
        id=f"{lane}-{offset}", prompt="p", tenant=tenant, deadline=deadline, sampling=sampling
    )
    return Work(
        source=TopicPartition(f"t.{lane}", partition),
        offset=offset,
        epoch=1,
        lane=lane,
        appended_ms=0,
        key=None if key is None else key.encode(),
        value=b"xxxx" * prompt,
        headers=(),
        encoding=Encoding.JSON,
        request=request,
        request_id=request.id,
        alone=alone,
    )


@dataclass(frozen=True)
class Limits:
    """Sequences and tokens of the three parts of the room, worked out anew."""

    sequences: tuple[int, int, int]
    tokens: tuple[float, float, float]

    @classmethod
    def of(cls, room: Room, share: float) -> Limits:
        whole = room.sequences + room.queued_ahead
        lower = whole - max(1, room.sequences // 16) if room.sequences >= 4 else whole
        backfill = lower if share == 1 else min(lower, max(1, math.floor(room.sequences * share)))
        if room.kv_tokens is None:
            return cls((whole, lower, backfill), (math.inf,) * 3)
        tokens = room.kv_tokens
        lower_tokens = max(1, tokens - tokens // 16)
        return cls(
            (whole, lower, backfill),
            (tokens, lower_tokens, min(lower_tokens, max(1, math.floor(tokens * share)))),
        )


ROOMS = st.builds(
    Room,
    sequences=st.integers(1, 20),
    kv_tokens=st.none() | st.integers(20, 200),
    queued_ahead=st.integers(0, 3),
)
KEYS = st.none() | st.sampled_from("abc")


class History(RuleBasedStateMachine):
    """What waits is by (source, offset); what runs also has the tokens of its prompt and completions."""

    @initialize(room=ROOMS, share=st.sampled_from([0.2, 0.5, 0.75, 1.0]), by_key=st.booleans())
    def begin(self, room: Room, share: float, by_key: bool) -> None:
        self.admission = Admission(room, backfill_share=share, order_by_key=by_key)
        self.limits = Limits.of(room, share)
        self.by_key = by_key
        self.waits: list[Work] = []
        self.runs: list[tuple[Work, int, int]] = []
        self.taken: list[Work] = []
        self.next_offset = 0
        self.now = 0
        self.usual, self.seen = 0.0, 0

    # --- what happens ---

    @rule(
        lane=st.sampled_from(LANES),
        partition=st.integers(0, 1),
        key=KEYS,
        prompt=st.integers(1, 60),
        max_tokens=st.integers(1, 40),
        n=st.sampled_from([None, None, 1, 3]),
        tenant=st.none() | st.sampled_from("xyz"),
        deadline=st.none() | st.integers(0, 30),
        alone=st.sampled_from([False] * 9 + [True]),
    )
    def offer(self, lane: Lane, **fields: Any) -> None:
        if fields["deadline"] is not None:
            fields["deadline"] += self.now
        self._offer(a_work(lane, self.next_offset, **fields))
        self.next_offset += 1

    @rule(lane=st.sampled_from(LANES), prompt=st.integers(1, 4), number=st.integers(2, 12), key=KEYS)
    def offer_many(self, lane: Lane, prompt: int, number: int, key: str | None) -> None:
        for _ in range(number):
            self._offer(a_work(lane, self.next_offset, prompt=prompt, key=key))
            self.next_offset += 1

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def offer_again(self, data: st.DataObject) -> None:
        work = data.draw(st.sampled_from(self.taken))
        self.taken.remove(work)
        self._offer(work)

    def _offer(self, work: Work) -> None:
        self.admission.offer(work)
        self.waits.append(work)

    @rule()
    def admit(self) -> None:
        self._admit()

    @rule()
    def admit_all(self) -> None:
        while self._admit():
            pass

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), prompt=st.integers(1, 80))
    def measure(self, data: st.DataObject, prompt: int) -> None:
        at = data.draw(st.integers(0, len(self.runs) - 1))
        work, _, completion = self.runs[at]
        self.admission.measured(work, prompt)
        self.runs[at] = (work, prompt, completion)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), tokens=st.none() | st.integers(0, 60))
    def finish(self, data: st.DataObject, tokens: int | None) -> None:
        work, _, _ = self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1)))
        self.admission.finished(work, tokens)
        if tokens is not None:
            self.seen = min(self.seen + 1, 64)
            self.usual += (tokens / sequences(work) - self.usual) / self.seen

    @rule(lane=st.sampled_from(LANES), partition=st.integers(0, 1))
    def take_back_a_partition(self, lane: Lane, partition: int) -> None:
        self._take_back(TopicPartition(f"t.{lane}", partition), every=1)

    @rule(lane=st.sampled_from(LANES))
    def take_back_some(self, lane: Lane) -> None:
        self._take_back(TopicPartition(f"t.{lane}", 0), every=3)

    def _take_back(self, source: TopicPartition, every: int) -> None:
        def which(work: Work) -> bool:
            return work.source == source and work.offset % every == 0

        expected = sorted(filter(which, self.waits), key=lambda work: work.offset)
        assert self.admission.take_back(which) == expected
        self.waits = [work for work in self.waits if not which(work)]
        self.taken += expected

    @rule(passed=st.integers(0, 10))
    def expire(self, passed: int) -> None:
        self.now += passed
        expected = [work for work in self.waits if deadline(work) <= self.now]
        found = self.admission.expired(self.now)
        assert sorted(found, key=place) == sorted(expected, key=place)
        assert [deadline(work) for work in found] == sorted(map(deadline, expected))
        self.waits = [work for work in self.waits if deadline(work) > self.now]

    # --- what must hold ---

    def _admit(self) -> bool:
        work = self.admission.admit()
        if work is None:
            self._nothing_was_due()
            return False
        assert work in self.waits
        assert self._key_lets_go(work), "another of its key comes first"
        alone = self._due_alone()
        assert not any(each.alone for each, _, _ in self.runs), "something runs alone"
        assert work in alone or not alone, "something waits to run alone"
        assert not (work.alone and self.runs)
        self.waits.remove(work)
        self.runs.append((work, *self._needs(work)))
        if not work.alone:
            self._limits_hold(LANES.index(work.lane))
        return True

    def _limits_hold(self, lane: int) -> None:
        for part in range(lane + 1):
            within = self._in_part(part)
            assert len(within) == 1 or self._fits(part, 0, 0), f"too much in part {part}"

    def _nothing_was_due(self) -> None:
        if not self.runs:
            assert not self.waits, "nothing runs, and nothing is admitted"
        if any(work.alone for work, _, _ in self.runs) or self._due_alone():
            return
        candidates = [work for work in self.waits if self._key_lets_go(work) and not work.alone]
        assert not candidates or not all(map(self._has_room, candidates)), "all have room"
        interactive = [work for work in candidates if work.lane == "interactive"]
        assert not interactive or not all(map(self._has_reserve, interactive)), "the reserve is not given"

    def _has_room(self, work: Work) -> bool:
        need = sequences(work), sum(self._needs(work))
        return all(
            not self._in_part(part) or self._fits(part, *need) for part in range(LANES.index(work.lane) + 1)
        )

    def _has_reserve(self, work: Work) -> bool:
        """Whether it fits into what the lower lanes must leave, next to the interactive ones that run.

        Unless a lower one waits that is larger than the lower lanes' part: the whole engine empties for it.
        """
        lower = [each for each in self.waits if each.lane != "interactive"]
        largest = max((sum(self._needs(each)) for each in lower), default=0)
        most = max(map(sequences, lower), default=0)
        limits = self.limits
        if largest > limits.tokens[2] or most > limits.sequences[2]:
            return False
        own = [run for run in self.runs if run[0].lane == "interactive"]
        used = sum(sequences(each) for each, _, _ in own) + sequences(work)
        tokens = sum(prompt + completion for _, prompt, completion in own) + sum(self._needs(work))
        return (
            self._has_room(work)
            and used <= limits.sequences[0] - limits.sequences[1]
            and (math.isinf(limits.tokens[0]) or tokens <= limits.tokens[0] - limits.tokens[1])
        )

    def _fits(self, part: int, more_sequences: int, more_tokens: int) -> bool:
        within = self._in_part(part)
        used = sum(sequences(work) for work, _, _ in within) + more_sequences
        tokens = sum(prompt + completion for _, prompt, completion in within) + more_tokens
        return used <= self.limits.sequences[part] and tokens <= self.limits.tokens[part]

    def _in_part(self, part: int) -> list[tuple[Work, int, int]]:
        return [run for run in self.runs if LANES.index(run[0].lane) >= part]

    def _needs(self, work: Work) -> tuple[int, int]:
        most = work.request.sampling.max_tokens  # pyright: ignore[reportOptionalMemberAccess]
        usual = most if self.seen == 0 else min(most, max(1, math.ceil(self.usual)))
        return len(work.value or b"") // 4, usual * sequences(work)

    def _due_alone(self) -> list[Work]:
        return [work for work in self.waits if work.alone and not self._behind(work)]

    def _key_lets_go(self, work: Work) -> bool:
        if not self.by_key or work.key is None:
            return True
        return not self._behind(work) and all(run.key != work.key for run, _, _ in self.runs)

    def _behind(self, work: Work) -> bool:
        """Whether a lower offset of its key waits in its partition."""
        return (
            self.by_key
            and work.key is not None
            and any(
                other.key == work.key and other.source == work.source and other.offset < work.offset
                for other in self.waits
            )
        )

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "admission"):
            return
        assert self.admission.in_flight == len(self.runs)
        assert self.admission.in_flight_tokens == sum(
            prompt + completion for _, prompt, completion in self.runs
        )
        for lane in LANES:
            assert self.admission.waiting(lane) == sum(work.lane == lane for work in self.waits)

    def teardown(self) -> None:
        """Whatever has happened: everything that waits runs in the end, and nothing is left behind."""
        if not hasattr(self, "admission"):
            return
        while self.waits:
            while self._admit():
                pass
            assert self.runs
            work, _, _ = self.runs.pop(0)
            self.admission.finished(work)
        for work, _, _ in self.runs:
            self.admission.finished(work)
        assert self.admission.admit() is None
        assert (self.admission.in_flight, self.admission.in_flight_tokens) == (0, 0)
        assert not self.admission._lines
        for queue in self.admission._queues:
            assert all(not account.waiting for account in queue._accounts.values())


def sequences(work: Work) -> int:
    assert work.request is not None
    assert work.request.sampling is not None
    return work.request.sampling.n or 1


def deadline(work: Work) -> float:
    assert work.request is not None
    return math.inf if work.request.deadline is None else work.request.deadline


def place(work: Work) -> tuple[TopicPartition, int]:
    return work.source, work.offset
