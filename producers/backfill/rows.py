"""From a table's row to what is asked, by columns and templates; and from its result to what became of it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.producers.backfill.coercion import Types, coerced, kept_types, types_of
from headrace.producers.backfill.job import VariableSpec
from headrace.producers.backfill.outcome import Outcome
from headrace.schemas.digest import digest_of
from headrace.schemas.errors import (
    InvalidSchema,
    MessageError,
    MissingVariable,
    OutputNotJson,
    TemplateFailed,
    UsageError,
)
from headrace.schemas.output_json import parse_output
from headrace.schemas.output_schema import OutputSchema
from headrace.schemas.prompt import RowTemplate, check_variables
from headrace.schemas.schema_bounds import pointer_to

if TYPE_CHECKING:
    from headrace.producers.backfill.contract_view import ContractView
    from headrace.producers.backfill.job import JobSpec
    from headrace.schemas.messages import JsonObject, JsonValue, Result

_SHOWN: Final = 20  # columns that a message names
_TEMPLATE_MARKS: Final = ("{{", "{%", "{#")
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class _Variable:
    """Where a variable comes from: a column, a template, or neither, and then it is `value` always."""

    name: str
    types: Types | None  # that its schema takes; None: any
    required: bool
    column: str | None = None
    template: _Text | None = None
    value: JsonValue = None

    @property
    def source(self) -> str:
        """As a message names it."""
        if self.column is not None:
            return f"the column {self.column!r}"
        return f"the {'template' if self.template else 'value'} of {self.name!r}"

    def as_json(self) -> JsonValue:
        """For the digest: all that decides what a row gives."""
        template = None if self.template is None else self.template.text
        types = None if self.types is None else sorted(self.types)
        return [self.name, types, self.required, self.column, template, self.value]


class _Text:
    """A template over the row, and over each column whose name is a name to Jinja2."""

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        """Raises UsageError for what is not Jinja2, and for a name that is no column."""
        self.text = text
        self._template = RowTemplate(text)
        for name in sorted(self._template.names - {"row"}) + sorted(self._template.row_columns):
            if name not in columns:
                raise UsageError(f"the template uses {name!r}, which is no column{_there_are(name, columns)}")
        self._names = tuple(sorted(self._template.names - {"row"}))
        self.uses_row = bool(self._template.names)

    def render(self, row: JsonObject, path: str) -> str:
        """Raises TemplateFailed with `path`."""
        values: JsonObject = {name: row.get(name) for name in self._names}
        values["row"] = row
        return self._template.render(values, path)


class RowMapping:
    """How a table's rows are asked about: see `mapping.py`. Everything is compiled once.

    `output_schema` is what outputs are held to: the contract's, or the job's own; None: they are texts.
    """

    def __init__(self, job: JobSpec, view: ContractView, columns: Sequence[str]) -> None:
        """`columns` are those of the input. Raises JobInvalid for whatever no row could be asked with."""
        self._columns = frozenset(columns)
        self._order = tuple(columns)
        self._constant = _constant_fields(job, view)
        self._schema: OutputSchema | None = None
        self._variables: tuple[_Variable, ...] = ()
        self._turns: tuple[tuple[str, _Text, str], ...] = ()  # role, template, JSON pointer into the request
        self._prompt: _Text | None = None
        if job.messages is not None:
            contents = [(each.role, each.content, ("messages",)) for each in job.messages]
            self._turns = self._compiled_turns(job, contents)
        elif job.prompt is not None and job.system is not None:
            key = "prompt" if job.prompt_file is None else "prompt_file"
            contents = [("system", job.system, ("system",)), ("user", job.prompt, (key,))]
            self._turns = self._compiled_turns(job, contents)
        elif job.prompt is not None:
            key = "prompt" if job.prompt_file is None else "prompt_file"
            self._prompt = self._text(job, job.prompt, key)
            _refuse_constant(job, [self._prompt], key)
        else:
            self._schema = _variables_schema(job, view)
            self._variables = self._compiled_variables(job, view)
        self._plan = tuple((each, each.name, each.column, kept_types(each.types)) for each in self._variables)
        self.output_schema = view.contract.output if view.contract.output is not None else job.output_schema
        self.digest = self._digest(view)

    def request_of(self, row: JsonObject) -> JsonObject:
        """See `Mapping`: MissingVariable, InvalidField and TemplateFailed name the column."""
        if self._schema is not None:
            return {"variables": self._variables_of(row, self._schema), **self._constant}
        if self._prompt is not None:
            return {"prompt": _said(self._prompt, row, "/prompt"), **self._constant}
        messages = [{"role": role, "content": _said(text, row, path)} for role, text, path in self._turns]
        return {"messages": messages, **self._constant}

    def outcome_of(self, result: Result) -> Outcome:
        """See `Mapping`."""
        return outcome_of(result, parses=self.output_schema is not None)

    def _variables_of(self, row: JsonObject, schema: OutputSchema) -> JsonObject:
        variables: JsonObject = {}
        for variable, name, column, kept in self._plan:
            value = row.get(column) if column is not None else self._made(variable, row)
            if type(value) not in kept:
                value = _fitting(variable, value)
                if value is _ABSENT:
                    continue
            variables[name] = value
        try:
            check_variables(schema, variables)
        except MessageError as error:
            raise self._named(error) from None
        return variables

    def _made(self, variable: _Variable, row: JsonObject) -> JsonValue:
        if variable.template is None:
            return variable.value
        path = pointer_to(["variables", variable.name])
        try:
            return variable.template.render(row, path)
        except TemplateFailed as error:
            raise TemplateFailed(f"{variable.source}: {error.message}", path=path) from None

    def _named(self, error: MessageError) -> MessageError:
        """The same error, with where the variable at fault comes from."""
        steps = (error.path or "").split("/")
        name = steps[2].replace("~1", "/").replace("~0", "~") if len(steps) > 2 else None
        variable = next((each for each in self._variables if each.name == name), None)
        if variable is None:
            return error
        return type(error)(f"{variable.source}: {error.message}", path=error.path)

    # --- compiling ----------------------------------------------------------------------------------------

    def _compiled_variables(self, job: JobSpec, view: ContractView) -> tuple[_Variable, ...]:
        of_contract = {each.name: each for each in view.contract.variable_list()}
        given = job.variables or {}
        for name in given:
            if view.known is not None and name not in view.known:
                raise job.fault(
                    f"{view.name} has no such variable{_did_you_mean(name, sorted(view.known), 'it has')}",
                    "variables",
                    name,
                )
        found: list[_Variable] = []
        for name in dict.fromkeys([*of_contract, *sorted(view.known or ()), *given]):
            variable = of_contract.get(name)
            types = None if variable is None else types_of(variable.schema, view.contract.variables)
            required = variable is not None and variable.required
            if name in given:
                found.append(self._given(job, name, types, required=required))
            elif name in self._columns:
                found.append(_Variable(name, types, required, column=name))
            elif required:
                raise job.fault(self._without_column(view, name), "variables")
        return tuple(found)

    def _without_column(self, view: ContractView, name: str) -> str:
        example = _closest(name, self._order, cutoff=0.5) or "COLUMN"
        return (
            f"{view.name} needs the variable {name!r}, and the input has no column of that name: say where it comes "
            f'from, {name} = "{example}". Columns: {_listed(self._order)}'
        )

    def _given(self, job: JobSpec, name: str, types: Types | None, *, required: bool) -> _Variable:
        spec = (job.variables or {})[name]
        keys = ("variables", name)
        if isinstance(spec, str):
            is_template = spec not in self._columns and any(mark in spec for mark in _TEMPLATE_MARKS)
            spec = VariableSpec(template=spec) if is_template else VariableSpec(column=spec)
        elif not isinstance(spec, VariableSpec):
            spec = VariableSpec(value=spec)
        if spec.template is not None:
            return _Variable(name, types, required, template=self._text(job, spec.template, *keys))
        if spec.column is None:
            return _Variable(name, types, required, value=spec.value)
        if spec.column not in self._columns:
            there_are = _there_are(spec.column, self._order)
            raise job.fault(
                f"there is no column {spec.column!r}{there_are} "
                f"(a value that is always the same is written {name} = {{ value = ... }})",
                *keys,
            )
        return _Variable(name, types, required, column=spec.column)

    def _text(self, job: JobSpec, text: str, *keys: str) -> _Text:
        try:
            return _Text(text, self._order)
        except UsageError as error:
            raise job.fault(error.message, *keys) from None

    def _compiled_turns(
        self, job: JobSpec, contents: Sequence[tuple[str, str, tuple[str, ...]]]
    ) -> tuple[tuple[str, _Text, str], ...]:
        turns = [
            (role, self._text(job, text, *keys), f"/messages/{place}/content")
            for place, (role, text, keys) in enumerate(contents)
        ]
        _refuse_constant(job, [text for _, text, _ in turns], *contents[-1][2])
        return tuple(turns)

    def _digest(self, view: ContractView) -> str:
        return digest_of(
            {
                "contract": [view.contract.model, view.contract.number],
                "variables": [each.as_json() for each in self._variables],
                "prompt": None if self._prompt is None else self._prompt.text,
                "messages": [[role, text.text] for role, text, _ in self._turns],
                "sampling": self._constant.get("sampling"),
                "output": self._constant.get("output"),
            }
        )


def outcome_of(result: Result, *, parses: bool) -> Outcome:
    """What a result says of its row. `parses`: its output is JSON, whether or not the worker has read it."""
    status, error = result.status, result.error
    value: JsonValue = None
    code = error_text = None
    if status == "ok":
        output = result.outputs[0]
        value = output.value
        if value is None:
            value = output.text
            if parses:
                try:
                    value = parse_output(output.text)
                except OutputNotJson as fault:
                    value, status, code, error_text = None, "invalid_output", fault.code, str(fault)
    elif error is None:
        code, error_text = status, f"the request ended as {status}"
    else:
        code = error.code
        error_text = f"{error.message} (at {error.path})" if error.path else error.message
    return Outcome(
        status,
        value,
        code,
        error_text,
        result.usage.prompt_tokens,
        result.usage.completion_tokens,
        result.provenance.version,
        result.id,
    )


def _fitting(variable: _Variable, value: JsonValue) -> JsonValue:
    """A value as the schema wants it; `_ABSENT` for a null that may be left out. Raises MissingVariable."""
    if value is not None:
        return value if variable.types is None else coerced(value, variable.types)
    if not variable.required:
        return _ABSENT
    raise MissingVariable(
        f"{variable.source} is null, and the variable {variable.name!r} is required",
        path=pointer_to(["variables", variable.name]),
    )


def _said(text: _Text, row: JsonObject, path: str) -> str:
    rendered = text.render(row, path)
    if not rendered.strip():
        raise TemplateFailed("the template gave an empty text", path=path)
    return rendered


def _constant_fields(job: JobSpec, view: ContractView) -> JsonObject:
    """The fields that all requests of the job have alike."""
    fields: JsonObject = {}
    if sampling := job.sampling.model_dump(exclude_none=True):
        fields["sampling"] = sampling
    if job.output_schema is not None:
        own = view.contract.output
        if own is None:
            fields["output"] = {"json_schema": job.output_schema}
        elif digest_of(own) != digest_of(job.output_schema):
            raise job.fault(
                f"all outputs of {view.name} are held to its own output schema: leave it out", "output_schema"
            )
    if job.tenant is not None:
        fields["tenant"] = job.tenant
    if job.attributes:
        fields["attributes"] = job.attributes
    return fields


def _variables_schema(job: JobSpec, view: ContractView) -> OutputSchema:
    if view.contract.variables is None:
        raise job.fault(
            f"{view.name} has no prompt template, and so no variables: give prompt or messages",
            *(("variables",) if job.variables is not None else ()),
        )
    try:
        return OutputSchema(view.contract.variables)
    except InvalidSchema as error:
        raise job.fault(f"the variables' schema of {view.name} cannot be read: {error}") from None


def _refuse_constant(job: JobSpec, texts: Sequence[_Text], *keys: str) -> None:
    """Raises JobInvalid for templates that are the same for all rows: one brace too few, most likely."""
    if not any(text.uses_row for text in texts):
        raise job.fault(
            "uses no column, so that every row would be asked the same: write {{ COLUMN }}", *keys
        )


def _there_are(name: str, columns: Sequence[str]) -> str:
    return _did_you_mean(name, columns, "there are")


def _did_you_mean(name: str, known: Sequence[str], what_is_there: str) -> str:
    close = _closest(name, known)
    return f"; did you mean {close!r}?" if close else f"; {what_is_there} {_listed(known)}"


def _closest(name: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "none"
