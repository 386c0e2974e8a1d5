"""Jinja2 in its sandbox, with bounds on what a caller's variables make of a template. Pure.

A prompt is rendered on the worker's loop, and everybody's tokens wait meanwhile.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.schemas.errors import TemplateFailed
from headrace.schemas.messages import JsonObject

MAX_PROMPT_CHARACTERS = 1024 * 1024  # of a rendered prompt, all its messages together
MAX_WIDTH = 10_000  # that a filter or a string's method pads or splits to
MAX_POWER_BITS = 4_096  # of the result of `**`
MAX_STEPS = 200_000  # of a rendering: turns of its loops, and calls
MAX_CPU_SECONDS = 0.5  # of a rendering whose steps are heavy, each a search through a long list
_STEPS_A_LOOK = 64  # between two looks at the clock
_STEPS = " steps"  # the counter's name in a rendering: with a blank, so that no template can say it


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
    """What every `for` goes through: see `compiled`."""
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


PROMPT_ENVIRONMENT: jinja2.Environment = _environment()
ROW_ENVIRONMENT = PROMPT_ENVIRONMENT.overlay(finalize=_no_null)  # printing a null fails


def compiled(text: str, environment: jinja2.Environment) -> tuple[jinja2.Template, frozenset[str]]:
    """The template, its loops counted, and the names that it uses. Raises jinja2.TemplateError."""
    parsed = environment.parse(text)
    names = jinja2.meta.find_undeclared_variables(parsed)
    for loop in parsed.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, _STEPS, [], [], None, None, lineno=loop.lineno)
    return environment.from_string(parsed), frozenset(names - environment.globals.keys())


def row_columns(text: str) -> frozenset[str]:
    """`Title` of `row.Title` and `row['Title']`; not the methods of an object, as in `row.items()`.

    Raises jinja2.TemplateError.
    """
    return frozenset(_row_columns(ROW_ENVIRONMENT.parse(text)))


def _row_columns(parsed: nodes.Template) -> Iterator[str]:
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


def generated(template: jinja2.Template, values: JsonObject, budget: int, path: str) -> str:
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
