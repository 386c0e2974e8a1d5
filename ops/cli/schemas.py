"""`headrace schemas`: export the Avro schemas, or register them; with a package, its contract's own of results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from headrace.schemas.avro_form import contract_result_schema
from headrace.schemas.avro_schema import parse_schema, shipped_text
from headrace.schemas.codec import COMPATIBILITY, SCHEMA_NAMES
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import Cancel, DeadLetter, Message, Reply, Request, Result
from headrace.schemas.package import Package, load_package
from headrace.schemas.registry import SchemaRegistry
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, replies_topic


@dataclass(frozen=True, slots=True)
class Subject:
    """What is registered: the subject's name, the kind of message, and the schema's text."""

    name: str
    kind: type[Message]
    text: str


def subjects(names: ContractNames, result_schema: str | None = None) -> list[Subject]:
    """Every subject of a contract, and the one of replies, which all contracts share.

    `result_schema`: the contract's own schema of results, where it has one.
    """
    topics: list[tuple[str, type[Message]]] = [
        *((topic, Request) for topic in names.request_topics),
        (names.results, Result),
        (names.dead, DeadLetter),
        (names.cancels, Cancel),
        (replies_topic(names.prefix), Reply),
    ]
    texts = {kind: shipped_text(name) for kind, name in SCHEMA_NAMES.items()}
    if result_schema is not None:
        texts[Result] = result_schema
    return [Subject(f"{topic}-value", kind, texts[kind]) for topic, kind in topics]


def result_schema_of(package: Package) -> str | None:
    """The schema of results that a package's contract has of its own, if it has one."""
    if package.output is None:
        return None
    return contract_result_schema(package.output.schema, package.model, package.contract)


@click.group(epilog="Example: headrace schemas export --dir schemas")
def schemas() -> None:
    """Export the Avro schemas, or register them with a schema registry."""


@schemas.command(
    epilog="""\b
    Example:
      headrace schemas export --dir src/main/avro
      headrace schemas export --package movie-tagger"""
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("headrace-schemas"),
    show_default=True,
    help="Where to write the files; made where it does not exist.",
)
@click.option(
    "--package",
    "package_path",
    type=click.Path(path_type=Path),
    help="A package's folder: its contract's own schema of results, in which values have types, is written too.",
)
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def export(directory: Path, package_path: Path | None, as_json: bool) -> None:
    """Write the schemas as .avsc files, each complete in itself.

    For code generators, and for producers in other languages: a message in Avro's single-object encoding
    begins with C3 01 and the fingerprint, least byte first, of the schema that it was written with.

    With --package also MODEL.cNUMBER.result.avsc, where the contract's output schema has an Avro form: results are
    written with it once the contract is frozen.
    """
    package = None if package_path is None else load_package(package_path)
    report = [_write(directory, name, shipped_text(name)) for name in SCHEMA_NAMES.values()]
    own = None if package is None else result_schema_of(package)
    if package is not None and own is not None:
        pretty = json.dumps(json.loads(own), indent=2) + "\n"
        report.append(_write(directory, f"{package.model}.c{package.contract}.result", pretty))
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for entry in report:
        click.echo(f"{entry['action']:9} {entry['file']}  fingerprint {entry['fingerprint']}")
    if package is not None and own is None:
        click.echo(_without_types(package))


def _without_types(package: Package) -> str:
    why = "it has no output schema" if package.output is None else "its output schema has no Avro form"
    return (
        f"{package.model}, contract {package.contract}: {why}, so its results have their values as JSON text, "
        "by result.avsc"
    )


def _write(directory: Path, name: str, text: str) -> dict[str, Any]:
    schema = parse_schema(text)
    file, content = directory / f"{name}.avsc", text.encode()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        unchanged = file.exists() and file.read_bytes() == content
        if not unchanged:
            file.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error}") from None
    action = "unchanged" if unchanged else "wrote"
    return {"file": str(file), "action": action, "fingerprint": schema.fingerprint[::-1].hex()}


@schemas.command(
    epilog="""\b
    Example:
      headrace schemas register --package movie-tagger --registry http://localhost:8081
      headrace schemas register --model movie-tagger --contract 1"""
)
@click.option(
    "--package",
    "package_path",
    type=click.Path(path_type=Path),
    help="A package's folder: its model and contract, and the contract's own schema of results.",
)
@click.option("--model", help="The model's name, instead of --package.")
@click.option("--contract", type=click.IntRange(min=1), help="The contract's number, instead of --package.")
@click.option("--registry", help="The registry's base URL.  [default: HEADRACE_SCHEMA_REGISTRY_URL]")
@click.option("--prefix", help="What topics' names begin with.  [default: HEADRACE_PREFIX, else headrace]")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def register(
    package_path: Path | None,
    model: str | None,
    contract: int | None,
    registry: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Register the schemas of a contract's topics, and set their compatibility.

    With --package, results are registered with types for their values, where the output schema has an Avro form; with
    --model and --contract, with values of JSON text. The one cannot follow the other: who reads by the first could
    not read by the second. So give the package, unless the contract is not to be frozen.

    Changes nothing where all is as it should be, so it may be run again at any time.
    """
    settings = Settings.from_environment(schema_registry_url=registry, prefix=prefix)
    result_schema: str | None = None
    if package_path is not None and model is None and contract is None:
        package = load_package(package_path)
        names = ContractNames(settings.prefix, package.model, package.contract)
        result_schema = result_schema_of(package)
    elif package_path is None and model is not None and contract is not None:
        names = ContractNames(settings.prefix, model, contract)
    else:
        raise UsageError("give either --package DIR, or --model NAME and --contract NUMBER")
    if settings.schema_registry_url is None:
        raise UsageError("no schema registry: give --registry URL, or set HEADRACE_SCHEMA_REGISTRY_URL")
    with SchemaRegistry(settings.schema_registry_url) as client:
        report = [_register(client, subject) for subject in subjects(names, result_schema)]
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for entry in report:
        click.echo(f"{entry['action']:10} {entry['subject']}  id {entry['id']}, {entry['compatibility']}")
    changed = sum(entry["action"] != "unchanged" for entry in report)
    click.echo(f"{changed} of {len(report)} subjects changed")


def _register(client: SchemaRegistry, subject: Subject) -> dict[str, Any]:
    level = COMPATIBILITY[subject.kind]
    id_ = client.id_of(subject.name, subject.text)
    action = "unchanged"
    if id_ is None:
        id_ = client.register(subject.name, subject.text)
        action = "registered"
    # After the schema: not every registry takes a level for a subject that it does not know.
    if client.compatibility(subject.name) != level:
        client.set_compatibility(subject.name, level)
        action = "registered" if action == "registered" else "level set"
    return {"subject": subject.name, "action": action, "id": id_, "compatibility": level}
