"""From a request to a prompt: its messages, its text, or the package's template over its variables. Pure.

Templates are Jinja2 in its sandbox. Whatever a caller's variables make of one is bounded in size and in work: it is
rendered on the worker's loop, and everybody's tokens wait meanwhile.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

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

MAX_PROMPT_CHARACTERS = 1024 * 1024  # of a rendered prompt, all its messages together
MAX_WIDTH = 10_000  # that a filter or a string's method pads or splits to
MAX_POWER_BITS = 4_096  # of the result of `**`
MAX_STEPS = 200_000  # of a rendering: turns of its loops, and calls
MAX_CPU_SECONDS = 0.5  # of a rendering whose steps are heavy, each a search through a long list
_STEPS_A_LOOK = 64  # between two looks at the clock
_STEPS = " steps"  # the counter's name in a rendering: with a blank, so that no template can say it

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
            text = _generated(template, variables, budget, "/variables")
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
            self._template, self.names = _compiled(text, _ROW_ENVIRONMENT)
            self.row_columns = frozenset(_row_columns(_ROW_ENVIRONMENT.parse(text)))
        except jinja2.TemplateError as error:
            line = getattr(error, "lineno", None) or 1
            raise UsageError(f"the template is not Jinja2: {error.message} (line {line} of it)") from None

    def render(self, values: JsonObject, path: str) -> str:
        """Its text for these values. Raises TemplateFailed with `path`, a JSON pointer into the request."""
        try:
            return _generated(self._template, values, MAX_PROMPT_CHARACTERS, path)
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


# --- Jinja2 --------------------------------------------------------------------------------


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, and a bound on what one expression can make out of a small variable."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            raise OverflowError("% does not format strings here; use ~ or the format filter")
        if operator == "*":
            for repeated, count in ((left, right), (right, left)):
                if isinstance(repeated, (list, tuple)):
                    raise OverflowError("lists are not repeated here")
                if isinstance(repeated, str) and isinstance(count, int):
                    size = len(repeated) * count
                    if size > MAX_PROMPT_CHARACTERS:
                        raise OverflowError(f"a repetition of {size:,} characters")
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right
            if bits > MAX_POWER_BITS:
                raise OverflowError(f"a power of {bits:,} bits")
        return super().call_binop(context, operator, left, right)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _steps_of(context).take()  # macros and recursive loops multiply without a loop's turn
        if isinstance(getattr(obj, "__self__", None), str):  # ljust, zfill, ...
            _refuse_width(*args, *kwargs.values())
        return super().call(context, obj, *args, **kwargs)


class _Steps:
    """What one rendering has done. Counted, since nested loops over two lists of a caller's take minutes unbounded
    and print nothing; the clock is for what a count does not see.
    """

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self._started: float | None = None  # most templates take no step, and the clock is a system call

    def take(self) -> None:
        """One more. Raises OverflowError beyond the bounds."""
        if self._started is None:
            self._started = time.thread_time()
        self._left -= 1
        if self._left < 0:
            raise OverflowError(f"more than {MAX_STEPS:,} turns of loops and calls")
        if self._left % _STEPS_A_LOOK == 0 and time.thread_time() - self._started > MAX_CPU_SECONDS:
            raise OverflowError(f"more than {MAX_CPU_SECONDS:g} s of CPU time")


def _steps_of(context: jinja2.runtime.Context) -> _Steps:
    return cast("_Steps", context.resolve(_STEPS))


@jinja2.pass_context
def _counted(context: jinja2.runtime.Context, iterable: Iterable[Any]) -> Iterator[Any]:
    """What every `for` goes through: see `_compile`."""
    steps = _steps_of(context)
    for item in iterable:
        steps.take()
        yield item


def _refuse_width(*arguments: Any) -> None:
    for argument in arguments:
        if isinstance(argument, int) and argument > MAX_WIDTH:
            raise OverflowError(f"a width of {argument:,}, and at most {MAX_WIDTH:,} are filled")


def _bounded(filter_: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(filter_)  # keeps the marks by which Jinja2 knows what else to pass
    def checked(*args: Any, **kwargs: Any) -> Any:
        _refuse_width(*args[1:], *kwargs.values())
        return filter_(*args, **kwargs)

    return checked


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja2's own tojson escapes <, > and & for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _environment() -> _Environment:
    environment = _Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.pop("lipsum")  # random text: a prompt must be the same each time
    environment.filters.pop("random")
    for name in ("batch", "center", "indent", "slice", "wordwrap"):
        environment.filters[name] = _bounded(environment.filters[name])
    environment.filters["tojson"] = _to_json
    environment.filters[_STEPS] = cast("Any", _counted)  # its stub is the union of Jinja2's own filters
    return environment


def _no_null(value: Any) -> Any:
    if value is None:
        raise ValueError("it prints a null: say what then, as in {{ name or 'unknown' }}")
    return value


_ENVIRONMENT = _environment()
_ROW_ENVIRONMENT = _ENVIRONMENT.overlay(finalize=_no_null)


def _compile(source: TemplateSource) -> tuple[jinja2.Template, frozenset[str]]:
    try:
        return _compiled(source.text, _ENVIRONMENT)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None) or 1
        raise PackageError(
            f"the template is not Jinja2: {error.message}",
            file=source.file,
            line=line if source.line is None else source.line + line - 1,
            key=source.key,
        ) from None


def _compiled(text: str, environment: jinja2.Environment) -> tuple[jinja2.Template, frozenset[str]]:
    """The template, its loops counted, and the names that it uses. Raises jinja2.TemplateError."""
    parsed = environment.parse(text)
    names = jinja2.meta.find_undeclared_variables(parsed)
    for loop in parsed.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, _STEPS, [], [], None, None, lineno=loop.lineno)
    return environment.from_string(parsed), frozenset(names - environment.globals.keys())


def _row_columns(parsed: nodes.Template) -> Iterator[str]:
    """`Title` of `row.Title` and `row['Title']`; not the methods of an object, as in `row.items()`."""
    for place in parsed.find_all((nodes.Getattr, nodes.Getitem)):
        if not (isinstance(place.node, nodes.Name) and place.node.name == "row"):
            continue
        match place:
            case nodes.Getattr(attr=str(name)) if not hasattr(dict, name):
                yield name
            case nodes.Getitem(arg=nodes.Const(value=str(name))):
                yield name
            case _:
                pass


def _generated(template: jinja2.Template, values: JsonObject, budget: int, path: str) -> str:
    """The text of at most `budget` characters. Raises jinja2.UndefinedError and TemplateFailed with `path`."""
    chunks: list[str] = []
    try:
        for chunk in template.generate({**values, _STEPS: _Steps()}):
            budget -= len(chunk)
            if budget < 0:
                raise TemplateFailed(
                    f"the prompt would have more than {MAX_PROMPT_CHARACTERS:,} characters", path=path
                )
            chunks.append(chunk)
    except (TemplateFailed, jinja2.UndefinedError):
        raise
    except Exception as error:  # noqa: BLE001 - a template may raise anything, and the request is at fault
        raise TemplateFailed(
            f"the template failed: {type(error).__name__}: {str(error)[:300]}", path=path
        ) from None
    return "".join(chunks)
