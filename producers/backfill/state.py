"""A job's state, which lies beside its output: all that another process on another machine needs to go on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.producers.backfill.failures import JobChanged, StateUnreadable
from headrace.schemas.messages import JsonObject, JsonValue

FORMAT = 1
FILE_NAME = "state.json"

Count = Annotated[int, Field(ge=0)]
# `written`: every part is; they are put together next.
JobStatus = Literal["running", "stopped", "cancelled", "written", "done"]


class _Written(BaseModel):
    # What a later release adds is passed over; what it means otherwise has another format.
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class WrittenPart(_Written):
    """A part of the output that is complete, and what is in it."""

    number: Count
    first_row: Count
    rows: Count
    file: str
    bytes: Count
    sha256: str
    statuses: dict[str, Count]
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    # Tokens of prompts, and generated, that are not in the part any more once a round has written it anew, by what the
    # round is for: of rows that it asks about again.
    bad_costs: dict[str, list[Count]] = Field(default_factory=dict[str, list[int]])
    asked: Count = 0
    versions: dict[str, Count] = Field(default_factory=dict[str, int])
    codes: dict[str, Count] = Field(default_factory=dict[str, int])  # of rows that are not `ok`
    round: Count = 0


class JobState(_Written):
    """See the module. `offsets`: of `results` by partition, from which all results of rows without a part can be read.

    `round` counts how often the job has begun anew to ask for what had no answer, or a bad one: ids have it.
    """

    format: int = FORMAT
    job: str
    model: str
    contract: Annotated[int, Field(ge=1)]
    identity: dict[str, str]  # what is being done, by name: a difference makes another job of it
    rows: Count
    rows_per_part: Annotated[int, Field(ge=1)]
    lane_partitions: Annotated[int, Field(ge=1)]
    results_topic: str
    offsets: dict[int, Count]
    round: Count = 0
    redo: Literal["failed", "rejects"] | None = None  # rows of this kind are asked again in this round
    redone: list[Count] = Field(
        default_factory=list[int]
    )  # chunks that the round is through with, or has no need of
    parts: list[WrittenPart] = Field(default_factory=list[WrittenPart])
    # Of answers that stood in parts until a later round asked anew.
    replaced_prompt_tokens: Count = 0
    replaced_completion_tokens: Count = 0
    status: JobStatus = "running"
    reason: str | None = None  # of its stop
    created_ms: Count
    updated_ms: Count
    writer: str = ""  # the incarnation of the process that has written this
    busy_ms: Count = 0  # that processes have worked at it, all together
    outstanding: Count = 0  # rows that were asked about and had no answer when this was written
    job_file: JsonObject = Field(default_factory=dict[str, JsonValue])  # what the job says, with whole paths
    input: str = ""  # for people, like the next
    output: str = ""
    names: dict[str, str] = Field(default_factory=dict[str, str])  # of the columns that hold outputs, by key

    @property
    def done(self) -> frozenset[int]:
        """Chunks that need nothing more."""
        if self.redo is not None:
            return frozenset(self.redone)
        return frozenset(part.number for part in self.parts)

    @property
    def statuses(self) -> dict[str, int]:
        """Rows in parts by what became of them."""
        return _sums(part.statuses for part in self.parts)

    @property
    def tokens(self) -> tuple[int, int]:
        """Of prompts and generated: what rows in parts have cost, bad answers that were asked for anew with them."""
        return (
            self.replaced_prompt_tokens + sum(part.prompt_tokens for part in self.parts),
            self.replaced_completion_tokens + sum(part.completion_tokens for part in self.parts),
        )

    @property
    def codes(self) -> dict[str, int]:
        """Rows in parts that are not `ok`, by reason."""
        return _sums(part.codes for part in self.parts)

    @property
    def versions(self) -> dict[str, int]:
        """Rows in parts by the version of the model that answered."""
        return _sums(part.versions for part in self.parts)

    @property
    def written_rows(self) -> int:
        """Rows in parts."""
        return sum(part.rows for part in self.parts)

    def with_part(self, part: WrittenPart) -> list[WrittenPart]:
        """The parts with this one, in place of the one of its number, in order."""
        others = [each for each in self.parts if each.number != part.number]
        return sorted([*others, part], key=lambda each: each.number)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for each in counts:
        found.update(each)
    return dict(found)


def state_bytes(state: JobState) -> bytes:
    """As it is written."""
    return (state.model_dump_json(indent=1) + "\n").encode()


def read_state(text: bytes, where: str) -> JobState:
    """From what was written. Raises StateUnreadable with the place and what is wrong."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
            raise StateUnreadable(
                f"{where} is in format {found.get('format')!r}, and this release reads {FORMAT}: "  # pyright: ignore[reportUnknownMemberType]
                "go on with the release that began the job"
            )
        return JobState.model_validate_json(text)
    except (ValidationError, ValueError) as error:
        first = (
            error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
        )
        raise StateUnreadable(f"{where} cannot be read: {first}") from None


def check_same_job(state: JobState, identity: dict[str, str]) -> None:
    """Raises JobChanged that names what differs from what the job has begun with."""
    names = {*state.identity, *identity}
    changed = sorted(name for name in names if state.identity.get(name) != identity.get(name))
    if changed:
        raise JobChanged(
            f"{state.output}: job {state.job} was begun with another {' and another '.join(changed)}. That makes a new "
            f"job of it: give another output, or --anew to begin again in this one's place. With "
            f'reuse = "{state.job}" rows whose request is the same as before take their answers from it'
        )
