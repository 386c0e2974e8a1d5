"""Whatever callers do: none takes more than it may, and none is refused what it may take."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from property.limits_mutants import BUGS
from property_examples import EXAMPLES

from headrace.producers.http import limits as limits_module
from headrace.producers.http.caller import Caller, Limits
from headrace.producers.http.limits import Accounts, Lease
from headrace.producers.http.wanted import ApiError

NEAR = Fraction(1, 1000)  # closer to the line than that, rounding may decide
SMALL = st.one_of(st.none(), st.integers(1, 6))
LIMITS = st.builds(Limits, max_concurrent=SMALL, requests_per_minute=SMALL, tokens_per_minute=SMALL)
STEPS = st.integers(0, 400)  # quarters of a second


@dataclass
class Taken:
    """An account as it should be, exact."""

    limits: Limits
    running: int = 0
    charges: dict[str, list[tuple[Fraction, Fraction]]] = field(default_factory=lambda: defaultdict(list))

    def rates(self) -> list[tuple[str, int]]:
        named = (("requests", self.limits.requests_per_minute), ("tokens", self.limits.tokens_per_minute))
        return [(what, per_minute) for what, per_minute in named if per_minute is not None]

    def level(self, what: str, per_minute: int, now: Fraction) -> Fraction:
        """What is left, computed from all that was ever charged."""
        level, at = Fraction(per_minute), Fraction(0)
        for moment, charge in [*self.charges[what], (now, Fraction(0))]:
            level = min(Fraction(per_minute), level + (moment - at) * per_minute / 60) - charge
            at = moment
        return level

    def margin(self, requests: int, tokens: int, now: Fraction) -> Fraction:
        """By how much the call fits; negative: it does not."""
        margins = [
            self.level(what, per_minute, now) - (requests if what == "requests" else tokens)
            for what, per_minute in self.rates()
        ]
        if self.limits.max_concurrent is not None:
            margins.append(Fraction(self.limits.max_concurrent - self.running - requests))
        return min(margins, default=Fraction(1))


class CallersAndAccounts(RuleBasedStateMachine):
    """Three keys of two tenants, calls that begin and end, and time."""

    @initialize(keys=st.lists(LIMITS, min_size=3, max_size=3), tenants=LIMITS)
    def begin(self, keys: list[Limits], tenants: Limits) -> None:
        self.quarters = 0
        self.callers = [Caller(f"t{n // 2}", f"k{n}", "x", limits) for n, limits in enumerate(keys)]
        self.accounts = Accounts(lambda: self.quarters / 4, per_tenant=tenants)
        self.taken = {("key", each.key_id): Taken(each.limits) for each in self.callers}
        self.taken |= {("tenant", each.tenant): Taken(tenants) for each in self.callers}
        self.open: list[tuple[Lease, list[Taken], int, int]] = []
        self.ended: list[Lease] = []
        self.passers_by = 0

    @property
    def now(self) -> Fraction:
        return Fraction(self.quarters, 4)

    def of(self, who: Caller) -> list[Taken]:
        return [self.taken["key", who.key_id], self.taken["tenant", who.tenant]]

    @rule(n=st.integers(0, 2), requests=st.integers(1, 3), tokens=st.integers(0, 4))
    def call(self, n: int, requests: int, tokens: int) -> None:
        who = self.callers[n]
        margin = min(each.margin(requests, tokens, self.now) for each in self.of(who))
        try:
            lease = self.accounts.admit(who, requests=requests, tokens=tokens)
        except ApiError as error:
            assert margin < NEAR, "refused what fits"
            self.refused(who, requests, tokens, error)
            return
        assert margin > -NEAR, "let in what does not fit"
        self.came_in(lease, who, requests, tokens)

    def came_in(self, lease: Lease, who: Caller, requests: int, tokens: int) -> None:
        for each in self.of(who):
            each.running += requests
            each.charges["requests"].append((self.now, Fraction(requests)))
            each.charges["tokens"].append((self.now, Fraction(tokens)))
        self.open.append((lease, self.of(who), requests, tokens))

    def refused(self, who: Caller, requests: int, tokens: int, error: ApiError) -> None:
        limits = [each.limits for each in self.of(who)]
        fits = all(
            most is None or asked <= most
            for each in limits
            for most, asked in (
                (each.max_concurrent, requests),
                (each.requests_per_minute, requests),
                (each.tokens_per_minute, tokens),
            )
        )
        assert fits == ("Retry-After" in error.headers)
        assert fits == ("x-should-retry" not in error.headers)
        if not fits or int(error.headers["Retry-After"]) == 120:
            return
        if any(each.max_concurrent is not None and each.max_concurrent < 100 for each in limits):
            return  # nobody knows when what runs will end
        self.quarters += 4 * int(error.headers["Retry-After"])
        self.came_in(self.accounts.admit(who, requests=requests, tokens=tokens), who, requests, tokens)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99), counted=st.one_of(st.none(), st.integers(0, 6)))
    def end(self, which: int, counted: int | None) -> None:
        lease, taken, requests, tokens = self.open.pop(which % len(self.open))
        lease.give_back(counted)
        self.ended.append(lease)
        for each in taken:
            each.running -= requests
            if counted is not None:
                each.charges["tokens"].append((self.now, Fraction(counted - tokens)))

    @precondition(lambda self: self.ended)
    @rule(which=st.integers(0, 99))
    def end_again(self, which: int) -> None:
        self.ended[which % len(self.ended)].give_back(3)

    @rule(quarters=STEPS)
    def wait(self, quarters: int) -> None:
        self.quarters += quarters

    @rule()
    def others_pass_by(self) -> None:
        """Tenants that come once: so many that the idle are forgotten."""
        for _ in range(3):
            self.passers_by += 1
            self.accounts.admit(Caller(f"once {self.passers_by}")).give_back(0)


FEW = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


def check_accounts(patch: pytest.MonkeyPatch, options: settings = FEW) -> None:
    patch.setattr(limits_module, "SWEEP_FROM", 2)
    run_state_machine_as_test(CallersAndAccounts, settings=options)


def test_none_takes_more_than_it_may_and_none_is_refused_what_it_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_accounts(monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("name", BUGS)
def test_the_model_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    options = settings(FEW, max_examples=2000, phases=[Phase.generate], derandomize=True, database=None)
    with pytest.raises((AssertionError, ApiError)):
        check_accounts(monkeypatch, options)
