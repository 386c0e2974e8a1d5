"""What file systems say that could not be done, as OutputFailed with the place and what to do."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Generator
from typing import Any, Final

import pyarrow as pa

from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.locations import without_secrets

_ADVICE: Final[tuple[tuple[str, str], ...]] = (
    (r"NO_SUCH_BUCKET|NoSuchBucket|[Bb]ucket .*not (?:found|exist)",
     "there is no such bucket: create it, or correct the place"),
    (r"ACCESS_DENIED|AccessDenied|PERMISSION_DENIED|HTTP status 40[13]|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY_ID",
     "the store refused: check the credentials, and that they may read, write and delete there"),
    (r"NETWORK_CONNECTION|[Cc]ould not (?:connect|resolve)|UNAVAILABLE|SLOW_DOWN|timed? ?out",
     "the store does not answer: check the endpoint and the region, and run the job again to go on"),
    (r"Unrecognized filesystem type|built without|Unable to load lib",
     "this file system is not to be had here: see what pyarrow.fs needs for it"),
)  # fmt: skip
_ADVICE_BY_ERRNO: Final[dict[int, str]] = {
    errno.ENOSPC: "the disk is full: make room, and run the job again to go on",
    errno.EDQUOT: "the quota is used up: make room, and run the job again to go on",
    errno.EACCES: "no permission: run as somebody who may write there, or choose another place",
    errno.EPERM: "no permission: run as somebody who may write there, or choose another place",
    errno.EROFS: "the file system is read-only: choose another place",
    errno.ENOTDIR: "a part of the path is a file: choose another place",
    errno.EEXIST: "a part of the path is a file: choose another place",
    errno.EISDIR: "a directory stands where the file should be: choose another name, or remove it",
    errno.ENOENT: "it is not there",
}


@contextlib.contextmanager
def output_failures(verb: str, shown: str) -> Generator[None]:
    """What the file system raises, as OutputFailed with the place and what to do."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise OutputFailed(f"cannot {verb} {shown}: {_explained(error)}") from error


def _explained(error: Any) -> str:
    said = without_secrets(str(error)).strip()  # Arrow repeats a URI that it cannot read
    text = said.splitlines()[0] if said else type(error).__name__
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        stated = re.search(r"\[errno (\d+)\]", text, re.IGNORECASE)
        number = int(stated[1]) if stated else None
    if number in _ADVICE_BY_ERRNO:
        return _ADVICE_BY_ERRNO[number]
    advice = next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), None)
    return text if advice is None else f"{advice} ({text})"
