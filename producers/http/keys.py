"""API keys: how they are made, what is kept of them, and who may come in.

A key is `hr-<id>-<secret>`. The id is no secret: it names the key in lists and logs. The secret has 256 random bits,
and what is kept is SHA-256 over a salt and the secret. scrypt, Argon2 and the like make each guess at a *password*
dear, because people choose passwords that can be guessed; nobody guesses one of 2**256 random secrets, whatever a guess
costs, and a call must not wait 50 ms for its hash.

A call without a valid key learns nothing beyond that, and takes the same time whether the id exists or not. Whoever
has the right secret of a key that was revoked or has expired is told so.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from headrace.producers.http.caller import UNLIMITED, Caller, Limits
from headrace.producers.http.key_file import (
    ApiKey,
    ApiKeys,
    Fingerprint,
    KeyFileError,
    change_keys,
    fingerprint,
    parse_keys,
    read_with_fingerprint,
)
from headrace.producers.http.wanted import ApiError
from headrace.schemas.errors import HeadraceError

logger = logging.getLogger(__name__)

PREFIX = "hr"
ID_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none that look alike: an id is read out and typed
ID_LENGTH = 10
SECRET_BYTES = 32
SALT_BYTES = 16
KEY = re.compile(rf"{PREFIX}-([a-z0-9]{{4,32}})-([A-Za-z0-9_-]{{20,200}})")
KEY_ID = re.compile(rf"{PREFIX}-([a-z0-9]{{4,32}})(?:-[A-Za-z0-9_-]*)?|([a-z0-9]{{4,32}})")
LOOK_INTERVAL_S = 1.0  # so long a revoked key may still open
MISSING = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)


class UnknownKey(HeadraceError):
    """There is no API key of this id."""

    code = "unknown_key"


# --- making and revoking ------------------------------------------------------------------------------------------


def create_key(
    path: Path,
    name: str,
    *,
    tenant: str | None,
    now_ms: int,
    expires_ms: int | None = None,
    limits: Limits = UNLIMITED,
) -> tuple[ApiKey, str]:
    """Add a key to the file; what is kept of it, and the key itself, which is nowhere else.

    `tenant` None: the key of a gateway, whose calls name their tenant. Raises KeyFileError.
    """
    secret = secrets.token_urlsafe(SECRET_BYTES)
    salt = secrets.token_bytes(SALT_BYTES)
    made: list[ApiKey] = []

    def add(keys: ApiKeys) -> ApiKeys:
        made.append(
            ApiKey(
                id=_new_id({each.id for each in keys.keys}),
                name=name,
                tenant=tenant,
                salt=salt.hex(),
                hash=_digest(salt, secret).hex(),
                created=now_ms,
                expires=expires_ms,
                limits=limits,
            )
        )
        return ApiKeys(keys=[*keys.keys, *made])

    change_keys(path, add)
    return made[0], f"{PREFIX}-{made[0].id}-{secret}"


def revoke_key(path: Path, key_id: str, *, now_ms: int) -> tuple[ApiKey, bool]:
    """(the key as it is now, whether it opened until now). Raises UnknownKey, KeyFileError."""
    found: list[tuple[ApiKey, bool]] = []

    def revoke(keys: ApiKeys) -> ApiKeys:
        before = next((each for each in keys.keys if each.id == key_id), None)
        if before is None:
            raise UnknownKey(f"there is no API key {key_id} in {path}")
        if before.revoked is not None:
            found.append((before, False))
            return keys
        after = before.model_copy(update={"revoked": now_ms})
        found.append((after, before.state(now_ms) == "active"))
        return ApiKeys(keys=[after if each is before else each for each in keys.keys])

    change_keys(path, revoke)
    return found[0]


def key_id_of(given: str) -> str | None:
    """The id in what an operator types: `<id>`, `hr-<id>`, or the whole key, as it is found where it leaked."""
    found = KEY_ID.fullmatch(given.strip())
    return found[1] or found[2] if found else None


def _new_id(taken: set[str]) -> str:
    while (made := "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH))) in taken:
        pass
    return made


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode("utf-8", "surrogatepass")).digest()


# --- who may come in ----------------------------------------------------------------------------------------------


class _KnownKey:
    """A key as it is compared with: its salt and hash as bytes, and who comes in with it."""

    __slots__ = ("caller", "hash", "key", "salt")

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.salt = bytes.fromhex(key.salt)
        self.hash = bytes.fromhex(key.hash)
        self.caller = Caller(tenant=key.tenant, key_id=key.id, name=key.name, limits=key.limits)


class KeyRing:
    """The keys of a file, as it is now: looked at once a second at most, so that a restart is not needed.

    A file that becomes unreadable, or vanishes, leaves the keys as they were: its loss must lock nobody out. `trouble`
    says so, and the log. Belongs to one thread.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,  # seconds
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,  # since the epoch
    ) -> None:
        """Reads the file. One that does not exist yet has no keys; raises KeyFileError for one that is wrong."""
        self.trouble: str | None = None  # why the file is not what it was last read as
        self._path = path
        self._clock = clock
        self._now_ms = now_ms
        self._known: dict[str, _KnownKey] = {}
        self._seen: Fingerprint | None = None
        self._decoy = secrets.token_bytes(SALT_BYTES), secrets.token_bytes(hashlib.sha256().digest_size)
        try:
            self._read()
        except FileNotFoundError:
            logger.warning(
                "there is no %s: nobody can call until `headrace keys create` has made a key", path
            )
        except OSError as error:
            raise KeyFileError(f"{path} cannot be read: {error.strerror or error}") from error
        self._look_at = clock() + LOOK_INTERVAL_S

    def __len__(self) -> int:
        """How many keys open."""
        now = self._now_ms()
        return sum(each.key.state(now) == "active" for each in self._known.values())

    def authenticate(self, header: str | None) -> Caller:
        """Whose key is in an Authorization header. Raises ApiError (401)."""
        self._look()
        given = _bearer(header)
        parts = KEY.fullmatch(given)
        key_id, secret = parts.groups() if parts else ("", given)
        known = self._known.get(key_id)
        salt, expected = (known.salt, known.hash) if known else self._decoy
        # Hashed and compared in any case: how long it takes must not tell whether there is such an id.
        matches = hmac.compare_digest(_digest(salt, secret), expected)
        if known is None or not matches:
            raise _unauthorized(_incorrect(key_id), reason="invalid_api_key")
        state = known.key.state(self._now_ms())
        if state != "active":
            gone = "been revoked" if state == "revoked" else "expired"
            raise _unauthorized(f"{_incorrect(key_id)} This key has {gone}.", reason="invalid_api_key")
        return known.caller

    # --- the file ---

    def _look(self) -> None:
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_INTERVAL_S
        trouble = self._take_changes()
        if trouble is not None and trouble != self.trouble:
            logger.error("%s; the API keys stay as they were", trouble)
        elif trouble is None and self.trouble is not None:
            logger.info("%s can be read again", self._path)
        self.trouble = trouble

    def _take_changes(self) -> str | None:
        """Read the file if it is not the one that was read last; why that could not be done, or None."""
        try:
            if fingerprint(self._path) != self._seen:
                self._read()
        except FileNotFoundError:
            return None if self._seen is None else f"{self._path} has vanished"
        except KeyFileError as error:
            return str(error)
        except OSError as error:
            return f"{self._path} cannot be read: {error.strerror or error}"
        return None

    def _read(self) -> None:
        content, taken = read_with_fingerprint(self._path)
        self._known = {each.id: _KnownKey(each) for each in parse_keys(self._path, content).keys}
        self._seen = taken
        logger.info("%d API keys that open in %s", len(self), self._path)


def _bearer(header: str | None) -> str:
    """What an Authorization header gives as the key. Raises ApiError."""
    scheme, _, given = (header or "").strip().partition(" ")
    if not scheme or (scheme.lower() == "bearer" and not given.strip()):
        raise _unauthorized(MISSING)
    if scheme.lower() != "bearer":
        # The scheme may be a key that lacks its scheme: it is not repeated.
        raise _unauthorized(f"The Authorization header must have the scheme Bearer. {MISSING}")
    return given.strip()


def _incorrect(key_id: str) -> str:
    """OpenAI's words; no more is repeated of what was given than what is no secret."""
    given = f": {PREFIX}-{key_id}-***" if key_id else f": the keys of this endpoint begin with {PREFIX}-"
    return f"Incorrect API key provided{given}."


def _unauthorized(message: str, *, reason: str | None = None) -> ApiError:
    challenge = 'Bearer realm="headrace"' + (', error="invalid_token"' if reason else "")
    return ApiError(
        401, message, reason=reason, kind="invalid_request_error", headers={"WWW-Authenticate": challenge}
    )
