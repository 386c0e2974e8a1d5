"""A world for a backfill job: a lane, workers, `results` and files in memory, and whatever may happen to them.

Workers are as exactly-once promises them: an id is answered once, in any order, and a second request with an id that is
unanswered or answered is passed over, unless it is marked to be run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from property.backfill_stand_ins import (
    JOB,
    LANE,
    Asked,
    File,
    Gone,
    Killed,
    Lane,
    MemorySource,
    PromptMapping,
    RowKind,
    result_of,
)

from headrace.consumers.backfill_jobs import Order
from headrace.consumers.lane_progress import LaneProgress
from headrace.consumers.records import CommitPoint, RecordLocation, TopicPartition
from headrace.producers.backfill.asking import RowAsker
from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.failures import JobTaken
from headrace.producers.backfill.outcome import Outcome
from headrace.producers.backfill.results_feed import Findings, FoundResult
from headrace.producers.backfill.rounds import bad_costs
from headrace.producers.backfill.row_ids import RequestDigests
from headrace.producers.backfill.run import JobRun
from headrace.producers.backfill.run_ports import End, Limits, Parts
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.producers.backfill.state import JobState, WrittenPart
from headrace.producers.backfill.wire import Told
from headrace.schemas.errors import HeadraceError, KafkaUnavailable
from headrace.schemas.messages import JsonObject, Request

OPEN_TURNS = 20  # of calm, that transactions stay open for


@dataclass
class World:
    kinds: list[tuple[RowKind, int]]
    chunk_rows: int
    partitions: int
    dedupe: bool = False
    max_failures: MaxFailures = field(default_factory=lambda: MaxFailures(share=1.0))
    token_budget: int | None = None

    def __post_init__(self) -> None:
        rows: list[JsonObject | RowFault] = [
            RowFault("undecodable", "no JSON", "{")
            if kind == "unreadable"
            else {"kind": kind, "value": value}
            for kind, value in self.kinds
        ]
        self.source = MemorySource(rows)
        self.lanes = [Lane() for _ in range(self.partitions)]
        self.generations: Counter[str] = Counter()
        self.written: dict[int, File] = {}
        self.order_given: Order | None = None
        self.now = 1000.0
        self.incarnation = 0
        self.gone: list[Gone] = []  # frozen processes, which go on for a while when they come back
        self.sends_that_fail = 0
        self.acks_are_late = False
        self.acks: list[Callable[[], None]] = []
        self.kill_before_save = self.kill_after_save = self.kill_before_replacing = False
        self.files = 0  # that were written
        self.waiting: dict[int, File] = {}  # parts that are to take others' places
        self.flaky_heal_from = 99
        self.took_from_results = False  # retention has: rows may be generated again
        self.state = JobState(
            job=JOB,
            model="m",
            contract=1,
            identity={},
            rows=len(rows),
            rows_per_part=self.chunk_rows,
            lane_partitions=self.partitions,
            results_topic="headrace.m.c1.results",
            offsets=dict.fromkeys(range(self.partitions), 0),
            created_ms=0,
            updated_ms=0,
        )
        self.ends: list[End] = []
        self.start()

    # --- the process ---

    def start(self) -> None:
        self.incarnation += 1  # and so the state is this process's
        for part in self.state.parts:
            self.put_in_place(part)
        self.waiting.clear()
        self.run = self._process(self.incarnation)
        self.read = dict(self.run.state.offsets)
        self.run.begin()

    def freeze(self) -> None:
        """The machine is gone, and another takes the job over."""
        self.gone.append(Gone(self.incarnation, self.run, self.read))
        self.start()

    def come_back(self, pick: int) -> None:
        """One that was gone goes on for a turn, with what has come; it may not have heard that its job is taken."""
        if not self.gone:
            return
        gone = self.gone[pick % len(self.gone)]
        gone.has_heard = gone.has_heard or pick % 3 == 0
        gone.run.deliver(self._findings(gone.read, 1 + pick % 5))
        try:
            assert gone.run.step(0) is None, "it ended a job that was another's"
        except JobTaken:
            self.gone.remove(gone)

    def _process(self, incarnation: int) -> JobRun:
        world = self
        mapping = PromptMapping()

        class Files:
            def write(self, chunk: Chunk, outcomes: Sequence[Outcome], round_: int) -> WrittenPart:
                assert len(outcomes) == len(chunk.rows)
                assert incarnation == world.incarnation, (
                    "a part was written by a process that had lost the job"
                )
                world.files += 1
                into = world.waiting if round_ else world.written
                into[chunk.number] = File(str(world.files), list(outcomes))
                return WrittenPart(
                    number=chunk.number,
                    first_row=chunk.first_row,
                    rows=len(outcomes),
                    file=f"part-{chunk.number}",
                    bytes=1,
                    sha256=str(world.files),
                    statuses=dict(Counter(each.status for each in outcomes)),
                    prompt_tokens=sum(each.prompt_tokens for each in outcomes),
                    completion_tokens=sum(each.completion_tokens for each in outcomes),
                    round=round_,
                    bad_costs=bad_costs(outcomes),
                )

            def put_in_place(self, part: WrittenPart) -> None:
                if world.kill_before_replacing:
                    world.kill_before_replacing = False
                    raise Killed
                world.put_in_place(part)

            def earlier(self, part: WrittenPart) -> list[Outcome]:
                return world.outcomes_of(part)

        class Line:
            def order(self) -> Order | None:
                return world.order_given

            def check(self) -> None:
                if incarnation in {gone.incarnation for gone in world.gone if gone.has_heard}:
                    raise JobTaken("heard of it")

            def tell(self, status: Any, *, rows: int, settled: int, failed: int) -> None:
                assert failed <= settled <= rows

        class Wire:
            def send(self, request: Request, partition: int, told: Told, *, again: bool = False) -> None:
                world.send(request, partition, told, again)

            def cancel(self, job: str, reason: str) -> None:
                world.cancel()

            def close(self) -> None: ...

        answers: dict[str, Outcome] = {}

        class Known:
            def get(self, digest: str) -> Outcome | None:
                return answers.get(digest)

            def put(self, digest: str, outcome: Outcome) -> None:
                answers[digest] = outcome

        parts = Parts(
            source=self.source,
            mapping=mapping,
            asker=RowAsker(mapping, RequestDigests("m", 1, None)),
            output=Files(),
            save=lambda state: self.save(state, incarnation),
            wire=Wire(),
            link=Line(),
            results_end=lambda: {n: lane.stable_end for n, lane in enumerate(self.lanes)},
            results_tip=lambda: {n: len(lane.results) for n, lane in enumerate(self.lanes)},
            lane_topic=LANE,
            answers=Known() if self.dedupe else None,
            still_ours=lambda: self.still_ours(incarnation),
        )
        limits = Limits(self.max_failures, self.token_budget, self.dedupe)
        return JobRun(self.state, parts, limits, clock=lambda: self.now)

    def still_ours(self, incarnation: int) -> None:
        if incarnation != self.incarnation:
            raise JobTaken("the state has another writer")

    def save(self, state: JobState, incarnation: int) -> None:
        self.still_ours(incarnation)
        if self.kill_before_save:
            self.kill_before_save = False
            raise Killed
        self.state = state
        if self.kill_after_save:
            self.kill_after_save = False
            raise Killed

    def put_in_place(self, part: WrittenPart) -> None:
        """As `replacing` does it."""
        waiting = self.waiting.pop(part.number, None)
        if waiting is not None and waiting.sha256 == part.sha256:
            self.written[part.number] = waiting

    def outcomes_of(self, part: WrittenPart) -> list[Outcome]:
        """What a part's file holds."""
        assert self.written[part.number].sha256 == part.sha256, "the part is not as it was written"
        return self.written[part.number].outcomes

    def step(self) -> None:
        """A turn of the job's loop; where it ends or is killed, another process goes on."""
        self.now += 0.6
        try:
            end = self.run.step(0)
        except Killed:
            self.start()
            return
        if end is not None:
            self.ends.append(end)
            if end.state.status != "written":
                self.order_given = None
                self.start()

    def kill(self) -> None:
        self.start()

    @property
    def is_done(self) -> bool:
        return bool(self.ends) and self.ends[-1].state.status == "written"

    # --- Kafka and the workers ---

    def send(self, request: Request, partition: int, told: Told, again: bool) -> None:
        """An outage leaves it open whether the request has arrived."""
        if self.sends_that_fail:
            self.sends_that_fail -= 1
            if self.sends_that_fail % 2:
                self.append(request, partition, again)
            found: RecordLocation | HeadraceError = KafkaUnavailable("no broker")
        else:
            found = self.append(request, partition, again)
        if self.acks_are_late:
            self.acks.append(lambda: told(found))
        else:
            told(found)

    def acknowledge(self) -> None:
        """What was late comes."""
        for ack in self.acks:
            ack()
        self.acks.clear()

    def append(self, request: Request, partition: int, again: bool) -> RecordLocation:
        lane = self.lanes[partition]
        lane.asked.append(Asked(request, len(lane.asked), again))
        self._pass_over(lane)
        return RecordLocation(LANE, partition, len(lane.asked) - 1)

    def _pass_over(self, lane: Lane) -> None:
        last = lane.asked[-1]
        waiting = any(each.request.id == last.request.id and not each.done for each in lane.asked[:-1])
        if not last.again and (waiting or last.request.id in lane.known):
            last.done = True

    def serve(self, pick: int) -> None:
        """Workers answer one request, whichever."""
        waiting = [(lane, each) for lane in self.lanes for each in lane.asked if not each.done]
        if waiting:
            self._answer(*waiting[pick % len(waiting)])

    def _answer(self, lane: Lane, asked: Asked, status: str | None = None) -> None:
        asked.done = True
        request = asked.request
        if request.id in lane.known and not asked.again:
            return
        kind = (request.prompt or "").split()[0]
        if kind == "refused" and status is None:
            status = "rejected"
        else:
            lane.known.add(request.id)
        round_ = int(request.id.split(".")[2])
        fails = kind == "fails" or (kind == "flaky" and round_ < self.flaky_heal_from)
        if status is None:
            self.generations[request.id] += 1
            status = "failed" if fails else "ok"
        number = self.lanes.index(lane)
        lane.results.append(result_of(request, status, number, asked.offset))

    def cancel(self) -> None:
        for lane in self.lanes:
            for asked in lane.asked:
                if not asked.done:
                    self._answer(lane, asked, "cancelled")

    def open_transaction(self, pick: int) -> None:
        """A worker has died amid one: until it is ended, all that comes after it in its partition is unseen."""
        lane = self.lanes[pick % len(self.lanes)]
        if lane.open_from is None:
            lane.open_from = len(lane.results)

    def end_transactions(self) -> None:
        for lane in self.lanes:
            lane.open_from = None

    def forget(self, pick: int) -> None:
        """Retention takes results, read or not."""
        lane = self.lanes[pick % len(self.lanes)]
        if len(lane.results) > lane.results_from:
            lane.results_from += 1 + pick % (len(lane.results) - lane.results_from)
            self.took_from_results = True

    def deliver(self, most: int) -> None:
        """The reader hands over what has come, at most so many of each partition."""
        self.run.deliver(self._findings(self.read, most))
        self.step()

    def _findings(self, read: dict[int, int], most: int) -> Findings:
        found: list[FoundResult] = []
        skipped = 0
        for number, lane in enumerate(self.lanes):
            at = read[number]
            if at < lane.results_from:
                skipped += lane.results_from - at
                at = lane.results_from
            upto = max(at, min(lane.stable_end, at + most))
            found += [FoundResult(number, n, lane.results[n].id, lane.results[n]) for n in range(at, upto)]
            read[number] = upto
        return Findings(found, dict(read), 0, skipped)

    def look(self) -> None:
        points = {
            TopicPartition(LANE, n): CommitPoint(lane.frontier, "") for n, lane in enumerate(self.lanes)
        }
        ahead = sum(not each.done for lane in self.lanes for each in lane.asked)
        self.run.look(LaneProgress(self.now, ahead, points, ()))
        for gone in self.gone:
            gone.run.look(LaneProgress(self.now, ahead, points, ()))

    def calm(self, turns: int) -> None:
        """Nothing more happens to it: workers work, results are read, time passes; whoever was gone hears of it."""
        self.sends_that_fail = 0
        for turn in range(turns):
            if turn == OPEN_TURNS:
                self.end_transactions()
            self.acknowledge()
            if self.gone:
                self.come_back(3 * turn)
            if self.is_done and not self.gone:
                return
            if self.is_done:
                self.now += 1
                continue
            self.serve(turn)
            self.deliver(3)
            self.look()
            self.now += 4
        raise AssertionError(f"not done after {turns} turns: {self.run.view()}")


def rows_written(world: World) -> Mapping[int, Outcome]:
    """Every row that the parts hold, each once."""
    found: dict[int, Outcome] = {}
    for part in world.state.parts:
        for index, outcome in enumerate(world.outcomes_of(part)):
            row = part.first_row + index
            assert row not in found, f"row {row} is in two parts"
            found[row] = outcome
    return found
