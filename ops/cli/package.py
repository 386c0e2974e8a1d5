"""`headrace init` and `headrace package check`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click
from pydantic import ValidationError

from headrace.schemas.contract import Contract, Variable
from headrace.schemas.enforcement import Backend, foreseen
from headrace.schemas.errors import HeadraceError, PackageError, SettingsError, UsageError
from headrace.schemas.messages import JsonObject, Request, Sampling
from headrace.schemas.package import FILE_NAME, Package, load_package
from headrace.schemas.prompt import constraint_of, prompt_of
from headrace.schemas.settings import Settings
from headrace.schemas.toml_lines import line_of
from headrace.topics.names import MODEL_NAME, ContractNames

if TYPE_CHECKING:
    from rich.table import Table

ANOTHER_CONTRACT = 1  # exit code of `check`

# What vLLM takes from a model's generation_config.json: its name there, and ours.
GENERATION_CONFIG = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}


@click.command(epilog="Example: headrace init movie-tagger")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--model", help="The model's name, a part of topic names.  [default: the directory's name]")
def init(directory: Path, model: str | None) -> None:
    """Write a new model package that passes the check.

    Writes package.toml and output.schema.json into DIRECTORY, every key explained, and overwrites nothing.
    """
    name = model or directory.absolute().name
    if not MODEL_NAME.fullmatch(name):
        hint = "" if model else "; name it with --model"
        raise UsageError(f"{name!r} is no model name: 1 to 80 letters, digits, '_' or '-'{hint}")
    template = {
        source.name: source.read_text(encoding="utf-8").replace('"MODEL"', f'"{name}"')
        for source in files("headrace.ops").joinpath("package_template").iterdir()
        if source.is_file()
    }
    for file in template:
        if (directory / file).exists():
            raise UsageError(
                f"{directory / file} exists, and init overwrites nothing: choose another directory"
            )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in template.items():
            with (directory / file).open("x", encoding="utf-8") as new:
                new.write(text)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from None
    for file in sorted(template):
        click.echo(f"wrote {directory / file}")
    click.echo(f"next: headrace package check {directory}")


@click.group(epilog="Example: headrace package check movie-tagger")
def package() -> None:
    """Check a model package."""


@package.command(
    epilog="""\b
    Examples:
      headrace package check movie-tagger
      headrace package check movie-tagger --json
      headrace package check movie-tagger --against movie-tagger-1.json"""
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--against",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Compare with the contract in this file, which `headrace contracts show --json` writes.  "
    "[default: with the frozen one, where HEADRACE_BOOTSTRAP_SERVERS is set]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def check(directory: Path, against: Path | None, as_json: bool) -> int:
    """Load the package in DIRECTORY and print what it asks for and what it does.

    What a request must hold, what outputs are held to, the sampling in effect, its topics, a request that would be
    accepted, and whether it speaks the frozen contract of its model and number.

    Exit codes: 0; 1 where it is another contract under a number that is taken; 2 where the package is wrong.
    """
    from headrace.ops.cli.contracts import comparison_lines
    from headrace.ops.contracts import Comparison, compare_with_file, compare_with_frozen
    from headrace.workers.hooks import load_hooks
    from headrace.workers.vllm_parser_names import check_package

    loaded = load_package(directory)
    load_hooks(loaded)
    check_package(loaded)
    report = Report.of(loaded)
    if against is not None:
        compared = compare_with_file(against, loaded)
    else:
        compared = compare_with_frozen(Settings.from_environment(), loaded)
    is_compared = isinstance(compared, Comparison)
    if as_json:
        said = compared.as_json() if is_compared else {"not_compared": compared}
        click.echo(json.dumps(report.as_json() | {"contract_check": said}, indent=2, ensure_ascii=False))
    else:
        _show(report)
        lines = comparison_lines(compared) if is_compared else [f"Contract: {compared}"]
        click.echo("\n" + "\n".join(lines))
    return ANOTHER_CONTRACT if is_compared and not compared.check.is_same else 0


@dataclass(frozen=True, slots=True)
class Report:
    """What the check found, ready to be printed."""

    package: Package
    contract: Contract
    names: ContractNames
    sampling: list[tuple[str, Any, str]]  # name, value, where it comes from
    example: JsonObject | None  # None: none was found that the package accepts
    warnings: list[str]

    @classmethod
    def of(cls, package: Package) -> Report:
        """Raises PackageError where the model's name is no part of a topic's."""
        contract = Contract.of(package)
        try:
            names = ContractNames(Settings.from_environment().prefix, package.model, package.contract)
        except SettingsError as error:
            line = line_of(package.file.read_text(encoding="utf-8-sig"), ("model",))
            raise PackageError(error.message, file=package.file, line=line, key="model") from None
        return cls(
            package, contract, names, _sampling(package), accepted_example(package), _warnings(package)
        )

    @property
    def held(self) -> dict[Backend, str]:
        """How the output schema is held while text is generated, by backend."""
        return _held(self.package)

    @property
    def backend_reason(self) -> str:
        """Why this backend."""
        chosen, why = self.package.backend_chosen
        if self.package.structured_outputs is None:
            return why
        return (
            "set in the package"
            if chosen == self.package.backend
            else f"set in the package; without that {chosen}"
        )

    def as_json(self) -> JsonObject:
        """The same as one JSON object."""
        package, names = self.package, self.names
        return {
            "model": package.model,
            "version": package.version,
            "contract": package.contract,
            "contract_digest": self.contract.digest,
            "package_digest": package.digest,
            "weights": str(package.weights),
            "variables": self.contract.variables,
            "output_schema": self.contract.output,
            "output_schema_digest": package.output.digest if package.output else None,
            "sampling": {name: {"value": value, "from": source} for name, value, source in self.sampling},
            "backend": package.backend,
            "backend_reason": self.backend_reason,
            "held": self.held,
            "reasoning_parser": package.reasoning_parser,
            "tool_parser": package.tool_parser,
            "max_attempts": package.max_attempts,
            "order": package.order,
            "topics": [*names.request_topics, names.results, names.dead, names.cancels],
            "group": names.group,
            "example_request": self.example,
            "warnings": self.warnings,
        }


def accepted_example(package: Package) -> JsonObject | None:
    """A request that the package accepts, as JSON; None where none is found."""
    example = Contract.of(package).example_request()
    return example if _is_accepted(example, package) else None


def _is_accepted(example: JsonObject, package: Package) -> bool:
    try:
        request = Request.model_validate(example)
        prompt_of(request, package)
        constraint_of(request, package)
    except (ValidationError, HeadraceError):
        return False
    return True


def _sampling(package: Package) -> list[tuple[str, Any, str]]:
    config = _generation_config(package)
    from_model = {ours: config[theirs] for theirs, ours in GENERATION_CONFIG.items() if theirs in config}
    rows: list[tuple[str, Any, str]] = []
    for name in Sampling.model_fields:
        value = getattr(package.sampling, name)
        if value is not None:
            rows.append((name, value, FILE_NAME))
        elif name in from_model:
            rows.append((name, from_model[name], "generation_config.json"))
    return rows


def _held(package: Package) -> dict[Backend, str]:
    """How each backend would hold the package's output schema; {} where it has none."""
    if package.output is None:
        return {}
    found: dict[Backend, str] = {}
    for backend in get_args(Backend):
        foreseen_ = foreseen(package.output, backend)
        if foreseen_ is None:
            found[backend] = "found out when a worker starts; `headrace schema check` tries it"
        else:
            narrowed = ", ".join(foreseen_.narrowed)
            found[backend] = foreseen_.tier + (
                f"; it forbids more than the schema by: {narrowed}" if narrowed else ""
            )
    return found


def _generation_config(package: Package) -> JsonObject:
    if not isinstance(package.weights, Path):
        return {}
    try:
        config = json.loads((package.weights / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("JsonObject", config) if isinstance(config, dict) else {}


def _warnings(package: Package) -> list[str]:
    found = [f"output: {warning}" for warning in (package.output.warnings if package.output else ())]
    found += [f"input: {warning}" for warning in (package.input.warnings if package.input else ())]
    if isinstance(package.weights, Path) and not package.weights.exists():
        found.append(f"weights: {package.weights} is not here")
    elif not isinstance(package.weights, Path) and package.revision is None:
        found.append("weights: without a revision the hub may give you other weights tomorrow")
    if package.output is not None and package.sampling.max_tokens is None:
        found.append("sampling: without max_tokens an output ends where the model's context does")
    return found


# --- printing -----------------------------------------------------------------------------------------------


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.markup import escape

    package, names = report.package, report.names
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{escape(package.model)}[/] version {escape(package.version)}, contract {package.contract}"
        f"\n{package.digest}\n"
    )
    console.print(_requests(report.contract))
    if package.output is None:
        console.print("\nOutputs: free text, or what each request's own `output` asks for")
    else:
        console.print(f"\nOutputs: held to {package.output.digest}")
    if package.order == "key":
        console.print("Order:   one request of a key at a time, in the order in which they were sent")
    if package.tool_parser is not None:
        console.print(f"Tools:   may be called, as {escape(package.tool_parser)} writes it")
    console.print(f"Backend: {package.backend} ({report.backend_reason})")
    if held := report.held:
        console.print(f"Held:    {escape(held.pop(package.backend))}")
        for backend, how in held.items():
            console.print(f"         ({escape(f'with {backend}: {how}')})")
    console.print(f"Weights: {escape(str(package.weights))}\n")
    console.print(_sampling_table(report.sampling))
    console.print(
        "\nTopics:  " + "\n         ".join([*names.request_topics, names.results, names.dead, names.cancels])
    )
    console.print(f"Group:   {names.group}")
    if report.example is None:
        console.print(
            "\nNo example request was found; `examples` in the input schema would be taken for one."
        )
    else:
        console.print("\nA request that would be accepted:")
        console.print(json.dumps(report.example, ensure_ascii=False), markup=False)
    for warning in report.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _requests(contract: Contract) -> Table:
    from rich.text import Text

    table = _table("request field", "type", "")
    table.add_row("id", "string", "required")
    if contract.variables is None:
        table.add_row("messages", "list of messages", "this or prompt")
        table.add_row("prompt", "string", "this or messages")
    else:
        table.add_row("variables", "object", "required, or messages or prompt instead")
    for variable in contract.variable_list():
        name = Text(f"variables.{variable.name}")
        table.add_row(name, Text(_type_of(variable)), "required" if variable.required else "optional")
    table.add_row("sampling", "object", "optional")
    if contract.output is None:
        table.add_row("output", "object", "optional: json_schema, regex, choice, grammar or json_object")
    table.add_row("deadline", "integer, ms since the epoch", "optional")
    return table


def _type_of(variable: Variable) -> str:
    schema = variable.schema
    if not isinstance(schema, dict):
        return "any"
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "any")
    return " or ".join(cast("list[str]", kind)) if isinstance(kind, list) else str(kind)


def _sampling_table(sampling: list[tuple[str, Any, str]]) -> Table:
    table = _table("sampling", "value", "from")
    for name, value, source in sampling:
        table.add_row(name, json.dumps(value), source)
    table.add_row("all else", "", "the model's generation_config.json, else vLLM's own default")
    return table
