"""Where a job's input lies: a path, a directory, a pattern or a URI, on any file system of pyarrow.

`films.parquet` · `dir/` · `dir/*.jsonl` · `s3://bucket/key?region=...&endpoint_override=...&scheme=http` · `gs://` ·
`hdfs://`. Credentials come from where the file system's own client looks (environment, profile, instance), or stand
in the URI; `without_secrets` is what may be shown and kept of one.
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

import pyarrow as pa
import pyarrow.fs as arrow_fs

from headrace.producers.backfill.failures import InputFailed

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_USER = re.compile(r"(://)(?:[^/@?#:]*:[^?#]*|[^/@?#]*)@")  # a secret key may have a `/` in it
_SECRET_PARAMETER = re.compile(
    r"([?&][^=&]*(?:secret|key|token|password|credential)[^=&]*=)[^&#]*", re.IGNORECASE
)
_PARTITION = re.compile(r"([^=/]+)=(.*)", re.DOTALL)
_SAME_SCHEME: Final = {"gcs": "gs"}  # two names of one store
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_GLOB: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the input."""

    path: str  # for its file system
    name: str  # from the input's directory on, with `/`: what messages say and files are sorted by
    size: int  # bytes

    @property
    def partition(self) -> dict[str, str | None]:
        """The columns that stand in the names of its folders, as Hive writes them (`year=2024/`): name to text."""
        found: dict[str, str | None] = {}
        for step in self.name.split("/")[:-1]:
            if match := _PARTITION.fullmatch(step):
                text = unquote(match[2])
                found[unquote(match[1])] = None if text == _HIVE_NULL else text
        return found


@dataclass(frozen=True, slots=True)
class Location:
    """The files of an input, in the order in which its rows are counted."""

    file_system: FileSystem
    shown: str  # what was asked for, without secrets
    files: tuple[InputFile, ...]

    def open_random(self, file: InputFile) -> pa.NativeFile:
        """For readers that jump. Raises InputFailed."""
        with reading(self.shown, file):
            return self.file_system.open_input_file(file.path)

    def open_stream(self, file: InputFile, compression: str | None) -> pa.NativeFile:
        """For readers that go from its begin to its end. Raises InputFailed."""
        with reading(self.shown, file):
            return self.file_system.open_input_stream(file.path, compression=compression)


def without_secrets(location: str) -> str:
    """A location as it may be shown: no user, no password, no keys."""
    return _SECRET_PARAMETER.sub(r"\1***", _USER.sub(r"\1***@", location))


def without_query(location: str) -> str:
    """A location without what a URI says of its server."""
    return location.partition("?")[0] if _SCHEME.match(location) else location


def suffix_of(location: str) -> str:
    """The suffix of its name, in lower case; nothing of one that has none, or has a slash at its end: a folder."""
    place = without_query(location)
    return "" if place.endswith("/") else PurePosixPath(place).suffix.lower()


def open_file_system(location: str) -> tuple[FileSystem, str]:
    """The file system that a path or URI names, and the path in it. Raises InputFailed."""
    if not _SCHEME.match(location):
        return arrow_fs.LocalFileSystem(), os.path.abspath(location)
    with reading(without_secrets(location)):
        return arrow_fs.FileSystem.from_uri(location)


def locate(location: str, file_system: FileSystem | None = None) -> Location:
    """The files that a location names: one, those under a directory, or those that a pattern fits.

    With a `file_system`, `location` is a path in it. Files and folders whose names begin with `_` or `.` are passed
    over. Raises InputFailed.
    """
    shown = without_secrets(location)
    place, pattern = (location, "") if file_system is None and _is_there(location) else _parted(location)
    within, path = (file_system, place) if file_system else open_file_system(place)
    if not pattern:
        return _at(within, path, shown)
    files = [file for file in _below(within, path, shown) if _fits(file.name, pattern)]
    if not files:
        raise InputFailed(f"no file fits {shown}")
    return Location(within, shown, tuple(files))


def _is_there(location: str) -> bool:
    """Whether it is a local file or folder as it stands: a name may have a `*` or `?` in it."""
    return not _SCHEME.match(location) and os.path.exists(location)


def _parted(location: str) -> tuple[str, str]:
    """A location as far as it has no pattern, and the pattern; of one without a pattern, all of it and nothing."""
    place = without_query(location)
    steps = place.split("/")
    plain = next((index for index, step in enumerate(steps) if _GLOB & set(step)), None)
    if plain is None:
        return location, ""
    base = "/".join(steps[:plain]) or ("/" if place.startswith("/") else ".")
    return base + location[len(place) :], "/".join(steps[plain:])


def _at(file_system: FileSystem, path: str, shown: str) -> Location:
    with reading(shown):
        (found,) = file_system.get_file_info([path])
    if found.type == arrow_fs.FileType.File:
        return Location(file_system, shown, (InputFile(path, found.base_name, found.size or 0),))
    if found.type != arrow_fs.FileType.Directory:
        raise InputFailed(f"there is no {shown}{_why_not(file_system, path, shown)}")
    files = _below(file_system, path, shown)
    if not files:
        raise InputFailed(f"{shown} has no files (those whose names begin with `_` or `.` do not count)")
    return Location(file_system, shown, tuple(files))


def _why_not(file_system: FileSystem, path: str, shown: str) -> str:
    """What lies beside a file that is not there. Raises InputFailed where the bucket is not there either."""
    parent, _, name = path.rpartition("/")
    with reading(shown):
        try:
            beside = file_system.get_file_info(arrow_fs.FileSelector(parent or "/", recursive=False))
        except FileNotFoundError:
            return ""
    close = close_to(name, (info.base_name for info in beside))
    return f"; is it {close}?" if close else ""


def _below(file_system: FileSystem, base: str, shown: str) -> list[InputFile]:
    base = base.rstrip("/") or "/"
    with reading(shown):
        found = file_system.get_file_info(arrow_fs.FileSelector(base, recursive=True))
    inside = len(base.rstrip("/")) + 1
    files = [
        InputFile(info.path, info.path[inside:], info.size or 0)
        for info in found
        if info.type == arrow_fs.FileType.File
    ]
    return sorted((file for file in files if not _is_hidden(file.name)), key=lambda file: file.name)


def _is_hidden(name: str) -> bool:
    return any(step[:1] in "_." for step in name.split("/"))


def _fits(name: str, pattern: str) -> bool:
    """Whether a path fits a pattern step by step; a step `**` stands for any number of folders."""
    return _steps_fit(name.split("/"), pattern.split("/"))


def _steps_fit(steps: list[str], patterns: list[str]) -> bool:
    if not patterns:
        return not steps
    if patterns[0] == "**":
        return any(_steps_fit(steps[index:], patterns[1:]) for index in range(len(steps) + 1))
    return bool(steps) and fnmatch.fnmatchcase(steps[0], patterns[0]) and _steps_fit(steps[1:], patterns[1:])


# --- places that are compared ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path or URI leads, so that two can be compared: keys, regions and the like make no difference."""

    store: str  # nothing for local files
    path: str  # from its root on; in a store, the bucket or host comes first

    def child(self, name: str) -> Place:
        """What has this name below it."""
        return Place(self.store, f"{self.path.rstrip('/')}/{name}")

    def beside(self, suffix: str) -> Place:
        """What has its name and a suffix."""
        return Place(self.store, self.path + suffix)

    def with_suffix(self, suffix: str) -> Place:
        """What has its name with another suffix."""
        return Place(self.store, str(PurePosixPath(self.path).with_suffix(suffix)))


def place_of(location: str) -> Place:
    """Where a location leads that has no pattern. Only local links are looked up; nothing need be there."""
    if not _SCHEME.match(location):
        return Place("", os.path.realpath(location))
    scheme, _, rest = _USER.sub(r"\1", location).partition("://")
    rest, _, query = rest.partition("?")
    path = unquote(f"/{rest.rstrip('/')}")
    if scheme.lower() == "file":
        return Place("", os.path.realpath(path))
    server = parse_qs(query).get("endpoint_override", [""])[0]
    return Place(f"{_SAME_SCHEME.get(scheme.lower(), scheme.lower())}://{server}", path)


def would_list(location: str, place: Place) -> bool:
    """Whether a location, which may be a folder or have a pattern, names the file at a place once there is one."""
    base, pattern = (location, "") if _is_there(location) else _parted(location)
    at = place_of(base)
    if at == place:
        return not pattern
    inside = at.child("").path
    if at.store != place.store or not place.path.startswith(inside):
        return False
    name = place.path[len(inside) :]
    return not _is_hidden(name) and (not pattern or _fits(name, pattern))


def close_to(name: str, known: Iterable[str]) -> str:
    """Up to three known names that look like `name`, quoted; empty where none does."""
    names = list(known)
    folded = {each.casefold(): each for each in names}
    found = difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.6)
    return " or ".join(f"`{folded[each]}`" for each in found)


_HINTS: Final = {
    "NO_SUCH_BUCKET": "there is no such bucket",
    "ACCESS_DENIED": "the credentials do not allow it, or are not the right ones",
    "SIGNATURE_DOES_NOT_MATCH": "the secret key is not the right one",
    "INVALID_ACCESS_KEY_ID": "the access key is not known there",
    "NETWORK_CONNECTION": "nothing answers there; is the endpoint right?",
}


@contextmanager
def reading(shown: str, file: InputFile | None = None) -> Generator[None]:
    """Where pyarrow reads: what it raises becomes InputFailed with the place and the reason."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        place = shown if file is None or shown.endswith(file.name) else f"{shown}: {file.name}"
        text = without_secrets(str(error)).partition("\n")[0][:500]
        hint = next((hint for sign, hint in _HINTS.items() if sign in text), None)
        raise InputFailed(f"{place}: {f'{hint} ({text})' if hint else text}") from error
