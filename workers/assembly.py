"""The parts of a worker that serve, put together: what the loop, the consumer thread and the others each own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.consumers.assignor import UnitAssignor
from headrace.consumers.catalogue import ServingVersion
from headrace.consumers.kafka import RequestConsumer
from headrace.producers.kafka import GuardedTransaction, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.contract import Contract
from headrace.schemas.enforcement import Enforcement
from headrace.schemas.package import Package
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.workers.admission import Admission, Room
from headrace.workers.answers import Answers
from headrace.workers.cancels import CancelReader, Cancels
from headrace.workers.control_link import ControlLink
from headrace.workers.engine import Engine
from headrace.workers.hooks import HookMethods, Hooks
from headrace.workers.ledger import Ledger
from headrace.workers.loop_side import LoopSide
from headrace.workers.open_transactions import OpenTransactions
from headrace.workers.openings import Openings
from headrace.workers.partitions import MAX_POLL_RECORDS
from headrace.workers.pump import Pump
from headrace.workers.replying import ReplySender
from headrace.workers.requests import Requests, room_of
from headrace.workers.serving import Serving
from headrace.workers.shadow import NoControl, Shadow, ShadowAnswers
from headrace.workers.window_reader import Ids, WindowReader
from headrace.workers.work import Completion, Work


class SideReader(Protocol):
    """Reads a topic beside the requests, in a thread of its own."""

    def run(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Serves:
    """What a worker serves with, as far as it was made before: by whom, how, and for what."""

    settings: Settings
    names: ContractNames
    slot: str
    package: Package
    engine: Engine
    codec: Codec
    transaction: GuardedTransaction
    hook_methods: HookMethods | None
    enforcement: Enforcement | None  # of the package's own output schema
    shadow: Shadow | None = None  # it serves beside others, and nobody hears of it


@dataclass(frozen=True, slots=True)
class Parts:
    """What was put together. `side` are the readers beside the consumer, by the names of their threads."""

    consumer: RequestConsumer
    pump: Pump
    requests: Requests
    producer: PlainProducer
    replies: ReplySender
    hooks: Hooks | None
    side: dict[str, SideReader]


def assemble(
    serves: Serves,
    metadata_limit: int,
    *,
    call: Callable[[Callable[[], None]], None],
    failed: Callable[[BaseException], None],
) -> Parts:
    """Connect and put together; nothing runs yet. `call` has the loop call a function, from any thread.

    Raises KafkaUnavailable, KafkaFailed.
    """
    settings, names, codec, package = serves.settings, serves.names, serves.codec, serves.package
    shadow = serves.shadow
    answers = (Answers if shadow is None else ShadowAnswers)(
        package=package,
        names=names,
        slot=serves.slot,
        codec=codec,
        check_size=serves.transaction.check_size,
        allowed_result_topics=[each for each in settings.allowed_result_topics.split(",") if each],
    )
    answers.engine_is(serves.engine.identity)
    producer = PlainProducer(settings)
    replies = ReplySender(producer, codec, model=names.model)
    room = room_of(serves.engine.identity, settings.max_in_flight)
    cancels = Cancels()
    hooks = Hooks.of(serves.hook_methods, package, answers.result)

    def complete(completion: Completion) -> None:
        pump.complete(completion)

    def hand_back(units: frozenset[int], works: list[Work]) -> None:
        pump.handed_back(units, works)

    def window_read(unit: int, ids: Ids) -> None:
        pump.window_read(unit, ids)

    requests = Requests(
        model=names.model,
        admission=_admission(serves, room),
        serving=Serving(
            package=package,
            engine=serves.engine,
            replies=replies,
            cancels=cancels,
            hooks=hooks,
            own=serves.enforcement,
        ),
        answers=answers,
        cancels=cancels,
        complete=complete,
        hand_back=hand_back,
        failed=failed,
    )
    consumer = _consumer(serves, room)
    control = _control(serves, consumer)
    windows = WindowReader(settings, names, settings.dedupe_window, window_read)
    ledger = Ledger(
        commit_interval_s=settings.commit_interval_ms / 1000,
        backfill_commit_interval_s=settings.backfill_commit_interval_ms / 1000,
        metadata_limit=metadata_limit,
        dedupe_window=settings.dedupe_window,
    )
    pump = Pump(
        source=consumer,
        transactions=serves.transaction,
        ledger=ledger,
        codec=codec,
        names=names,
        answers=answers,
        replies=replies,
        openings=Openings(
            source=consumer,
            ledger=ledger,
            names=names,
            control=control,
            windows=windows,
            end_transaction_of=OpenTransactions(settings, names).end,
            metadata_limit=metadata_limit,
            in_shadow=shadow is not None,
        ),
        loop=LoopSide(call, requests),
        max_outstanding=2 * (room.sequences + room.queued_ahead) + MAX_POLL_RECORDS,
        drain_budget_s=settings.drain_budget_s,
        order_by_key=package.order == "key",
        shadow=shadow,
    )
    canceller = CancelReader(
        settings, names, codec, lambda cancel, appended_ms: call(lambda: requests.cancel(cancel, appended_ms))
    )
    side: dict[str, SideReader] = {"cancels": canceller, "control": control, "windows": windows}
    return Parts(consumer, pump, requests, producer, replies, hooks, side)


def _control(serves: Serves, consumer: RequestConsumer) -> ControlLink | NoControl:
    """A shadow is in no plan, and what it serves is not to be found by those who ask."""
    if serves.shadow is not None:
        return NoControl()
    control = ControlLink(serves.settings, serves.names.group, consumer.offer_plan)
    control.serves(_serving_version(serves))
    return control


def _serving_version(serves: Serves) -> ServingVersion:
    identity, package = serves.engine.identity, serves.package
    return ServingVersion(
        serves.names.model,
        serves.names.contract,
        package.version,
        identity.engine,
        identity.max_model_len,
        package.output is not None,
        package.reasoning_parser is not None,
        int(time.time() * 1000),
        package.tool_parser is not None,
        Contract.of(package),
    )


def _admission(serves: Serves, room: Room) -> Admission:
    return Admission(
        room,
        backfill_share=serves.settings.backfill_share,
        order_by_key=serves.package.order == "key",
        defaults=serves.package.sampling,
        max_model_len=serves.engine.identity.max_model_len,
    )


def _consumer(serves: Serves, room: Room) -> RequestConsumer:
    return RequestConsumer(
        serves.settings,
        group=serves.names.group,
        slot=serves.slot,
        topics=serves.names.request_topics,
        unhurried_topics=[serves.names.requests("backfill")],
        assignor=UnitAssignor(
            slot=serves.slot,
            incarnation=uuid.uuid4().hex,
            version=serves.package.version,
            capacity=room.sequences + room.queued_ahead,
        ),
    )
