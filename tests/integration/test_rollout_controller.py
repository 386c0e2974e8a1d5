"""The controller of rollouts on a real Kafka: it decides on after a refusal that left it its place."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kafka_members import WITHIN_S, settings_for
from waiting import wait_until

from headrace.consumers.control import read_control
from headrace.consumers.rollouts import Limits, Planned, Rollout
from headrace.ops.rollouts.controller import Controller
from headrace.producers.control import RolloutWriter
from headrace.producers.kafka import CommitBatch, GuardedTransaction, PlainProducer
from headrace.schemas.errors import StaleGeneration
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

ID = "4.now"


def begin(settings: Settings, names: ContractNames) -> None:
    """A rollout that waits for a worker, which the controller writes down: that is all that it has to decide."""
    rollout = Rollout(
        model=names.model,
        contract=names.contract,
        to="4",
        before={"3": 1},
        steps=[100],
        hold_s=0,
        limits=Limits(),
        by="me",
        at=1,
    )
    producer = PlainProducer(settings)
    try:
        writer = RolloutWriter(producer, prefix=settings.prefix)
        writer.write((names.group, ID), rollout, Planned(shares={"3": 1}, step=0, at=1))
    finally:
        producer.close()


def test_a_controller_that_was_refused_and_has_its_place_still_decides_on(
    kafka_bootstrap: str, unique_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(kafka_bootstrap, prefix=unique_prefix)
    names = ContractNames(unique_prefix, "tagger", 1)
    bring_in_line(settings, names, LayoutOptions(partitions=2, replication=1))
    begin(settings, names)
    commit = GuardedTransaction.commit
    refused = threading.Event()

    def refuse_once(self: GuardedTransaction, batch: CommitBatch) -> Any:
        if not refused.is_set():
            refused.set()
            raise StaleGeneration("the group has moved on")
        return commit(self, batch)

    monkeypatch.setattr(GuardedTransaction, "commit", refuse_once)
    controller = Controller(settings)
    thread = threading.Thread(target=controller.run)
    thread.start()
    try:
        wait_until(refused.is_set, WITHIN_S, "the first of its batches to be refused")

        def noted() -> bool:
            return read_control(settings).rollouts.groups[names.group][ID].progress is not None

        wait_until(noted, WITHIN_S, "the controller to decide on")
        assert controller.active
    finally:
        controller.stop()
        thread.join(WITHIN_S)
    assert not thread.is_alive()
