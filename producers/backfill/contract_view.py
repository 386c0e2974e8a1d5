"""What a job has to know of its contract: which one it is, what its variables are, and what its outputs are held to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.consumers.catalogue import read_catalogue
from headrace.consumers.contracts import CONTRACT
from headrace.producers.http.models import pinned, resolve
from headrace.producers.http.wanted import ApiError
from headrace.schemas.contract import Contract
from headrace.schemas.package import load_package

if TYPE_CHECKING:
    from headrace.consumers.catalogue import CatalogueRecords
    from headrace.consumers.contracts import ContractId
    from headrace.producers.backfill.job import JobSpec
    from headrace.schemas.package import Package
    from headrace.schemas.settings import Settings


@dataclass(frozen=True, slots=True)
class ContractView:
    """A contract, and who says so.

    `known`: the names that variables can have; None where the contract does not say. `max_model_len` in tokens, prompt
    and output together; None: not known.
    """

    contract: Contract
    source: Literal["package", "frozen", "served"]
    known: frozenset[str] | None
    has_tool_parser: bool
    max_model_len: int | None

    @property
    def id(self) -> ContractId:
        """Model and number."""
        return self.contract.model, self.contract.number

    @property
    def name(self) -> str:
        """`movie-tagger@1`."""
        return _name(self.id)


def read_contract_view(
    settings: Settings, job: JobSpec, name: str | None = None
) -> tuple[ContractView, CatalogueRecords]:
    """The contract that a job asks, and all that the control topic says; `name` where the job names no model.

    Raises JobInvalid, PackageError, TopicsError where the control topic does not exist, KafkaUnavailable, KafkaFailed,
    BrokerNotFound.
    """
    package = None if job.package is None else load_package(Path(job.package))
    records = read_catalogue(settings)
    return contract_view(job, records, package, name), records


def contract_view(
    job: JobSpec, records: CatalogueRecords, package: Package | None = None, name: str | None = None
) -> ContractView:
    """The contract that a job asks: as its package says it, as it was frozen, or as a worker last said it.

    Raises JobInvalid where nothing is known of it, or where they say different things.
    """
    name = name if job.model is None else job.model
    if name is None:
        raise job.fault("is missing: a job needs it", "model")
    of = _contract_id(job, name, records, package)
    if (retired := records.contracts.retired.get(of)) is not None:
        what = "is being removed" if retired.is_removing else "was retired"
        raise job.fault(f"the contract {_name(of)} {what}", "model")
    frozen, spoken = records.contracts.contracts.get(of), records.spoken(of)
    found = spoken if frozen is None else frozen.contract
    source: Literal["package", "frozen", "served"] = "served" if frozen is None else "frozen"
    if frozen is None and (why := records.contracts.unreadable.get(f"{CONTRACT}/{of[0]}/{of[1]}")):
        raise job.fault(f"the record of the contract {_name(of)} cannot be read: {why}", "model")
    if package is not None:
        own = Contract.of(package)
        overridden = frozen is not None and (frozen.contract.digest, own.digest) in frozen.overridden
        if found is not None and found.digest != own.digest and not overridden:
            by = "was frozen" if frozen is not None else "workers serve"
            raise job.fault(
                f"its package says another contract {_name(of)} ({_differing(own, found)}) than {by}: leave "
                "package out",
                "package",
            )
        if found is None:
            found, source = own, "package"
    if found is None:
        raise job.fault(_nothing_known(of, records), "model")
    latest = records.latest(of)
    calls_tools = latest is not None and latest.calls_tools
    return ContractView(
        found,
        source,
        _known(found, package),
        calls_tools if latest is not None else package is not None and package.tool_parser is not None,
        None if latest is None else latest.max_model_len,
    )


def _contract_id(job: JobSpec, name: str, records: CatalogueRecords, package: Package | None) -> ContractId:
    """The contract that a name means: an alias, a pinned one, the package's, or a model that has one contract."""
    of = _named(job, name, records, package)
    if job.contract is not None and of[1] != job.contract:
        raise job.fault(f"is {job.contract}, and {name!r} means {_name(of)}", "contract")
    if package is not None and (package.model, package.contract) != of:
        own = package.model, package.contract
        raise job.fault(f"is of {_name(own)}, and {name!r} means {_name(of)}", "package")
    return of


def _named(job: JobSpec, name: str, records: CatalogueRecords, package: Package | None) -> ContractId:
    alias = records.contracts.aliases.get(name)
    if alias is not None:
        return alias.model, alias.number
    if (of := pinned(name)) is not None:
        return of
    if job.contract is not None:
        return name, job.contract
    if package is not None and package.model == name:
        return name, package.contract
    try:
        return resolve(name, records).contract
    except ApiError as error:
        advice = "" if records.known else f" {_ADVICE}"
        raise job.fault(f"{error.message}{advice}", "model") from None


_ADVICE = (
    'Start a worker of it, freeze its contract (`headrace contracts freeze DIR`), or give package = "DIR".'
)


def _nothing_known(of: ContractId, records: CatalogueRecords) -> str:
    if records.latest(of) is not None:
        return (
            f"the worker that serves {_name(of)} has not written down its schemas (they are very large, or it is of an "
            'earlier release): freeze the contract (`headrace contracts freeze DIR`), or give package = "DIR"'
        )
    return f"nothing is known of the contract {_name(of)}. {_ADVICE}"


def _differing(one: Contract, other: Contract) -> str:
    names = [name for name in ("variables", "output") if getattr(one, name) != getattr(other, name)]
    return f"in its {' and '.join(names) or 'schemas'}"


def _known(contract: Contract, package: Package | None) -> frozenset[str] | None:
    if package is not None and package.prompt is not None:
        return package.prompt.known
    variables = contract.variables
    if not isinstance(variables, dict) or variables.get("additionalProperties") is not False:
        return None
    if "patternProperties" in variables:
        return None
    return frozenset(each.name for each in contract.variable_list())


def _name(of: ContractId) -> str:
    return f"{of[0]}@{of[1]}"
