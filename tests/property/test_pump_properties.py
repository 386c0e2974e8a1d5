"""Whatever befalls a group of workers, and in whatever order: each request is answered once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from property.pump_model import Group
from property.worker_move_mutants import MOVE_BUGS
from property.worker_mutants import BUGS
from property_examples import EXAMPLES

Group.TestCase.settings = settings(max_examples=EXAMPLES, deadline=None, stateful_step_count=40)
TestGroup = Group.TestCase

# --- the model bites: each deliberate bug breaks it ---

FEW = settings(
    max_examples=600,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


ALL_BUGS = {**BUGS, **MOVE_BUGS}


@pytest.mark.soak  # three minutes for all of them
@pytest.mark.parametrize("name", ALL_BUGS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ALL_BUGS[name](monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(Group, settings=FEW)
