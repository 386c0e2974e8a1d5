"""The file of API keys: what is kept of each key, read, and changed by one process at a time.

What is kept is a salted hash; the key itself is nowhere. The file is replaced as a whole, so that a reader finds the
old one or the new one and never a part; the lock lies beside it, since a lock on the file would go with the old one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from headrace.producers.http.caller import UNLIMITED, Limits, is_name
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import Message, Milliseconds

FILE_NAME = "api_keys.json"
LOCK_WAIT_S = 10.0  # a change takes milliseconds: whoever holds the lock longer is stuck
LOCK_POLL_S = 0.02
PRIVATE = 0o600


class KeyFileError(UsageError):
    """The file of API keys cannot be read, changed or understood."""

    code = "bad_key_file"


def _name(text: str) -> str:
    if not is_name(text):
        raise ValueError("a name has 1 to 256 printable characters, and no blanks at its ends")
    return text


Name = Annotated[str, AfterValidator(_name)]


class ApiKey(Message):
    """What is kept of a key."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]{4,32}$")]
    name: Name
    tenant: Name | None  # None: a gateway's key, whose calls name their tenant
    salt: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # SHA-256 of the salt's bytes and the secret's
    created: Milliseconds  # this and the next two: ms since the epoch
    expires: Milliseconds | None = None
    revoked: Milliseconds | None = None
    limits: Limits = UNLIMITED

    def state(self, now_ms: int) -> Literal["active", "expired", "revoked"]:
        """Whether the key opens, and if not, why."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now_ms else "active"


class ApiKeys(Message):
    """The whole file. A later format is refused: what it says may forbid what we would allow."""

    format: Literal[1] = 1
    keys: list[ApiKey] = Field(default_factory=list[ApiKey])

    @model_validator(mode="after")
    def _once(self) -> Self:
        seen: set[str] = set()
        for each in self.keys:
            if each.id in seen:
                raise ValueError(f"two keys have the id {each.id}")
            seen.add(each.id)
        return self


# --- reading ------------------------------------------------------------------------------------------------------

Fingerprint = tuple[int, int, int]  # modification time in ns, size in bytes, inode


def fingerprint(path: Path) -> Fingerprint:
    """What changes when the file does. Raises OSError."""
    return _fingerprint(path.stat())


def _fingerprint(status: os.stat_result) -> Fingerprint:
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_keys(path: Path) -> ApiKeys:
    """What the file holds; without one, no keys. Raises KeyFileError."""
    try:
        return parse_keys(path, path.read_bytes())
    except FileNotFoundError:
        return ApiKeys()
    except OSError as error:
        raise _failed(path, "read", error) from error


def read_with_fingerprint(path: Path) -> tuple[bytes, Fingerprint]:
    """The file's bytes and the fingerprint from before they were read. Raises OSError, also where there is none."""
    with path.open("rb") as file:
        taken = _fingerprint(os.fstat(file.fileno()))
        return file.read(), taken


def parse_keys(path: Path, content: bytes) -> ApiKeys:
    """The keys of the bytes of the file at `path`. Raises KeyFileError, which quotes nothing of them."""
    try:
        return ApiKeys.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"/{step}" for step in first["loc"])
        raise KeyFileError(f"{path} holds no API keys: {first['msg']}", path=place or None) from None


# --- changing -----------------------------------------------------------------------------------------------------


def change_keys(path: Path, decide: Callable[[ApiKeys], ApiKeys], *, wait_s: float = LOCK_WAIT_S) -> None:
    """Replace what the file holds by what `decide` makes of it; nothing else changes it meanwhile.

    The file and its folder are made where there are none. Where `decide` returns what it was given nothing is
    written; what it raises goes through, and the file stays. Raises KeyFileError.
    """
    path = Path(os.path.realpath(path))  # a link stays a link, and all its names share one lock
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(f"{path.name}.lock"), wait_s):
            before = read_keys(path)
            after = decide(before)
            if after is not before:
                _replace(path, after.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise _failed(path, "changed", error) from error


@contextlib.contextmanager
def _locked(lock: Path, wait_s: float) -> Generator[None]:
    """Hold the lock; the kernel lets go of it if this process dies. The file stays: removing it would let two in."""
    try:
        import fcntl
    except ImportError:
        raise KeyFileError(
            "API keys can be changed only where files can be locked (Linux, macOS): change the file there, and "
            "copy it; serving with it works anywhere"
        ) from None
    give_up_at = time.monotonic() + wait_s
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up_at:
                    raise KeyFileError(
                        f"another process holds {lock} for more than {wait_s:g} s: is a `headrace keys` stuck?"
                    ) from None
                time.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    """Raises OSError, KeyFileError; what was there is then as it was."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            _give_to_owner_of(path, file.fileno())
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # not every file system can; what readers see is right all the same
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _give_to_owner_of(path: Path, descriptor: int) -> None:
    """Only its owner can read the file: root's change must not take it from the user that serves with it."""
    try:
        owner = path.stat().st_uid
    except FileNotFoundError:
        return
    if owner != os.fstat(descriptor).st_uid:
        try:
            os.fchown(descriptor, owner, -1)
        except PermissionError:
            raise KeyFileError(
                f"{path} belongs to the user {owner}: change it as that user, or as root"
            ) from None


def _failed(path: Path, done: str, error: OSError) -> KeyFileError:
    return KeyFileError(f"{path} cannot be {done}: {error.strerror or error}")
