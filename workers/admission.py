"""Which request goes to the engine next, and when. Pure: no clock, no I/O.

The engine should never starve, and never hoard: what is inside it can no longer be overtaken, and has to end before
its partition can move. So requests wait here, and the engine has as many as it can work on, with a few more for the
step after. Every operation is O(log n) in what waits.

**Room.** In flight are at most `room.sequences + room.queued_ahead` sequences (a request has `n` of them), and at
most `room.kv_tokens` tokens: the prompt's, and for each sequence those that a completion is expected to have. The
latter is the running average of this package's completions, the request's `max_tokens` where that is less. (Counting
`max_tokens` itself would leave most of the cache empty; where an average is too low for a while, the engine preempts.)
Until a prompt is tokenised, its size in bytes tells. A request larger than all the room there is gets in when nothing
else is in flight.

**Reserves.** What is running is not thrown out for an interactive request, so there must be room when it comes.
Backfill holds `backfill_share` of the sequences and tokens at most; backfill and standard together leave a sixteenth
of them to interactive (one sequence at least, where there are four or more): of what may be queued ahead, if that is
enough, so that standard alone can fill a step.
A request that is larger than such a part gets in when nothing else that the part is for is in flight.

**Lanes** share what is admitted 16:4:1, interactive to backfill, in tokens, while they wait for the same room; a lane
that has it to itself takes all. Weighted fair queueing: an admission of t tokens moves its lane's start on by
t / weight, and next is the lane whose request would end first (start + its tokens / weight). An idle lane does not save
up: it starts again where the others have got to, and so does backfill when only its own share held it up. So the head
of a lane of weight w, with t tokens, sees at most t x v / w tokens and two requests admitted from a lane of weight v
before it is its turn.

**When it is a request's turn and there is no room for it**, smaller ones must not slip past it for ever: a lower lane
gets nothing, and a higher one only what leaves the request its place, that is: what the reserves keep from the lower
lane anyway. That way interactive requests still start at once. Where a lane is held up by its own part of the room,
lanes that are not confined to that part go on as if it were not there.

**Tenants** share a lane equally: see `lane_queue`. What a request took beyond its estimate is charged to its tenant and
lane when it is known. What it took less is not paid back: whoever joined in the meantime began level with a count
that was too high, and would stay behind by the difference.

**Keys.** With `order_by_key` one request of a key is in flight at a time, whatever its lane, and a partition's requests
of a key are admitted in the order of their offsets. Others pass those that wait for their key.

**Alone.** A request with `work.alone` goes before all others. From when it may (its key allowing) until it is finished
nothing else is admitted, and it is admitted when nothing is in flight.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from operator import itemgetter

from headrace.consumers.records import TopicPartition
from headrace.schemas.messages import LANES, Lane, Sampling
from headrace.workers.key_order import KeyLine, Waiting
from headrace.workers.lane_queue import LaneQueue
from headrace.workers.room import HeldUp, Need, Room, Usage
from headrace.workers.work import Work

__all__ = ["WEIGHTS", "Admission", "Room"]

WEIGHTS: dict[Lane, int] = {"interactive": 16, "standard": 4, "backfill": 1}
_WEIGHTS = tuple(WEIGHTS[lane] for lane in LANES)
_LOWEST = len(LANES) - 1
BYTES_PER_TOKEN = 4  # of a request that is not tokenised yet
FIRST_COMPLETION = 512  # tokens that one is expected to have, before any has ended and without max_tokens
REMEMBERED = 64  # completions that the running average goes over

_Identity = tuple[TopicPartition, int, int]


@dataclass(slots=True, eq=False)
class _InFlight:
    """One that was admitted, and the tokens that it is counted with."""

    waiting: Waiting
    prompt: int
    completion: int  # of all its sequences

    @property
    def need(self) -> Need:
        return Need(self.waiting.sequences, self.prompt + self.completion)


class _UsualLength:
    """The tokens of a completion: a plain average at first, then one in which old ones fade."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seen = 0

    def learn(self, tokens: float) -> None:
        self._seen = min(self._seen + 1, REMEMBERED)
        self._tokens += (tokens - self._tokens) / self._seen

    def expected(self, max_tokens: int | None) -> int:
        if self._seen == 0:
            return FIRST_COMPLETION if max_tokens is None else max_tokens
        usual = max(1, math.ceil(self._tokens))
        return usual if max_tokens is None else min(usual, max_tokens)


class Admission:
    """Holds what waits and counts what runs.

    `defaults` is the package's sampling, for `n` and `max_tokens` where a request has none. `max_model_len` (tokens)
    bounds what one sequence can take. Raises ValueError for a room or share that admits nothing.
    """

    def __init__(
        self,
        room: Room,
        *,
        backfill_share: float = 0.75,
        order_by_key: bool = False,
        defaults: Sampling | None = None,
        max_model_len: int | None = None,
    ) -> None:
        self._usage = Usage(room, backfill_share)
        self._order_by_key = order_by_key
        self._defaults = defaults or Sampling()
        self._max_model_len = max_model_len
        self._usual = _UsualLength()
        self._waiting: dict[_Identity, Waiting] = {}
        # By lane, in the order of LANES.
        self._in_lane = [0] * len(LANES)
        self._queues = [LaneQueue() for _ in LANES]
        self._starts = [0.0] * len(LANES)
        self._start = 0.0  # the highest of a lane when it was served: where an idle lane begins again
        self._alone: list[tuple[int, Waiting]] = []
        self._lines: dict[bytes, KeyLine] = {}
        self._deadlines: list[tuple[int, int, Waiting]] = []
        self._arrivals = count()
        self._stale = 0  # entries in queues and lines of what is gone
        self._running: dict[_Identity, _InFlight] = {}
        self._alone_runs = False

    @property
    def in_flight(self) -> int:
        """Requests admitted and not finished."""
        return len(self._running)

    @property
    def in_flight_tokens(self) -> int:
        """Tokens that they are counted with."""
        return self._usage.tokens

    def waiting(self, lane: Lane) -> int:
        """Requests of a lane that wait, those behind another of their key included."""
        return self._in_lane[LANES.index(lane)]

    # --- in and out of the queues ---

    def offer(self, work: Work) -> None:
        """Queue one request behind those of its tenant in its lane."""
        assert _identity(work) not in self._waiting, f"{work.source} offset {work.offset} waits already"
        waiting = self._estimated(work)
        self._waiting[_identity(work)] = waiting
        self._in_lane[waiting.lane] += 1
        if work.request is not None and work.request.deadline is not None:
            self._note_deadline(work.request.deadline, waiting)
        if self._order_by_key and work.key is not None:
            line = self._lines.get(work.key)
            if line is None:
                line = self._lines[work.key] = KeyLine(work.key)
            waiting.line = line
            line.add(waiting)
        self._queue(waiting)

    def take_back(self, which: Callable[[Work], bool]) -> list[Work]:
        """Take requests out of the queues again; in order of offset within a partition. What is in flight stays."""
        taken = [waiting for waiting in self._waiting.values() if which(waiting.work)]
        for waiting in taken:
            self._leave(waiting)
        if taken:
            self._sweep()
        return sorted((waiting.work for waiting in taken), key=lambda work: (work.source, work.offset))

    def expired(self, now_ms: int) -> list[Work]:
        """Take out what waits and whose deadline (ms since the epoch) has come; the earliest first."""
        found: list[Work] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, _, waiting = heapq.heappop(self._deadlines)
            if not waiting.gone:
                self._leave(waiting)
                found.append(waiting.work)
        if self._stale > len(self._waiting) + REMEMBERED:
            self._sweep()
        return found

    # --- to the engine and back ---

    def admit(self) -> Work | None:
        """The next request to run, or None: nothing waits that there is room for. It counts as in flight from now."""
        if self._alone_runs:
            return None
        if (alone := self._next_alone()) is not None:
            if self._running:
                return None
            heapq.heappop(self._alone)
            self._alone_runs = True
            return self._run(alone)
        if self._usage.full:
            return None
        held_up: list[HeldUp] = []
        for lane, head, need in self._in_turn():
            short_of = self._usage.short_of(lane, need)
            if short_of is not None:
                held_up.append(HeldUp(lane, need, short_of))
            elif all(self._usage.may_pass(lane, need, each) for each in held_up):
                self._charge_lane(lane, need.tokens, held_up)
                self._queues[lane].pop(need.tokens)
                return self._run(head)
        return None

    def measured(self, work: Work, prompt_tokens: int) -> None:
        """A request in flight was tokenised: its prompt's tokens take the place of the estimate."""
        running = self._running[_identity(work)]
        self._usage.remove(running.waiting.lane, running.need)
        more = prompt_tokens - running.prompt
        running.prompt = prompt_tokens
        self._usage.add(running.waiting.lane, running.need)
        self._charge_more(running.waiting, more)

    def finished(self, work: Work, completion_tokens: int | None = None) -> None:
        """A request no longer runs. `completion_tokens`: of all its sequences; None: it did not generate."""
        running = self._running.pop(_identity(work))
        waiting = running.waiting
        self._usage.remove(waiting.lane, running.need)
        self._alone_runs = False
        if completion_tokens is not None:
            self._usual.learn(completion_tokens / waiting.sequences)
            self._charge_more(waiting, completion_tokens - running.completion)
        if waiting.line is not None:
            waiting.line.in_flight = False
            self._move_up(waiting.line)

    # --- within ---

    def _queue(self, waiting: Waiting) -> None:
        """Put one into its lane's queue, or among those that run alone, unless its key holds it up."""
        if waiting.queued or not waiting.ready:
            return
        if waiting.work.alone:
            waiting.queued = True
            heapq.heappush(self._alone, (waiting.arrival, waiting))
            return
        lane = waiting.lane
        queue = self._queues[lane]
        if queue.peek() is None:
            self._starts[lane] = max(self._starts[lane], self._start)
        queue.push(waiting)

    def _next_alone(self) -> Waiting | None:
        while self._alone:
            waiting = self._alone[0][1]
            if waiting.ready:
                return waiting
            heapq.heappop(self._alone)
            waiting.queued = False
        return None

    def _in_turn(self) -> list[tuple[int, Waiting, Need]]:
        """The heads of the lanes, in the order of their turns; of two at once the higher lane's first."""
        turns: list[tuple[float, int, Waiting, Need]] = []
        for lane, queue in enumerate(self._queues):
            head = queue.peek()
            if head is not None:
                need = Need(head.sequences, head.prompt + self._completion(head))
                turns.append((self._starts[lane] + need.tokens / _WEIGHTS[lane], lane, head, need))
        turns.sort(key=itemgetter(0, 1))
        return [turn[1:] for turn in turns]

    def _charge_lane(self, lane: int, tokens: int, held_up: list[HeldUp]) -> None:
        self._start = max(self._start, self._starts[lane])
        self._starts[lane] += tokens / _WEIGHTS[lane]
        for other in held_up:
            if other.short_of == _LOWEST:
                # Its own requests alone hold it up: it could not have had this room, and earns nothing by it. (A lane
                # whose part others fill too keeps its turn, or those others could take every place that falls free.)
                self._starts[other.lane] = max(self._starts[other.lane], self._start)

    def _charge_more(self, waiting: Waiting, tokens: int) -> None:
        if tokens > 0 and not waiting.work.alone:
            self._starts[waiting.lane] += tokens / _WEIGHTS[waiting.lane]
            self._queues[waiting.lane].charge(waiting.tenant, tokens)

    def _run(self, waiting: Waiting) -> Work:
        running = _InFlight(waiting, waiting.prompt, self._completion(waiting))
        self._out_of_waiting(waiting)
        self._running[_identity(waiting.work)] = running
        self._usage.add(waiting.lane, running.need)
        if waiting.line is not None:
            waiting.line.in_flight = True
            self._move_up(waiting.line)  # what runs alone and is now the first of its key keeps others out
        return waiting.work

    def _leave(self, waiting: Waiting) -> None:
        """One leaves the queues without having run: the next of its key may move up."""
        self._out_of_waiting(waiting)
        self._stale += 1
        if waiting.line is not None:
            self._move_up(waiting.line)

    def _out_of_waiting(self, waiting: Waiting) -> None:
        waiting.gone = True
        del self._waiting[_identity(waiting.work)]
        self._in_lane[waiting.lane] -= 1

    def _move_up(self, line: KeyLine) -> None:
        heads = line.heads()
        for head in heads:
            self._queue(head)
        if not heads and not line.in_flight:
            del self._lines[line.key]

    def _note_deadline(self, deadline_ms: int, waiting: Waiting) -> None:
        heapq.heappush(self._deadlines, (deadline_ms, waiting.arrival, waiting))
        if len(self._deadlines) > 2 * len(self._waiting) + REMEMBERED:
            # Most belong to requests that have run in time; without this they would be kept until their deadlines.
            self._deadlines = [entry for entry in self._deadlines if not entry[2].gone]
            heapq.heapify(self._deadlines)

    def _sweep(self) -> None:
        for queue in self._queues:
            queue.sweep()
        for line in self._lines.values():
            line.sweep()
        self._stale = 0

    def _estimated(self, work: Work) -> Waiting:
        request = work.request
        asked = (request and request.sampling) or self._defaults
        prompt = max(1, len(work.value or b"") // BYTES_PER_TOKEN)
        if self._max_model_len is not None:  # a longer one is refused
            prompt = min(prompt, self._max_model_len)
        return Waiting(
            work,
            lane=LANES.index(work.lane),
            tenant=request and request.tenant,
            arrival=next(self._arrivals),
            sequences=asked.n or self._defaults.n or 1,
            prompt=prompt,
            max_tokens=asked.max_tokens or self._defaults.max_tokens,
        )

    def _completion(self, waiting: Waiting) -> int:
        """The tokens that all its completions together are expected to have."""
        each = self._usual.expected(waiting.max_tokens)
        if self._max_model_len is not None:
            each = min(each, self._max_model_len - waiting.prompt)
        return waiting.sequences * each


def _identity(work: Work) -> _Identity:
    return (work.source, work.offset, work.epoch)
