"""The contracts and aliases that the control topic holds.

    contract/<model>/<number>   {"model", "number", "variables", "output": the two JSON Schemas or null, "digest",
                                 "output_digest", "result_schema": the Avro schema of its results as a JSON text, or
                                 null, "overrides": [{"contract", "version": digests, "by", "at"}], "by", "at"}
    alias/<name>                {"model", "number", "by", "at"}: which contract a bare model name means
    retired/<model>/<number>    see `consumers/retirements.py`

`at` is in ms since the epoch. The schemas keep their order: models write an object's properties in it. Fields that
this release does not know are passed over.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.consumers.control import read_into
from headrace.consumers.retirements import RETIRED, Retirement, retirement
from headrace.schemas.contract import Contract
from headrace.schemas.digest import digest_of
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.topics.names import MODEL_NAME

if TYPE_CHECKING:
    from headrace.consumers.records import Record
    from headrace.schemas.settings import Settings

CONTRACT = "contract"
ALIAS = "alias"
ALIAS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,199}")

ContractId = tuple[str, int]  # model, number


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's word that a version speaks a contract: the digests of both, who said it, ms since the epoch."""

    contract_digest: str
    version_digest: str
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class FrozenContract:
    """A contract as it was frozen. `result_schema` is the .avsc text of its results where they are typed."""

    contract: Contract
    result_schema: str | None
    by: str
    at_ms: int
    overrides: tuple[Override, ...] = ()

    @property
    def id(self) -> ContractId:
        """Model and number."""
        return self.contract.model, self.contract.number

    @property
    def overridden(self) -> set[tuple[str, str]]:
        """The pairs of digests, contract and version, that were declared the same."""
        return {(each.contract_digest, each.version_digest) for each in self.overrides}

    def as_json(self) -> JsonObject:
        """The record's value."""
        contract = self.contract
        return {
            "model": contract.model,
            "number": contract.number,
            "variables": contract.variables,
            "output": contract.output,
            "digest": contract.digest,
            "output_digest": output_digest(contract),
            "result_schema": self.result_schema,
            "overrides": [
                {
                    "contract": each.contract_digest,
                    "version": each.version_digest,
                    "by": each.by,
                    "at": each.at_ms,
                }
                for each in self.overrides
            ],
            "by": self.by,
            "at": self.at_ms,
        }


@dataclass(frozen=True, slots=True)
class Alias:
    """A bare model name and the contract that it means."""

    name: str
    model: str
    number: int
    by: str
    at_ms: int


def output_digest(contract: Contract) -> str | None:
    """The digest that results name in their provenance; None where requests ask for their own outputs."""
    return None if contract.output is None else digest_of(contract.output)


# --- pure: what the records say -------------------------------------------------------------------------------


class _Written(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Override(_Written):
    contract: str
    version: str
    by: str
    at: int


class _Contract(_Written):
    model: str
    number: int = Field(ge=1)
    variables: JsonValue
    output: JsonValue
    digest: str
    result_schema: str | None = None
    overrides: list[_Override] = Field(default_factory=list[_Override])
    by: str
    at: int


class _Alias(_Written):
    model: str
    number: int = Field(ge=1)
    by: str
    at: int


def contract_key(model: str, number: int) -> bytes:
    """The key of a contract's record."""
    return f"{CONTRACT}/{model}/{number}".encode()


def contract_value(frozen: FrozenContract) -> bytes:
    """Its value."""
    return json.dumps(frozen.as_json(), ensure_ascii=False).encode()


def alias_key(name: str) -> bytes:
    """The key of an alias's record."""
    return f"{ALIAS}/{name}".encode()


def alias_value(alias: Alias) -> bytes:
    """Its value."""
    written = {"model": alias.model, "number": alias.number, "by": alias.by, "at": alias.at_ms}
    return json.dumps(written).encode()


def contract_id(given: str) -> ContractId:
    """`movie-tagger/1`. Raises UsageError."""
    model, slash, number = given.rpartition("/")
    is_number = number.isascii() and number.isdigit() and len(number) < 10 and int(number) > 0
    if not (slash and MODEL_NAME.fullmatch(model) and is_number):
        raise UsageError(f"{given!r} is no contract: give MODEL/NUMBER, as movie-tagger/1")
    return model, int(number)


def frozen_contract(value: bytes | str) -> FrozenContract:
    """From a record's value. Raises ValueError with a sentence that says what is wrong with it."""
    try:
        read = _Contract.model_validate_json(value)
    except ValidationError as error:
        raise ValueError(_explain(error)) from None
    for name, schema in (("variables", read.variables), ("output", read.output)):
        if schema is not None and not isinstance(schema, (dict, bool)):
            raise ValueError(f"{name}: a JSON Schema is an object, true or false")
    contract = Contract(read.model, read.number, read.variables, read.output)
    try:
        digest = contract.digest
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its schemas cannot be read: {error}") from None
    if digest != read.digest:
        raise ValueError(f"its schemas have the digest {digest}, and it says {read.digest}")
    overrides = tuple(Override(each.contract, each.version, each.by, each.at) for each in read.overrides)
    return FrozenContract(contract, read.result_schema, read.by, read.at, overrides)


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its value'}: {first['msg']}"


class ContractRecords:
    """What the records read so far say. The last one of a key counts, also where it cannot be read.

    `unreadable` has the keys whose last record cannot be read, and why: they hide no other.
    """

    def __init__(self) -> None:
        self.contracts: dict[ContractId, FrozenContract] = {}
        self.aliases: dict[str, Alias] = {}
        self.retired: dict[ContractId, Retirement] = {}
        self.unreadable: dict[str, str] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Note a record. Without a value it takes its key back; other kinds are passed over."""
        text = (key or b"").decode("utf-8", "replace")
        kind, _, name = text.partition("/")
        if kind not in (CONTRACT, ALIAS, RETIRED):
            return
        self.unreadable.pop(text, None)
        try:
            if kind == CONTRACT:
                self._take_contract(name, value)
            elif kind == RETIRED:
                self._take_retirement(name, value)
            else:
                self._take_alias(name, value)
        except (ValueError, UsageError) as error:
            self.unreadable[text] = str(error)

    def _take_contract(self, name: str, value: bytes | None) -> None:
        of = contract_id(name)
        self.contracts.pop(of, None)
        if value is None:
            return
        frozen = frozen_contract(value)
        if frozen.id != of:
            raise ValueError(f"its key is of {name}, and its value of {frozen.id[0]}/{frozen.id[1]}")
        self.contracts[of] = frozen

    def _take_alias(self, name: str, value: bytes | None) -> None:
        self.aliases.pop(name, None)
        if value is None:
            return
        try:
            read = _Alias.model_validate_json(value)
        except ValidationError as error:
            raise ValueError(_explain(error)) from None
        self.aliases[name] = Alias(name, read.model, read.number, read.by, read.at)

    def _take_retirement(self, name: str, value: bytes | None) -> None:
        of = contract_id(name)
        self.retired.pop(of, None)
        if value is not None:
            self.retired[of] = retirement(*of, value)

    @property
    def result_schemas(self) -> list[str]:
        """The Avro schemas of typed results, also of contracts that were retired and whose results were kept."""
        frozen = [each.result_schema for each in self.contracts.values() if each.result_schema is not None]
        kept = [schema for each in self.retired.values() for schema in each.result_schemas]
        return list(dict.fromkeys([*frozen, *kept]))

    def aliases_of(self, of: ContractId) -> list[str]:
        """The names that mean a contract."""
        return sorted(each.name for each in self.aliases.values() if (each.model, each.number) == of)

    def next_number(self, model: str) -> int:
        """The first number of a model that is above all of its contracts, unreadable and retired ones too."""
        numbers = [number for name, number in (*self.contracts, *self.retired) if name == model]
        for key in self.unreadable:
            kind, _, name = key.partition("/")
            number = name.removeprefix(f"{model}/")
            if kind in (CONTRACT, RETIRED) and number != name and number.isascii() and number.isdigit():
                numbers.append(int(number[:9]))
        return max(numbers, default=0) + 1


# --- the edge ---------------------------------------------------------------------------------------------------


def read_contracts(settings: Settings) -> ContractRecords:
    """All contracts and aliases that the control topic holds now.

    Raises TopicsError where the topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    records = ContractRecords()

    def take(record: Record) -> None:
        records.take(record.key, record.value)

    read_into(settings, take)
    return records
