"""A job as it is written: a TOML file, or the same keys from a command's options.

model = "movie-tagger"      # or an alias, or movie-tagger@2
input = "films.parquet"     # or { path = "films.txt", format = "csv" }; relative to this file
output = "tags.parquet"     # a file, or a folder: "tags/"

[variables]                 # default: each variable from the column of its name
title = "Title"                                # a column
year = "{{ row['Release Date'][-4:] }}"        # a template over the row
language = { value = "en" }                    # always the same

Instead of variables: `prompt` (or `prompt_file`), the text that the model goes on from, for which no chat template is
applied; with `system`, the user's turn after it; or `messages`. All of them are templates over the row.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from headrace.producers.backfill.breaker import MaxFailures
from headrace.producers.backfill.failures import JobInvalid
from headrace.producers.backfill.job_options import with_options
from headrace.producers.backfill.job_origin import Origin
from headrace.producers.backfill.locations import suffix_of, without_query
from headrace.producers.backfill.row_ids import is_name, name_of
from headrace.schemas.errors import InvalidSchema
from headrace.schemas.field_errors import explain
from headrace.schemas.messages import Finite, Identifier, JsonObject, Sampling
from headrace.schemas.output_schema import OutputSchema

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FILE_BYTES: Final = 1024 * 1024  # of a job's file and of each text that it names
ROWS_PER_PART: Final = 10_000
MAX_ROWS_PER_PART: Final = 1_000_000

OutputFormat = Literal["parquet", "jsonl"]
_FORMAT_OF_SUFFIX: Final[dict[str, OutputFormat]] = {
    "": "parquet",  # a folder of parts
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

# What a job says by other means, or not at all.
_INSTEAD: Final = {
    "stream": "results of a backfill come whole",
    "n": "each row has one answer",
    "deadline": "set give_up_after",
    "rejects": "they are written beside the output",
    "temperature": "set it under [sampling]",
    "max_tokens": "set it under [sampling]",
    "seed": "set it under [sampling]",
}
# The keys that say what is asked, of which a batch file's lines have their own.
_OF_ROWS: Final = (
    "variables", "prompt", "prompt_file", "system", "messages", "sampling", "output_schema", "keep", "reuse",
)  # fmt: skip

Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class InputSpec(_Strict):
    """Where the rows are; without `format` the path's suffix says it."""

    path: Text
    format: Literal["parquet", "arrow", "csv", "tsv", "jsonl"] | None = None


class OutputSpec(_Strict):
    """Where the output goes; without `format` the path's suffix says it."""

    path: Text
    format: OutputFormat | None = None


class VariableSpec(_Strict):
    """What a variable is: exactly one of a column, a template over the row, and a value that is always the same."""

    column: Text | None = None
    template: Text | None = None
    value: Any = None


class MessageSpec(_Strict):
    """One turn of a conversation; `content` is a template over the row."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class JobSpec(_Strict):
    """A job, checked. From `load_job` or `job_of`, which have also made its paths absolute and read its texts."""

    model: Text | None = None  # None: the lines of `openai_batch` name it
    contract: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None  # None: what the model's name means
    input: Text | InputSpec | None = None
    openai_batch: Text | None = None
    output: Text | OutputSpec
    name: str | None = None
    package: Text | None = None
    keep: list[Text] | None = None  # columns of the input; None: all
    rows_per_part: Annotated[int, Field(ge=1, le=MAX_ROWS_PER_PART)] = ROWS_PER_PART
    max_failures: str | Annotated[int, Field(ge=0)] = "5%"
    token_budget: Annotated[int, Field(gt=0)] | None = None  # of prompts and answers together
    dedupe: bool = True
    reuse: Text | None = None  # an earlier job's id, or the path of its output
    lane: Literal["backfill", "standard"] = "backfill"
    give_up_after: str | None = None  # of each request, from when it is sent: 30m, 2h
    tenant: Identifier | None = None
    attributes: dict[str, str] = Field(default_factory=dict[str, str])
    variables: Annotated[dict[str, Text | bool | int | Finite | VariableSpec], Field(min_length=1)] | None = (
        None
    )
    prompt: Text | None = None
    prompt_file: Text | None = None  # `prompt` has its text
    system: Text | None = None
    messages: Annotated[list[MessageSpec], Field(min_length=1)] | None = None
    sampling: Sampling = Sampling()
    output_schema: Text | JsonObject | bool | None = None  # loaded: the JSON Schema, never its file's name

    _origin: Origin = PrivateAttr(default_factory=Origin)

    def fault(self, message: str, *keys: str) -> JobInvalid:
        """An error at a key (`"variables", "title"`), with the file and the line where there are some."""
        return self._origin.fault(message, *keys)

    def written_in(self, origin: Origin) -> Self:
        """The same, whose errors say where it is written."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    @property
    def job_name(self) -> str:
        """What the job is called: the output's stem unless it has a name."""
        if self.name is not None:
            return self.name
        return name_of(PurePosixPath(without_query(self.output_path)).stem)

    @property
    def input_path(self) -> str:
        """Where the rows, or the lines of a batch file, are."""
        if self.openai_batch is not None:
            return self.openai_batch
        return self.input.path if isinstance(self.input, InputSpec) else cast("str", self.input)

    @property
    def output_path(self) -> str:
        """Where the output goes."""
        return self.output.path if isinstance(self.output, OutputSpec) else self.output

    @property
    def output_format(self) -> OutputFormat:
        """How the output is written."""
        return _output_format(self)

    @property
    def breaker(self) -> MaxFailures:
        """When the job stops because too many of its rows fail."""
        return MaxFailures.parse(self.max_failures)

    @property
    def give_up_after_s(self) -> float | None:
        """Seconds that a request may take; None: as long as it does."""
        return None if self.give_up_after is None else _seconds(self.give_up_after)


def load_job(path: Path, options: Mapping[str, Any] | None = None) -> JobSpec:
    """A job's file, with the texts that it names; its paths count from where it lies.

    `options` come before the file's keys: see `job_options.py`. Raises JobInvalid with the file, the line where it is
    known, and the key.
    """
    file = path.absolute()
    text = _read(file, Origin())
    origin = Origin(file, text, options)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise JobInvalid(f"{file}{f':{line[1]}' if line else ''}: not TOML: {error}") from None
    except RecursionError:
        raise JobInvalid(f"{file}: not TOML: nested too deep") from None
    return _job(with_options(table, options or {}), file.parent, origin)


def job_of(fields: Mapping[str, Any], directory: Path) -> JobSpec:
    """A job from a command's options, by the keys of a job's file; its paths count from `directory`.

    Options that were not given are left out, or None. Raises JobInvalid with the key.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    return _job(given, directory.absolute(), Origin())


def job_of_options(options: Mapping[str, Any]) -> JobSpec:
    """A job from a command's options alone: see `job_options.py`. Raises JobInvalid with the option."""
    return _job(with_options({}, options), Path.cwd(), Origin(options=options))


def _job(table: JsonObject, directory: Path, origin: Origin) -> JobSpec:
    try:
        spec = JobSpec.model_validate(table)
    except ValidationError as error:
        raise _explained(error, table, origin) from None
    _check(spec, origin)
    return _located(spec, directory, origin)


# --- what cannot be ---------------------------------------------------------------------------------------


def _explained(error: ValidationError, table: JsonObject, origin: Origin) -> JobInvalid:
    fault = explain(error, table)
    keys = tuple(step.replace("~1", "/").replace("~0", "~") for step in (fault.path or "").split("/")[1:])
    if fault.code == "unknown_field":
        return origin.fault(f"is no key of a job{_hint(keys)}", *keys)
    if "is missing" in fault.message:
        return origin.fault("is missing: a job needs it", *keys)
    return origin.fault(fault.message, *keys)


def _hint(keys: tuple[str, ...]) -> str:
    *section, name = keys
    if name in _INSTEAD and section in ([], ["sampling"]) and not (section and name not in ("n", "stream")):
        return f": {_INSTEAD[name]}"
    known: dict[str, Any]
    match section:
        case ["sampling"]:
            known = Sampling.model_fields
        case ["input"]:
            known = InputSpec.model_fields
        case ["output"]:
            known = OutputSpec.model_fields
        case ["variables", _]:
            known = VariableSpec.model_fields
        case ["messages", _]:
            known = MessageSpec.model_fields
        case _:
            known = JobSpec.model_fields
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; here go {', '.join(known)}"


def _check(spec: JobSpec, origin: Origin) -> None:
    """Raises JobInvalid for keys that are at odds with each other, and for values that no type rules out."""
    given = spec.model_fields_set
    _check_input(spec, given, origin)
    _check_asked(spec, given, origin)
    if spec.sampling.n not in (None, 1):
        raise origin.fault("each row has one answer: leave it out", "sampling", "n")
    if spec.name is not None and not is_name(spec.name):
        raise origin.fault(
            "must be of letters, digits, - and _, begin with a letter or digit, and have at most 60 of them; "
            f"try {name_of(spec.name)!r}",
            "name",
        )
    try:
        MaxFailures.parse(spec.max_failures)
    except (ValueError, OverflowError) as error:
        raise origin.fault(str(error), "max_failures") from None
    if spec.give_up_after is not None and not _is_duration(spec.give_up_after):
        raise origin.fault(f"{spec.give_up_after!r} is no duration: 90s, 30m, 2h or 1d", "give_up_after")
    if spec.keep is not None and len(set(spec.keep)) < len(spec.keep):
        twice = next(name for name in spec.keep if spec.keep.count(name) > 1)
        raise origin.fault(f"names the column {twice!r} twice", "keep")
    for name, each in (spec.variables or {}).items():
        if isinstance(each, VariableSpec) and len(each.model_fields_set) != 1:
            raise origin.fault("needs exactly one of column, template, value", "variables", name)


def _check_input(spec: JobSpec, given: set[str], origin: Origin) -> None:
    if spec.openai_batch is None:
        for name in ("model", "input"):
            if getattr(spec, name) is None:
                raise origin.fault("is missing: a job needs it", name)
        return
    if spec.input is not None:
        raise origin.fault("goes without input: its lines are the rows", "openai_batch")
    for name in _OF_ROWS:
        if name in given:
            raise origin.fault("goes without openai_batch: each line of that says what it asks for", name)


def _check_asked(spec: JobSpec, given: set[str], origin: Origin) -> None:
    """Of variables, a prompt and messages there is one at most."""
    if "prompt" in given and "prompt_file" in given:
        raise origin.fault("either prompt or prompt_file, not both", "prompt_file")
    prompt = "prompt_file" if "prompt_file" in given else "prompt"
    ways = [name for name in ("variables", prompt, "messages") if name in given]
    if len(ways) > 1:
        raise origin.fault(f"goes without {ways[0]}: a row is asked about in one way", ways[1])
    if "system" in given and prompt not in given:
        raise origin.fault("goes with prompt, the user's turn after it; or give messages", "system")


def _is_duration(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,3})?[smhd]", text, re.ASCII) is not None and _seconds(text) > 0


def _seconds(text: str) -> float:
    return float(text[:-1]) * _UNITS[text[-1]]


# --- what is written elsewhere ----------------------------------------------------------------------------


def _located(spec: JobSpec, directory: Path, origin: Origin) -> JobSpec:
    """With absolute paths, the prompt's text and the output schema."""
    changed: dict[str, Any] = {}
    for name in ("input", "output", "openai_batch", "package"):
        value = getattr(spec, name)
        if isinstance(value, str):
            changed[name] = _path(value, directory)
        elif isinstance(value, (InputSpec, OutputSpec)):
            changed[name] = value.model_copy(update={"path": _path(value.path, directory)})
    if spec.reuse is not None and _is_path(spec.reuse):
        changed["reuse"] = _path(spec.reuse, directory)
    if spec.prompt_file is not None:
        file = Path(_path(spec.prompt_file, directory))
        changed["prompt_file"] = str(file)
        changed["prompt"] = _read(file, origin, "prompt_file")
        if not changed["prompt"].strip():
            raise origin.fault(f"{file} is empty", "prompt_file")
    if spec.output_schema is not None:
        changed["output_schema"] = _schema(spec.output_schema, directory, origin)
    located = spec.model_copy(update=changed).written_in(origin)
    _output_format(located)
    return located


def _output_format(spec: JobSpec) -> OutputFormat:
    """Raises JobInvalid where the path's suffix says none of them, or says one that a batch's answers do not have."""
    given = spec.output.format if isinstance(spec.output, OutputSpec) else None
    suffix = suffix_of(spec.output_path)
    if given is None and suffix not in _FORMAT_OF_SUFFIX:
        raise spec.fault(
            f"{suffix} is no format of an output: name it .parquet or .jsonl, or say the format (--output-format, "
            'output = { path = "...", format = "jsonl" })',
            "output",
        )
    found = given or _FORMAT_OF_SUFFIX[suffix]
    if spec.openai_batch is None:
        return found
    if found != "jsonl" and (given or suffix):
        keys, instead = (("output", "format"), "say jsonl") if given else (("output",), "name it .jsonl")
        raise spec.fault(f"the answers to a batch file are JSON lines, not {found}: {instead}", *keys)
    return "jsonl"


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or PurePosixPath(text).suffix in _FORMAT_OF_SUFFIX.keys() - {""}


def _path(name: str, directory: Path) -> str:
    """A URI as it is, a path made absolute. A slash at the end stays: it tells a folder from a file."""
    if "://" in name:
        return name
    path = str(directory / Path(name).expanduser())
    return path + "/" if name.endswith("/") else path


def _schema(given: str | JsonObject | bool, directory: Path, origin: Origin) -> JsonObject | bool:
    key, schema, where = "output_schema", given, ""
    if isinstance(given, str):
        file = Path(_path(given, directory))
        schema, where = _read(file, origin, key), f"{file}: "
    try:
        return OutputSchema.parse(schema).schema
    except InvalidSchema as error:
        raise origin.fault(f"{where}{error}", key) from None


def _read(file: Path, origin: Origin, *keys: str) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise origin.fault(f"{file} is larger than {MAX_FILE_BYTES:,} bytes", *keys)
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise origin.fault(f"there is no file {file}", *keys) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
        reason = getattr(error, "strerror", None) or error
        raise origin.fault(f"{file} cannot be read: {reason}", *keys) from None
