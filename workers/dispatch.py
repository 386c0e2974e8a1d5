"""From a polled request to the loop: what may go now, and what must wait, and for what. Owned by the consumer thread.

A request waits as long as
- no started mark above it is committed: a successor must see that it may have been in flight;
- its unit drains: nothing more of it is begun;
- it is suspect of killing the engine, and its trial has not begun;
- with `order = "key"`, an earlier one of its key waits for its trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from headrace.consumers.records import TopicPartition
from headrace.schemas import metrics
from headrace.workers.ledger import Ledger
from headrace.workers.trials import Place, Trial, Trials, is_suspect
from headrace.workers.work import Work


class Dispatch:
    """What the loop is given. `deliver` hands works over to it."""

    def __init__(
        self, *, model: str, ledger: Ledger, deliver: Callable[[list[Work]], None], order_by_key: bool
    ) -> None:
        self._model = model
        self._ledger = ledger
        self._deliver = deliver
        self._order_by_key = order_by_key
        self._trials = Trials()
        self._trial_announced = False  # to be committed
        self._trial_taken = False  # it is in the batch under way
        self._trial_begun = False  # it is committed, and its works went to the loop
        self._waiting: dict[TopicPartition, deque[Work]] = {}
        self._behind: dict[tuple[int, bytes], list[Work]] = {}  # by unit and key: a suspect is before them
        self._first: dict[Place, tuple[int, bytes]] = {}  # that suspect, and the key
        self._draining: frozenset[int] = frozenset()
        self._ready: list[Work] = []
        self._stopped = False
        self._shown = 0

    def stop(self) -> None:
        """Hand nothing over any more: the engine has died."""
        self._stopped = True
        self._ready.clear()

    # --- works come ---

    def offer(self, work: Work) -> None:
        """Take a request that is outstanding, and not asked for before."""
        key = self._key(work)
        if key is not None and key in self._behind:
            self._behind[key].append(work)
            return
        suspicion = self._ledger.suspicion(work.source, work.offset)
        if suspicion.deaths:
            work = replace(work, deaths=suspicion.deaths)
        if is_suspect(suspicion):
            self._trials.hold(work, suspicion)
            if key is not None:
                self._behind[key] = []
                self._first[work.source, work.offset] = key
        else:
            self._waiting.setdefault(work.source, deque()).append(work)
            self._let_through(work.source)

    def _key(self, work: Work) -> tuple[int, bytes] | None:
        return (work.source.partition, work.key) if self._order_by_key and work.key is not None else None

    def _let_through(self, source: TopicPartition) -> None:
        """Hand over what may go, in order. Offsets rise and the mark is one: none can pass another."""
        waiting = self._waiting[source]
        if self._stopped or self._makes_room or source.partition in self._draining:
            return
        while waiting and self._ledger.may_start(source, waiting[0].offset):
            self._hand_over(waiting.popleft())

    @property
    def _makes_room(self) -> bool:
        """Whether one is to be tried alone."""
        trial = self._trials.under_way
        return trial is not None and trial.alone

    def _hand_over(self, work: Work) -> None:
        self._ledger.handed_over(work.source, work.offset)
        self._ready.append(work)

    def deliver(self) -> None:
        """Give the loop what has become ready."""
        if self._ready:
            ready, self._ready = self._ready, []
            self._deliver(ready)

    # --- works go ---

    def finished(self, source: TopicPartition, offset: int) -> None:
        """A request was answered."""
        if self._trials.suspects and self._trials.finished(source, offset):
            self._trial_is_over()
        self._unblock((source, offset))

    def _unblock(self, place: Place) -> None:
        """Those of the same key go on, in order, now that the suspect before them is through."""
        key = self._first.pop(place, None)
        for work in self._behind.pop(key, ()) if key is not None else ():
            if self._ledger.epoch(work.source) == work.epoch:
                self.offer(work)

    def forget(self, source: TopicPartition) -> None:
        """A partition has gone, and with it what was polled of it."""
        self._waiting.pop(source, None)
        self._ready = [work for work in self._ready if work.source != source]
        for key, works in self._behind.items():
            self._behind[key] = [work for work in works if work.source != source]
        if self._trials.forget(source):
            self._trial_is_over()
        for place in [place for place in self._first if place[0] == source]:
            self._unblock(place)

    def convicted(self) -> None:
        """One was found to be the killer: those that are held go on, and so do those behind them."""
        if self._trials.under_way is not None and not self._trial_begun:
            self._call_off()
        self._ledger.exonerate()
        if self._trials.under_way is None:
            for work in self._trials.release():
                self._waiting.setdefault(work.source, deque()).append(work)
                self._unblock((work.source, work.offset))
            for source in self._waiting:
                self._let_through(source)

    def drain(self, units: frozenset[int]) -> None:
        """Of these units nothing more may begin; the whole truth each time."""
        cancelled = self._draining - units
        self._draining = units
        if self._trials.under_way is not None and not self._trial_begun:
            self._call_off()
        for source in self._waiting:
            if source.partition in cancelled:
                self._let_through(source)

    def taken_back(self, works: list[Work]) -> None:
        """The loop has given back what it had not begun, or has given up."""
        for work in reversed(works):
            if not self._ledger.handed_back(work.source, work.offset, work.epoch):
                continue
            if work.alone:
                self._call_off()  # it is held, and tried again when its unit may go on
            else:
                self._waiting.setdefault(work.source, deque()).appendleft(work)
        for source in {work.source for work in works}:
            if source in self._waiting:
                self._let_through(source)

    # --- commits and trials ---

    def begin_trial(self) -> None:
        """Put the next suspects on trial, if none is: they go to the loop once that is committed.

        One that is tried alone waits until nothing else is in flight, and until then its trial is not said to be
        under way: a death meanwhile is held against those that were in flight.
        """
        if self._trials.suspects == 0 or self._trial_announced:
            return
        trial = self._trials.under_way or self._trials.begin(but_of=self._drained_sources())
        if trial is None or (trial.alone and self._ledger.anything_in_flight):
            return
        self._trial_announced = True
        self._ledger.set_mode("alone" if trial.alone else "trial")
        self._ledger.put_on_trial([(work.source, work.offset) for work in trial.works])

    def _drained_sources(self) -> list[TopicPartition]:
        return [source for source in self._ledger.partitions if source.partition in self._draining]

    def batch_taken(self) -> None:
        """A batch was made up: a trial that was set up is in it."""
        self._trial_taken = self._trial_announced and not self._trial_begun

    def batch_committed(self) -> None:
        """It is committed: marks have moved, and a trial may begin."""
        trial = self._trials.under_way
        if trial is not None and self._trial_taken and not (self._trial_begun or self._stopped):
            self._begin(trial)
        for source in self._waiting:
            self._let_through(source)

    def batch_not_committed(self) -> None:
        """It is not: all that was in it goes into the next one."""
        self._trial_taken = False

    def _begin(self, trial: Trial) -> None:
        self._trial_begun = True
        for work in trial.works:
            if self._ledger.epoch(work.source) == work.epoch:
                self._hand_over(replace(work, alone=trial.alone))

    def _call_off(self) -> None:
        trial = self._trials.under_way
        assert trial is not None, "there is a trial"
        held = {
            (work.source, work.offset): self._ledger.suspicion(work.source, work.offset)
            for work in trial.works
            if self._ledger.epoch(work.source) == work.epoch
        }
        self._trials.call_off(held)
        self._trial_is_over()

    def _trial_is_over(self) -> None:
        self._trial_announced = self._trial_taken = self._trial_begun = False
        self._ledger.set_mode("open")
        self._ledger.put_on_trial(())  # which is committed soon, and lets the others go on

    def on_trial_alone(self) -> Work | None:
        """The request that is in the engine with nothing else beside it."""
        trial = self._trials.under_way
        return trial.works[0] if trial is not None and trial.alone and self._trial_begun else None

    def show(self) -> None:
        """Set the gauge of suspects. Called with each turn."""
        if self._trials.suspects != self._shown:
            self._shown = self._trials.suspects
            metrics.SUSPECTS.labels(self._model).set(self._shown)
