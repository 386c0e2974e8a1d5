"""A folder's files are complete or absent; what the killed left behind is told from what is being written."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from object_store import ObjectStore

from headrace.producers.backfill.failures import OutputFailed
from headrace.producers.backfill.folder import LEFT_OVER_AFTER, Folder


class StoppedHere(Exception):
    """Raised in the middle of writing."""


@pytest.fixture(params=["local", "renaming", "object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The three ways to write: on a disk, on a file system that renames, in a store that shows whole objects only."""
    if request.param == "local":
        return Folder.at(tmp_path / "out")
    if request.param == "object store":
        return in_store(ObjectStore(), monkeypatch)
    found = Folder.at("mock://bucket/a%20b")
    found.filesystem.create_dir(found.path, recursive=True)
    return found


def in_store(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr("headrace.producers.backfill.folder._OBJECT_STORES", {store.type_name})
    return Folder(pafs.PyFileSystem(store), "bucket/a b", "s3://bucket/a%20b")


def test_what_is_written_is_read_listed_moved_and_deleted(folder: Folder) -> None:
    inner = folder.child("sub")
    assert inner.names() == []
    folder.write("sub/b.txt", b"b")
    folder.write("a.txt", b"first")
    folder.write("a.txt", b"second")
    assert folder.names() == ["a.txt"]
    assert folder.names("sub") == ["sub/b.txt"]
    assert inner.names() == ["b.txt"]
    assert folder.read("a.txt") == b"second"
    assert folder.size("a.txt") == 6
    assert folder.read("none") is None
    assert folder.size("none") is None
    folder.move("a.txt", "sub/b.txt")
    assert inner.read("b.txt") == b"second"
    with folder.open_input("sub/b.txt") as file:
        file.seek(3)
        assert file.read() == b"ond"
    inner.delete_if_empty()
    assert inner.names() == ["b.txt"]
    inner.delete("b.txt")
    inner.delete("b.txt")
    inner.delete_if_empty()
    assert folder.names("sub") == []


def test_an_exception_while_writing_leaves_nothing(folder: Folder) -> None:
    def stops() -> None:
        with folder.open_output("big.parquet") as file:
            file.write(b"half")
            raise StoppedHere

    with pytest.raises(StoppedHere):
        stops()
    assert folder.read("big.parquet") is None
    assert folder.filesystem.get_file_info(pafs.FileSelector(folder.path)) == []


def test_an_exception_while_writing_leaves_the_former_file(folder: Folder) -> None:
    """In an object store what is closed, or only forgotten, is an object: half of one would stand in its place."""
    folder.write("big.parquet", b"the former one")

    def stops() -> None:
        with folder.open_output("big.parquet") as file:
            file.write(b"half")
            raise StoppedHere

    with pytest.raises(StoppedHere):
        stops()
    gc.collect()
    assert folder.read("big.parquet") == b"the former one"
    assert folder.names() == ["big.parquet"]


def test_an_object_that_the_store_does_not_take_leaves_the_former_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ObjectStore()
    folder = in_store(store, monkeypatch)
    folder.write("state.json", b"the last good one")
    store.refuses = OSError("AWS Error SLOW_DOWN during PutObject operation: HTTP status 503")
    with pytest.raises(OutputFailed, match="the store does not answer"):
        folder.write("state.json", b"the next one")
    store.refuses = None
    gc.collect()
    assert folder.read("state.json") == b"the last good one"
    folder.write("state.json", b"the one after it")
    assert folder.read("state.json") == b"the one after it"


def test_a_file_that_is_being_written_does_not_stand_there_yet(tmp_path: Path) -> None:
    folder = Folder.at(tmp_path)
    folder.write("a", b"old")
    with folder.open_output("a") as file:
        file.write(b"new")
        file.flush()
        assert folder.read("a") == b"old"
        assert folder.names() == ["a"]
    assert folder.read("a") == b"new"


def test_places_are_absolute_and_shown_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Folder.at("out/tags").uri == str(tmp_path / "out" / "tags")
    assert Folder.at(f"file://{tmp_path}/a%20b").uri == f"{tmp_path}/a b"
    store = Folder.at("s3://id:hush@bucket/a%20b/?region=us-east-1&scheme=http&endpoint_override=localhost:1")
    assert (store.path, store.child("c d").path) == ("bucket/a b", "bucket/a b/c d")
    assert "hush" not in store.uri
    assert (
        store.child("c d").uri
        == "s3://bucket/a%20b/c%20d?region=us-east-1&scheme=http&endpoint_override=localhost:1"
    )
    assert Folder.at(store.uri).path == store.path


def test_a_file_has_its_folder_and_its_name_whatever_stands_behind_it(tmp_path: Path) -> None:
    assert Folder.of_file(tmp_path / "a b.parquet") == (Folder.at(tmp_path), "a b.parquet")
    for path in ("bucket/in/a%20b.parquet", "bucket/a%20b.parquet"):
        folder, name = Folder.of_file(f"s3://id:hush@{path}?region=us-east-1")
        assert (folder.path, name) == (path.rpartition("/")[0], "a b.parquet")
        assert folder.shown(name) == f"s3://{path}?region=us-east-1"
    with pytest.raises(OutputFailed, match="names no file"):
        Folder.of_file("s3://bucket?region=us-east-1")


@pytest.mark.parametrize(
    "uri", ["s3://id:hu/sh@bucket/x", "s3://id:hush@bucket/x?secret_key=hush", "foo://id:hush@x/y"]
)
def test_what_is_said_of_a_uri_that_cannot_be_read_has_no_credentials(uri: str) -> None:
    with pytest.raises(OutputFailed) as failed:
        Folder.at(uri)
    assert "hush" not in str(failed.value).replace("/", "")


@pytest.mark.parametrize(
    ("location", "says"),
    [("foo://bucket/x", "this file system is not to be had here"), ("s3://", "a bucket or path is missing")],
)
def test_a_place_that_cannot_be_is_refused_with_what_is_wrong(location: str, says: str) -> None:
    with pytest.raises(OutputFailed, match=says):
        Folder.at(location)


def test_a_file_in_the_way_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        OutputFailed, match=r"cannot write .*/file/part: a part of the path is a file: choose another"
    ):
        Folder.at(tmp_path / "file").write("part", b"")
    (tmp_path / "taken").mkdir()
    with pytest.raises(
        OutputFailed, match=r"cannot write .*/taken: a directory stands where the file should be"
    ):
        Folder.at(tmp_path).write("taken", b"")
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full: make room, and run the job again"),
        (PermissionError(errno.EACCES, "Permission denied"), "no permission: run as somebody who may write there"),
        (OSError("When completing: AWS Error NO_SUCH_BUCKET during PutObject: gone"), "there is no such bucket"),
        (OSError("When reading: AWS Error ACCESS_DENIED during GetObject: HTTP status 403"), "check the credentials"),
    ],
)  # fmt: skip
def test_what_the_file_system_says_becomes_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str
) -> None:
    def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OutputFailed, match=says):
        Folder.at(tmp_path).write("a", b"1")
    assert os.listdir(tmp_path) == []


WRITER = """
    import sys
    from headrace.producers.backfill.folder import Folder
    with Folder.at(sys.argv[1]).open_output("part") as file:
        file.write(b"half")
        file.flush()
        print("writing", flush=True)
        sys.stdin.read()
"""


def test_leftovers_of_the_killed_are_swept_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    writer = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path)]
    folder = Folder.at(tmp_path)
    with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        assert folder.sweep() == []
        process.kill()
    assert folder.names() == []
    assert len(folder.sweep()) == 1
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("idle", "is_swept"), [(60.0, False), (LEFT_OVER_AFTER + 60.0, True)])
def test_what_another_machine_was_writing_is_swept_after_a_week_without_a_byte(
    tmp_path: Path, idle: float, is_swept: bool
) -> None:
    name = ".part.00000000-0123456789ab.partial"
    (tmp_path / name).write_bytes(b"half")
    (tmp_path / "mine.partial").write_bytes(b"somebody else's file")
    written = time.time() - idle
    os.utime(tmp_path / name, (written, written))
    assert Folder.at(tmp_path).sweep() == ([name] if is_swept else [])
    assert (tmp_path / "mine.partial").exists()
