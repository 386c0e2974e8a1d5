"""What a call's headers say: for whom, how long, how large, and which request it repeats."""

from __future__ import annotations

import pytest

from headrace.producers.http.caller import ANYONE, Caller
from headrace.producers.http.gateway import (
    BodyLimit,
    Timeout,
    for_tenant,
    largest_body,
    request_id_of,
    the_only,
    timeout_of,
)
from headrace.producers.http.wanted import ApiError
from headrace.schemas.messages import Request


class Headers:
    """Lines of headers, as Starlette has them."""

    def __init__(self, *lines: tuple[str, str]) -> None:
        self.lines = lines

    def getlist(self, key: str) -> list[str]:
        return [value for name, value in self.lines if name.lower() == key.lower()]


NONE = Headers()
TENANT = "X-Headrace-Tenant"


def refusal(error: pytest.ExceptionInfo[ApiError], status: int, header: str | None) -> str:
    assert (error.value.status, error.value.param) == (status, header)
    return error.value.message


def test_a_header_that_comes_twice_is_refused_even_if_it_says_the_same() -> None:
    assert the_only(Headers(("x-a", " b ")), "X-A") == "b"
    assert the_only(NONE, "X-A") is None
    with pytest.raises(ApiError) as error:
        the_only(Headers(("x-a", "b"), ("X-A", "b")), "X-A")
    assert "2 times" in refusal(error, 400, "X-A")


# --- for whom ---


def test_without_a_trusted_gateway_nobody_may_name_a_tenant() -> None:
    assert for_tenant(ANYONE, NONE, trusted=False) is ANYONE
    for who in (ANYONE, Caller("acme", "k")):
        with pytest.raises(ApiError) as error:
            for_tenant(who, Headers((TENANT, "acme")), trusted=False)
        refusal(error, 400, TENANT)


def test_a_gateway_names_the_tenant_of_each_call() -> None:
    gateway = Caller(None, "k", "proxy")
    named = for_tenant(gateway, Headers(("x-headrace-tenant", "acme")), trusted=True)
    assert named == Caller("acme", "k", "proxy")
    with pytest.raises(ApiError) as error:
        for_tenant(gateway, NONE, trusted=True)
    assert "missing" in refusal(error, 400, TENANT)


def test_a_key_of_a_tenant_speaks_for_that_tenant_alone() -> None:
    who = Caller("acme", "k")
    assert for_tenant(who, NONE, trusted=True) is who
    assert for_tenant(who, Headers((TENANT, "acme")), trusted=True) == who
    with pytest.raises(ApiError) as error:
        for_tenant(who, Headers((TENANT, "other")), trusted=True)
    refusal(error, 403, TENANT)


@pytest.mark.parametrize("value", ["", "  ", "a" * 257, "a\tb", "caf\u00e9", "a\x00"])
def test_a_tenant_that_is_no_name_is_refused(value: str) -> None:
    with pytest.raises(ApiError) as error:
        for_tenant(ANYONE, Headers((TENANT, value)), trusted=True)
    refusal(error, 400, TENANT)


# --- how large ---


def test_a_body_may_be_as_large_as_a_request_with_all_its_text_escaped() -> None:
    text = "\u0436" * 1000
    escaped = "".join(f"\\u{ord(each):04x}" for each in text)
    assert len(escaped) <= largest_body(len(text.encode()))
    assert largest_body(0) > 0


@pytest.mark.parametrize("length", [None, "0", "100", "0000000000000000000000100"])
def test_a_body_within_the_limit_is_taken(length: str | None) -> None:
    limit = BodyLimit(100)
    limit.announce(NONE if length is None else Headers(("content-length", length)))
    for _ in range(4):
        limit.count(25)
    assert limit.received == 100


def test_a_body_that_grows_beyond_the_limit_is_refused_before_more_is_read() -> None:
    limit = BodyLimit(100)
    limit.count(100)
    with pytest.raises(ApiError) as error:
        limit.count(1)
    assert "100" in refusal(error, 413, None)


@pytest.mark.parametrize("length", ["101", "9" * 5000])
def test_a_body_that_is_announced_too_large_is_refused_at_once(length: str) -> None:
    with pytest.raises(ApiError) as error:
        BodyLimit(100).announce(Headers(("Content-Length", length)))
    assert len(refusal(error, 413, None)) < 200


@pytest.mark.parametrize("length", ["", "-1", "1.5", "ten", "\u0661", "1 1"])
def test_a_length_that_is_no_number_is_refused(length: str) -> None:
    with pytest.raises(ApiError) as error:
        BodyLimit(100).announce(Headers(("Content-Length", length)))
    refusal(error, 400, "Content-Length")


# --- how long ---


def timeout(*lines: tuple[str, str]) -> Timeout:
    return timeout_of(Headers(*lines), default_s=60, most_s=600)


@pytest.mark.parametrize(
    ("lines", "seconds", "source"),
    [
        ((), 60, None),
        ((("X-Request-Timeout", "30"),), 30, "X-Request-Timeout"),
        ((("X-Request-Timeout", "0.1"),), 0.1, "X-Request-Timeout"),
        ((("X-Request-Timeout", "600"),), 600, "X-Request-Timeout"),
        ((("x-stainless-read-timeout", "30.0"),), 29, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "2"),), 1.9, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "600"),), 599, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "900"),), 600, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "1e+16"),), 600, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "1e999"),), 600, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "inf"),), 600, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "1e-05"),), 0.1, "x-stainless-read-timeout"),
        ((("x-stainless-read-timeout", "0"),), 0.1, "x-stainless-read-timeout"),
        ((("X-Stainless-Timeout", "10"),), 9.5, "X-Stainless-Timeout"),
        ((("X-Stainless-Timeout", "0"),), 0.95, "X-Stainless-Timeout"),
        (
            (("X-Stainless-Timeout", "10"), ("x-stainless-read-timeout", "20")),
            9.5,
            "X-Stainless-Timeout",
        ),
        (
            (("X-Stainless-Timeout", "20"), ("x-stainless-read-timeout", "10")),
            9.5,
            "x-stainless-read-timeout",
        ),
        (
            (("x-stainless-read-timeout", "10"), ("x-request-timeout", "500")),
            500,
            "X-Request-Timeout",
        ),
    ],
)
def test_the_callers_wish_wins_then_when_its_client_gives_up_then_the_settings(
    lines: tuple[tuple[str, str], ...], seconds: float, source: str | None
) -> None:
    found = timeout(*lines)
    assert found.source == source
    assert found.seconds == pytest.approx(seconds)


def test_the_default_is_no_longer_than_the_longest() -> None:
    assert timeout_of(NONE, default_s=900, most_s=600) == Timeout(600, None)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0",
        "0.09",
        "600.5",
        "-1",
        "+1",
        "1e2",
        "30s",
        "1_0",
        "nan",
        "inf",
        "\u0661",
        "1,5",
        "0x10",
        "9" * 400,
    ],
)
def test_a_wish_that_cannot_be_held_is_refused_by_the_headers_name(value: str) -> None:
    with pytest.raises(ApiError) as error:
        timeout(("X-Request-Timeout", value))
    message = refusal(error, 400, "X-Request-Timeout")
    assert "X-Request-Timeout must be a number of seconds from 0.1 to 600" in message


@pytest.mark.parametrize("name", ["x-stainless-read-timeout", "X-Stainless-Timeout"])
@pytest.mark.parametrize("value", ["", "-1", "nan", "None", "1_0", "30s", "\u0661", "undefined"])
def test_a_clients_header_that_is_no_number_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ApiError) as error:
        timeout((name, value))
    assert name in refusal(error, 400, name)


# --- which request ---


def request_id(key: str, tenant: str | None = "acme") -> str | None:
    return request_id_of(Headers(("Idempotency-Key", key)), tenant)


def test_without_a_key_there_is_no_id() -> None:
    assert request_id_of(NONE, "acme") is None


@pytest.mark.parametrize(
    "key", ["a", "a" * 256, "stainless-python-retry-123", '"8e03978e"', "two words", "~!"]
)
def test_a_key_is_always_the_same_id_and_one_that_a_request_may_have(key: str) -> None:
    found = request_id(key)
    assert found is not None
    assert found == request_id(key)
    assert key == "a" or key not in found
    assert Request(id=found, prompt="x").id == found


def test_neither_two_keys_nor_two_tenants_meet() -> None:
    pairs = [
        (tenant, key)
        for tenant in (None, "a", "ab", "tenant a", "None", "tenant ")
        for key in ("a", "b", "ba", "A", "tenant a")
    ]
    assert len({request_id(key, tenant) for tenant, key in pairs}) == len(pairs)


@pytest.mark.parametrize("key", ["", "   ", "a" * 257, "a\tb", "caf\u00e9", "a\x7f"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(ApiError) as error:
        request_id(key)
    refusal(error, 400, "Idempotency-Key")
