"""The pinned versions of the servers that Headrace starts or fetches, from `pins.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PINS = Path(__file__).with_name("pins.toml")


@dataclass(frozen=True)
class Pins:
    kafka_version: str
    kafka_scala: str  # the Scala version in a release's name: kafka_2.13-4.3.1
    kafka_image: str  # Docker
    kafka_releases: tuple[str, ...]  # where releases lie, in the order in which they are tried
    registry_image: str  # Docker


@cache
def pins() -> Pins:
    with PINS.open("rb") as file:
        read = tomllib.load(file)
    kafka, registry = read["kafka"], read["registry"]
    return Pins(
        kafka_version=kafka["version"],
        kafka_scala=kafka["scala"],
        kafka_image=kafka["image"],
        kafka_releases=tuple(kafka["releases"]),
        registry_image=registry["image"],
    )
