"""The consumer thread: it alone owns the consumer and the ledger.

It meets the loop and the commit thread in queues and snapshots: a commit is handed what it is to publish, the offsets
with their metadata and one group metadata; meanwhile the consumer thread polls on.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from headrace.consumers.records import GroupMetadata, Poll, Record, TopicPartition
from headrace.producers.kafka import CommitBatch
from headrace.schemas import metrics
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError, MessageError, RegistryFailed, TopicMissing, TopicNotAllowed
from headrace.topics.names import ContractNames
from headrace.workers.answers import Answers
from headrace.workers.committing import CommitThread, Outcome, Transactions
from headrace.workers.intake import work_of
from headrace.workers.ledger import Ledger
from headrace.workers.partitions import MAX_POLL_RECORDS, Partitions, RequestSource
from headrace.workers.replying import ReplySender
from headrace.workers.work import Completion, Work

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.05  # a poll returns earlier when records come or `wake_up()` is called
POSITION_INTERVAL_S = (
    1.0  # bare positions (past transaction markers) are committed this often, so that lag reaches 0
)
STALE_RETRY_S = 1.0  # before a membership whose commit was refused is tried again
MISSING_KEPT_S = 60.0  # how long a result topic that did not exist is believed not to
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
        deliver: Callable[[list[Work]], None],
        moved: Callable[[frozenset[TopicPartition]], None],
        max_outstanding: int,
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._codec = codec
        self._names = names
        self._answers = answers
        self._replies = replies
        self._deliver = deliver
        self._partitions = Partitions(
            source=source, ledger=ledger, names=names, moved=moved, max_outstanding=max_outstanding
        )
        self._inbox: queue.SimpleQueue[Completion | Outcome] = queue.SimpleQueue()
        self.commits = CommitThread(
            transactions=transactions, replies=replies, names=names, tell_outcome=self._commit_ended
        )
        self._refused: GroupMetadata | None = None  # the membership that a commit was refused for
        self._try_again_at = 0.0
        self._missing_topics: dict[
            str, tuple[float, HeadraceError]
        ] = {}  # until when that is believed, and why
        self._next_look = 0.0
        self._positions_looked_at = False
        self._intake = True
        self._finish = threading.Event()
        self._give_up_at = 0.0
        self._leave_group = True
        self.joined = False  # a member of the group; read by the readiness page

    # --- from other threads ---

    def complete(self, completion: Completion) -> None:
        """Hand in what is to be published."""
        self._inbox.put(completion)
        if completion.urgent:
            self._source.wake_up()

    def _commit_ended(self, outcome: Outcome) -> None:
        self._inbox.put(outcome)
        self._source.wake_up()

    def stop_intake(self) -> None:
        """Take no more records; go on polling, so that the partitions stay ours until the last commit."""
        self._intake = False
        self._source.wake_up()

    def finish(self, *, leave_group: bool) -> None:
        """Commit what is pending, then end both threads. `leave_group` False: a restart in the same slot follows."""
        self._leave_group = leave_group
        self._give_up_at = time.monotonic() + LAST_COMMITS_S
        self._finish.set()
        self._source.wake_up()

    # --- the consumer thread ---

    def run(self) -> None:
        """Start what is new, hand a batch on, hold back what is full, poll, take records and completions.

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
        if self._intake:
            self._partitions.start_assigned()
            self._partitions.find_positions()
        self._hand_over_batch()
        self._partitions.adjust_pauses(intake=self._intake)
        poll = self._source.poll(self._poll_timeout(), MAX_POLL_RECORDS)
        self._partitions.apply_moves(poll)
        self._take_records(poll)
        self._take_inbox()

    def _finished(self) -> bool:
        if not self._finish.is_set():
            return False
        self._take_inbox()
        if self.commits.ended or self._ledger.pending == 0:
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
            if isinstance(received, Completion):
                self._take_completion(received)
            else:
                self._take_outcome(received)

    def _take_completion(self, completion: Completion) -> None:
        if self._missing_topics:
            completion = self._publishable(completion)
        if self._ledger.complete(completion, time.monotonic()):
            self._partitions.release(completion.source, completion.size)
        else:
            metrics.STALE_COMPLETIONS.labels(self._names.model).inc()

    def _take_outcome(self, outcome: Outcome) -> None:
        if outcome.locations is None:
            dropped = self._ledger.not_committed(time.monotonic())
            metrics.STALE_COMPLETIONS.labels(self._names.model).inc(len(dropped))
            if outcome.refused is None:
                # The same would be refused again: wait until the group has told us who we are now. Not for ever: a
                # member may come back under the same generation.
                self._refused = outcome.group
                self._try_again_at = time.monotonic() + STALE_RETRY_S
            else:
                self._replace_refused(outcome.refused, outcome.error)
            return
        for completion, address, location in self._ledger.committed(outcome.locations):
            assert completion.result is not None, "only results are waited for"
            self._replies.final(address, completion.result, completion.encoding, 0, location)

    def _replace_refused(self, refused: Completion, error: HeadraceError | None) -> None:
        assert error is not None, "a refusal has its reason"
        if refused.last_resort:
            raise error
        if isinstance(error, TopicMissing):
            # To find that out takes the producer seconds, which are everybody's: not for each that names the topic.
            until = time.monotonic() + MISSING_KEPT_S
            named = {record.topic for record in refused.records} - {self._names.results, self._names.dead}
            self._missing_topics.update(dict.fromkeys(named, (until, error)))
        instead = self._answers.last_resort(refused, error)
        self._ledger.amend(lambda each: instead if each is refused else self._publishable(each))

    def _publishable(self, completion: Completion) -> Completion:
        """The same, or its last resort where it would go to a topic that was found missing."""
        now = time.monotonic()
        for record in completion.records:
            until, error = self._missing_topics.get(record.topic, (0.0, None))
            if error is not None and now < until:
                return self._answers.last_resort(completion, error)
            self._missing_topics.pop(record.topic, None)
        return completion

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
        if batch is not None:
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
        return IDLE_POLL_S if due is None or not self._may_commit(now) else min(IDLE_POLL_S, due)

    def _take_records(self, poll: Poll) -> None:
        works: list[Work] = []
        for source, records in poll.records.items():
            epoch = self._ledger.epoch(source)
            if epoch is not None:
                works += self._take_partition(source, records, epoch)
        if works:
            self._deliver(works)
        group = self._source.group_metadata()
        self.joined = group.joined
        metrics.GENERATION.labels(self._names.model).set(group.generation)

    def _take_partition(self, source: TopicPartition, records: list[Record], epoch: int) -> list[Work]:
        lane = self._names.lane_of(source.topic)
        works: list[Work] = []
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
            answered = rejection or self._answer_to_duplicate(work)
            if answered is None:
                self._ledger.handed_over(source, record.offset)
                works.append(work)
            else:
                self._take_completion(answered)
        return works

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
        seen = self._ledger.ask(work.source, work.request.id, work.offset, work.reply_to)
        if seen is None:
            return None
        metrics.DUPLICATES.labels(self._names.model).inc()
        if seen.answered and work.reply_to is not None:
            self._replies.duplicate(work.reply_to, work.request.id, work.encoding, seen.location)
        return self._answers.duplicate(work)
