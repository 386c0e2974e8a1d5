"""How much a caller may take, and when the queue is too deep to let one more in. Pure: the clock is given.

A call is charged to its key's account and to its tenant's; it comes in if both have room, and a refused call is charged
to neither. Accounts are those of one instance of the endpoint: with three, a caller may have three times as much.

Rates are token buckets that hold a minute's worth: they begin full, so that a caller may send a whole minute's calls at
once and then goes on at the rate. Tokens are charged when a call ends, as counted or, where its result is not waited
for, as far as they were seen: nobody knows before how long an answer becomes, and a bound for it (`max_tokens`) may be
many times as much. A caller may so come to owe some, and does not come in again before they have flowed in. Whoever
does know gives `admit` an estimate, which is charged until the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from headrace.producers.http.caller import UNLIMITED, Caller, Limits
from headrace.producers.http.wanted import ApiError

LONGEST_RETRY_AFTER_S = 120  # official clients wait no longer: beyond that they do not try again at all
SLOT_RETRY_AFTER_S = 1.0  # nobody knows when a running request ends
SWEEP_FROM = 1024  # accounts: below that, idle ones are left where they are
ROUNDING = 1e-6  # of a request or token: what sums of fractions may be off by

AccountId = tuple[Literal["key", "tenant"], str | None]


def retry_after(seconds: float) -> str:
    """The header's value: whole seconds, 1 to 120."""
    return str(max(1, min(LONGEST_RETRY_AFTER_S, math.ceil(min(seconds, LONGEST_RETRY_AFTER_S)))))


# --- what a caller takes ------------------------------------------------------------------------------------------


class _Bucket:
    """A minute's worth at most, refilled evenly; may owe something after what was charged afterwards."""

    __slots__ = ("at", "level")

    def __init__(self, now: float, per_minute: int) -> None:
        self.level = float(per_minute)
        self.at = now

    def refill(self, now: float, per_minute: int) -> None:
        if now > self.at:
            self.level += (now - self.at) * per_minute / 60
            self.at = now
        self.level = min(self.level, float(per_minute))  # the limit may have become less


@dataclass(frozen=True, slots=True)
class _Shortage:
    """Why a call does not come in: `wait_s` until it would, infinite where it never does."""

    what: str  # as OpenAI says it: `requests per min (RPM)`
    kind: str  # OpenAI's `type`
    limit: int
    used: int
    asked: int
    wait_s: float


class _Account:
    """What one key or tenant takes now."""

    __slots__ = ("limits", "requests", "running", "tokens")

    def __init__(self) -> None:
        self.limits = UNLIMITED
        self.running = 0
        self.requests: _Bucket | None = None
        self.tokens: _Bucket | None = None

    def refill(self, now: float, limits: Limits) -> None:
        """Bring the account to `now` and to its limits, which may have changed."""
        self.limits = limits
        self.requests = _refilled(self.requests, now, limits.requests_per_minute)
        self.tokens = _refilled(self.tokens, now, limits.tokens_per_minute)

    def shortages(self, requests: int, tokens: int) -> Iterator[_Shortage]:
        most = self.limits.max_concurrent
        if most is not None and self.running + requests > most:
            wait_s = SLOT_RETRY_AFTER_S if requests <= most else math.inf
            yield _Shortage("concurrent requests", "requests", most, self.running, requests, wait_s)
        for bucket, per_minute, asked, what, kind in (
            (self.requests, self.limits.requests_per_minute, requests, "requests per min (RPM)", "requests"),
            (self.tokens, self.limits.tokens_per_minute, tokens, "tokens per min (TPM)", "tokens"),
        ):
            if bucket is None or per_minute is None or bucket.level + ROUNDING >= asked:
                continue
            wait_s = (asked - bucket.level) * 60 / per_minute if asked <= per_minute else math.inf
            yield _Shortage(what, kind, per_minute, math.ceil(per_minute - bucket.level), asked, wait_s)

    def charge(self, requests: int, tokens: int) -> None:
        self.running += requests
        if self.requests is not None:
            self.requests.level -= requests
        if self.tokens is not None:
            self.tokens.level -= tokens

    def settle(self, now: float, tokens: int) -> None:
        """Charge so many tokens more, which were taken and not estimated; less than none: give them back."""
        # First up to now: what flowed into a full bucket meanwhile is gone, and does not pay for them.
        self.refill(now, self.limits)
        if self.tokens is not None:
            self.tokens.level -= tokens

    def is_as_new(self, now: float) -> bool:
        """Whether forgetting it would change nothing."""
        self.refill(now, self.limits)
        return (
            not self.running
            and (self.requests is None or self.requests.level == self.limits.requests_per_minute)
            and (self.tokens is None or self.tokens.level == self.limits.tokens_per_minute)
        )


def _refilled(bucket: _Bucket | None, now: float, per_minute: int | None) -> _Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return _Bucket(now, per_minute)
    bucket.refill(now, per_minute)
    return bucket


class Lease:
    """What a call that came in holds until it ends, however it ends; `headers` go with its response."""

    __slots__ = ("_accounts", "_clock", "_requests", "_tokens", "headers")

    def __init__(
        self,
        clock: Callable[[], float],
        accounts: list[_Account],
        requests: int,
        tokens: int,
        headers: dict[str, str],
    ) -> None:
        self.headers = headers
        self._clock = clock
        self._accounts: list[_Account] | None = accounts
        self._requests = requests
        self._tokens = tokens

    def give_back(self, tokens: int | None = None) -> None:
        """The call has ended and took so many tokens; None: what was estimated stands. A second call does nothing."""
        accounts, self._accounts = self._accounts, None
        for account in accounts or ():
            account.running -= self._requests
            if tokens is not None:
                account.settle(self._clock(), tokens - self._tokens)


class Accounts:
    """What each caller takes of this instance. Belongs to one thread."""

    def __init__(self, clock: Callable[[], float], *, per_tenant: Limits = UNLIMITED) -> None:
        """`per_tenant` holds for all that a tenant sends, whatever its keys; a key's own limits come on top."""
        self._clock = clock  # seconds, never backwards
        self._per_tenant = per_tenant
        self._accounts: dict[AccountId, _Account] = {}
        self._sweep_at = SWEEP_FROM

    def __len__(self) -> int:
        return len(self._accounts)

    def admit(self, caller: Caller, *, requests: int = 1, tokens: int = 0) -> Lease:
        """Charge a call that makes so many requests and takes about so many tokens.

        Raises ApiError (429): with Retry-After where waiting helps, with `x-should-retry: false` where it does not.
        """
        now = self._clock()
        if len(self._accounts) >= self._sweep_at:
            self._sweep(now)
        accounts = [self._account(at, limits, now) for at, limits in self._limits_of(caller)]
        shortages = [each for account in accounts for each in account.shortages(requests, tokens)]
        if shortages:
            raise _refusal(max(shortages, key=lambda each: each.wait_s), rate_headers(accounts))
        for account in accounts:
            account.charge(requests, tokens)
        return Lease(self._clock, accounts, requests, tokens, rate_headers(accounts))

    def _limits_of(self, caller: Caller) -> list[tuple[AccountId, Limits]]:
        of_key: AccountId = ("key", caller.key_id)
        of_tenant: AccountId = ("tenant", caller.tenant)
        both = [
            (of_key, caller.limits if caller.key_id is not None else UNLIMITED),
            (of_tenant, self._per_tenant),
        ]
        # One that is charged already stays charged when its limits are lifted: it may get new ones.
        return [(at, limits) for at, limits in both if limits.anything or at in self._accounts]

    def _account(self, at: AccountId, limits: Limits, now: float) -> _Account:
        account = self._accounts.get(at)
        if account is None:
            account = self._accounts[at] = _Account()
        account.refill(now, limits)
        return account

    def _sweep(self, now: float) -> None:
        """Forget who takes nothing: tenants that a gateway names may be any number."""
        self._accounts = {at: each for at, each in self._accounts.items() if not each.is_as_new(now)}
        self._sweep_at = max(
            SWEEP_FROM, 2 * len(self._accounts)
        )  # so that a sweep is paid for by those who came


# --- what a caller is told ----------------------------------------------------------------------------------------


def _refusal(short: _Shortage, headers: dict[str, str]) -> ApiError:
    said = f"Limit {short.limit}, Used {short.used}, Requested {short.asked}."
    if math.isinf(short.wait_s):
        message = f"Request too large on {short.what}: Limit {short.limit}, Requested {short.asked}."
        headers = {**headers, "x-should-retry": "false"}
    else:
        wait = retry_after(short.wait_s)
        message = f"Rate limit reached on {short.what}: {said} Please try again in {wait}s."
        headers = {**headers, "Retry-After": wait}
    return ApiError(429, message, reason="rate_limit_exceeded", kind=short.kind, headers=headers)


def rate_headers(accounts: list[_Account]) -> dict[str, str]:
    """OpenAI's `x-ratelimit-*`, of the account that has the least left."""
    headers: dict[str, str] = {}
    for what in ("requests", "tokens"):
        left = [
            (bucket.level, per_minute)
            for account in accounts
            for bucket, per_minute in [_rate_of(account, what)]
            if bucket is not None and per_minute is not None
        ]
        if left:
            level, per_minute = min(left)
            headers[f"x-ratelimit-limit-{what}"] = str(per_minute)
            headers[f"x-ratelimit-remaining-{what}"] = str(max(0, math.floor(level + ROUNDING)))
            headers[f"x-ratelimit-reset-{what}"] = duration((per_minute - level) * 60 / per_minute)
    return headers


def _rate_of(account: _Account, what: str) -> tuple[_Bucket | None, int | None]:
    if what == "requests":
        return account.requests, account.limits.requests_per_minute
    return account.tokens, account.limits.tokens_per_minute


def duration(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `12ms`, `8.64s`, `6m0s`; rounded up to milliseconds."""
    millis = max(0, math.ceil(seconds * 1000 - ROUNDING))
    if 0 < millis < 1000:
        return f"{millis}ms"
    minutes, millis = divmod(millis, 60_000)
    return (f"{minutes}m" if minutes else "") + f"{millis / 1000:g}s"
