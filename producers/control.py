"""Writing to the control topic; `consumers/control.py`, `contracts.py` and `rollouts.py` say what is in it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from headrace.consumers.catalogue import serving_key, serving_value
from headrace.consumers.contracts import alias_key, alias_value, contract_key, contract_value
from headrace.consumers.control import acceptance_key, acceptance_value, partition_key, partition_value
from headrace.consumers.retirements import retirement_key, retirement_value
from headrace.consumers.rollouts import rollout_record
from headrace.producers.kafka import OutgoingRecord
from headrace.topics.names import control_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from headrace.consumers.catalogue import ServingVersion
    from headrace.consumers.contracts import Alias, FrozenContract
    from headrace.consumers.records import CommitPoint, RecordLocation, TopicPartition
    from headrace.consumers.retirements import Retirement
    from headrace.consumers.rollouts import RolloutId
    from headrace.consumers.rollouts import Value as RolloutValue
    from headrace.consumers.starting import Acceptance

FLUSH_TIMEOUT_S = 30.0


class RecordSender(Protocol):
    """What is needed of `producers.kafka.PlainProducer`."""

    def send(self, record: OutgoingRecord) -> Future[RecordLocation]: ...
    def flush(self, timeout_s: float) -> None: ...


class ControlView(Protocol):
    """What is needed of `consumers.control.ControlReader`."""

    def is_known(self, group: str, tp: TopicPartition) -> bool: ...
    def accepted(self, group: str, tp: TopicPartition) -> Acceptance | None: ...


class ControlWriter:
    """Writes what a group has to say. Every call waits until the brokers have it: not for a thread that must not."""

    def __init__(self, producer: RecordSender, *, prefix: str, group: str) -> None:
        self._producer = producer
        self._topic = control_topic(prefix)
        self._group = group

    def know(self, committed: Mapping[TopicPartition, CommitPoint], view: ControlView) -> None:
        """Note that the group has committed these points; writes only what `view` does not say already.

        To be called once a tenure's first commit has succeeded, never before: a partition that is known and has no
        committed offset is parked. An acceptance that was given for another committed state is spent with that,
        and is taken back, so that it cannot hold for a state like the old one that comes later.
        Raises KafkaUnavailable, KafkaFailed, TopicMissing: call it again.
        """
        now_ms = int(time.time() * 1000)
        records: list[OutgoingRecord] = []
        for tp, point in committed.items():
            if not view.is_known(self._group, tp):
                records.append(self._record(partition_key(self._group, tp), partition_value(now_ms)))
            acceptance = view.accepted(self._group, tp)
            if acceptance is not None and acceptance.committed != point:
                records.append(self._record(acceptance_key(self._group, tp), None))
        self._write(records)

    def accept(self, acceptances: Mapping[TopicPartition, Acceptance]) -> None:
        """Write an operator's acceptances. Raises KafkaUnavailable, KafkaFailed, TopicMissing."""
        self._write(
            [
                self._record(acceptance_key(self._group, tp), acceptance_value(acceptance))
                for tp, acceptance in acceptances.items()
            ]
        )

    def serves(self, serving: ServingVersion) -> None:
        """Write what a worker serves. Raises KafkaUnavailable, KafkaFailed, TopicMissing."""
        self._write([self._record(serving_key(serving), serving_value(serving))])

    def _record(self, key: bytes, value: bytes | None) -> OutgoingRecord:
        return OutgoingRecord(self._topic, key, value)

    def _write(self, records: list[OutgoingRecord]) -> None:
        _write(self._producer, records)


class ContractWriter:
    """Writes contracts, aliases and retirements. Every call waits until the brokers have it.

    Each raises KafkaUnavailable, KafkaFailed, TopicMissing.
    """

    def __init__(self, producer: RecordSender, *, prefix: str) -> None:
        self._producer = producer
        self._topic = control_topic(prefix)

    def freeze(self, frozen: FrozenContract) -> None:
        """Write a contract's record over the one before it; whether that may be, the caller has found out."""
        self._write(contract_key(*frozen.id), contract_value(frozen))

    def alias(self, alias: Alias) -> None:
        """Write an alias."""
        self._write(alias_key(alias.name), alias_value(alias))

    def remove_alias(self, name: str) -> None:
        """Take an alias back."""
        self._write(alias_key(name), None)

    def retire(self, retirement: Retirement) -> None:
        """Write that a contract is being removed, or what is left of it."""
        self._write(retirement_key(retirement.model, retirement.number), retirement_value(retirement))

    def forget_retirement(self, model: str, number: int) -> None:
        """Take what was written of a contract's retirement back."""
        self._write(retirement_key(model, number), None)

    def take_back(self, keys: Sequence[bytes]) -> None:
        """Take records of whatever kind back, in this order."""
        _write(self._producer, [OutgoingRecord(self._topic, key, None) for key in keys])

    def _write(self, key: bytes, value: bytes | None) -> None:
        _write(self._producer, [OutgoingRecord(self._topic, key, value)])


class RolloutWriter:
    """Writes what operators say of rollouts; what the controller says goes out in its own transactions."""

    def __init__(self, producer: RecordSender, *, prefix: str) -> None:
        self._producer = producer
        self._topic = control_topic(prefix)

    def write(self, of: RolloutId, *values: RolloutValue) -> None:
        """Write records in this order. Raises KafkaUnavailable, KafkaFailed, TopicMissing."""
        _write(self._producer, [OutgoingRecord(self._topic, *rollout_record(of, value)) for value in values])


def _write(producer: RecordSender, records: list[OutgoingRecord]) -> None:
    if not records:
        return
    sent = [producer.send(record) for record in records]
    producer.flush(FLUSH_TIMEOUT_S)
    for each in sent:
        each.result(FLUSH_TIMEOUT_S)
