"""Whether a version speaks a contract: computed from the two interfaces, not declared. Pure, but for what compares.

Readers of results build on the contract's output schema, so the version's must be contained in it; senders build on
the contract's requests, so those must be contained in what the version takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from headrace.schemas.containment import Containment, Difference
from headrace.schemas.containment_process import bounded_containment
from headrace.schemas.contract import Contract
from headrace.schemas.messages import JsonObject, JsonValue

Side = Literal["readers of results", "senders of requests"]
Contains = Callable[[JsonObject | bool, JsonObject | bool], Containment]


@dataclass(frozen=True, slots=True)
class ContractBreak:
    """One place where a version does not do as the contract says, or is not known to.

    `path` is a JSON pointer that begins with /output or /variables, `field` the same for people. `example` is an
    output, or the variables of a request, that shows it; it counts where `has_example` is True. `is_proved`: that
    the version breaks it is certain, so that no override can hold.
    """

    breaks: Side
    path: str
    field: str
    reason: str
    is_proved: bool
    example: JsonValue = None
    has_example: bool = False

    def as_json(self) -> JsonObject:
        """As commands print it; `example` is left out where there is none."""
        said: JsonObject = {
            "breaks": self.breaks,
            "path": self.path,
            "field": self.field,
            "verdict": "no" if self.is_proved else "unknown",
            "reason": self.reason,
        }
        return said | ({"example": self.example} if self.has_example else {})

    def __str__(self) -> str:
        certainty = "breaks" if self.is_proved else "may break"
        return f"{self.field} {certainty} {self.breaks}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ContractCheck:
    """What came of comparing a version with a contract. The digests are those of the two contracts as a whole."""

    contract_digest: str
    version_digest: str
    breaks: tuple[ContractBreak, ...] = ()
    is_overridden: bool = False

    @property
    def is_same(self) -> bool:
        """Whether the version may serve the contract."""
        return not self.breaks or self.is_overridden

    @property
    def can_be_overridden(self) -> bool:
        """Whether nothing of it is certain."""
        return bool(self.breaks) and not any(each.is_proved for each in self.breaks)


def check_contract(
    contract: Contract,
    version: Contract,
    *,
    overrides: Collection[tuple[str, str]] = (),
    contains: Contains = bounded_containment,
) -> ContractCheck:
    """Compare a version's own contract with the one that it is to serve.

    `overrides` are pairs of digests, the contract's and the version's, that an operator has declared the same: they
    hold only where the comparison is unknown. `contains` is called as `containment` is.
    """
    if contract.digest == version.digest:
        return ContractCheck(contract.digest, version.digest)
    breaks = (*_of_outputs(contract, version, contains), *_of_requests(contract, version, contains))
    declared = (contract.digest, version.digest) in overrides
    check = ContractCheck(contract.digest, version.digest, breaks)
    return ContractCheck(*_parts(check), is_overridden=declared and check.can_be_overridden)


def _parts(check: ContractCheck) -> tuple[str, str, tuple[ContractBreak, ...]]:
    return check.contract_digest, check.version_digest, check.breaks


def _of_outputs(contract: Contract, version: Contract, contains: Contains) -> list[ContractBreak]:
    if contract.output is None:
        if version.output is None:
            return []
        reason = (
            "under the contract each request may ask for an output of its own, and the version holds all of "
            "them to one schema"
        )
        return [ContractBreak("senders of requests", "/output", "output", reason, is_proved=True)]
    if version.output is None:
        reason = "the contract promises an output schema, and the version's outputs are free text"
        return [ContractBreak("readers of results", "/output", "output", reason, is_proved=True)]
    told = contains(contract.output, version.output)
    return _breaks(told, "readers of results", "output")


def _of_requests(contract: Contract, version: Contract, contains: Contains) -> list[ContractBreak]:
    if contract.variables is None:
        return []  # messages and prompt are taken by every version
    if version.variables is None:
        reason = "the contract's requests give variables, and the version has no template for them"
        return [ContractBreak("senders of requests", "/variables", "variables", reason, is_proved=True)]
    told = contains(version.variables, contract.variables)
    return _breaks(told, "senders of requests", "variables")


def _breaks(told: Containment, side: Side, root: str) -> list[ContractBreak]:
    if told.verdict == "yes":
        return []
    differences = told.differences or (Difference("", "", told.reason),)
    return [
        ContractBreak(
            side,
            f"/{root}{each.path}",
            root + (f".{each.field}" if each.field[:1] not in ("", "[") else each.field),
            each.reason,
            is_proved=each.has_example,
            example=each.example,
            has_example=each.has_example,
        )
        for each in differences
    ]
