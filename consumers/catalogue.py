"""What can be asked: the contracts, the aliases, and the versions that workers serve, as the control topic has them.

    serving/<model>/<number>/<version>   {"engine", "max_model_len": tokens or null, "output": whether the contract
                                          has an output schema of its own, "reasoning", "tools": whether its model may
                                          call some by itself, "schemas": {"variables", "output": the contract's two
                                          JSON Schemas as the version's package has them, or null} or null where they
                                          are too large or an earlier release wrote, "at": ms since the epoch}

A worker writes its version's record when it gets ready. It stays when the worker ends: it says what the version
is, not that somebody serves it just now.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.consumers.contracts import ContractId, ContractRecords, contract_id
from headrace.consumers.control import ControlFollower, read_into
from headrace.schemas.contract import Contract
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import JsonObject

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.consumers.records import Record
    from headrace.schemas.settings import Settings

SERVING = "serving"
MAX_SCHEMAS_BYTES = 256 * 1024  # of both together: everybody who follows the control topic reads them


@dataclass(frozen=True, slots=True)
class ServingVersion:
    """A version of a contract as a worker serves it. `max_model_len` in tokens, prompt and output together.

    `speaks` is the contract as the version's package says it; None where the record does not have it.
    """

    model: str
    number: int
    version: str
    engine: str
    max_model_len: int | None
    has_output: bool
    reasons: bool
    at_ms: int
    calls_tools: bool = False  # by itself: its package has a tool parser
    speaks: Contract | None = field(default=None, hash=False)

    @property
    def contract(self) -> ContractId:
        """Model and number."""
        return self.model, self.number


class _Written(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Schemas(_Written):
    variables: JsonObject | bool | None
    output: JsonObject | bool | None


class _Serving(_Written):
    engine: str
    max_model_len: int | None = None
    output: bool
    reasoning: bool = False
    tools: bool = False
    schemas: _Schemas | None = None
    at: int


def serving_key(serving: ServingVersion) -> bytes:
    """The key of a version's record."""
    return f"{SERVING}/{serving.model}/{serving.number}/{serving.version}".encode()


def serving_value(serving: ServingVersion) -> bytes:
    """Its value."""
    written = {
        "engine": serving.engine,
        "max_model_len": serving.max_model_len,
        "output": serving.has_output,
        "reasoning": serving.reasons,
        "tools": serving.calls_tools,
        "schemas": _schemas(serving.speaks),
        "at": serving.at_ms,
    }
    return json.dumps(written).encode()


def _schemas(contract: Contract | None) -> JsonObject | None:
    """Both schemas, their order kept; None where they are too large."""
    if contract is None:
        return None
    schemas: JsonObject = {"variables": contract.variables, "output": contract.output}
    return schemas if len(json.dumps(schemas)) <= MAX_SCHEMAS_BYTES else None


class CatalogueRecords:
    """What the records read so far say. The last one of a key counts."""

    def __init__(self) -> None:
        self.contracts = ContractRecords()
        self.versions: dict[ContractId, dict[str, ServingVersion]] = {}

    def take(self, key: bytes | None, value: bytes | None, offset: int = -1) -> str | None:
        """Note a record; what is wrong with it, where it cannot be read. Without a value it takes its key back."""
        kind, _, name = (key or b"").decode("utf-8", "replace").partition("/")
        if kind != SERVING:
            self.contracts.take(key, value)
            return None
        model, number, version = (*name.split("/", 2), "", "")[:3]  # a version may have slashes
        try:
            of = contract_id(f"{model}/{number}")
        except UsageError:
            return f"its key is not {SERVING}/<model>/<number>/<version>"
        self.versions.get(of, {}).pop(version, None)
        if value is None:
            return None
        try:
            read = _Serving.model_validate_json(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'its value'}: {first['msg']}"
        speaks = None if read.schemas is None else Contract(*of, read.schemas.variables, read.schemas.output)
        self.versions.setdefault(of, {})[version] = ServingVersion(
            *of,
            version,
            read.engine,
            read.max_model_len,
            read.output,
            read.reasoning,
            read.at,
            read.tools,
            speaks,
        )
        return None

    def latest(self, of: ContractId) -> ServingVersion | None:
        """The version of a contract that a worker was ready with last."""
        return max(self.versions.get(of, {}).values(), key=lambda each: each.at_ms, default=None)

    def spoken(self, of: ContractId) -> Contract | None:
        """A contract as the version says it that a worker was ready with last, of those whose records say it."""
        saying = [each for each in self.versions.get(of, {}).values() if each.speaks is not None]
        return max(saying, key=lambda each: each.at_ms).speaks if saying else None

    @property
    def known(self) -> list[ContractId]:
        """Every contract that was frozen or served, in order."""
        served = [of for of, versions in self.versions.items() if versions]
        return sorted({*self.contracts.contracts, *served})


class Catalogue(ControlFollower[CatalogueRecords]):
    """Follows the control topic for what can be asked. `run` is a thread's body."""

    def __init__(self, settings: Settings, changed: Callable[[], None] | None = None) -> None:
        super().__init__(settings, CatalogueRecords, changed)


def read_catalogue(settings: Settings) -> CatalogueRecords:
    """What the control topic says now of what can be asked.

    Raises TopicsError where the topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    records = CatalogueRecords()

    def take(record: Record) -> None:
        records.take(record.key, record.value, record.offset)

    read_into(settings, take)
    return records
