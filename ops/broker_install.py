"""Fetch an Apache Kafka release into the cache: over HTTPS, resumed where it stopped, its SHA-512 verified.

1. the published checksum, from the first place that has the release
2. the archive, into `<name>.tgz.part`, from where an earlier try stopped
3. its checksum; a file that does not match is removed
4. unpacked beside its place, then renamed into it: a half-unpacked release is never found
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from headrace.ops.kafka_process import holds_kafka
from headrace.ops.pins import pins
from headrace.schemas.errors import BrokerInstallFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

TIMEOUT = httpx.Timeout(30.0, connect=15.0)  # seconds without a byte
PARTIAL_CONTENT, RANGE_NOT_SATISFIABLE = 206, 416  # HTTP
LOOPBACK = ("127.0.0.1", "localhost", "::1")
VERSION = re.compile(r"\d+\.\d+\.\d+(-rc\d+)?")

Progress: TypeAlias = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


@dataclass(frozen=True)
class Release:
    version: str

    @property
    def name(self) -> str:
        return f"kafka_{pins().kafka_scala}-{self.version}"

    @property
    def archive(self) -> str:
        return f"{self.name}.tgz"

    def url(self, base: str) -> str:
        return f"{base.rstrip('/')}/{self.version}/{self.archive}"


def newest_installed(cache_dir: Path) -> Path | None:
    """The installed release of the highest version; None without one."""
    homes = [home for home in _folder(cache_dir).glob("kafka_*") if holds_kafka(home)]
    return max(homes, key=lambda home: [int(part) for part in re.findall(r"\d+", home.name)], default=None)


def install(
    cache_dir: Path,
    *,
    version: str | None = None,
    bases: Sequence[str] | None = None,
    on_progress: Progress = lambda done, total: None,
) -> Path:
    """Fetch, verify and unpack a release; returns its directory, at once when it is there already.

    `version` and `bases` default to the pinned ones; a base has `<version>/kafka_<scala>-<version>.tgz`.
    Raises UsageError (version or URL of a wrong form) and BrokerInstallFailed. Run again after an
    interruption, it goes on where it stopped.
    """
    release = Release(pins().kafka_version if version is None else version)
    if not VERSION.fullmatch(release.version):
        raise UsageError(
            f"{release.version!r} is not a version of Apache Kafka, such as {pins().kafka_version}"
        )
    home = _folder(cache_dir) / release.name
    with _only_one_at_a_time(_folder(cache_dir)):
        if holds_kafka(home):
            return home
        with httpx.Client(
            timeout=TIMEOUT, follow_redirects=True, event_hooks={"request": [_refuse_plain_http]}
        ) as client:
            base, expected = _published_checksum(client, release, bases or pins().kafka_releases)
            archive = _download(client, release.url(base), _folder(cache_dir), on_progress)
        _verify(archive, expected, release.url(base))
        _unpack(archive, release.name, home)
        archive.unlink()
    return home


def parse_sha512(text: str) -> str:
    """The digest from a `.sha512` file, as 128 hexadecimal digits in lower case.

    Apache publishes GPG's form, `name: 0F1E2D3C 4B5A...` over several lines; others `digest  name`.
    Raises ValueError when there is none.
    """
    # A name such as kafka_2.13 has hexadecimal digits too: it goes first.
    _, colon, after = text.partition(":")
    grouped = re.sub(r"\s", "", after) if colon else ""
    if re.fullmatch(r"[0-9A-Fa-f]{128}", grouped):
        return grouped.lower()
    plain = re.search(r"\b[0-9A-Fa-f]{128}\b", text)
    if plain is None:
        raise ValueError("no SHA-512 digest in it")
    return plain.group().lower()


def _folder(cache_dir: Path) -> Path:
    return cache_dir / "kafka"


@contextlib.contextmanager
def _only_one_at_a_time(folder: Path) -> Generator[None]:
    """Two installations at a time would write into one file."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _refuse_plain_http(request: httpx.Request) -> None:
    """The checksum comes from where the archive does: TLS alone says who sent them. Redirects come by too."""
    if request.url.scheme != "https" and request.url.host not in LOOPBACK:
        raise UsageError(f"{request.url}: only https:// is used to fetch a release")


def _published_checksum(client: httpx.Client, release: Release, bases: Sequence[str]) -> tuple[str, str]:
    """The first of `bases` that has the release, and its digest there."""
    failures: list[str] = []
    for base in bases:
        url = f"{release.url(base)}.sha512"
        try:
            answer = client.get(url)
            answer.raise_for_status()
            return base, parse_sha512(answer.text)
        except httpx.HTTPStatusError as error:
            failures.append(f"{url}: {error.response.status_code} {error.response.reason_phrase}")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            failures.append(f"{url}: {error}")
    raise BrokerInstallFailed(
        f"no Apache Kafka {release.version} was found ({'; '.join(failures)}): see which versions "
        "https://kafka.apache.org/downloads has and name one with --version, or a mirror with --url"
    )


def _download(client: httpx.Client, url: str, folder: Path, on_progress: Progress) -> Path:
    part = folder / f"{url.rpartition('/')[2]}.part"
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _fetch_the_rest(client, url, part, on_progress)
        except httpx.HTTPStatusError as error:
            raise BrokerInstallFailed(f"{url}: the server answered {error.response.status_code}") from error
        except httpx.HTTPError as error:
            if part.exists() and part.stat().st_size > before:
                continue  # the connection was cut, and this try got further than the one before
            raise BrokerInstallFailed(
                f"{url}: {error or type(error).__name__}; run it again to go on where it stopped"
            ) from error
        else:
            return part


def _fetch_the_rest(client: httpx.Client, url: str, part: Path, on_progress: Progress) -> None:
    """Append what is missing to `part`; from the start where the server cannot send a rest."""
    have = part.stat().st_size if part.exists() else 0
    # identity: a length and an offset mean the file's own bytes.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as answer:
        if answer.status_code == RANGE_NOT_SATISFIABLE:
            # All of it is there, or more than all: the checksum will tell.
            on_progress(have, have)
            return
        answer.raise_for_status()
        resumed = answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        done = have if answer.status_code == PARTIAL_CONTENT and resumed else 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length else None
        with part.open("ab" if done else "wb") as file:
            on_progress(done, total)
            for chunk in answer.iter_raw():  # as they come: what was received when it is cut is kept
                file.write(chunk)
                done += len(chunk)
                on_progress(done, total)


def _verify(archive: Path, expected: str, url: str) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha512").hexdigest()
    if found != expected:
        archive.unlink()
        raise BrokerInstallFailed(
            f"{url}: the file's SHA-512 is {found[:16]}..., the published one {expected[:16]}...; "
            "it was removed: run it again, or name another place with --url"
        )


def _unpack(archive: Path, name: str, home: Path) -> None:
    beside = tempfile.mkdtemp(prefix=".unpacking-", dir=home.parent)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            extract: Any = tar.extractall  # `filter` is younger than some of the type stubs
            extract(beside, filter="data")  # refuses members that lie outside, links to there, and devices
        unpacked = home.parent / beside / name
        if not holds_kafka(unpacked):
            raise BrokerInstallFailed(
                f"{archive.name} holds no {name}/libs/kafka_2.*.jar: it is no Apache Kafka"
            )
        shutil.rmtree(home, ignore_errors=True)  # one that an older Headrace or a hand left without its jars
        os.replace(unpacked, home)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BrokerInstallFailed(f"{archive.name} cannot be unpacked into {home.parent}: {error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
