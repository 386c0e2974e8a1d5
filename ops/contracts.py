"""The contracts that the control topic holds: freezing them, naming them, and what a package is to them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.consumers.contracts import (
    ALIAS_NAME,
    Alias,
    ContractId,
    ContractRecords,
    FrozenContract,
    Override,
    contract_id,
    contract_key,
    frozen_contract,
    read_contracts,
)
from headrace.ops.operator_name import operator_name
from headrace.producers.control import ContractWriter
from headrace.producers.kafka import PlainProducer
from headrace.schemas.avro_form import contract_result_schema
from headrace.schemas.contract import Contract
from headrace.schemas.contract_check import ContractCheck, check_contract
from headrace.schemas.errors import (
    BrokerNotFound,
    HeadraceError,
    KafkaFailed,
    PackageError,
    TopicsError,
    UsageError,
)
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.schemas.messages import JsonObject
    from headrace.schemas.package import Package
    from headrace.schemas.settings import Settings
    from headrace.topics.changes import Change

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 8 * 2**20  # of a contract exported as JSON
_DIGESTS = re.compile(r"((?:sha256:)?[0-9a-f]{64}):((?:sha256:)?[0-9a-f]{64})")


# --- freezing -----------------------------------------------------------------------------------------------------


def override_digests(given: str) -> tuple[str, str]:
    """`<contract's digest>:<version's digest>`, each with or without its `sha256:`. Raises UsageError."""
    match = _DIGESTS.fullmatch(given)
    if match is None:
        raise UsageError(
            f"--override {given}: give CONTRACT:VERSION, the digest of the frozen contract and that of the "
            "package's own; `headrace package check` prints both"
        )
    one, other = (f"sha256:{digest.removeprefix('sha256:')}" for digest in match.groups())
    return one, other


def freeze(
    settings: Settings,
    package: Package,
    *,
    override: tuple[str, str] | None = None,
    replace_unreadable: bool = False,
) -> tuple[FrozenContract, bool]:
    """Write a package's contract to the control topic, or an override for it; what is there now, and whether written.

    Raises UsageError where the number is frozen with another content, or the override does not apply; TopicsError,
    KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    contract = Contract.of(package)
    records = read_contracts(settings)
    existing = records.contracts.get((contract.model, contract.number))
    _refuse_half_removed(records, contract)
    if override is not None:
        frozen = _with_override(existing, contract, override)
    elif existing is None:
        _refuse_unreadable(records, contract, replace_unreadable)
        schema = (
            None
            if contract.output is None
            else contract_result_schema(contract.output, contract.model, contract.number)
        )
        frozen = FrozenContract(contract, schema, operator_name(), _now_ms())
    else:
        _refuse_another(records, contract, existing)
        return existing, False
    with _writer(settings) as writer:
        writer.freeze(frozen)
    _check_written(read_contracts(settings), frozen)
    return frozen, True


def _refuse_another(records: ContractRecords, contract: Contract, existing: FrozenContract) -> None:
    if existing.contract.digest != contract.digest:
        raise UsageError(
            f"contract {contract.number} of {contract.model} is frozen as {existing.contract.digest}, and this "
            f"package's is {contract.digest}: it was not changed. `headrace package check` says whether the package "
            f"may serve it as it is; else give the package contract = {records.next_number(contract.model)}"
        )


def _refuse_half_removed(records: ContractRecords, contract: Contract) -> None:
    retirement = records.retired.get((contract.model, contract.number))
    if retirement is not None and retirement.is_removing:
        name = f"{contract.model}/{contract.number}"
        raise UsageError(
            f"contract {name} is being retired by {retirement.by}, and half of it may be gone: "
            f"`headrace contracts retire {name} --yes` finishes that"
        )


def _with_override(
    existing: FrozenContract | None, contract: Contract, override: tuple[str, str]
) -> FrozenContract:
    if existing is None:
        raise UsageError(
            f"contract {contract.number} of {contract.model} is not frozen: there is nothing to override"
        )
    pair = (existing.contract.digest, contract.digest)
    if override != pair:
        raise UsageError(
            f"--override names {override[0]} and {override[1]}; the frozen contract is {pair[0]}, and the package's "
            f"own {pair[1]}: nothing was changed"
        )
    check = check_contract(existing.contract, contract)
    if not check.breaks:
        raise UsageError("the package may serve the contract as it is: there is nothing to override")
    if not check.can_be_overridden:
        proved = next(each for each in check.breaks if each.is_proved)
        raise UsageError(f"an override holds only where nothing is certain, and {proved}")
    added = Override(*pair, operator_name(), _now_ms())
    others = tuple(each for each in existing.overrides if (each.contract_digest, each.version_digest) != pair)
    return replace(existing, overrides=(*others, added))


def _refuse_unreadable(records: ContractRecords, contract: Contract, replace_unreadable: bool) -> None:
    key = contract_key(contract.model, contract.number).decode()
    why = records.unreadable.get(key)
    if why is not None and not replace_unreadable:
        raise UsageError(
            f"the record {key} cannot be read, so what is frozen is not known ({why}); read it with a console "
            "consumer, and write it anew with --replace-unreadable"
        )


def _check_written(records: ContractRecords, frozen: FrozenContract) -> None:
    found = records.contracts.get(frozen.id)
    if found != frozen:
        by = "nobody" if found is None else f"{found.by} ({found.contract.digest})"
        raise HeadraceError(
            f"contract {frozen.id[0]}/{frozen.id[1]} was written by {by} at the same time, and that is what counts: "
            "look at it with `headrace contracts show`, and freeze again if it should be otherwise"
        )


# --- opening ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """What is there now. `alias_before`: the contract that the alias meant until now."""

    changes: list[Change]
    frozen: FrozenContract
    was_written: bool
    alias_before: ContractId | None = None


def open_contract(settings: Settings, package: Package, options: LayoutOptions, alias: str | None) -> Opened:
    """Make all that a contract needs before its first worker: topics, the frozen record, and the alias if one is given.

    What is there already is left, so that it can be done again. Nothing is changed where it is refused.
    Raises UsageError, TopicsError, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    contract = Contract.of(package)
    of = (contract.model, contract.number)
    if alias is not None:
        _refuse_no_alias(alias)
    records = _records_if_any(settings)
    _refuse_half_removed(records, contract)
    if (existing := records.contracts.get(of)) is None:
        _refuse_unreadable(records, contract, replace_unreadable=False)
    else:
        _refuse_another(records, contract, existing)
    changes = bring_in_line(settings, ContractNames(settings.prefix, *of), options)
    frozen, was_written = freeze(settings, package)
    if alias is None:
        return Opened(changes, frozen, was_written)
    before = records.aliases.get(alias)
    if before is None or (before.model, before.number) != of:
        set_alias(settings, alias, of)
    return Opened(changes, frozen, was_written, None if before is None else (before.model, before.number))


def _records_if_any(settings: Settings) -> ContractRecords:
    try:
        return read_contracts(settings)
    except TopicsError:
        return ContractRecords()  # the prefix has no control topic yet


# --- aliases -------------------------------------------------------------------------------------------------------


def set_alias(settings: Settings, name: str, of: tuple[str, int]) -> None:
    """Let a bare model name mean a contract. Raises UsageError where there is no such contract, and as `freeze`."""
    _refuse_no_alias(name)
    records = read_contracts(settings)
    if of not in records.contracts:
        known = ", ".join(f"{model}/{number}" for model, number in sorted(records.contracts)) or "none"
        raise UsageError(
            f"contract {of[0]}/{of[1]} is not frozen (frozen: {known}); `headrace contracts freeze` does that"
        )
    with _writer(settings) as writer:
        writer.alias(Alias(name, *of, operator_name(), _now_ms()))


def _refuse_no_alias(name: str) -> None:
    if not ALIAS_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no alias: 1 to 200 letters, digits or . _ : / -, a letter or digit first"
        )


def remove_alias(settings: Settings, name: str) -> None:
    """Take an alias back. Raises UsageError where there is none, and as `freeze`."""
    records = read_contracts(settings)
    if name not in records.aliases and f"alias/{name}" not in records.unreadable:
        known = ", ".join(sorted(records.aliases)) or "none"
        raise UsageError(f"there is no alias {name!r} (there are: {known})")
    with _writer(settings) as writer:
        writer.remove_alias(name)


def the_contract(records: ContractRecords, given: str) -> FrozenContract:
    """The frozen contract that MODEL/NUMBER names. Raises UsageError."""
    of = contract_id(given)
    found = records.contracts.get(of)
    if found is None:
        why = records.unreadable.get(contract_key(*of).decode())
        known = ", ".join(f"{model}/{number}" for model, number in sorted(records.contracts)) or "none"
        raise UsageError(
            f"contract {given} is not frozen (frozen: {known})"
            if why is None
            else f"the record contract/{given} cannot be read: {why}"
        )
    return found


# --- what a package is to a contract ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """A package's contract beside a frozen one. `next_number` is what the package is to have where it differs."""

    against: str
    check: ContractCheck
    next_number: int

    def as_json(self) -> JsonObject:
        """As `package check --json` prints it."""
        check = self.check
        return {
            "against": self.against,
            "same": check.is_same,
            "overridden": check.is_overridden,
            "contract": check.contract_digest,
            "version": check.version_digest,
            "breaks": [each.as_json() for each in check.breaks],
            "next_contract": None if check.is_same else self.next_number,
        }


def compared(frozen: FrozenContract, contract: Contract, against: str, next_number: int) -> Comparison:
    """A package's contract compared with a frozen one."""
    check = check_contract(frozen.contract, contract, overrides=frozen.overridden)
    return Comparison(against, check, next_number)


def compare_with_frozen(settings: Settings, package: Package) -> Comparison | str:
    """The package compared with the frozen contract of its model and number; a sentence where nothing was compared."""
    contract = Contract.of(package)
    name = f"{contract.model}/{contract.number}"
    if settings.bootstrap_servers is None:
        return "not compared with a frozen contract: HEADRACE_BOOTSTRAP_SERVERS is not set"
    try:
        records = read_contracts(settings)
    except (TopicsError, KafkaFailed, BrokerNotFound) as error:
        return f"not compared with a frozen contract: {error}"
    frozen = records.contracts.get((contract.model, contract.number))
    if frozen is None:
        why = records.unreadable.get(contract_key(contract.model, contract.number).decode())
        if why is not None:
            return f"not compared: the frozen contract {name} cannot be read: {why}"
        return f"not compared: {name} is not frozen; `headrace contracts freeze` does that"
    return compared(frozen, contract, f"the frozen contract {name}", records.next_number(contract.model))


def compare_with_file(file: Path, package: Package) -> Comparison:
    """The package compared with a contract that `headrace contracts show --json` wrote to a file. Raises UsageError."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{file} is larger than {MAX_FILE_BYTES:,} bytes")
        frozen = frozen_contract(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"{file} is no contract: {error}; `headrace contracts show MODEL/NUMBER --json` writes one"
        ) from None
    if frozen.contract.model != package.model:
        raise UsageError(
            f"{file} is a contract of {frozen.contract.model}, and the package of {package.model}"
        )
    number = max(frozen.contract.number, package.contract) + 1
    return compared(frozen, Contract.of(package), str(file), number)


def contract_to_serve(settings: Settings, package: Package) -> FrozenContract | None:
    """The frozen contract that a worker with this package is about to serve; None: nobody has frozen it.

    Raises PackageError where the package does not speak it, or is not known to and no operator has said so; also
    where its record cannot be read. KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    try:
        records = read_contracts(settings)
    except TopicsError as error:
        log.warning("no frozen contract was looked for: %s", error)
        return None
    of = (package.model, package.contract)
    for key, why in records.unreadable.items():
        log.warning("the control record %s cannot be read: %s", key, why)
    key = contract_key(*of).decode()
    if key in records.unreadable:
        raise PackageError(
            f"the record {key} cannot be read, so what its readers build on is not known: "
            f"{records.unreadable[key]}; `headrace contracts freeze --replace-unreadable` writes it anew",
            file=package.file,
            key="contract",
        )
    retirement = records.retired.get(of)
    if retirement is not None and retirement.is_removing:
        raise PackageError(
            f"contract {package.contract} of {package.model} is being retired by {retirement.by}: `headrace contracts "
            f"retire {package.model}/{package.contract} --yes` finishes that, `headrace contracts open` makes it anew",
            file=package.file,
            key="contract",
        )
    frozen = records.contracts.get(of)
    if frozen is None:
        return None
    check = check_contract(frozen.contract, Contract.of(package), overrides=frozen.overridden)
    if check.is_same:
        if check.is_overridden:
            log.warning("served by an operator's override: %s", "; ".join(map(str, check.breaks)))
        return frozen
    how = f"give the package contract = {records.next_number(package.model)}"
    if check.can_be_overridden:
        how += (
            ", or declare the two the same with `headrace contracts freeze --override "
            f"{check.contract_digest}:{check.version_digest}`"
        )
    raise PackageError(
        f"the package does not speak the frozen contract {package.contract} of {package.model}: "
        f"{'; '.join(map(str, check.breaks))}. {how[0].upper()}{how[1:]}",
        file=package.file,
        key="contract",
    )


# --- the edge ------------------------------------------------------------------------------------------------------


@contextmanager
def _writer(settings: Settings) -> Generator[ContractWriter]:
    producer = PlainProducer(settings)
    try:
        yield ContractWriter(producer, prefix=settings.prefix)
    finally:
        producer.close()


def _now_ms() -> int:
    return int(time.time() * 1000)
