"""The calls of tools that a model makes by itself, held against the tools that it was shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, cast

from headrace.schemas.errors import (
    InvalidField,
    InvalidSchema,
    OutputNotJson,
    OutputViolatesSchema,
)
from headrace.schemas.messages import JsonObject, Tool
from headrace.schemas.output_json import parse_output
from headrace.schemas.output_schema import OutputSchema, output_schema_of

# What a function without `parameters` takes.
NO_ARGUMENTS: Final[JsonObject] = {"type": "object", "properties": {}, "additionalProperties": False}


class Called(Protocol):
    """A call: the name of a function, and the JSON text of its arguments."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> str: ...


class ToolCallCheck:
    """What calls are held to: the names of a request's tools, and of each the JSON Schema of its arguments."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Raises InvalidField, InvalidSchema or SchemaTooComplex with a path into the request.

        That is `/tools/0/function/parameters/type`.
        """
        self._schemas: dict[str, OutputSchema] = {}
        for index, tool in enumerate(tools):
            name, place = tool.function.name, f"/tools/{index}/function"
            if name in self._schemas:
                raise InvalidField(f"two tools are called {name!r}", path=f"{place}/name")
            self._schemas[name] = _arguments_schema(tool.function.parameters, f"{place}/parameters")

    def check(self, calls: Sequence[Called]) -> None:
        """Raises OutputNotJson or OutputViolatesSchema with a pointer into the output: `/tool_calls/0/arguments/at`."""
        for index, call in enumerate(calls):
            self._check(call, f"/tool_calls/{index}")

    def _check(self, call: Called, place: str) -> None:
        schema = self._schemas.get(call.name)
        if schema is None:
            known = ", ".join(self._schemas)[:300]
            raise OutputViolatesSchema(
                f"there is no tool {call.name[:100]!r}; there are: {known}", path=f"{place}/name"
            )
        place = f"{place}/arguments"
        try:
            value = parse_output(call.arguments)
            if not isinstance(value, dict):
                raise OutputViolatesSchema("the arguments of a call are a JSON object")
            schema.check_value(cast("JsonObject", value))
        except (OutputNotJson, OutputViolatesSchema) as error:
            raise type(error)(error.message, path=place + (error.path or ""), offset=error.offset) from None


def _arguments_schema(parameters: JsonObject | None, place: str) -> OutputSchema:
    """An empty schema takes any object."""
    schema = NO_ARGUMENTS if parameters is None else parameters or {"type": "object"}
    if schema.get("type", "object") != "object":
        raise InvalidSchema("must be 'object': arguments have names", path=f"{place}/type")
    try:
        return output_schema_of(schema)
    except InvalidSchema as error:
        raise type(error)(error.message, path=place + (error.path or "")) from None
