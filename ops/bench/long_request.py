"""One long request at the head of a partition, and many short ones behind it: `headrace bench long-request`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.consumers.group import read_committed_offsets
from headrace.consumers.records import TopicPartition
from headrace.ops.bench.background import Background
from headrace.ops.bench.ground import BenchFailed, Ground, page_of, rss_bytes, wait_until
from headrace.ops.bench.recording import Answered, AnswerLog, RequestSender, short_request
from headrace.schemas.errors import KafkaUnavailable
from headrace.schemas.messages import OutputConstraint, Request
from headrace.workers.simulated_engine import SimulatedProfile
from headrace.workers.simulated_text import TOKEN_BYTES

if TYPE_CHECKING:
    from headrace.ops.bench.ground import Say
    from headrace.ops.faults.fleet import Page
    from headrace.ops.worker_process import WorkerProcess

SLOT = "worker-1"
UNIT = 0
LONG, LONG_AT_KILL = "long", "long-at-kill"
LONG_TOKENS = 8_000  # nearly all that the simulated engine's context holds
SHORT_TOKENS = 8
KILL_PART = 4  # at the kill the long request is a quarter as long, and the short ones behind it are a quarter
READY_WITHIN_S = 60.0
STOPPED_WITHIN_S = 90.0
SILENCE_S = 300.0  # without any result: something is wrong; at the end only the long one is left
SHOWN_EVERY_S = 5.0
METADATA_EVERY_S = 1.0
METADATA_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What became of the short ones, of memory and of metadata while the long one ran."""

    requests: int  # short ones
    long_took_s: float
    answered_meanwhile: int  # short ones, when the long one's result was read
    all_answered_after_s: float  # the last short one's result, from when the first was sent
    rss_at_tenth: float  # bytes, when a tenth of the short ones was answered
    rss_at_end: float  # when all were
    longest_metadata: int  # characters, of those commits of the partition that were looked at

    @property
    def growth(self) -> float:
        """RSS at the end over RSS at a tenth."""
        return self.rss_at_end / self.rss_at_tenth


@dataclass(frozen=True, slots=True)
class AfterKill:
    """What a kill cost while a long one was in flight at the head of the partition."""

    requests: int  # the long one and the short ones behind it
    answered_before: int  # short ones, committed just before the kill
    in_flight: int  # generations begun and not committed just before the kill
    regenerated: int  # generations begun beyond one for each request
    lost: int
    duplicated: int


@dataclass(frozen=True, slots=True)
class LongFigures:
    """Both parts."""

    meanwhile: Meanwhile
    kill: AfterKill


def others_before(answered: Sequence[Answered], long_id: str) -> int:
    """How many other results were read before that of the long request. Raises BenchFailed where it has none."""
    for number, each in enumerate(answered):
        if each.id == long_id:
            return number
    raise BenchFailed(f"there is no result of {long_id}")


def lost_and_duplicated(answered: Sequence[Answered], ids: Sequence[str]) -> tuple[int, int]:
    """Of these requests: how many have no result, and how many results are beyond one."""
    found = Counter(each.id for each in answered)
    return sum(not found[each] for each in ids), sum(max(0, found[each] - 1) for each in ids)


def regenerated(before: Page, after: Page, requests: int) -> int:
    """Generations beyond one for each request, of a worker's life that was killed and of the one after it."""
    return before.begun + after.begun - requests


class MetadataWatch(Background):
    """The longest metadata of one partition's commits, looked at now and then in a thread of its own."""

    def __init__(self, ground: Ground, tp: TopicPartition) -> None:
        super().__init__("metadata")
        self._settings, self._group, self._tp = ground.settings, ground.names.group, tp
        self.longest = 0  # characters

    def run(self) -> None:
        while not self.over.wait(METADATA_EVERY_S):
            try:
                points = read_committed_offsets(self._settings, self._group, [self._tp], METADATA_WITHIN_S)
            except KafkaUnavailable:
                continue  # a transaction over it was open all the time
            point = points[self._tp]
            self.longest = max(self.longest, len(point.metadata) if point else 0)


def run(ground: Ground, *, requests: int, seconds: float, say: Say) -> LongFigures:
    """One worker. `seconds`: how long the long request takes when it runs alone. Raises HeadraceError."""
    alone_s = LONG_TOKENS * SimulatedProfile().decode_seconds_per_token
    environment = {"HEADRACE_SIMULATED_TIME_SCALE": str(seconds / alone_s)}
    with ExitStack() as ends:
        worker = ends.enter_context(ground.worker(SLOT, environment=environment))
        worker.wait_ready(READY_WITHIN_S)
        answers = ends.enter_context(AnswerLog(ground))
        sender = ends.enter_context(RequestSender(ground))
        bench = _Bench(answers, sender, say)
        with MetadataWatch(ground, TopicPartition(ground.names.requests("standard"), UNIT)) as watch:
            meanwhile = bench.outlasting(worker, requests, watch)
        ids, answered_before, before = bench.until_killed(worker, max(2, requests // KILL_PART))
        successor = ends.enter_context(ground.worker(SLOT, environment=environment))
        successor.wait_ready(READY_WITHIN_S)
        say("the next worker in its slot is ready")
        bench.wait_for(sender.sent)
        lost, duplicated = lost_and_duplicated(answers.so_far(), ids)
        after = page_of(successor)
        successor.stop(STOPPED_WITHIN_S)
    kill = AfterKill(
        requests=len(ids),
        answered_before=answered_before,
        in_flight=before.begun - before.answered,
        regenerated=regenerated(before, after, sender.sent),
        lost=lost,
        duplicated=duplicated,
    )
    return LongFigures(meanwhile, kill)


class _Bench:
    def __init__(self, answers: AnswerLog, sender: RequestSender, say: Say) -> None:
        self._answers = answers
        self._sender = sender
        self._say = say

    def outlasting(self, worker: WorkerProcess, requests: int, watch: MetadataWatch) -> Meanwhile:
        """The long one, and the short ones behind it, until all are answered."""
        long_from = self._begin_long(worker, LONG, LONG_TOKENS)
        short_from = time.time()
        self._send_short("s", requests)
        self.wait_for(max(1, requests // 10))
        rss_at_tenth = rss_bytes(worker)
        self._say(f"a tenth is answered: {rss_at_tenth / 1e6:.0f} MB")
        self.wait_for(1 + requests)
        rss_at_end = rss_bytes(worker)
        answered = self._answers.so_far()
        return Meanwhile(
            requests=requests,
            long_took_s=next(each.at for each in answered if each.id == LONG) - long_from,
            answered_meanwhile=others_before(answered, LONG),
            all_answered_after_s=max(each.at for each in answered if each.id != LONG) - short_from,
            rss_at_tenth=rss_at_tenth,
            rss_at_end=rss_at_end,
            longest_metadata=watch.longest,
        )

    def until_killed(self, worker: WorkerProcess, requests: int) -> tuple[list[str], int, Page]:
        """Another long one with fewer behind it; SIGKILL when a third of them are answered.

        The ids, how many short ones were answered, and what the worker's page said just before.
        """
        answered = self._sender.sent  # all was, before
        self._begin_long(worker, LONG_AT_KILL, LONG_TOKENS // KILL_PART)
        names = self._send_short("k", requests)
        deadline = time.monotonic() + SILENCE_S
        # The worker's own page: this kill must hit it amid its work, and readers are a little behind.
        while (page := page_of(worker)).answered < answered + requests // 3:
            if time.monotonic() > deadline:
                raise BenchFailed(f"a third of the short ones was not answered within {SILENCE_S:.0f} s")
        worker.process.kill()
        worker.process.wait()
        if any(each.id == LONG_AT_KILL for each in self._answers.so_far()):
            raise BenchFailed("the long request had ended by the kill: ask for more --seconds")
        short = page.answered - answered
        self._say(f"killed: {short} of {requests} short ones answered, the long one in flight")
        return [LONG_AT_KILL, *names], short, page

    def wait_for(self, count: int) -> None:
        """Until so many results were read; a worker that makes none for a long time has failed."""
        shown = time.monotonic()
        while (read := len(self._answers)) < count:
            more = min(count, read + 1)
            self._answers.wait_for(more, SILENCE_S, f"a result after {read} of {self._sender.sent}")
            if time.monotonic() > shown + SHOWN_EVERY_S:
                shown = time.monotonic()
                self._say(f"{len(self._answers)} of {self._sender.sent} answered")

    def _begin_long(self, worker: WorkerProcess, name: str, tokens: int) -> float:
        """Send it and wait until the engine has it; when that was."""
        begun = page_of(worker).begun
        text = ("a long text " * tokens)[: tokens * TOKEN_BYTES]
        request = Request(id=name, prompt="Tell me all.", output=OutputConstraint(choice=[text]))
        self._sender.send(request, UNIT)
        wait_until(lambda: page_of(worker).begun > begun, READY_WITHIN_S, "the long request is in the engine")
        self._say(f"the long request is in the engine: {tokens} tokens")
        return time.time()

    def _send_short(self, prefix: str, count: int) -> list[str]:
        names = [f"{prefix}{number}" for number in range(count)]
        for name in names:
            self._sender.send(short_request(name, SHORT_TOKENS), UNIT)
        self._sender.flush()
        return names
