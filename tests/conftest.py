"""What every test shares: the fixtures, the markers that follow from them, and the summary at the end.

A warning is an error everywhere (pyproject.toml); the exceptions stand here, each with its reason.
"""

from __future__ import annotations

import importlib
import logging
import warnings

import pytest

with warnings.catch_warnings():
    # kafka-python reads its schemas with importlib.resources.read_text when it is imported: deprecated in
    # Python 3.11 and 3.12, and no longer in 3.13. So the first import is here, and later ones find it done.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    importlib.import_module("kafka")

# In this order: the third imports the second.
pytest_plugins = ["process_groups", "run_summary", "kafka_fixtures"]

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        for fixture, marker in MARKERS.items():
            if fixture in names:
                item.add_marker(marker)


@pytest.fixture(autouse=True)
def _log_levels_unset() -> None:
    """A command that an earlier test ran in this process had silenced the client, as commands do."""
    for name in ("kafka", "headrace"):
        logging.getLogger(name).setLevel(logging.NOTSET)
