"""Contracts that were retired, or are being, as the control topic has them.

    retired/<model>/<number>   {"state": "removing" | "removed", "result_schemas": [Avro schemas as JSON texts],
                                "kept": [topics that were left], "by", "at": ms since the epoch}

Written before anything of the contract is removed, so that one whose removal was interrupted is seen as such. It stays
where results were kept: typed ones cannot be read without their schemas, and the frozen record that had them is gone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

RETIRED = "retired"

State = Literal["removing", "removed"]


@dataclass(frozen=True, slots=True)
class Retirement:
    """What is left of a contract, and since when."""

    model: str
    number: int
    state: State
    by: str
    at_ms: int
    result_schemas: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    @property
    def is_removing(self) -> bool:
        """Whether the removal has begun and not ended."""
        return self.state == "removing"


class _Written(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    state: State
    result_schemas: list[str] = []
    kept: list[str] = []
    by: str
    at: int


def retirement_key(model: str, number: int) -> bytes:
    """The key of the record."""
    return f"{RETIRED}/{model}/{number}".encode()


def retirement_value(retirement: Retirement) -> bytes:
    """Its value."""
    written = {
        "state": retirement.state,
        "result_schemas": retirement.result_schemas,
        "kept": retirement.kept,
        "by": retirement.by,
        "at": retirement.at_ms,
    }
    return json.dumps(written).encode()


def retirement(model: str, number: int, value: bytes) -> Retirement:
    """From a record's value. Raises ValueError with a sentence that says what is wrong with it."""
    try:
        read = _Written.model_validate_json(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'its value'}: {first['msg']}") from None
    return Retirement(
        model, number, read.state, read.by, read.at, tuple(read.result_schemas), tuple(read.kept)
    )
