"""A directory on any file system of pyarrow whose files are complete or absent, whenever a process is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import secrets
import socket
import time
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs as pafs

from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.folder_errors import output_failures
from headrace.producers.backfill.locations import without_secrets

try:
    import fcntl
except ImportError:  # Windows: there leftovers go by their age alone
    fcntl = None

# An object is there once its upload is closed, and a killed process has closed nothing.
_OBJECT_STORES: Final = frozenset({"s3", "gcs"})
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_TEMPORARY: Final = re.compile(r"\.(?P<name>.+)\.(?P<machine>[0-9a-f]{8})-[0-9a-f]{12}\.partial")
LEFT_OVER_AFTER: Final = (
    7 * 24 * 3600.0
)  # seconds without a byte written: then a file of another machine's goes


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory, made when the first file is written. Names may have slashes. All methods raise OutputFailed.

    On disks a file is written under a temporary name, flushed to the disk and renamed. An object store shows an object
    once its upload is closed; one that a kill or a failure cuts off is never closed, and takes up room unseen until the
    bucket's lifecycle rule removes it.
    `uri` is the place as messages have it and as `at` takes it, without credentials.
    """

    filesystem: pafs.FileSystem
    path: str  # as the file system has it: without the scheme
    uri: str

    @classmethod
    def at(cls, location: str | Path) -> Folder:
        """The folder at a path or URI, as `pyarrow.fs.FileSystem.from_uri` has them; it need not exist.

        Relative paths are of the working directory as it is now.
        """
        text = str(location)
        is_uri = _URI.match(text) is not None
        place = text if is_uri else str(Path(text).expanduser().absolute())
        shown = _without_credentials(place) if is_uri else place
        with output_failures("open", shown):
            if not is_uri:
                return cls(pafs.LocalFileSystem(), place, place)
            filesystem, path = pafs.FileSystem.from_uri(_with_single_puts(text))
        if not path.strip("/"):
            raise OutputFailed(f"{shown} names no directory: a bucket or path is missing")
        if filesystem.type_name == "local":
            return cls(filesystem, os.path.abspath(path), os.path.abspath(path))
        return cls(filesystem, path.rstrip("/"), shown)

    @classmethod
    def of_file(cls, location: str | Path) -> tuple[Folder, str]:
        """The folder that a file is in, from the file's path or URI, and its name there."""
        text = str(location)
        if _URI.match(text) is None:
            path = Path(text).expanduser().absolute()
            return cls.at(path.parent), path.name
        place, mark, query = text.partition("?")
        head, _, name = place.rpartition("/")
        if head.endswith("/") or not name:
            raise OutputFailed(f"{_without_credentials(text)} names no file in a directory or bucket")
        return cls.at(f"{head}{mark}{query}"), unquote(name)

    def child(self, name: str) -> Folder:
        """The folder of this name in this one."""
        return Folder(self.filesystem, self._place(name), self.shown(name))

    def read(self, name: str) -> bytes | None:
        """The whole file; None where there is none."""
        with output_failures("read", self.shown(name)):
            try:
                with self.filesystem.open_input_stream(self._place(name), compression=None) as stream:
                    return stream.read()
            except FileNotFoundError:
                return None

    @contextlib.contextmanager
    def open_input(self, name: str) -> Generator[pa.NativeFile]:
        """The file, for reading at any place of it."""
        with output_failures("read", self.shown(name)):
            stream = self.filesystem.open_input_file(self._place(name))
        with stream:
            yield stream

    def write(self, name: str, data: bytes | pa.Buffer) -> None:
        """Make the file of this name hold these bytes: it has all of them, or is as it was."""
        with self.open_output(name) as stream, output_failures("write", self.shown(name)):
            stream.write(data)

    @contextlib.contextmanager
    def open_output(self, name: str) -> Generator[pa.NativeFile]:
        """A file to be written; it has its name once the block is left. An exception inside leaves what was there."""
        if self.filesystem.type_name in _OBJECT_STORES:
            opened = self._uploaded(name)
        elif self._is_local:
            opened = self._renamed_locally(name)
        else:
            opened = self._renamed(name)
        with opened as stream, output_failures("write", self.shown(name)):
            yield stream

    def names(self, under: str = "") -> list[str]:
        """Of the files directly in this folder, or in one within it: sorted, and as `read` takes them."""
        prefix = f"{under.strip('/')}/" if under else ""
        return sorted(
            f"{prefix}{info.base_name}"
            for info in self._infos(under)
            if not _TEMPORARY.fullmatch(info.base_name)
        )

    def size(self, name: str) -> int | None:
        """Bytes of a file; None where there is none."""
        with output_failures("read", self.shown(name)):
            info = self.filesystem.get_file_info(self._place(name))
        return info.size if info.type == pafs.FileType.File else None

    def delete(self, name: str) -> None:
        """Remove a file, where there is one."""
        with output_failures("remove", self.shown(name)), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._place(name))

    def move(self, name: str, to: str) -> None:
        """Give a file another name in this folder; what had that name is replaced."""
        with output_failures("move", self.shown(name)):
            self._make_parent(to)
            self._replace(self._place(name), self._place(to))

    def delete_if_empty(self) -> None:
        """Remove the directory where nothing is in it. An object store has no directories."""
        if (
            self.filesystem.type_name in _OBJECT_STORES
            or next(self._infos("", of_files=False), None) is not None
        ):
            return
        with output_failures("remove", self.uri), contextlib.suppress(FileNotFoundError):
            if self._is_local:
                with contextlib.suppress(OSError):  # another process has just put something there
                    os.rmdir(self.path)
            else:
                self.filesystem.delete_dir(self.path)

    def sweep(self, under: str = "") -> list[str]:
        """Remove what killed processes have left unfinished; returns those names.

        A process holds a lock on what it writes, which its machine takes from it when it dies: of this machine (until
        it is started anew), what is not locked is removed. Elsewhere, and of other machines, what nobody has written to
        for a week. Were its writer alive all the same, it would find its file gone and fail; nothing would be half.
        """
        prefix = f"{under.strip('/')}/" if under else ""
        removed: list[str] = []
        for info in self._infos(under):
            found = _TEMPORARY.fullmatch(info.base_name)
            if found is not None and self._is_left_over(prefix + info.base_name, found["machine"], info):
                removed.append(prefix + info.base_name)
        return removed

    # --- one file -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _uploaded(self, name: str) -> Generator[pa.NativeFile]:
        place, shown = self._place(name), self.shown(name)
        with output_failures("write", shown):
            stream = self.filesystem.open_output_stream(place, compression=None)
        try:
            yield stream
            with output_failures("write", shown):
                stream.close()
        except BaseException:
            _never_close(stream)
            raise

    @contextlib.contextmanager
    def _renamed_locally(self, name: str) -> Generator[pa.NativeFile]:
        place, shown = self._place(name), self.shown(name)
        with output_failures("write", shown):
            self._make_parent(name)
            temporary, descriptor = _locked_temporary(place)
        try:
            with output_failures("write", shown):
                stream = self.filesystem.open_output_stream(temporary, compression=None)
            with contextlib.closing(stream):
                yield stream
                with output_failures("write", shown):
                    stream.close()
                    os.fsync(descriptor)
                    os.replace(temporary, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(descriptor)
        _flush_directory(os.path.dirname(place))

    @contextlib.contextmanager
    def _renamed(self, name: str) -> Generator[pa.NativeFile]:
        place, shown = self._place(name), self.shown(name)
        temporary = _temporary_for(place)
        with output_failures("write", shown):
            self._make_parent(name)
            stream = self.filesystem.open_output_stream(temporary, compression=None)
        try:
            with contextlib.closing(stream):
                yield stream
                with output_failures("write", shown):
                    stream.close()
                    self._replace(temporary, place)
        except BaseException:
            with contextlib.suppress(OSError, pa.ArrowException):
                self.filesystem.delete_file(temporary)
            raise

    def _is_left_over(self, name: str, machine: str, info: pafs.FileInfo) -> bool:
        """Whether a temporary file was one, and is now removed."""
        is_old = info.mtime_ns is not None and time.time() - info.mtime_ns / 1e9 > LEFT_OVER_AFTER
        if self._is_local and fcntl is not None and (is_old or machine == _machine()):
            return _removed_unless_locked(self._place(name))
        if is_old:
            self.delete(name)
        return is_old

    # --- places ---------------------------------------------------------------------------------------------

    @property
    def _is_local(self) -> bool:
        return self.filesystem.type_name == "local"

    def _place(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name.strip('/')}"

    def shown(self, name: str) -> str:
        """Where the file of this name is, for people."""
        if self._is_local:
            return self._place(name)
        parts = urlsplit(self.uri)
        return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name.strip('/'))}"))

    def _infos(self, under: str, *, of_files: bool = True) -> Iterator[pafs.FileInfo]:
        place = self._place(under) if under.strip("/") else self.path
        with output_failures("list", self.shown(under) if under else self.uri):
            selector = pafs.FileSelector(place, allow_not_found=True)
            found = self.filesystem.get_file_info(selector)
        return (info for info in found if info.type == pafs.FileType.File or not of_files)

    def _make_parent(self, name: str) -> None:
        if self.filesystem.type_name not in _OBJECT_STORES:
            self.filesystem.create_dir(self._place(name).rpartition("/")[0], recursive=True)

    def _replace(self, place: str, to: str) -> None:
        if self._is_local:
            os.replace(place, to)
            return
        try:
            self.filesystem.move(place, to)
        except (OSError, pa.ArrowException):
            # HDFS refuses where something stands; where it was the source that is missing, this raises as that did.
            if self.filesystem.get_file_info(place).type == pafs.FileType.NotFound:
                raise
            self.filesystem.delete_file(to)
            self.filesystem.move(place, to)


# --- uploads ------------------------------------------------------------------------------------------------------


def _never_close(stream: pa.NativeFile) -> None:
    """Give an upload up, which pyarrow has no call for: closed, or only collected, half of it would be the object.

    So it is kept, with the few megabytes that it holds, until the process ends: a reference that nobody has. (A
    temporary object, to be copied when it is whole, would do as well up to the 5 GiB that S3 copies at once.)
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(stream))


# --- temporary files ----------------------------------------------------------------------------------------------


def _temporary_for(place: str) -> str:
    folder, _, name = place.rpartition("/")
    return f"{folder}/.{name}.{_machine()}-{secrets.token_hex(6)}.partial"


def _locked_temporary(place: str) -> tuple[str, int]:
    """A new file beside `place`, and a descriptor of it that holds its lock. Raises OSError."""
    while True:
        temporary = _temporary_for(place)
        descriptor = os.open(
            temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666
        )
        if fcntl is not None:
            with contextlib.suppress(
                OSError
            ):  # a file system without locks: nobody can take it for a leftover either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink or os.name == "nt":
            return temporary, descriptor
        os.close(descriptor)  # swept away between the two


def _removed_unless_locked(place: str) -> bool:
    assert fcntl is not None
    try:
        descriptor = os.open(place, os.O_RDWR)
    except OSError:  # gone, or another user's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(place)
    except OSError:  # locked, without locks, or another sweep was here
        return False
    finally:
        os.close(descriptor)
    return True


@cache
def _machine() -> str:
    """Eight hexadecimal digits that differ between machines, so far as locks go: containers on one have the same."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        kernel = socket.gethostname()
    return f"{zlib.crc32(kernel.encode()):08x}"


def _flush_directory(path: str) -> None:
    with contextlib.suppress(OSError):  # not every file system can; what readers see is right all the same
        folder = os.open(path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


# --- URIs -------------------------------------------------------------------------------------------------------


def _with_single_puts(uri: str) -> str:
    """An S3 URI with which a file below 5 MB is one request instead of three, as most parts are."""
    parts = urlsplit(uri)
    if parts.scheme != "s3" or "allow_delayed_open=" in parts.query:
        return uri
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, "allow_delayed_open=true")))))


def _without_credentials(uri: str) -> str:
    place, mark, query = without_secrets(uri).replace("://***@", "://").partition("?")
    kept = "&".join(each for each in query.split("&") if not each.endswith("=***"))
    return f"{place}{mark}{kept}"
