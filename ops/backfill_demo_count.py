"""Whether the rows of the demonstration's output and the records in Kafka add up to its input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq

from headrace.producers.backfill.row_ids import row_id
from headrace.schemas.errors import OutputError

if TYPE_CHECKING:
    from headrace.ops.faults.verdict import Answer, Asked
    from headrace.schemas.messages import JsonObject
    from headrace.schemas.output_schema import OutputSchema

FAULTS_SHOWN = 8
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topics:
    """What lies in Kafka at the end: every request, every committed result; and how many generations were begun."""

    asked: Sequence[Asked]
    answers: Sequence[Answer]
    generated: int


@dataclass(frozen=True, slots=True)
class Count:
    """The counts, and what is wrong. `table`: the rows of the output."""

    input_rows: int
    table: list[Row]
    rejects: int  # lines of the rejects' file
    reasons: dict[str, int]
    requests: int  # distinct ids in Kafka
    sent_again: int  # records of requests beyond the first of each id
    results: int
    generated_again: int  # generations begun beyond one for each result
    faults: list[str]

    @property
    def rows(self) -> int:
        """Of the output."""
        return len(self.table)

    @property
    def statuses(self) -> Counter[str]:
        """Rows of the output by what became of them."""
        return Counter(str(row["headrace_status"]) for row in self.table)

    @property
    def passed(self) -> bool:
        """Nothing lost, doubled, out of place or invalid, and nothing generated twice."""
        return not self.faults

    def lines(self) -> list[str]:
        """For people."""
        parts = " + ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        reasons = ", ".join(f"{count:,} {code}" for code, count in self.reasons.items())
        return [
            f"{self.input_rows:,} rows in = {self.rows:,} rows out = {parts}{f' ({reasons})' if reasons else ''}",
            f"{self.requests:,} requests, {self.results:,} results in Kafka. {self.sent_again:,} had no answer at the "
            f"kill and were sent again; generated again: {self.generated_again or 'none'}",
        ]


def count_up(
    input_file: Path, output_file: Path, rejects: str, job: str, schema: OutputSchema, topics: Topics
) -> Count:
    """Read both tables and count. `rejects`: the lines of the rejects' file; `schema`: of a row's output."""
    films = [json.loads(line) for line in input_file.read_text(encoding="utf-8").splitlines()]
    table = cast("list[Row]", cast("Any", pq).read_table(output_file).to_pylist())
    rejected = [json.loads(line) for line in rejects.splitlines()]
    requests = Counter(each.id for each in topics.asked)
    results = Counter(each.id for each in topics.answers)
    generated_again = topics.generated - len(topics.answers)
    faults = [
        *_out_of_place(films, table),
        *_ids_at_fault(table, job),
        *_invalid(table, schema),
        *_rejects_at_fault(table, rejected),
        *_results_at_fault(table, requests, results),
    ]
    if generated_again:
        faults.append(f"{generated_again:,} generations were begun beyond one for each result")
    return Count(
        input_rows=len(films),
        table=table,
        rejects=len(rejected),
        reasons=dict(Counter(str(each["code"]) for each in rejected)),
        requests=len(requests),
        sent_again=requests.total() - len(requests),
        results=results.total(),
        generated_again=generated_again,
        faults=faults,
    )


def first_faults(faults: Sequence[str]) -> list[str]:
    """So many as a terminal has room for."""
    more = len(faults) - FAULTS_SHOWN
    return [*faults[:FAULTS_SHOWN], *([f"and {more:,} more"] if more > 0 else [])]


def _out_of_place(films: Sequence[JsonObject], table: Sequence[Row]) -> Iterable[str]:
    if len(films) != len(table):
        yield f"the input has {len(films):,} rows, and the output {len(table):,}"
    for number, (film, row) in enumerate(zip(films, table, strict=False)):
        for column in ("Title", "Release Date"):
            if not _is_same(film[column], row[column]):
                yield f"row {number}: {column} is {row[column]!r}, and {film[column]!r} in the input"


def _is_same(given: Any, kept: Any) -> bool:
    """A column of the input with texts and numbers is JSON text in the output."""
    return kept == given or kept == json.dumps(given, ensure_ascii=False)


def _ids_at_fault(table: Sequence[Row], job: str) -> Iterable[str]:
    for number, row in enumerate(table):
        id_ = row["headrace_id"]
        of = None if id_ is None else row_id(job, id_)
        if row["headrace_status"] == "ok" and (of is None or of.row != number):
            yield f"row {number}: its output is of request {id_}"


def _invalid(table: Sequence[Row], schema: OutputSchema) -> Iterable[str]:
    properties = cast("JsonObject", cast("JsonObject", schema.schema)["properties"])
    for number, row in enumerate(table):
        value = {name: row[name] for name in properties}
        if row["headrace_status"] != "ok":
            if any(each is not None for each in value.values()):
                yield f"row {number}: is {row['headrace_status']}, and has an output"
            continue
        try:
            schema.check_value(value)
        except OutputError as error:
            yield f"row {number}: its output is not valid: {error}"


def _rejects_at_fault(table: Sequence[Row], rejected: Sequence[JsonObject]) -> Iterable[str]:
    expected = [number for number, row in enumerate(table) if row["headrace_status"] != "ok"]
    found = [each["row_index"] for each in rejected]
    if expected != found:
        yield f"rows {expected[:5]} of the output have none, and the rejects are rows {found[:5]}"
    for each in rejected:
        if not each["reason"]:
            yield f"row {each['row_index']} was rejected without a reason"


def _results_at_fault(table: Sequence[Row], requests: Counter[str], results: Counter[str]) -> Iterable[str]:
    wanted = {str(row["headrace_id"]) for row in table if row["headrace_id"] is not None}
    for name, ids in (
        ("requests without a result", requests.keys() - results.keys()),
        ("results that nobody asked for", results.keys() - requests.keys()),
        ("rows whose result is not in Kafka", wanted - results.keys()),
        ("results that are in no row", results.keys() - wanted),
        ("requests with several results", {id_ for id_, count in results.items() if count > 1}),
    ):
        if ids:
            yield f"{len(ids):,} {name}: {min(ids)}"
