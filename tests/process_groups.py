"""Which tests pytest-xdist keeps together in one process: those of a module, and all that need the one real engine.

(Its own `--dist loadgroup`, which would do, marks a test in `Item._nodeid`, and pytest 9.1 does not look there.)
"""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ENGINE = "tests/engine"


def group_of(nodeid: str) -> str:
    """What runs one after the other in one process."""
    module = nodeid.partition("::")[0]
    return ENGINE if module.startswith(f"{ENGINE}/") else module


class ByGroup(LoadScopeScheduling):
    """Gives each process a group at a time, that with the most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Whatever `--dist` says."""
    return ByGroup(config, log)
