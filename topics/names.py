"""Names of topics, groups and transactional ids. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from headrace.schemas.errors import SettingsError
from headrace.schemas.messages import LANES, Lane

# Kafka's own limit for a topic's name is 249 characters of [a-zA-Z0-9._-]; dots are our separators.
MODEL_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


def replies_topic(prefix: str) -> str:
    """The topic of all replies to clients."""
    return f"{prefix}.replies"


def control_topic(prefix: str) -> str:
    """The compacted topic of contracts, plans, aliases and known partitions."""
    return f"{prefix}.control"


@dataclass(frozen=True, slots=True)
class ContractNames:
    """Every name that belongs to one contract of a model."""

    prefix: str
    model: str
    contract: int

    def __post_init__(self) -> None:
        if not MODEL_NAME.fullmatch(self.model):
            raise SettingsError(
                f"model name {self.model!r}: 1 to 80 letters, digits, '_' or '-' (it becomes part of topic names)"
            )
        if self.contract < 1:
            raise SettingsError(f"contract {self.contract}: a whole number from 1")

    @property
    def base(self) -> str:
        """`<prefix>.<model>.c<contract>`: also the name of the consumer group."""
        return f"{self.prefix}.{self.model}.c{self.contract}"

    def requests(self, lane: Lane) -> str:
        """The request topic of a lane."""
        return f"{self.base}.requests.{lane}"

    @property
    def request_topics(self) -> tuple[str, ...]:
        """The request topics in the order in which lanes are served."""
        return tuple(self.requests(lane) for lane in LANES)

    def lane_of(self, topic: str) -> Lane:
        """The lane of one of `request_topics`."""
        lane = topic.rpartition(".")[2]
        assert topic == f"{self.base}.requests.{lane}", f"{topic} is no request topic of {self.base}"
        return cast("Lane", lane)

    @property
    def results(self) -> str:
        """The topic of results."""
        return f"{self.base}.results"

    @property
    def dead(self) -> str:
        """The topic of dead letters."""
        return f"{self.base}.dead"

    @property
    def cancels(self) -> str:
        """The topic of cancels."""
        return f"{self.base}.cancels"

    @property
    def group(self) -> str:
        """The consumer group of the workers."""
        return self.base

    def transactional_id(self, slot: str) -> str:
        """`<group>.<slot>`: one for each worker."""
        return f"{self.group}.{slot}"
