"""What every test shares: the fixtures, the markers that follow from them, and the summary at the end.

A warning is an error everywhere (pyproject.toml); the exceptions stand here, each with its reason.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text when it is imported: deprecated in
    # Python 3.11 and 3.12, and no longer in 3.13. So the first import is here, and later ones find it done.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    importlib.import_module("kafka")

pytest_plugins = ["run_summary", "kafka_fixtures"]  # in this order: the second imports the first

# kafka-python drops the socket of a connection that was refused or timed out without closing it, so a broker that is
# down shows up later as this warning, in whatever test runs then: a TCP socket (proto 6) without a peer.
UNCONNECTED = r"unclosed <socket\.socket fd=\d+, family=\d+, type=1, proto=6(, laddr=\([^)]*\))?>"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("filterwarnings", f"ignore:{UNCONNECTED}:ResourceWarning")


# fixture: the marker of every test that uses it
MARKERS = {
    "kafka_bootstrap": "kafka",
    "kafka_home": "kafka",
    "broker_bootstrap": "broker",
    "registry_url": "registry",
}


HERE = Path(__file__).parent


def group_of(item: pytest.Item) -> str:
    """What runs one after the other in one process: a module, and all that shares the one real engine."""
    place = item.path.relative_to(HERE)
    return "engine" if place.parts[0] == "engine" else place.with_suffix("").as_posix()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
        names = getattr(item, "fixturenames", ())
        for fixture, marker in MARKERS.items():
            if fixture in names:
                item.add_marker(marker)
