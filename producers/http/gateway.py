"""What the headers of a call say beside its body: for whom it is, how long it may take, which request it repeats. Pure.

Each header counts only if it comes once: a proxy that adds its own behind that of a caller must not let the caller
choose. What is malformed is refused by the header's name.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.producers.client import way_back
from headrace.producers.http.caller import Caller, is_name
from headrace.producers.http.refusing import shortened, unknown
from headrace.producers.http.typed_values import without_nulls
from headrace.producers.http.wanted import ApiError, Endpoint
from headrace.schemas.messages import JsonObject

TENANT = "X-Headrace-Tenant"
TIMEOUT = "X-Request-Timeout"
PYTHON_TIMEOUT = "x-stainless-read-timeout"  # of the official clients; both in seconds
NODE_TIMEOUT = "X-Stainless-Timeout"  # whole seconds, cut off
IDEMPOTENCY_KEY = "Idempotency-Key"

LEAST_TIMEOUT_S = 0.1
LONGEST_KEY = 256  # characters
ESCAPED = 3  # `\u0436` is 6 bytes in a body and 2 in a record; an emoji is 12 and 4
ENVELOPE_BYTES = 64 * 1024  # names of parameters, blanks
PLAIN_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,20})?")  # Python writes up to 17 digits
ANY_SECONDS = re.compile(r"[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?|inf(inity)?", re.IGNORECASE)
PRINTABLE = re.compile(r"[!-~]([ -~]*[!-~])?")
IGNORED_IN_QUERY = frozenset({"api-version"})  # the clients for Azure send it with every call
# How an answer is sent, not what it is: the same call may be asked for whole first and then event by event.
MANNER = frozenset({"stream", "stream_options"})


def check_query(names: Iterable[str]) -> None:
    """Raises ApiError (400) for a parameter in the URL: all that a call says is in its body and headers."""
    for name in names:
        if name not in IGNORED_IN_QUERY:
            raise unknown(shortened(name), "The URL takes no parameters: send it in the body.")


def check_content_type(given: str | None) -> None:
    """Raises ApiError (400) for a body that does not say that it is JSON.

    Browsers send a page's `text/plain` to any address without asking it first: an endpoint without keys would take
    orders from every page that its user looks at.
    """
    kind = (given or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ApiError(
            400,
            f"the body has {f'content-type {shortened(kind)}' if kind else 'no content-type'}: send JSON, "
            "and the header content-type: application/json",
        )


class HeaderLines(Protocol):
    """A call's headers, as Starlette has them: the name's case does not matter."""

    def getlist(self, key: str) -> list[str]:
        """The values of all lines of this name."""
        ...


def the_only(headers: HeaderLines, name: str) -> str | None:
    """A header's value without blanks around it; None where it is absent. Raises ApiError where it comes twice."""
    values = headers.getlist(name)
    if len(values) > 1:
        raise _refused(name, f"{name} is given {len(values)} times: give it once")
    return values[0].strip() if values else None


def _refused(name: str, message: str, *, status: int = 400) -> ApiError:
    return ApiError(status, message, param=name)


# --- for whom -----------------------------------------------------------------------------------------------------


def for_tenant(caller: Caller, headers: HeaderLines, *, trusted: bool) -> Caller:
    """The caller with the tenant that its gateway names.

    `trusted`: whether the operator said that a gateway names the tenants. Then every call whose key has no tenant of
    its own must be named one; a call whose key has one may name that one only, since a key is not the gateway just
    because there is one. Without it the header is refused: who sends it believes that it counts.
    """
    named = the_only(headers, TENANT)
    if not trusted:
        if named is not None:
            raise _refused(
                TENANT, f"{TENANT} is not taken here: the operator has not named a gateway to trust"
            )
        return caller
    if named is None:
        if caller.tenant is None:
            raise _refused(TENANT, f"{TENANT} is missing: the gateway must say for which tenant it calls")
        return caller
    if not (named.isascii() and is_name(named)):
        raise _refused(TENANT, f"{TENANT} must be 1 to 256 printable ASCII characters")
    if caller.tenant is not None and caller.tenant != named:
        raise _refused(TENANT, f"{TENANT}: this API key belongs to another tenant", status=403)
    return replace(caller, tenant=named)


# --- how large ----------------------------------------------------------------------------------------------------


def largest_body(request_bytes: int) -> int:
    """Bytes of the largest body that can still be a request record of `request_bytes`: with all its text escaped."""
    return request_bytes * ESCAPED + ENVELOPE_BYTES


class BodyLimit:
    """Counts a body while it comes in, so that no more than `most` bytes of it are held."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.received = 0

    def announce(self, headers: HeaderLines) -> None:
        """Take note of Content-Length before anything is read. Raises ApiError (413, 400)."""
        given = the_only(headers, "Content-Length")
        if given is None:
            return  # chunks: they are counted
        if not (given.isascii() and given.isdigit()):
            raise _refused("Content-Length", "Content-Length must be a number of bytes")
        digits = given.lstrip("0")
        if len(digits) > 18 or int(digits or "0") > self.most:
            raise self._too_large(given[:20])

    def count(self, size: int) -> None:
        """So many bytes more have come. Raises ApiError (413)."""
        self.received += size
        if self.received > self.most:
            raise self._too_large(f"more than {self.most}")

    def _too_large(self, size: str) -> ApiError:
        return ApiError(
            413,
            f"The request's body has {size} bytes: at most {self.most} are taken.",
            reason="request_too_large",
        )


# --- how long -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long a call may take; `source` is the header that said so, None: the settings."""

    seconds: float
    source: str | None = None


def timeout_of(headers: HeaderLines, *, default_s: float, most_s: float) -> Timeout:
    """X-Request-Timeout, else the shorter of what the official clients say, else `default_s`; `most_s` at most.

    X-Request-Timeout is taken as it is: 0.1 s to `most_s`, else refused. What the clients say is when they give up, not
    a wish: it is cut to those bounds, and the answer is to be there a little before, lest they try again. Raises
    ApiError (400).
    """
    wished = the_only(headers, TIMEOUT)
    if wished is not None:
        return Timeout(_wished(wished, most_s), TIMEOUT)
    given_up = [
        Timeout(seconds, name)
        for name in (PYTHON_TIMEOUT, NODE_TIMEOUT)
        if (value := the_only(headers, name)) is not None
        for seconds in [_given_up_after(name, value, most_s)]
    ]
    return min(given_up, key=lambda each: each.seconds, default=Timeout(min(default_s, most_s)))


def _wished(value: str, most_s: float) -> float:
    seconds = float(value) if PLAIN_SECONDS.fullmatch(value) else math.nan
    if not LEAST_TIMEOUT_S <= seconds <= most_s:
        raise _refused(
            TIMEOUT,
            f"{TIMEOUT} must be a number of seconds from {LEAST_TIMEOUT_S:g} to {most_s:g}, such as 30",
        )
    return seconds


def _given_up_after(name: str, value: str, most_s: float) -> float:
    if not ANY_SECONDS.fullmatch(value):
        raise _refused(name, f"{name} must be a number of seconds")
    seconds = float(value)
    if name == NODE_TIMEOUT and seconds == 0:
        seconds = 1.0  # cut off: it gives up within the first second
    # The margin first: where the client waits longer than we allow, none is needed.
    return max(LEAST_TIMEOUT_S, min(seconds - way_back(seconds), most_s))


def timed_out(timeout: Timeout) -> str:
    """What a call is told that had no answer in its time: how long that was, and who said so."""
    seconds = f"{timeout.seconds:g} s"
    match timeout.source:
        case None:
            why = f"the --timeout of this server. Send {TIMEOUT} to say another."
        case "X-Request-Timeout":
            why = f"the timeout that {TIMEOUT} asked for."
        case source:
            why = (
                f"all that the header {source} of your client leaves: it says when the client gives up. "
                f"Give the client a longer timeout, or send {TIMEOUT}."
            )
    return f"The call was not answered within {seconds}, {why}"


# --- which request ------------------------------------------------------------------------------------------------


def request_id_of(headers: HeaderLines, tenant: str | None) -> str | None:
    """The request id that an Idempotency-Key stands for; None without one. Raises ApiError (400)."""
    key = the_only(headers, IDEMPOTENCY_KEY)
    if key is None:
        return None
    if len(key) > LONGEST_KEY or not PRINTABLE.fullmatch(key):
        raise _refused(
            IDEMPOTENCY_KEY, f"{IDEMPOTENCY_KEY} must be 1 to {LONGEST_KEY} printable ASCII characters"
        )
    return f"idem-{_digest(['' if tenant is None else f'tenant {tenant}', key])}"


def _digest(parts: Sequence[str]) -> str:
    """Of the parts and where each ends, so that no two lists look alike."""
    digest = hashlib.sha256(b"headrace idempotency key")
    for part in parts:
        content = part.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def body_digest(body: JsonObject, endpoint: Endpoint) -> str:
    """Of what a call asks for: the same for all spellings of one JSON value."""
    asked = {name: value for name, value in without_nulls(body).items() if name not in MANNER}
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{endpoint} {canonical}".encode()).hexdigest()
