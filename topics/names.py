"""Names of topics, groups and transactional ids. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from headrace.schemas.errors import SettingsError
from headrace.schemas.messages import LANES, Lane

# Kafka's own limit for a topic's name is 249 characters of [a-zA-Z0-9._-]; dots are our separators.
MODEL_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
SHADOW_VERSION = re.compile(r"[A-Za-z0-9._-]{1,60}")


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


@dataclass(frozen=True, slots=True)
class ShadowNames(ContractNames):
    """Those of a version in the shadow of a contract: it reads the contract's requests and cancels, and no more.

    Each version has topics of its own: what it has answered is known by its topic of results, and there another
    version's answers would pass for its own.
    """

    version: str

    def __post_init__(self) -> None:
        ContractNames.__post_init__(self)
        if not SHADOW_VERSION.fullmatch(self.version):
            raise SettingsError(
                f"version {self.version!r} cannot run as a shadow: 1 to 60 letters, digits, '.', '_' or '-' (it "
                "becomes part of topic names)"
            )

    @classmethod
    def of(cls, names: ContractNames, version: str) -> ShadowNames:
        """Those of a version in the shadow of this contract. Raises SettingsError."""
        return cls(names.prefix, names.model, names.contract, version)

    @property
    def group(self) -> str:
        """`<contract>.shadow.<version>`: no plan has this name."""
        return f"{self.base}.shadow.{self.version}"

    @property
    def results(self) -> str:
        """The topic of the shadow's results."""
        return f"{self.group}.results"

    @property
    def dead(self) -> str:
        """The topic of the shadow's dead letters."""
        return f"{self.group}.dead"

    def transactional_id(self, slot: str) -> str:
        """`<group>:<slot>`: no name of a contract's worker, nor of another version's, has a colon."""
        return f"{self.group}:{slot}"
