"""`headrace schemas`: export the Avro schemas, or register them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.schemas.avro_schema import shipped
from headrace.schemas.codec import SCHEMA_NAMES
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import Cancel, DeadLetter, Message, Reply, Request, Result
from headrace.schemas.registry import SchemaRegistry
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, replies_topic

if TYPE_CHECKING:
    from headrace.schemas.registry import Compatibility

# Who must be able to read whom. Requests and cancels are written by callers and read by workers: a new worker
# reads what old callers wrote. Results and replies are written by workers and read by callers: old callers
# read what any new worker writes. Dead letters are kept long: tools older and newer than the worker read them.
COMPATIBILITY: dict[type[Message], Compatibility] = {
    Request: "BACKWARD",
    Cancel: "BACKWARD",
    Result: "FORWARD_TRANSITIVE",
    Reply: "FORWARD_TRANSITIVE",
    DeadLetter: "FULL_TRANSITIVE",
}


@dataclass(frozen=True, slots=True)
class Subject:
    """What is registered: the subject's name and the kind of message."""

    name: str
    kind: type[Message]


def subjects(names: ContractNames) -> list[Subject]:
    """Every subject of a contract, and the one of replies, which all contracts share."""
    topics: list[tuple[str, type[Message]]] = [
        *((topic, Request) for topic in names.request_topics),
        (names.results, Result),
        (names.dead, DeadLetter),
        (names.cancels, Cancel),
        (replies_topic(names.prefix), Reply),
    ]
    return [Subject(f"{topic}-value", kind) for topic, kind in topics]


@click.group(epilog="Example: headrace schemas export --dir schemas")
def schemas() -> None:
    """Export the Avro schemas, or register them with a schema registry."""


@schemas.command(epilog="Example: headrace schemas export --dir src/main/avro")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("headrace-schemas"),
    show_default=True,
    help="Where to write the files; made where it does not exist.",
)
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def export(directory: Path, as_json: bool) -> None:
    """Write the schemas as .avsc files, each complete in itself.

    For code generators, and for producers in other languages: a message in Avro's single-object encoding
    begins with C3 01 and the fingerprint, least byte first, of the schema that it was written with.
    """
    report = [_write(directory, name) for name in SCHEMA_NAMES.values()]
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for entry in report:
        click.echo(f"{entry['action']:9} {entry['file']}  fingerprint {entry['fingerprint']}")


def _write(directory: Path, name: str) -> dict[str, Any]:
    schema = shipped(name)
    file, content = directory / f"{name}.avsc", schema.text.encode()
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
      headrace schemas register --model movie-tagger --contract 1 --registry http://localhost:8081"""
)
@click.option("--model", required=True, help="The model's name.")
@click.option("--contract", required=True, type=click.IntRange(min=1), help="The contract's number.")
@click.option("--registry", help="The registry's base URL.  [default: HEADRACE_SCHEMA_REGISTRY_URL]")
@click.option("--prefix", help="What topics' names begin with.  [default: HEADRACE_PREFIX, else headrace]")
@click.option("--json", "as_json", is_flag=True, help="Say what was done as JSON.")
def register(model: str, contract: int, registry: str | None, prefix: str | None, as_json: bool) -> None:
    """Register the schemas of a contract's topics, and set their compatibility.

    Changes nothing where all is as it should be, so it may be run again at any time.
    """
    settings = Settings.from_environment(schema_registry_url=registry, prefix=prefix)
    if settings.schema_registry_url is None:
        raise UsageError("no schema registry: give --registry URL, or set HEADRACE_SCHEMA_REGISTRY_URL")
    names = ContractNames(settings.prefix, model, contract)
    with SchemaRegistry(settings.schema_registry_url) as client:
        report = [_register(client, subject) for subject in subjects(names)]
    if as_json:
        click.echo(json.dumps(report, indent=2))
        return
    for entry in report:
        click.echo(f"{entry['action']:10} {entry['subject']}  id {entry['id']}, {entry['compatibility']}")
    changed = sum(entry["action"] != "unchanged" for entry in report)
    click.echo(f"{changed} of {len(report)} subjects changed")


def _register(client: SchemaRegistry, subject: Subject) -> dict[str, Any]:
    text = shipped(SCHEMA_NAMES[subject.kind]).text
    level = COMPATIBILITY[subject.kind]
    id_ = client.id_of(subject.name, text)
    action = "unchanged"
    if id_ is None:
        id_ = client.register(subject.name, text)
        action = "registered"
    # After the schema: not every registry takes a level for a subject that it does not know.
    if client.compatibility(subject.name) != level:
        client.set_compatibility(subject.name, level)
        action = "registered" if action == "registered" else "level set"
    return {"subject": subject.name, "action": action, "id": id_, "compatibility": level}
