"""What an operator wants of a job, written down, and whether the process that runs it has obeyed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from headrace.consumers.backfill_jobs import BackfillFollower, KnownJob, OrderKind
from headrace.ops.cli.backfill_jobs import AT_WORK, FoundJob, now_ms
from headrace.ops.cli.backfill_view import duration
from headrace.ops.operator_name import operator_name
from headrace.producers.backfill.orders import give_order
from headrace.producers.backfill.wire import KafkaWire
from headrace.schemas.errors import HeadraceError
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings

OBEYED_WITHIN_S: Final = 15.0
CANCELLED_WITHIN_S: Final = 25.0  # it waits for its requests to be dropped
LOOK_S: Final = 0.05

Wish = Literal["pause", "resume", "cancel"]
_ORDER: Final[dict[Wish, OrderKind]] = {"pause": "pause", "resume": "run", "cancel": "cancel"}


class CannotBeOrdered(HeadraceError):
    """The job is in no state for it."""

    code = "cannot_be_ordered"


@dataclass(frozen=True, slots=True)
class Ordered:
    """What came of an order. `obeyed`: by the process that runs the job; None: no process runs it."""

    job: FoundJob
    wish: Wish
    obeyed: bool | None
    sentence: str


def order(settings: Settings, job: FoundJob, wish: Wish) -> Ordered:
    """Give an order, and wait for its effect. Raises CannotBeOrdered, and what the brokers raise."""
    given = job.known.order
    if job.is_done and (wish != "resume" or given is None):
        raise CannotBeOrdered(f"job {job.id.job} is done: there is nothing to {wish}")
    attended = job.is_attended(now_ms())
    if (already := _already(job, wish)) is not None:
        return Ordered(job, wish, None, already)
    if job.is_done:  # the order came too late for it, and would hold back a round
        give_order(settings, job.id, "run", operator_name())
        return Ordered(job, wish, None, f"nothing holds {job.id.job} back any more; it is done")
    give_order(settings, job.id, _ORDER[wish], operator_name())
    if not attended:
        if wish == "cancel":
            _take_back(settings, job)
        return Ordered(job, wish, None, _unattended(job, wish))
    if wish == "resume" and given is not None and given.order == "cancel":
        return Ordered(job, wish, None, _unattended(job, wish))
    return _obeyed(settings, job, wish)


def let_go_on(settings: Settings, job: FoundJob) -> None:
    """Take back what holds a job that is run here next. Raises CannotBeOrdered, and what the brokers raise."""
    if job.is_done and job.known.order is None:
        raise CannotBeOrdered(f"job {job.id.job} is done: there is nothing to resume")
    if job.known.order is not None:
        give_order(settings, job.id, "run", operator_name())


def _already(job: FoundJob, wish: Wish) -> str | None:
    """Where nothing is to be done: why."""
    given, name = job.known.order, job.id.job
    if wish == "resume":
        if given is not None:
            return None
        if job.is_attended(now_ms()):
            return f"{name} goes on already: nothing holds it back"
        return f"nothing holds {name} back: {_how_to_run(job)}"
    if given is None or given.order == "run":
        return None
    if given.order == "cancel":
        return f"{name} was cancelled already, by {given.by}"
    return f"{name} was paused already, by {given.by}" if wish == "pause" else None


def _unattended(job: FoundJob, wish: Wish) -> str:
    name = job.id.job
    if wish == "pause":
        return f"no process runs {name} now: when it is run, it asks nothing until `headrace backfill resume {name}`"
    if wish == "cancel":
        return (
            f"{name} is cancelled. No process runs it; what it had asked for is taken back, and the rows that it has "
            f"kept stay. `headrace backfill resume {name}` lets it go on all the same"
        )
    return f"nothing holds {name} back any more: {_how_to_run(job)}"


def _how_to_run(job: FoundJob) -> str:
    where = f" (its output is {job.output})" if job.output else ""
    return (
        f"no process runs it, so run it as it was begun, with `headrace backfill run`, or where its state can be read, "
        f"with `headrace backfill resume {job.id.job} --run`{where}"
    )


def _take_back(settings: Settings, job: FoundJob) -> None:
    names = ContractNames(settings.prefix, job.id.model, job.id.number)
    with closing(KafkaWire(settings, names, "backfill")) as wire:
        wire.cancel(job.id.job, f"the job was cancelled by {operator_name()}")


def _obeyed(settings: Settings, job: FoundJob, wish: Wish) -> Ordered:
    within_s = CANCELLED_WITHIN_S if wish == "cancel" else OBEYED_WITHIN_S
    with _following(settings) as known_of:
        deadline = time.monotonic() + within_s
        known = job.known
        while time.monotonic() < deadline:
            known = known_of(job) or job.known
            if _has_obeyed(known, wish):
                return Ordered(job, wish, True, _obeying(job, known, wish))
            time.sleep(LOOK_S)
    running = known.running
    assert running is not None
    silent = duration(max(0, now_ms() - running.at) / 1000)
    if wish == "cancel":
        _take_back(settings, job)  # it may be gone
    return Ordered(
        job,
        wish,
        False,
        f"the order is written, but {running.host} has not obeyed within {within_s:.0f} s: it was last heard {silent} "
        "ago. It obeys as soon as it sees the order; if it is gone, whoever runs the job next does",
    )


def _has_obeyed(known: KnownJob, wish: Wish) -> bool:
    status = None if known.running is None else known.running.status
    match wish:
        case "pause":
            return status is not None and status != "running"
        case "resume":
            return status != "paused"
        case "cancel":
            return status not in AT_WORK


def _obeying(job: FoundJob, known: KnownJob, wish: Wish) -> str:
    running = known.running
    assert running is not None
    name, through = job.id.job, f"{running.settled:,} of {running.rows:,} rows are through"
    if running.status == "done":
        return f"{name} was done before it saw the order"
    if wish == "pause" and running.status == "paused":
        return (
            f"{name} is paused, {through}. What it has asked for is answered yet; `headrace backfill resume {name}` "
            "lets it go on"
        )
    if wish == "cancel" and running.status == "cancelled":
        return f"{name} is cancelled, {through}. The rows that are written stay"
    if wish == "resume" and running.status == "running":
        return f"{name} goes on, {through}"
    return f"{name} is {running.status} now, {through}"


@contextmanager
def _following(settings: Settings) -> Generator[Callable[[FoundJob], KnownJob | None]]:
    follower = BackfillFollower(settings)
    thread = threading.Thread(target=follower.run, name="backfill orders", daemon=True)
    thread.start()
    try:
        yield lambda job: follower.known(job.id) if follower.ready else None
    finally:
        follower.stop()
        thread.join()
