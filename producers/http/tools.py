"""From `tools` and `tool_choice` to what a Request shows the model, and to the JSON Schema of a forced call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

from pydantic import TypeAdapter

from headrace.producers.http.refusing import check, invalid, missing, shortened, unsupported
from headrace.producers.http.tool_schema import InvalidToolSchema, any_call_schema
from headrace.producers.http.typed_values import (
    as_flag,
    as_list,
    as_object,
    as_one_of,
    as_text,
    members,
    without_nulls,
)
from headrace.producers.http.wanted import ForcedTool
from headrace.schemas.messages import Tool, ToolChoice
from headrace.schemas.tool_calls import NO_ARGUMENTS

if TYPE_CHECKING:
    from headrace.schemas.messages import JsonObject, JsonValue

MAX_TOOLS: Final = 128  # OpenAI's limit, and as many branches as a schema may have

Mode = Literal["none", "auto", "required"]

_MODES: Final = ("none", "auto", "required")
_FUNCTION: Final = ("name", "description", "parameters", "strict")
_ONLY_FUNCTIONS: Final = "functions are the only kind of tool"
_NO_PARSER: Final = (
    "the package of this model has no tool_parser, so a call cannot be told from text: send 'required' or a function "
    "by name to force a call, or 'none'"
)
_TOOLS: Final = TypeAdapter(list[Tool])
_CHOICE: Final = TypeAdapter(ToolChoice)


@dataclass(frozen=True, slots=True)
class WantedTools:
    """`tools` and `tool_choice` are a Request's.

    `forced` and `json_schema` (what the output is held to) are there where a call is demanded. `parallel` is False
    where an answer may have one call only.
    """

    tools: list[JsonObject] | None = None
    tool_choice: JsonObject | None = None
    forced: ForcedTool | None = None
    json_schema: JsonObject | None = None
    parallel: bool = True

    @property
    def holds_the_output(self) -> bool:
        """Whether an output may be, or must be, a call, and is validated as one."""
        return self.tool_choice is not None and self.tool_choice["mode"] != "none"


@dataclass(frozen=True, slots=True)
class _Choice:
    """`names`: the functions that may be called, in the caller's order; None for all."""

    mode: Mode
    names: tuple[str, ...] | None = None


def tools_of(given: JsonObject, *, has_tool_parser: bool) -> WantedTools:
    """The tools of a call and how they are chosen. Raises ApiError for what cannot be served.

    An empty list is no tools. Without tools, `none` and `auto` ask for nothing.
    """
    parallel = "parallel_tool_calls" not in given or as_flag(
        given["parallel_tool_calls"], "parallel_tool_calls"
    )
    offered = as_list(given.get("tools", []), "tools")
    if len(offered) > MAX_TOOLS:
        raise invalid("tools", f"must have at most {MAX_TOOLS} tools; given: {len(offered)}")
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(offered)]
    choice = _choice(given.get("tool_choice"), "tool_choice")
    if not tools:
        if choice.mode == "required":
            raise invalid("tool_choice", "asks for a call, and there are no tools")
        return WantedTools()
    check(_TOOLS, tools, "tools")
    places = _places(tools)
    allowed = _allowed(choice, places)
    if choice.mode == "auto":
        _check_auto(allowed, tools, has_tool_parser=has_tool_parser)
        for index in allowed:
            _arguments(tools[index], index)
    if choice.mode != "required":
        return WantedTools(tools, {"mode": choice.mode}, parallel=parallel)
    return _forced(tools, allowed, parallel=parallel)


def _forced(tools: list[JsonObject], allowed: Sequence[int], *, parallel: bool) -> WantedTools:
    functions = [(tools[index]["function"]["name"], _arguments(tools[index], index)) for index in allowed]
    if len(functions) == 1:
        name, schema = functions[0]
        choice: JsonObject = {"mode": "named", "function": name}
        check(_CHOICE, choice, "tool_choice")
        return WantedTools(tools, choice, ForcedTool(name), schema, parallel)
    try:
        schema = any_call_schema(functions)
    except InvalidToolSchema as error:
        place = f" (at {error.path})" if error.path else ""
        raise invalid(_parameters(allowed[error.index]), error.message + place) from None
    return WantedTools(tools, {"mode": "required"}, ForcedTool(None), schema, parallel)


# --- tools ----------------------------------------------------------------------------------------------------------


def _tool(value: JsonValue, param: str) -> JsonObject:
    given = without_nulls(as_object(value, param))
    if given.get("type", "function") != "function":
        raise unsupported(f"{param}.type", _ONLY_FUNCTIONS)
    tool = members(given, param, ("type", "function"))
    if "function" not in tool:
        raise missing(f"{param}.function")
    return {"type": "function", "function": members(tool["function"], f"{param}.function", _FUNCTION)}


def _places(tools: list[JsonObject]) -> dict[str, int]:
    """Where each function stands, by name."""
    places: dict[str, int] = {}
    for index, tool in enumerate(tools):
        name: str = tool["function"]["name"]
        if name in places:
            raise invalid(f"tools[{index}].function.name", f"two functions are called {shortened(name)!r}")
        places[name] = index
    return places


def _arguments(tool: JsonObject, index: int) -> JsonObject:
    """The JSON Schema of a function's arguments, which are an object."""
    parameters: JsonObject | None = tool["function"].get("parameters")
    if parameters is None:
        return dict(NO_ARGUMENTS)
    if not parameters:
        return {"type": "object"}
    if parameters.get("type", "object") != "object":
        raise invalid(f"{_parameters(index)}.type", "must be 'object': arguments have names")
    return parameters


def _parameters(index: int) -> str:
    return f"tools[{index}].function.parameters"


# --- tool_choice ----------------------------------------------------------------------------------------------------


def _choice(value: JsonValue, param: str) -> _Choice:
    if value is None:
        return _Choice("auto")
    if isinstance(value, str):
        if value not in _MODES:
            hint = (
                "did you mean 'required'"
                if value == "any"
                else 'a function is named as {"type": "function", ...}'
            )
            raise invalid(param, f"must be 'none', 'auto', 'required' or an object; {hint}")
        return _Choice(value)
    choice = without_nulls(as_object(value, param))
    kind = choice.get("type", "function")
    if kind == "allowed_tools":
        return _allowed_tools(choice, param)
    if kind != "function":
        raise unsupported(f"{param}.type", _ONLY_FUNCTIONS)
    return _Choice("required", (_function_name(choice, param),))


def _function_name(choice: JsonObject, param: str) -> str:
    """The name in `{"type": "function", "function": {"name": ...}}`, or with the name beside the type."""
    found = members(choice, param, ("type", "function", "name"))
    if found.get("type", "function") != "function":
        raise unsupported(f"{param}.type", _ONLY_FUNCTIONS)
    if "function" in found and "name" in found:
        raise invalid(f"{param}.name", "the function is named twice: under function too")
    if "function" in found:
        found = members(found["function"], f"{param}.function", ("name",))
        param = f"{param}.function"
    if "name" not in found:
        raise missing(f"{param}.name")
    return as_text(found["name"], f"{param}.name")


def _allowed_tools(choice: JsonObject, param: str) -> _Choice:
    place = f"{param}.allowed_tools"
    inner = members(
        members(choice, param, ("type", "allowed_tools")).get("allowed_tools"), place, ("mode", "tools")
    )
    for name in ("mode", "tools"):
        if name not in inner:
            raise missing(f"{place}.{name}")
    mode = as_one_of(inner["mode"], ("auto", "required"), f"{place}.mode")
    names: dict[str, None] = {}
    for index, tool in enumerate(as_list(inner["tools"], f"{place}.tools")):
        where = f"{place}.tools[{index}]"
        names[_function_name(without_nulls(as_object(tool, where)), where)] = None
    if not names:
        raise invalid(f"{place}.tools", "must have at least one tool")
    return _Choice(cast("Mode", mode), tuple(names))


def _allowed(choice: _Choice, places: dict[str, int]) -> list[int]:
    """Which of the tools may be called."""
    if choice.names is None:
        return list(places.values())
    for name in choice.names:
        if name not in places:
            raise invalid("tool_choice", f"there is no tool {shortened(name)!r}")
    return [places[name] for name in choice.names]


def _check_auto(allowed: list[int], tools: list[JsonObject], *, has_tool_parser: bool) -> None:
    if not has_tool_parser:
        raise unsupported("tool_choice", f"auto, the default: {_NO_PARSER}")
    if len(allowed) < len(tools):
        raise unsupported(
            "tool_choice.allowed_tools", "under auto the model may call any of the tools: send those alone"
        )
