"""Deliberate bugs in what a caller may take: the model must find every one.

Each is a function of pytest's monkeypatch that changes one thing for the duration of a test.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from headrace.producers.http import limits as limits_module
from headrace.producers.http.caller import Caller, Limits
from headrace.producers.http.limits import AccountId, Accounts, Lease, _Account, _Bucket, _Shortage

Bug = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Bug] = {}

charge = _Account.charge
give_back = Lease.give_back
limits_of = Accounts._limits_of
refill = _Bucket.refill


def bug(apply: Bug) -> Bug:
    BUGS[apply.__name__] = apply
    return apply


@bug
def a_lease_is_given_back_as_often_as_asked(patch: pytest.MonkeyPatch) -> None:
    def again(self: Lease, tokens: int | None = None) -> None:
        accounts = self._accounts
        give_back(self, tokens)
        self._accounts = accounts

    patch.setattr(Lease, "give_back", again)


@bug
def a_refused_call_is_charged_to_the_first_account(patch: pytest.MonkeyPatch) -> None:
    shortages = _Account.shortages

    def charged(self: _Account, requests: int, tokens: int) -> list[_Shortage]:
        found = list(shortages(self, requests, tokens))
        if found and self.requests is not None:
            self.requests.level -= requests
        return found

    patch.setattr(_Account, "shortages", charged)


@bug
def tenants_are_not_limited(patch: pytest.MonkeyPatch) -> None:
    def of_key(self: Accounts, caller: Caller) -> list[tuple[AccountId, Limits]]:
        return [each for each in limits_of(self, caller) if each[0][0] == "key"]

    patch.setattr(Accounts, "_limits_of", of_key)


@bug
def who_runs_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Account, "is_as_new", lambda self, now: True)


@bug
def who_runs_is_forgotten_once_his_rate_is_whole(patch: pytest.MonkeyPatch) -> None:
    as_new = _Account.is_as_new

    def idle(self: _Account, now: float) -> bool:
        running, self.running = self.running, 0
        found = as_new(self, now)
        self.running = running
        return found

    patch.setattr(_Account, "is_as_new", idle)


@bug
def a_bucket_saves_more_than_a_minute(patch: pytest.MonkeyPatch) -> None:
    def saving(self: _Bucket, now: float, per_minute: int) -> None:
        self.level += (now - self.at) * per_minute / 60
        self.at = now

    patch.setattr(_Bucket, "refill", saving)


@bug
def a_bucket_fills_too_fast(patch: pytest.MonkeyPatch) -> None:
    def fast(self: _Bucket, now: float, per_minute: int) -> None:
        self.level += (now - self.at) * per_minute / 600
        refill(self, now, per_minute)

    patch.setattr(_Bucket, "refill", fast)


@bug
def a_bucket_fills_too_slowly(patch: pytest.MonkeyPatch) -> None:
    def slow(self: _Bucket, now: float, per_minute: int) -> None:
        self.level -= (now - self.at) * per_minute / 600
        refill(self, now, per_minute)

    patch.setattr(_Bucket, "refill", slow)


@bug
def what_was_counted_is_not_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "give_back", lambda self, tokens=None: give_back(self, None))


@bug
def what_was_counted_is_charged_as_if_at_the_last_call(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: _Account, now: float, tokens: int) -> None:
        if self.tokens is not None:
            self.tokens.level -= tokens

    patch.setattr(_Account, "settle", at_once)


@bug
def a_call_of_several_requests_counts_as_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Account, "charge", lambda self, requests, tokens: charge(self, 1, tokens))


@bug
def retry_after_is_rounded_down(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        limits_module, "retry_after", lambda seconds: str(max(1, min(120, math.floor(min(seconds, 120)))))
    )
