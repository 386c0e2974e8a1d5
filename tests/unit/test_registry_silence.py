"""A registry that lets whoever asks wait: its readers do not wait for it one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.schemas import registry as registry_module
from headrace.schemas.errors import RegistryFailed
from headrace.schemas.registry import SchemaRegistry


class Clock:
    """Monotonic seconds, by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Silent(SchemaRegistry):
    """Each call takes so many seconds and comes to nothing, until it is mended."""

    def __init__(self, clock: Clock, takes_s: float) -> None:
        super().__init__("http://nowhere")
        self.clock, self.takes_s = clock, takes_s
        self.asked = 0
        self.is_mended = False

    def _ask(self, *_: Any, **__: Any) -> dict[str, Any] | None:
        self.asked += 1
        if self.is_mended:
            return {"schema": '{"type": "record", "name": "a", "fields": []}'}
        self.clock.now += self.takes_s
        raise RegistryFailed("no answer")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(registry_module, "time", made)
    return made


def test_who_asks_after_a_long_silence_is_told_at_once_for_as_long_again(clock: Clock) -> None:
    registry = Silent(clock, 5.0)
    for id_ in range(16):  # a partition each
        with pytest.raises(RegistryFailed, match="no answer"):
            registry.writer_schema(id_)
    assert registry.asked == 1
    registry.is_mended = True
    clock.now += 4.9
    with pytest.raises(RegistryFailed):
        registry.writer_schema(0)
    clock.now += 0.2
    registry.writer_schema(0)


def test_a_registry_that_refuses_at_once_is_asked_each_time(clock: Clock) -> None:
    registry = Silent(clock, 0.1)
    for id_ in range(3):
        with pytest.raises(RegistryFailed):
            registry.writer_schema(id_)
    assert registry.asked == 3


def test_schemas_that_are_known_are_had_in_a_silence(clock: Clock) -> None:
    registry = Silent(clock, 5.0)
    registry.is_mended = True
    registry.writer_schema(7)
    registry.is_mended = False
    with pytest.raises(RegistryFailed):
        registry.writer_schema(8)
    registry.writer_schema(7)
