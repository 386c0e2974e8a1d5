"""How an output schema is held while text is generated: by which backend, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.schemas.messages import JsonObject

Backend = Literal["xgrammar", "guidance"]


@dataclass(frozen=True, slots=True)
class Enforcement:
    """What a backend is given of an output schema, and what that holds. Every output is validated afterwards.

    `tier`: `enforced` (what is generated is accepted by the validator), `enforced_normalised` (the same, after a
    rewriting that keeps the schema's meaning), `relaxed:<keyword>,<keyword>` (these are left to the validation), or
    `validated_only` (nothing is enforced). `schema` is what the backend compiles; None with `validated_only`.
    `narrowed` are the keywords by which the backend forbids more than the schema does.
    """

    tier: str
    schema: JsonObject | bool | None
    narrowed: tuple[str, ...] = ()
