"""From a request to a prompt: its messages, its text, or the package's template over its variables. Pure.

Templates are rendered under the bounds of `bounded_templates`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import jinja2

from headrace.schemas.bounded_templates import (
    MAX_PROMPT_CHARACTERS,
    PROMPT_ENVIRONMENT,
    ROW_ENVIRONMENT,
    compiled,
    generated,
    row_columns,
)
from headrace.schemas.errors import (
    InvalidField,
    InvalidSchema,
    MessageError,
    MissingVariable,
    OutputViolatesSchema,
    PackageError,
    TemplateFailed,
    UnknownField,
    UnsupportedField,
    UsageError,
)
from headrace.schemas.messages import ChatMessage, JsonObject, OutputConstraint, Request, Sampling
from headrace.schemas.output_schema import OutputCheck, OutputSchema
from headrace.schemas.schema_bounds import pointer_to
from headrace.schemas.tool_calls import ToolCallCheck

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.schemas.package import Package

# A text for the model as it is, or messages for its chat template.
RenderedPrompt = str | list[ChatMessage]
Role = Literal["system", "user", "text"]


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """A template and where it stands: in the package's file from a line on, or in a file of its own."""

    role: Role  # "text": the whole prompt, for which no chat template is applied
    text: str
    file: Path
    line: int | None = None  # of `file`, where the template begins; None where the file is the template
    key: str | None = None  # of the package's file


class PromptTemplate:
    """The compiled template of a package: one text, or messages that each have a template.

    `variables` are the names that it uses. `known` are these and what the input schema names.
    """

    def __init__(self, sources: Iterable[TemplateSource], input_schema: OutputSchema | None = None) -> None:
        """Raises PackageError with file and line for a template that is not Jinja2."""
        names: set[str] = set()
        self._parts: list[tuple[Role, jinja2.Template]] = []
        for source in sources:
            template, used = _compile(source)
            self._parts.append((source.role, template))
            names |= used
        self.variables = frozenset(names)
        self.input_schema = input_schema
        self.known = self.variables | _properties(input_schema)

    def render(self, variables: JsonObject) -> RenderedPrompt:
        """The prompt for these variables.

        Raises MissingVariable, UnknownField (one that would be ignored) and InvalidField with the path
        `/variables/NAME`, and TemplateFailed for whatever else goes wrong in the template.
        """
        self._check(variables)
        budget = MAX_PROMPT_CHARACTERS
        messages: list[ChatMessage] = []
        for role, template in self._parts:
            text = self._rendered(template, variables, budget)
            budget -= len(text)
            if role == "text":
                return text
            messages.append(ChatMessage(role=role, content=text))
        return messages

    def _check(self, variables: JsonObject) -> None:
        for name in variables:
            if name not in self.known:
                known = ", ".join(sorted(self.known)) or "none"
                raise UnknownField(f"the template has no variable {name!r}; it has {known}", path=_path(name))
        if self.input_schema is not None:
            check_variables(self.input_schema, variables)
            return
        for name in sorted(self.variables):
            if name not in variables:
                raise MissingVariable(f"the template needs the variable {name!r}", path=_path(name))
            if not isinstance(variables[name], str):
                raise InvalidField(f"the variable {name!r} must be a string", path=_path(name))

    def _rendered(self, template: jinja2.Template, variables: JsonObject, budget: int) -> str:
        try:
            text = generated(template, variables, budget, "/variables")
        except jinja2.UndefinedError as error:
            raise self._undefined(error, variables) from None
        if not text.strip():
            raise TemplateFailed("the template gave an empty prompt", path="/variables")
        return text

    def _undefined(self, error: jinja2.UndefinedError, variables: JsonObject) -> MessageError:
        message = error.message or "a variable is undefined"
        for name in sorted(self.variables - variables.keys()):
            if f"'{name}' is undefined" in message:
                return MissingVariable(f"the template needs the variable {name!r}", path=_path(name))
        return TemplateFailed(f"the template failed: {message[:300]}", path="/variables")


class RowTemplate:
    """A template of one text over the columns of a table's row, under the bounds of a package's.

    `names` are those that it uses; `row_columns` the columns that it takes from `row` by their names. Printing a null
    fails: a prompt that says `None` is nobody's wish.
    """

    def __init__(self, text: str) -> None:
        """Raises UsageError, with the template's line, for a text that is not Jinja2."""
        try:
            self._template, self.names = compiled(text, ROW_ENVIRONMENT)
            self.row_columns = row_columns(text)
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None) or 1
            raise UsageError(f"the template is not Jinja2: {error.message} (line {line} of it)") from None

    def render(self, values: JsonObject, path: str) -> str:
        """Its text for these values. Raises TemplateFailed with `path`, a JSON pointer into the request."""
        try:
            return generated(self._template, values, MAX_PROMPT_CHARACTERS, path)
        except jinja2.UndefinedError as error:
            message = error.message or "a name is undefined"
            raise TemplateFailed(f"the template failed: {message[:300]}", path=path) from None


def prompt_of(request: Request, package: Package) -> RenderedPrompt:
    """What to send to the model for a request.

    Raises UnsupportedField for what this package cannot serve, and what `PromptTemplate.render` raises.
    """
    _check_tools(request, package)
    if request.reasoning is not None and package.reasoning_parser is None:
        raise UnsupportedField(
            f"{package.model} {package.version} is no reasoning model: its package has no reasoning_parser",
            path="/reasoning",
        )
    if request.messages is not None:
        return request.messages
    if request.prompt is not None:
        return request.prompt
    if package.prompt is None:
        raise UnsupportedField(
            f"{package.model} {package.version} has no prompt template: send messages or prompt instead",
            path="/variables",
        )
    return package.prompt.render(cast("JsonObject", request.variables))


def calls_of(request: Request, package: Package) -> ToolCallCheck | None:
    """What the model's own calls are held to; None where it is not left to the model whether it calls a tool.

    Raises what `ToolCallCheck` raises, and UnsupportedField.
    """
    _check_tools(request, package)
    if request.tools is None or _mode(request) != "auto":
        return None
    return ToolCallCheck(request.tools)


def _mode(request: Request) -> str:
    return "auto" if request.tool_choice is None else request.tool_choice.mode


def _check_tools(request: Request, package: Package) -> None:
    if request.tools is None:
        if request.tool_choice is not None:
            raise UnsupportedField(
                "tool_choice without tools: there is nothing to choose from", path="/tool_choice"
            )
        return
    if request.messages is None:
        raise UnsupportedField("tools go with messages: only a chat template can show them", path="/tools")
    mode = _mode(request)
    if mode == "auto" and package.tool_parser is None:
        raise UnsupportedField(
            "whether the model calls a tool cannot be left to it: its package has no tool_parser. With tool_choice"
            " none the tools are shown to the model, and none is called",
            path="/tool_choice",
        )
    if mode == "auto" and request.output is not None:
        raise UnsupportedField(
            "where it is left to the model whether it calls a tool, nothing else can hold its output: leave output or "
            "the tools out",
            path="/output",
        )
    if mode in ("required", "named") and request.output is None:
        raise UnsupportedField(
            f"tool_choice {mode} asks for a call, and nothing holds the output to one: give its JSON Schema as output",
            path="/tool_choice",
        )


def constraint_of(request: Request, package: Package) -> tuple[OutputConstraint | None, OutputCheck | None]:
    """What the output is held to, and its check: the package's output schema, the request's own, or nothing.

    Raises InvalidSchema or SchemaTooComplex with a path into the request, UnsupportedField where the request
    asks for something other than the package's output schema.
    """
    if request.output is None:
        return package.constraint, package.output_check
    try:
        check = OutputCheck(request.output)
    except InvalidSchema as error:
        raise type(error)(error.message, path=f"/output{error.path or ''}") from None
    if package.output_check is None:
        return request.output, check
    if request.output.json_object and _admits_objects_alone(package.constraint):
        return package.constraint, package.output_check
    if check.digest != package.output_check.digest:
        raise UnsupportedField(
            f"all outputs of contract {package.contract} of {package.model} are held to its output schema "
            f"({package.output_check.digest}): leave output out, or ask for that schema",
            path="/output",
        )
    return package.constraint, package.output_check


def _admits_objects_alone(constraint: OutputConstraint | None) -> bool:
    schema = None if constraint is None else constraint.json_schema
    return isinstance(schema, dict) and schema.get("type") == "object"


def sampling_of(request: Request, package: Package) -> Sampling:
    """The request's sampling over the package's. What both leave out is the engine's own default."""
    if request.sampling is None:
        return package.sampling
    return package.sampling.model_copy(update=request.sampling.model_dump(exclude_none=True))


def _path(name: str) -> str:
    return pointer_to(["variables", name])


def _properties(schema: OutputSchema | None) -> frozenset[str]:
    if schema is None or not isinstance(schema.schema, dict):
        return frozenset()
    properties = schema.schema.get("properties")
    return frozenset(cast("JsonObject", properties)) if isinstance(properties, dict) else frozenset()


def check_variables(schema: OutputSchema, variables: JsonObject) -> None:
    """Raises MissingVariable and InvalidField, the path into the request, for variables that `schema` refuses."""
    required = schema.schema.get("required") if isinstance(schema.schema, dict) else None
    for name in cast("list[str]", required) if isinstance(required, list) else ():
        if name not in variables:
            raise MissingVariable(f"the variable {name!r} is required", path=_path(name))
    try:
        schema.check_value(variables)
    except OutputViolatesSchema as error:
        raise InvalidField(error.message, path=f"/variables{error.path or ''}") from None


def _compile(source: TemplateSource) -> tuple[jinja2.Template, frozenset[str]]:
    try:
        return compiled(source.text, PROMPT_ENVIRONMENT)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None) or 1
        raise PackageError(
            f"the template is not Jinja2: {error.message}",
            file=source.file,
            line=line if source.line is None else source.line + line - 1,
            key=source.key,
        ) from None
