"""What a caller may take, what he is told when he may not, and when the queue is too deep."""

from __future__ import annotations

import math

import pytest

from headrace.producers.http import limits as limits_module
from headrace.producers.http.caller import ANYONE, Caller, Limits
from headrace.producers.http.limits import Accounts, duration, retry_after
from headrace.producers.http.overload import RateMeter, excess_wait, overloaded
from headrace.producers.http.wanted import ApiError


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def caller(name: str = "a", tenant: str = "acme", **limits: int) -> Caller:
    return Caller(tenant=tenant, key_id=name, name=name, limits=Limits(**limits))


def refusal(accounts: Accounts, who: Caller, *, requests: int = 1, tokens: int = 0) -> ApiError:
    with pytest.raises(ApiError) as refused:
        accounts.admit(who, requests=requests, tokens=tokens)
    assert (refused.value.status, refused.value.reason) == (429, "rate_limit_exceeded")
    return refused.value


# --- at a time ---


def test_as_many_as_allowed_run_at_a_time_and_an_end_makes_room_for_one(clock: Clock) -> None:
    accounts = Accounts(clock)
    who = caller(max_concurrent=2)
    first, _ = accounts.admit(who), accounts.admit(who)
    error = refusal(accounts, who)
    assert error.headers["Retry-After"] == "1"
    assert "concurrent requests: Limit 2, Used 2, Requested 1" in error.message
    first.give_back()
    accounts.admit(who)
    refusal(accounts, who)


def test_a_lease_is_given_back_once(clock: Clock) -> None:
    accounts = Accounts(clock)
    who = caller(max_concurrent=2, tokens_per_minute=100)
    first, _ = accounts.admit(who, tokens=40), accounts.admit(who, tokens=40)
    for _ in range(3):
        first.give_back(tokens=30)
    accounts.admit(who, tokens=30)  # 100 - 40 - 40 + 10
    assert "concurrent" in refusal(accounts, who).message


def test_a_call_of_several_requests_counts_as_so_many(clock: Clock) -> None:
    accounts = Accounts(clock)
    who = caller(max_concurrent=5, requests_per_minute=60)
    lease = accounts.admit(who, requests=4)
    assert lease.headers["x-ratelimit-remaining-requests"] == "56"
    refusal(accounts, who, requests=2)
    lease.give_back()
    accounts.admit(who, requests=5)


# --- a minute ---


def test_a_minutes_requests_may_come_at_once_and_then_go_on_at_the_rate(clock: Clock) -> None:
    accounts = Accounts(clock)
    who = caller(requests_per_minute=3)
    for _ in range(3):
        accounts.admit(who)
    error = refusal(accounts, who)
    assert error.as_json()["error"] == {
        "message": "Rate limit reached on requests per min (RPM): Limit 3, Used 3, Requested 1. "
        "Please try again in 20s.",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert error.headers["Retry-After"] == "20"
    clock.seconds = 19.9
    assert refusal(accounts, who).headers["Retry-After"] == "1"
    clock.seconds = 20.0
    accounts.admit(who)
    refusal(accounts, who)


def test_headers_say_what_is_left_as_openai_does(clock: Clock) -> None:
    accounts = Accounts(clock)
    lease = accounts.admit(caller(requests_per_minute=60, tokens_per_minute=6000), tokens=36)
    assert lease.headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5964",
        "x-ratelimit-reset-tokens": "360ms",
    }


def test_without_rates_there_are_no_headers(clock: Clock) -> None:
    accounts = Accounts(clock)
    assert accounts.admit(ANYONE).headers == {}
    assert accounts.admit(caller(max_concurrent=1)).headers == {}
    assert set(refusal(accounts, caller(max_concurrent=1)).headers) == {"Retry-After"}


def test_tokens_are_charged_as_estimated_and_settled_as_counted(clock: Clock) -> None:
    accounts = Accounts(clock)
    who = caller(tokens_per_minute=600)  # 10 a second
    lease = accounts.admit(who, tokens=500)
    error = refusal(accounts, who, tokens=200)
    assert (error.kind, error.headers["Retry-After"]) == ("tokens", "10")
    lease.give_back(tokens=400)
    accounts.admit(who, tokens=200).give_back(tokens=800)  # it owes 600 now
    assert refusal(accounts, who, tokens=1).headers["Retry-After"] == "61"
    clock.seconds = 60.2
    accounts.admit(who, tokens=1)


def test_where_nothing_was_counted_the_estimate_stands(clock: Clock) -> None:
    accounts = Accounts(clock)
    who = caller(tokens_per_minute=600)
    accounts.admit(who, tokens=600).give_back()
    refusal(accounts, who, tokens=1)


@pytest.mark.parametrize(
    ("limits", "requests", "tokens", "says"),
    [
        ({"max_concurrent": 3}, 4, 0, "concurrent requests: Limit 3, Requested 4"),
        ({"requests_per_minute": 3}, 4, 0, "requests per min (RPM): Limit 3, Requested 4"),
        ({"tokens_per_minute": 3}, 1, 4, "tokens per min (TPM): Limit 3, Requested 4"),
    ],
)
def test_what_never_fits_is_not_to_be_tried_again(
    clock: Clock, limits: dict[str, int], requests: int, tokens: int, says: str
) -> None:
    error = refusal(Accounts(clock), caller(**limits), requests=requests, tokens=tokens)
    assert error.message.startswith("Request too large on")
    assert says in error.message
    assert error.headers["x-should-retry"] == "false"
    assert "Retry-After" not in error.headers


# --- whose ---


def test_keys_are_limited_apart_and_their_tenant_as_a_whole(clock: Clock) -> None:
    accounts = Accounts(clock, per_tenant=Limits(max_concurrent=3))
    one, two = caller("one", max_concurrent=2), caller("two", max_concurrent=2)
    leases = [accounts.admit(one), accounts.admit(one)]
    refusal(accounts, one)
    accounts.admit(two)
    assert "Limit 3" in refusal(accounts, two).message
    accounts.admit(caller("three", tenant="other"))
    leases[0].give_back()
    accounts.admit(two)


def test_tenants_that_one_gateway_names_are_limited_apart(clock: Clock) -> None:
    accounts = Accounts(clock, per_tenant=Limits(requests_per_minute=1))
    for tenant in ("a", "b", None):
        accounts.admit(Caller(tenant=tenant, key_id="gateway"))
        refusal(accounts, Caller(tenant=tenant, key_id="gateway"))


def test_a_refused_call_is_charged_to_nobody(clock: Clock) -> None:
    accounts = Accounts(clock, per_tenant=Limits(max_concurrent=1))
    who = caller(requests_per_minute=2)
    lease = accounts.admit(who)
    for _ in range(10):
        refusal(accounts, who)
    lease.give_back()
    accounts.admit(who)


def test_the_longest_wait_is_told_and_the_least_that_is_left(clock: Clock) -> None:
    accounts = Accounts(clock, per_tenant=Limits(requests_per_minute=2))
    who = caller(requests_per_minute=1)
    assert accounts.admit(who).headers["x-ratelimit-remaining-requests"] == "0"
    assert refusal(accounts, who).headers["Retry-After"] == "60"


def test_a_limit_that_changes_holds_from_the_next_call_on(clock: Clock) -> None:
    accounts = Accounts(clock)
    accounts.admit(caller(max_concurrent=3, requests_per_minute=100))
    error = refusal(accounts, caller(max_concurrent=1, requests_per_minute=2))
    assert "concurrent requests: Limit 1, Used 1" in error.message
    assert error.headers["x-ratelimit-remaining-requests"] == "2"
    accounts.admit(caller())
    assert "Used 2" in refusal(accounts, caller(max_concurrent=2)).message


def test_who_takes_nothing_is_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "SWEEP_FROM", 10)
    accounts = Accounts(clock, per_tenant=Limits(requests_per_minute=60))
    kept = accounts.admit(Caller(tenant="runs"))
    for number in range(1000):
        accounts.admit(Caller(tenant=f"t{number}")).give_back()
        clock.seconds += 0.5  # each is as new after a second
    assert len(accounts) <= 20
    kept.give_back()


def test_who_still_owes_is_not_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "SWEEP_FROM", 10)
    accounts = Accounts(clock, per_tenant=Limits(requests_per_minute=1))
    accounts.admit(Caller(tenant="owes")).give_back()
    for number in range(200):
        accounts.admit(Caller(tenant=f"t{number}")).give_back()
    refusal(accounts, Caller(tenant="owes"))


# --- how it is written ---


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(-5, "1"), (0, "1"), (0.2, "1"), (1.01, "2"), (119.5, "120"), (500, "120"), (math.inf, "120")],
)
def test_retry_after_is_whole_seconds_that_official_clients_wait(seconds: float, written: str) -> None:
    assert retry_after(seconds) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (-1, "0s"),
        (0, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (90.5, "1m30.5s"),
        (360, "6m0s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, written: str) -> None:
    assert duration(seconds) == written


# --- a queue that is too deep ---


def test_with_nothing_measured_everyone_is_let_in() -> None:
    assert RateMeter().rate is None
    assert excess_wait(1_000_000, None, 1) is None


@pytest.mark.parametrize(
    ("ahead", "rate", "deadline_s", "excess"),
    [
        (0, 0.0, 1, None),
        (0, 5.0, 0, None),
        (-3, 5.0, 1, None),
        (80, 10.0, 10, None),
        (81, 10.0, 10, 0.1),
        (1000, 10.0, 50, 60),
        (1, 0.0, 600, math.inf),
    ],
)
def test_a_wait_that_takes_more_than_four_fifths_of_the_deadline_is_too_long(
    ahead: int, rate: float, deadline_s: float, excess: float | None
) -> None:
    found = excess_wait(ahead, rate, deadline_s)
    assert found == (None if excess is None else pytest.approx(excess))


def test_the_refusal_says_the_wait_the_timeout_and_when_to_come_again() -> None:
    error = overloaded(69.5, 30)
    assert (error.status, error.kind, error.reason) == (429, "rate_limit_error", "engine_overloaded")
    assert error.headers == {"Retry-After": "70"}
    assert "wait of about 94 s" in error.message
    assert "timeout of 30 s" in error.message
    endless = overloaded(math.inf, 30)
    assert endless.headers == {"Retry-After": "120"}
    assert "without end" in endless.message
    assert "inf" not in endless.message


def sampled(meter: RateMeter, seconds: range, rate: int, *, done: int = 0) -> int:
    """Sample every second, so many being done in each; the count after the last."""
    for second in seconds:
        done += rate
        meter.sample(second, done)
    return done


def test_only_time_in_which_requests_wait_is_measured() -> None:
    meter = RateMeter()
    done = sampled(meter, range(60), 1)  # at leisure
    assert meter.rate is None
    done = sampled(meter, range(60, 81), 50, done=done)
    meter.waited(60, 80)
    done = sampled(meter, range(81, 200), 1, done=done)
    assert meter.rate == pytest.approx(50)


def test_a_wait_covers_the_intervals_that_lie_in_it_whole() -> None:
    meter = RateMeter(least_s=0, least_completions=0)
    meter.waited(0.5, 2.5)
    for second, done in enumerate([0, 100, 107, 200]):
        meter.sample(second, done)
    assert meter.rate == pytest.approx(7)


def test_waits_that_overlap_or_touch_are_one_wait_in_whatever_order_they_are_told() -> None:
    for waits in ([(0, 4), (3, 8), (8, 10)], [(8, 10), (0, 4), (3, 8)], [(2, 3), (8, 10), (3, 8), (0, 9)]):
        meter = RateMeter()
        for since, until in waits:
            meter.waited(since, until)
        assert meter._waits == [(0, 10)]


def test_a_standstill_while_they_wait_counts_and_the_rate_sinks() -> None:
    meter = RateMeter(half_life_s=30)
    done = sampled(meter, range(31), 10)
    for second in range(31, 61):
        meter.sample(second, done)
    meter.waited(0, 60)
    meter.sample(61, done)
    assert meter.rate == pytest.approx(10 / 3)  # the half that is older counts half as much


def test_workers_that_were_idle_are_not_measured_until_something_is_done() -> None:
    meter = RateMeter()
    done = sampled(meter, range(31), 0)
    done = sampled(meter, range(31, 41), 10, done=done)
    meter.waited(0, 40)
    meter.sample(41, done)
    assert meter.rate == pytest.approx(10)


def test_the_rate_is_believed_after_five_seconds_and_forgotten_after_ten_minutes() -> None:
    meter = RateMeter(least_completions=5)
    meter.waited(0, 5)
    for second in range(5):
        meter.sample(second, second)
        assert meter.rate is None
    for second in range(5, 601):
        meter.sample(second, 5)
        assert meter.rate == pytest.approx(1)
    meter.sample(601, 5)
    assert meter.rate is None
    assert len(meter._intervals) == 600
    meter.sample(605, 5)
    assert meter._waits == []


def test_the_rate_is_believed_after_twenty_completions() -> None:
    meter = RateMeter()
    meter.waited(0, 100)
    for second in range(101):
        meter.sample(second, second // 5)
        assert (meter.rate is None) == (second < 100)


def test_a_count_that_begins_anew_is_not_measured() -> None:
    meter = RateMeter(least_s=0, least_completions=0)
    meter.waited(0, 10)
    for second, done in enumerate([0, 10, 3, 13, 23]):
        meter.sample(second, done)
    assert meter.rate == pytest.approx(10)


def test_samples_at_one_moment_are_put_together() -> None:
    meter = RateMeter(least_s=0, least_completions=0)
    meter.waited(0, 10)
    meter.sample(0, 0)
    meter.sample(0, 5)
    meter.sample(1, 10)
    assert meter.rate == pytest.approx(10)
