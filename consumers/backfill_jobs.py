"""The backfill jobs that the control topic names: what runs where, and what operators have ordered.

    backfill/<model>/<number>/<job>         {"incarnation", "host", "output", "status", "rows", "settled", "failed",
                                             "at"}: written by the process that runs it; `at` in ms since the epoch
    backfill-order/<model>/<number>/<job>   {"order": "run" | "pause" | "cancel", "by", "at"}: written by operators

The state that lies beside the output is what a job goes on from: these records are for finding it and talking to it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.consumers.contracts import ContractId, contract_id
from headrace.consumers.control import ControlFollower, read_into
from headrace.consumers.records import Record
from headrace.schemas.errors import UsageError
from headrace.schemas.settings import Settings

BACKFILL = "backfill"
ORDER = "backfill-order"

OrderKind = Literal["run", "pause", "cancel"]
RunStatus = Literal["running", "paused", "stopped", "cancelled", "done"]
Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class JobId:
    """A job of a contract."""

    model: str
    number: int
    job: str

    @property
    def contract(self) -> ContractId:
        """Model and number."""
        return self.model, self.number

    def key(self, kind: str) -> bytes:
        """Of its record of this kind."""
        return f"{kind}/{self.model}/{self.number}/{self.job}".encode()


class RunningJob(BaseModel):
    """What the process that runs a job has said last."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    incarnation: str  # one life of a process; a newer one takes the job over
    host: str
    output: str
    status: RunStatus
    rows: Count
    settled: Count
    failed: Count
    at: int


class Order(BaseModel):
    """What an operator wants of a job."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    order: OrderKind
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job by its records. `claim` is the offset of the record by which its incarnation was named first."""

    id: JobId
    running: RunningJob | None = None
    order: Order | None = None
    claim: int = -1


class BackfillRecords:
    """What the records read so far say. The last one of a key counts."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, KnownJob] = {}

    def take(self, key: bytes | None, value: bytes | None, offset: int = -1) -> str | None:
        """Note a record; what is wrong with it, where it cannot be read. Without a value it takes its key back."""
        kind, _, name = (key or b"").decode("utf-8", "replace").partition("/")
        if kind not in (BACKFILL, ORDER):
            return None
        contract, _, job = name.rpartition("/")
        try:
            id_ = JobId(*contract_id(contract), job)
        except UsageError:
            return f"its key is not {kind}/<model>/<number>/<job>"
        known = self.jobs.get(id_, KnownJob(id_))
        try:
            if kind == ORDER:
                order = None if value is None else Order.model_validate_json(value)
                known = replace(known, order=order)
            else:
                running = None if value is None else RunningJob.model_validate_json(value)
                is_new = running is not None and (
                    known.running is None or known.running.incarnation != running.incarnation
                )
                known = replace(known, running=running, claim=offset if is_new else known.claim)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc'])) or 'its value'}: {first['msg']}"
        if known.running is None and known.order is None:
            self.jobs.pop(id_, None)
        else:
            self.jobs[id_] = known
        return None

    def of(self, job: str) -> list[KnownJob]:
        """The jobs with this id, or whose id begins with it."""
        exact = [each for each in self.jobs.values() if each.id.job == job]
        return exact or [each for each in self.jobs.values() if each.id.job.startswith(job)]


def job_record(id_: JobId, running: RunningJob) -> tuple[bytes, bytes]:
    """Key and value of what a job's process says."""
    return id_.key(BACKFILL), running.model_dump_json().encode()


def order_record(id_: JobId, order: Order | None) -> tuple[bytes, bytes | None]:
    """Key and value of an order; None takes it back."""
    return id_.key(ORDER), None if order is None else json.dumps(order.model_dump()).encode()


class BackfillFollower(ControlFollower[BackfillRecords]):
    """Follows the control topic for jobs. `run` is a thread's body."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, BackfillRecords)

    def known(self, id_: JobId) -> KnownJob | None:
        """What is known of a job now."""
        return self.asked(lambda records: records.jobs.get(id_))


def read_backfills(settings: Settings) -> BackfillRecords:
    """All jobs that the control topic names now. Raises as `read_control`."""
    records = BackfillRecords()

    def take(record: Record) -> None:
        records.take(record.key, record.value, record.offset)

    read_into(settings, take)
    return records
