"""A contract: what requests must hold and what outputs are held to, as a package says it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, cast

from headrace.schemas.digest import digest_of
from headrace.schemas.messages import JsonObject, JsonValue
from headrace.schemas.package import Package
from headrace.schemas.schema_example import example_of


@dataclass(frozen=True, slots=True)
class Variable:
    """One of the variables that requests give: its JSON Schema and whether it must be there."""

    name: str
    schema: JsonObject | bool
    required: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """The interface that versions of one contract share.

    `variables` is the JSON Schema of a request's variables, None where there is no template; `output` that of
    the outputs, None where each request may ask for its own.
    """

    model: str
    number: int
    variables: JsonObject | bool | None
    output: JsonObject | bool | None

    @classmethod
    def of(cls, package: Package) -> Self:
        """The contract that a package speaks."""
        variables: JsonObject | bool | None = None
        if package.input is not None:
            variables = package.input.schema
        elif package.prompt is not None:
            names = sorted(package.prompt.variables)
            variables = {
                "type": "object",
                "properties": {name: {"type": "string"} for name in names},
                "required": names,
                "additionalProperties": False,
            }
        output = None if package.output is None else package.output.schema
        return cls(package.model, package.contract, variables, output)

    @property
    def digest(self) -> str:
        """`sha256:<hex>` of both schemas."""
        return digest_of({"variables": self.variables, "output": self.output})

    def variable_list(self) -> list[Variable]:
        """The variables by name, as far as the schema names them."""
        if not isinstance(self.variables, dict):
            return []
        properties: JsonObject = self.variables.get("properties") or {}
        required: list[str] = self.variables.get("required") or []
        names = [*properties, *(name for name in required if name not in properties)]
        return [Variable(name, properties.get(name, True), name in required) for name in names]

    def example_request(self) -> JsonObject:
        """A request as JSON that should be accepted; whether it is, the caller finds out by validating it."""
        request: JsonObject = {"id": "example-1"}
        if self.variables is None:
            request["messages"] = [{"role": "user", "content": "Hello!"}]
        else:
            value: JsonValue = example_of(self.variables)
            request["variables"] = cast("JsonObject", value) if isinstance(value, dict) else {}
        return request
