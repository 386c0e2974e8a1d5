"""For models that run a worker thousands of times."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What a worker logs is kept by pytest until its test ends: gigabytes, in a model that finds a livelock."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
