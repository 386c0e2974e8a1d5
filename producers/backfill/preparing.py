"""What a job is before it asks anything: its input, its contract, how rows are asked about, what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from headrace.producers.backfill.batch_ids import UniqueLines
from headrace.producers.backfill.columns import OutputColumns
from headrace.producers.backfill.contract_view import ContractView, read_contract_view
from headrace.producers.backfill.job import InputSpec, JobSpec
from headrace.producers.backfill.job_files import BESIDE, ERRORS, FORMER, INSIDE, MANIFEST, REJECTS
from headrace.producers.backfill.locations import Place, place_of, suffix_of, without_secrets, would_list
from headrace.producers.backfill.openai_batch import BatchMapping, batch_model
from headrace.producers.backfill.opening import open_source
from headrace.producers.backfill.parts import part_name, rejects_name
from headrace.producers.backfill.row_ids import RequestDigests
from headrace.producers.backfill.rows import RowMapping
from headrace.producers.backfill.state import FILE_NAME
from headrace.schemas.digest import digest_of
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from headrace.producers.backfill.source import Source
    from headrace.producers.backfill.table_source import TableSource
    from headrace.producers.backfill.text_source import TextSource
    from headrace.schemas.messages import JsonObject
    from headrace.schemas.settings import Settings

LINES_LOOKED_AT = 1_000  # of a batch file, for the model that it names

Progress = Callable[[int, int | None], None]  # bytes read, of how many


@dataclass(frozen=True, slots=True)
class PreparedJob:
    """A job that can begin. `identity` names what makes it this job: another of any of these makes another."""

    spec: JobSpec
    source: Source
    view: ContractView
    mapping: RowMapping | BatchMapping
    columns: OutputColumns
    names: ContractNames
    identity: dict[str, str]

    @property
    def output_schema(self) -> JsonObject | bool | None:
        """What outputs are held to; None: they are texts."""
        return output_schema_of(self.mapping)

    @property
    def digests(self) -> RequestDigests:
        """Of its requests."""
        schema = self.output_schema
        return RequestDigests(*self.view.id, None if schema is None else digest_of(schema))


def prepare(settings: Settings, spec: JobSpec, progress: Progress | None = None) -> PreparedJob:
    """Open the input and look up the contract: what can be wrong with a job as a whole is found here.

    Raises JobInvalid, InputFailed, PackageError, TopicsError, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    _refuse_own_files(spec)
    mapping: RowMapping | BatchMapping
    if spec.openai_batch is None:
        table = _table(spec, progress)
        if spec.output_format == "jsonl":
            _refuse_what_lines_cannot_hold(spec, table)
        source: Source = table
        view, _ = read_contract_view(settings, spec)
        mapping = RowMapping(spec, view, table.columns)
    else:
        source = UniqueLines(open_source(spec.openai_batch, format="jsonl", progress=progress))
        view, records = read_contract_view(settings, spec, _model_of_lines(spec, source))
        mapping = BatchMapping(spec, view, records)
    columns = OutputColumns.of(source.schema, output_schema_of(mapping))
    return PreparedJob(
        spec,
        source,
        view,
        mapping,
        columns,
        ContractNames(settings.prefix, *view.id),
        {
            "input": source.digest,
            "prompt or parameters": mapping.digest,
            "contract": view.name,
            "columns": digest_of(
                columns.schema.to_string(show_field_metadata=False, show_schema_metadata=False)
            ),
            "rows_per_part": str(spec.rows_per_part),
            "format of the output": spec.output_format,
        }
        | _said_of_itself(spec),
    )


def _refuse_what_lines_cannot_hold(spec: JobSpec, table: TableSource | TextSource) -> None:
    """Raises JobInvalid: they would be null in every line of the output."""
    for name in table.schema.names:
        if (why := table.unreadable.get(name)) is not None:
            raise spec.fault(
                f"lines of JSON cannot keep the column `{name}`: {why}. Leave it out, or write Parquet",
                "keep",
            )


def own_file_in_input(spec: JobSpec) -> Place | None:
    """A file of the job that its input would have too, once it is written.

    The input would then be another than the one that the job has begun with, and the job could never go on; or the
    output would be put in the input's place.
    """
    return next((place for place in files_of_job(spec) if would_list(spec.input_path, place)), None)


def files_of_job(spec: JobSpec) -> list[Place]:
    """The first of each kind of file that a job writes, where `job_files` has them. Pure but for local links."""
    output = place_of(spec.output_path)
    is_folder = not suffix_of(spec.output_path)
    if spec.openai_batch is None:
        rejects, rejects_place = REJECTS, output.beside(f".{REJECTS}.jsonl")
    else:
        rejects, rejects_place = ERRORS, output.with_suffix(f".{ERRORS}.jsonl")
    own = output.child(INSIDE) if is_folder else output.beside(BESIDE)
    parts = output if is_folder else own.child("parts")
    part = part_name(0, spec.output_format)
    return [
        *([own.child(f"{rejects}.jsonl")] if is_folder else [output, rejects_place]),
        parts.child(part),
        *(own.child(f"{folder}/{part}") for folder in ("waiting", FORMER)),
        *(own.child(f"{folder}/{rejects_name(0)}") for folder in ("rejects", "waiting")),
        *(own.child(name) for name in (FILE_NAME, MANIFEST, f"{FORMER}/{FILE_NAME}")),
    ]


def _refuse_own_files(spec: JobSpec) -> None:
    """Raises JobInvalid."""
    if (found := own_file_in_input(spec)) is None:
        return
    read, written = without_secrets(spec.input_path), without_secrets(spec.output_path)
    if place_of(spec.input_path) == place_of(spec.output_path):
        raise spec.fault(f"{written} is the input itself: give another output", "output")
    raise spec.fault(
        f"the job's own file {found.path} would be part of its input {read}: give an output elsewhere than {written}",
        "output",
    )


def _said_of_itself(spec: JobSpec) -> dict[str, str]:
    """What each request says beside what it asks: hooks see it, so that it may change what comes out."""
    if spec.tenant is None and not spec.attributes:
        return {}
    return {"tenant or attributes": digest_of({"tenant": spec.tenant, "attributes": {**spec.attributes}})}


def output_schema_of(mapping: RowMapping | BatchMapping) -> JsonObject | bool | None:
    """A job's own is there as it was loaded, and not by its file's name any more."""
    return cast("JsonObject | bool | None", mapping.output_schema)


def _table(spec: JobSpec, progress: Progress | None) -> TableSource | TextSource:
    given = spec.input.format if isinstance(spec.input, InputSpec) else None
    return open_source(spec.input_path, format=given, keep=spec.keep, progress=progress)


def _model_of_lines(spec: JobSpec, source: Source) -> str | None:
    if spec.model is not None:
        return spec.model
    return batch_model(next(source.chunks(LINES_LOOKED_AT, lambda number: number == 0)).rows)
