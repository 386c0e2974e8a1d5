"""Fetching a release: from a local HTTP server with a made-up archive."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headrace.ops.broker_install import install, newest_installed
from headrace.schemas.errors import BrokerInstallFailed, UsageError

VERSION = "9.8.7"
NAME = f"kafka_2.13-{VERSION}"


def archive_of(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


# Random, so that it stays about 300 KB when it is compressed: several chunks.
RELEASE = archive_of(
    {
        f"{NAME}/libs/kafka_2.13-{VERSION}.jar": random.Random(7).randbytes(300_000),
        f"{NAME}/bin/kafka-server-start.sh": b"#!/bin/sh\n",
    }
)


def published_checksum(content: bytes) -> str:
    digest = hashlib.sha512(content).hexdigest().upper()
    groups = [digest[i : i + 8] for i in range(0, 128, 8)]
    return f"{NAME}.tgz: " + "\n ".join(" ".join(groups[i : i + 4]) for i in range(0, 16, 4)) + "\n"


class Mirror:
    """Has one release; can cut the connection and ignore ranges, and remembers what it was asked."""

    def __init__(self) -> None:
        self.archive = RELEASE
        self.checksum: str | None = published_checksum(RELEASE)
        self.ranges = True
        self.cut_after: list[int] = []  # bytes after which the next answers end, in order
        self.redirect_to: str | None = None
        self.asked: list[tuple[str, str | None]] = []  # path and Range header
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/kafka"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def archive_ranges(self) -> list[str | None]:
        return [ranged for path, ranged in self.asked if path.endswith(".tgz")]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        ranged = handler.headers.get("Range")
        self.asked.append((handler.path, ranged))
        if self.redirect_to:
            handler.send_response(302)
            handler.send_header("Location", self.redirect_to + handler.path)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        at = f"/kafka/{VERSION}/{NAME}.tgz"
        if handler.path == f"{at}.sha512" and self.checksum is not None:
            self.send(handler, 200, self.checksum.encode(), {})
        elif handler.path == at:
            start = int(ranged.removeprefix("bytes=").rstrip("-")) if ranged and self.ranges else 0
            whole = len(self.archive)
            if start >= whole:
                self.send(handler, 416, b"", {"Content-Range": f"bytes */{whole}"})
            elif start:
                headers = {"Content-Range": f"bytes {start}-{whole - 1}/{whole}"}
                self.send(handler, 206, self.archive[start:], headers)
            else:
                self.send(handler, 200, self.archive, {})
        else:
            self.send(handler, 404, b"not here", {})

    def send(
        self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if self.cut_after and handler.path.endswith(".tgz"):
            body = body[: self.cut_after.pop(0)]
            handler.close_connection = True
        handler.wfile.write(body)


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    mirror = Mirror()
    yield mirror
    mirror.close()


def part_of(cache: Path) -> Path:
    return cache / "kafka" / f"{NAME}.tgz.part"


def left_in(cache: Path) -> set[str]:
    return {entry.name for entry in (cache / "kafka").iterdir()} - {".lock"}


def test_a_release_is_fetched_verified_and_found_again(mirror: Mirror, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    home = install(
        tmp_path,
        version=VERSION,
        bases=[mirror.url],
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert (home / "bin" / "kafka-server-start.sh").read_bytes() == b"#!/bin/sh\n"
    assert newest_installed(tmp_path) == home
    assert left_in(tmp_path) == {NAME}
    assert told[0] == (0, len(RELEASE))
    assert told[-1] == (len(RELEASE), len(RELEASE))
    assert told == sorted(told)

    asked = len(mirror.asked)
    assert install(tmp_path, version=VERSION, bases=[mirror.url]) == home
    assert len(mirror.asked) == asked, "what is installed is not fetched again"


def test_a_download_that_was_interrupted_in_an_earlier_run_goes_on_where_it_stopped(
    mirror: Mirror, tmp_path: Path
) -> None:
    part = part_of(tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(RELEASE[:100_000])
    install(tmp_path, version=VERSION, bases=[mirror.url])
    assert mirror.archive_ranges() == ["bytes=100000-"]
    assert left_in(tmp_path) == {NAME}


def test_a_connection_that_is_cut_is_taken_up_again_in_the_same_run(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cut_after = [70_000, 90_000]
    install(tmp_path, version=VERSION, bases=[mirror.url])
    assert mirror.archive_ranges() == [None, "bytes=70000-", "bytes=160000-"]


def test_a_connection_that_gets_no_further_ends_with_what_to_do_and_keeps_what_it_has(
    mirror: Mirror, tmp_path: Path
) -> None:
    mirror.cut_after = [70_000, 0]
    with pytest.raises(BrokerInstallFailed, match="run it again to go on where it stopped"):
        install(tmp_path, version=VERSION, bases=[mirror.url])
    assert part_of(tmp_path).read_bytes() == RELEASE[:70_000]


def test_a_server_that_ignores_ranges_sends_all_of_it_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.ranges = False
    part = part_of(tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"the beginning of something else")
    install(tmp_path, version=VERSION, bases=[mirror.url])
    assert left_in(tmp_path) == {NAME}


def test_a_download_that_was_whole_already_is_only_verified(mirror: Mirror, tmp_path: Path) -> None:
    part = part_of(tmp_path)
    part.parent.mkdir(parents=True)
    part.write_bytes(RELEASE)
    install(tmp_path, version=VERSION, bases=[mirror.url])
    assert left_in(tmp_path) == {NAME}


@pytest.mark.parametrize("beginning", [b"", b"not the beginning of that release"])
def test_an_archive_with_another_checksum_is_refused_and_removed(
    mirror: Mirror, tmp_path: Path, beginning: bytes
) -> None:
    if not beginning:
        mirror.checksum = published_checksum(b"what was published")
    else:
        part_of(tmp_path).parent.mkdir(parents=True)
        part_of(tmp_path).write_bytes(beginning)
    with pytest.raises(BrokerInstallFailed, match=r"SHA-512 is .* the published one .* it was removed"):
        install(tmp_path, version=VERSION, bases=[mirror.url])
    assert left_in(tmp_path) == set()
    assert newest_installed(tmp_path) is None


def test_the_next_place_is_tried_where_the_first_does_not_have_the_release(
    mirror: Mirror, tmp_path: Path
) -> None:
    elsewhere = f"{mirror.url}/elsewhere"
    assert install(tmp_path, version=VERSION, bases=[elsewhere, mirror.url]).name == NAME


def test_a_version_that_is_nowhere_says_where_to_look(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(BrokerInstallFailed) as raised:
        install(tmp_path, version="9.9.9", bases=[mirror.url])
    message = str(raised.value)
    assert "no Apache Kafka 9.9.9 was found" in message
    assert "404" in message
    assert "https://kafka.apache.org/downloads" in message
    assert "--version" in message


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerInstallFailed, match=r"http://127\.0\.0\.1:1/kafka"):
        install(tmp_path, version=VERSION, bases=["http://127.0.0.1:1/kafka"])


def test_a_checksum_file_that_is_a_web_page_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    mirror.checksum = "<html>sign in to the network</html>"
    with pytest.raises(BrokerInstallFailed, match="no SHA-512"):
        install(tmp_path, version=VERSION, bases=[mirror.url])


def test_plain_http_is_refused_also_by_way_of_a_redirect(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only https"):
        install(tmp_path, version=VERSION, bases=["http://mirror.example/kafka"])
    mirror.redirect_to = "http://mirror.example"
    with pytest.raises(UsageError, match=r"http://mirror\.example.*only https"):
        install(tmp_path, version=VERSION, bases=[mirror.url])


@pytest.mark.parametrize("version", ["", "latest", "4.3", "../../etc", "4.3.1/../x"])
def test_what_is_no_version_is_refused_before_anything_is_asked(
    mirror: Mirror, tmp_path: Path, version: str
) -> None:
    with pytest.raises(UsageError, match="is not a version"):
        install(tmp_path, version=version, bases=[mirror.url])
    assert mirror.asked == []


@pytest.mark.parametrize("member", ["../outside", f"{NAME}/../../outside"])
def test_an_archive_cannot_write_outside_its_place(mirror: Mirror, tmp_path: Path, member: str) -> None:
    mirror.archive = archive_of({f"{NAME}/libs/kafka_2.13-{VERSION}.jar": b"jar", member: b"outside"})
    mirror.checksum = published_checksum(mirror.archive)
    with pytest.raises(BrokerInstallFailed, match="cannot be unpacked"):
        install(tmp_path, version=VERSION, bases=[mirror.url])
    assert not list(tmp_path.rglob("outside"))
    assert newest_installed(tmp_path) is None


def test_an_archive_cannot_write_through_a_link_of_its_own(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        link = tarfile.TarInfo(f"{NAME}/libs")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "target")
        tar.addfile(link)
        member = tarfile.TarInfo(f"{NAME}/libs/kafka_2.13-{VERSION}.jar")
        tar.addfile(member, io.BytesIO())
    mirror.archive = packed.getvalue()
    mirror.checksum = published_checksum(mirror.archive)
    with pytest.raises(BrokerInstallFailed, match="cannot be unpacked"):
        install(tmp_path, version=VERSION, bases=[mirror.url])
    assert not list((tmp_path / "target").iterdir())


def test_an_archive_that_holds_something_else_is_refused(mirror: Mirror, tmp_path: Path) -> None:
    mirror.archive = archive_of({f"{NAME}/README": b"no jars"})
    mirror.checksum = published_checksum(mirror.archive)
    with pytest.raises(BrokerInstallFailed, match="it is no Apache Kafka"):
        install(tmp_path, version=VERSION, bases=[mirror.url])
    assert newest_installed(tmp_path) is None


def test_the_highest_installed_version_is_the_one_that_is_used(tmp_path: Path) -> None:
    for version in ("4.9.0", "4.10.0", "3.9.1"):
        libs = tmp_path / "kafka" / f"kafka_2.13-{version}" / "libs"
        libs.mkdir(parents=True)
        (libs / f"kafka_2.13-{version}.jar").write_bytes(b"jar")
    (tmp_path / "kafka" / "kafka_2.13-5.0.0").mkdir()  # half unpacked by hand
    found = newest_installed(tmp_path)
    assert found is not None
    assert found.name == "kafka_2.13-4.10.0"


def test_two_installations_at_a_time_fetch_once(mirror: Mirror, tmp_path: Path) -> None:
    homes: list[Path] = []
    threads = [
        threading.Thread(target=lambda: homes.append(install(tmp_path, version=VERSION, bases=[mirror.url])))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(homes)) == 1
    assert len(homes) == 3
    assert len(mirror.archive_ranges()) == 1


def test_the_command_installs_and_prints_where(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from headrace.ops.cli import main

    monkeypatch.setenv("HEADRACE_CACHE_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["broker", "install", "--version", VERSION, "--url", mirror.url, "--json"])
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"version": VERSION, "home": str(tmp_path / "kafka" / NAME)}
