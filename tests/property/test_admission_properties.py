"""Whatever is offered, and in whatever order it ends: limits, reserves, shares, keys, and nobody starves."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from property.admission_laws import LAWS
from property.admission_model import History
from property.admission_mutants import BUGS
from property_examples import EXAMPLES

History.TestCase.settings = settings(max_examples=EXAMPLES, deadline=None, stateful_step_count=40)
TestHistory = History.TestCase

FEW = settings(
    max_examples=1000,
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("name", LAWS)
@settings(max_examples=EXAMPLES // 5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_law(name: str, seed: int) -> None:
    LAWS[name](random.Random(seed))


# --- the model and the laws bite: each deliberate bug breaks one ---


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_a_deliberate_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, broken = BUGS[name]
    apply(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):  # noqa: PT012 (whichever finds it)
        if broken in LAWS:
            for seed in range(300):
                LAWS[broken](random.Random(seed))
        else:
            run_state_machine_as_test(History, settings=FEW)
