"""A schema registry in memory, with the methods of the real client that the codec uses."""

from __future__ import annotations

from headrace.schemas.avro_schema import Schema, parse_schema
from headrace.schemas.errors import RegistryFailed, UnknownWriterSchema
from headrace.schemas.registry import Compatibility, SchemaRegistry


class RegistryTwin(SchemaRegistry):
    """Ids count from 1. With `down` set, nothing is answered."""

    def __init__(self) -> None:
        super().__init__("http://twin.invalid")
        self.texts: list[str] = []
        self.subjects: dict[str, set[int]] = {}
        self.levels: dict[str, Compatibility] = {}
        self.down = False
        self.asked = 0

    def writer_schema(self, id_: int) -> Schema:
        self._answer()
        if not 1 <= id_ <= len(self.texts):
            raise UnknownWriterSchema(f"the schema registry has no schema {id_}")
        return parse_schema(self.texts[id_ - 1])

    def id_of(self, subject: str, schema_text: str) -> int | None:
        self._answer()
        ids = self.subjects.get(subject, set())
        return next((id_ for id_ in ids if self.texts[id_ - 1] == schema_text), None)

    def register(self, subject: str, schema_text: str) -> int:
        self._answer()
        if schema_text not in self.texts:
            self.texts.append(schema_text)
        id_ = self.texts.index(schema_text) + 1
        self.subjects.setdefault(subject, set()).add(id_)
        return id_

    def compatibility(self, subject: str) -> str | None:
        self._answer()
        return self.levels.get(subject)

    def set_compatibility(self, subject: str, level: Compatibility) -> None:
        self._answer()
        self.levels[subject] = level

    def _answer(self) -> None:
        self.asked += 1
        if self.down:
            raise RegistryFailed("the schema registry does not answer")
