"""The consumer thread: it alone owns the consumer and the ledger.

It meets the loop and the commit thread in queues and snapshots: a commit is handed what it is to publish, the offsets
with their metadata and one group metadata; meanwhile the consumer thread polls on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import replace

from headrace.consumers.records import AnsweredId, GroupMetadata, Poll, Record, TopicPartition
from headrace.producers.kafka import CommitBatch
from headrace.schemas import metrics
from headrace.schemas.codec import Codec
from headrace.schemas.errors import (
    MessageError,
    PoisonRequest,
    RegistryFailed,
    TopicNotAllowed,
)
from headrace.topics.names import ContractNames
from headrace.workers.answers import Answers, Served, detail
from headrace.workers.committing import CommitThread, Outcome, Transactions
from headrace.workers.dispatch import Dispatch
from headrace.workers.intake import work_of
from headrace.workers.ledger import Ledger
from headrace.workers.moving import Loop, Moves
from headrace.workers.openings import Openings, RequestSource
from headrace.workers.partitions import MAX_POLL_RECORDS, Partitions
from headrace.workers.refusals import Refusals
from headrace.workers.replying import ReplySender
from headrace.workers.shadow import Shadow
from headrace.workers.trials import Place, is_convicted
from headrace.workers.work import Completion, EngineDied, HandedBack, WindowRead, Work

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.05  # a poll returns earlier when records come or `wake_up()` is called
LONGEST_POLL_S = 0.5  # with nothing in hand
POSITION_INTERVAL_S = (
    1.0  # bare positions (past transaction markers) are committed this often, so that lag reaches 0
)
STALE_RETRY_S = 1.0  # before a membership whose commit was refused is tried again
LAST_COMMITS_S = 30.0  # for what is pending at the end; then it is left to its next owner


class Pump:
    """Moves records in and results out. `run` is the consumer thread's body, `commits.run` the commit thread's."""

    def __init__(
        self,
        *,
        source: RequestSource,
        transactions: Transactions,
        ledger: Ledger,
        codec: Codec,
        names: ContractNames,
        answers: Answers,
        replies: ReplySender,
        openings: Openings,
        loop: Loop,
        max_outstanding: int,
        drain_budget_s: float = 60.0,
        order_by_key: bool = False,
        shadow: Shadow | None = None,
    ) -> None:
        self._shadow = shadow
        self._source = source
        self._drain_budget_s = drain_budget_s
        self._ledger = ledger
        self._codec = codec
        self._names = names
        self._answers = answers
        self._replies = replies
        self._openings = openings
        self._loop = loop
        self._dispatch = Dispatch(
            model=names.model, ledger=ledger, deliver=loop.deliver, order_by_key=order_by_key
        )
        self._partitions = Partitions(
            source=source,
            ledger=ledger,
            names=names,
            openings=openings,
            gone=self._gone,
            max_outstanding=max_outstanding,
        )
        self._moves = Moves(
            model=names.model,
            source=source,
            ledger=ledger,
            partitions=self._partitions,
            dispatch=self._dispatch,
            loop=loop,
            budget_s=drain_budget_s,
        )
        self._inbox: queue.SimpleQueue[Completion | Outcome | HandedBack | WindowRead | EngineDied] = (
            queue.SimpleQueue()
        )
        self.commits = CommitThread(
            transactions=transactions, replies=replies, names=names, tell_outcome=self._commit_ended
        )
        self._refused: GroupMetadata | None = None  # the membership that a commit was refused for
        self._try_again_at = 0.0
        self._refusals = Refusals(ledger=ledger, answers=answers, names=names)
        self._next_look = 0.0
        self._positions_looked_at = False
        self._intake = True
        self._leave = threading.Event()
        self._leaving = False
        self._finish = threading.Event()
        self._give_up_at = 0.0
        self._leave_group = True
        self.joined = False  # a member of the group; read by the readiness page

    def _gone(self, sources: frozenset[TopicPartition]) -> None:
        for source in sources:
            self._dispatch.forget(source)
        self._moves.gone({source.partition for source in sources})
        self._loop.drop(sources)

    # --- from other threads ---

    def complete(self, completion: Completion) -> None:
        """Hand in what is to be published."""
        self._inbox.put(completion)
        if completion.urgent:
            self._source.wake_up()

    def _commit_ended(self, outcome: Outcome) -> None:
        self._inbox.put(outcome)
        self._source.wake_up()

    def handed_back(self, units: frozenset[int], works: list[Work]) -> None:
        """The loop has given back what it had of these units, as it was told."""
        self._tell(HandedBack(units, works))

    def window_read(self, unit: int, ids: list[AnsweredId]) -> None:
        """The ids of a unit's latest results have been read."""
        self._tell(WindowRead(unit, ids))

    def engine_died(self, in_flight: frozenset[Place], cause: str) -> None:
        """The engine died: what was in it is suspect, and nothing more is begun."""
        self._intake = False
        self._tell(EngineDied(in_flight, cause))

    def _tell(self, message: HandedBack | WindowRead | EngineDied) -> None:
        self._inbox.put(message)
        self._source.wake_up()

    def leave(self) -> None:
        """Drain everything, give it away as it is drained, then leave the group and let `run` return."""
        self._leave.set()
        self._source.wake_up()

    def finish(self, *, leave_group: bool) -> None:
        """Commit what is pending, then end both threads. `leave_group` False: a restart in the same slot follows."""
        self._leave_group = leave_group
        self._give_up_at = time.monotonic() + LAST_COMMITS_S
        self._intake = False
        self._finish.set()
        self._source.wake_up()

    # --- the consumer thread ---

    def run(self) -> None:
        """Follow what is to move, start what is new, hand a batch on, hold back what is full, poll, take what came.

        What is new comes before the batch: while one is under way nothing can be started, and under load there is
        always a next one.
        """
        leave = False
        try:
            while not self._finished():
                self.turn()
            leave = self._leave_group
        finally:
            self.commits.stop()
            self._source.close(leave_group=leave)

    def turn(self) -> None:
        """One turn of `run`."""
        if self._leave.is_set() and not self._leaving:
            self._leaving = True
            self._intake = False
            self._give_up_at = time.monotonic() + self._drain_budget_s + LAST_COMMITS_S
            self._moves.leave()
        if not self._finish.is_set():
            self._moves.follow()
        if self._intake:
            self._partitions.open_next()
            self._dispatch.begin_trial()
        self._hand_over_batch()
        self._partitions.adjust_pauses(intake=self._intake)
        poll = self._source.poll(self._poll_timeout(), MAX_POLL_RECORDS)
        self._partitions.apply_moves(poll)
        self._take_records(poll)
        self._take_inbox()
        self._dispatch.deliver()
        self._dispatch.show()

    def _finished(self) -> bool:
        if not self._finish.is_set():
            if self._leaving and time.monotonic() > self._give_up_at:
                log.warning("not everything could be given away in time; the next owners find what is left")
                return True
            return self._moves.has_left
        self._take_inbox()
        if self.commits.ended or (self._ledger.pending == 0 and not self._ledger.is_owed):
            return True
        if self._ledger.in_transaction or time.monotonic() < self._give_up_at:
            return False
        log.warning(
            "%d results could not be committed; their next owner does them anew", self._ledger.pending
        )
        return True

    def _take_inbox(self) -> None:
        while True:
            try:
                received = self._inbox.get_nowait()
            except queue.Empty:
                return
            match received:
                case Completion():
                    self._take_completion(received)
                case Outcome():
                    self._take_outcome(received)
                case HandedBack():
                    self._moves.handed_back(received.units, received.works)
                case WindowRead():
                    self._openings.window_read(received.unit, received.ids)
                case EngineDied():
                    self._take_death(received)

    def _take_death(self, death: EngineDied) -> None:
        metrics.DEATHS.labels(self._names.model, "engine").inc()
        alone = self._dispatch.on_trial_alone()
        if (
            alone is not None
            and (alone.source, alone.offset) in death.in_flight
            and self._ledger.epoch(alone.source) == alone.epoch
        ):
            try:
                self._take_completion(self._convicted(alone, death.cause))
            except RegistryFailed as error:  # it stays what the death makes of it, and its next owner says so
                log.warning(
                    "request %s is poison, and that cannot be written yet: %s", alone.request_id, error
                )
        self._dispatch.stop()
        self._ledger.engine_died(death.in_flight)

    def _convicted(self, work: Work, cause: str) -> Completion:
        error = PoisonRequest(
            "the engine died each time it was given this request, in the end with nothing else in flight"
            f" ({cause})"
        )
        completion = self._answers.completion(work, Served("failed", error=detail(error)))
        metrics.POISON.labels(self._names.model).inc()
        log.error("request %s is poison: %s", work.request_id, error)
        self._dispatch.convicted()
        return completion

    def _take_completion(self, completion: Completion) -> None:
        completion = self._refusals.publishable(completion)
        if self._ledger.complete(completion, time.monotonic()):
            self._partitions.release(completion.source, completion.size)
            self._dispatch.finished(completion.source, completion.offset)
        else:
            metrics.STALE_COMPLETIONS.labels(self._names.model).inc()

    def _take_outcome(self, outcome: Outcome) -> None:
        if outcome.locations is None:
            self._dispatch.batch_not_committed()
            dropped = self._ledger.not_committed(time.monotonic())
            metrics.STALE_COMPLETIONS.labels(self._names.model).inc(len(dropped))
            if outcome.refused is None:
                # The same would be refused again: wait until the group has told us who we are now. Not for ever: a
                # member may come back under the same generation.
                self._refused = outcome.group
                self._try_again_at = time.monotonic() + STALE_RETRY_S
            else:
                self._refusals.replace(outcome.refused, outcome.error)
            return
        batch = self._ledger.under_way
        to_tell = self._ledger.committed(outcome.locations)
        self._openings.committed(batch.points)
        self._dispatch.batch_committed()
        for completion, address, location in to_tell:
            assert completion.result is not None, "only results are waited for"
            self._replies.final(address, completion.result, completion.encoding, 0, location)

    def _hand_over_batch(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + POSITION_INTERVAL_S
            self._look_at_positions()
            self._positions_looked_at = True
        if self._ledger.in_transaction or not self._may_commit(now):
            return
        if not self._positions_looked_at and not self._batch_is_due(now):
            return
        self._positions_looked_at = False
        batch = self._ledger.take()
        self._dispatch.batch_taken()
        if batch is None:
            self._dispatch.batch_committed()  # all that is known is committed already
        else:
            records = [record for completion in batch.completions for record in completion.records]
            self.commits.hand(batch, CommitBatch(records, dict(batch.points), self._source.group_metadata()))

    def _may_commit(self, now: float) -> bool:
        """Whether the group knows us, and has not just refused us as what we are."""
        group = self._source.group_metadata()
        return group.joined and (group != self._refused or now >= self._try_again_at)

    def _batch_is_due(self, now: float) -> bool:
        due = self._ledger.due_in(now)
        return due is not None and (due == 0 or self._finish.is_set())

    def _look_at_positions(self) -> None:
        """Note how far the consumer is, past transaction markers: every record that it returned is tracked by now."""
        for source in self._ledger.partitions:
            position = self._source.position(source)
            if position is not None:
                self._ledger.advanced(source, position)
        self._partitions.show_lag()

    def _poll_timeout(self) -> float:
        now = time.monotonic()
        due = self._ledger.due_in(now)
        if due is None:
            busy = self._partitions.busy or self._moves.draining
            return IDLE_POLL_S if busy else LONGEST_POLL_S
        return min(IDLE_POLL_S, due) if self._may_commit(now) else IDLE_POLL_S

    def _take_records(self, poll: Poll) -> None:
        for source, records in poll.records.items():
            epoch = self._ledger.epoch(source)
            if epoch is not None:
                self._take_partition(source, records, epoch)
        self._dispatch.deliver()
        group = self._source.group_metadata()
        self.joined = group.joined
        metrics.GENERATION.labels(self._names.model).set(group.generation)

    def _take_partition(self, source: TopicPartition, records: list[Record], epoch: int) -> None:
        lane = self._names.lane_of(source.topic)
        for record in records:
            try:
                work = work_of(record, source=source, epoch=epoch, lane=lane, codec=self._codec)
                rejection = self._rejection(work)
            except RegistryFailed as error:
                log.warning("%s-%d waits for the schema registry: %s", source.topic, source.partition, error)
                self._partitions.read_again(source, record.offset)
                break
            if not self._ledger.polled(source, record.offset):
                continue
            self._partitions.hold(source, work.size)
            if self._shadow is not None:
                taken = None if rejection else self._shadow.take(work)
                if taken is None:
                    self._take_completion(self._answers.passed_over(work))
                    continue
                work = taken
            answered = rejection or self._answer_to_duplicate(work)
            if answered is None and is_convicted(self._ledger.suspicion(source, record.offset)):
                answered = self._convicted(work, "its workers vanished without a word")
            if answered is None:
                self._dispatch.offer(work)
            else:
                self._take_completion(answered)

    def _rejection(self, work: Work) -> Completion | None:
        """The completion of what cannot be served."""
        error: MessageError | None = work.error
        try:
            self._answers.check_reply_topic(work)
        except TopicNotAllowed as not_allowed:
            # Nothing is written there, whatever else is wrong with the message.
            error, work = error or not_allowed, replace(work, reply_to=None)
        try:
            self._answers.check_result_topic(work)
        except TopicNotAllowed as not_allowed:
            error = error or not_allowed
        return None if error is None else self._answers.rejection(work, error)

    def _answer_to_duplicate(self, work: Work) -> Completion | None:
        """The completion of what was asked for before."""
        assert work.request is not None, "what has no error is decoded"
        seen = self._ledger.ask(work.source, work.request.id, work.offset, work.reply_to, work.replay)
        if seen is None:
            return None
        metrics.DUPLICATES.labels(self._names.model).inc()
        if seen.answered and work.reply_to is not None:
            self._replies.duplicate(work.reply_to, work.request.id, work.encoding, seen.location)
        return self._answers.duplicate(work)
