"""The registry's client against a local HTTP server that answers as it is told to."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.schemas.avro_schema import shipped_text
from headrace.schemas.errors import MessageError, RegistryFailed, SettingsError, UnknownWriterSchema
from headrace.schemas.registry import SchemaRegistry

TEXT = shipped_text("cancel")


class Scripted(ThreadingHTTPServer):
    """Answers each (method, path) as `answers` says: a status and a body. Remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.asked: list[tuple[str, str, Any, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.asked.append((self.command, self.path, body, self.headers.get("Authorization")))
        status, answer = self.server.answers.get((self.command, self.path), (404, "<html>not here</html>"))
        payload = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
        """Nothing on standard error."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def registry(server: Scripted) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(server.url) as made:
        yield made


def test_a_schema_is_asked_for_once(server: Scripted, registry: SchemaRegistry) -> None:
    server.answers["GET", "/schemas/ids/7"] = (200, {"schema": TEXT})
    first = registry.writer_schema(7)
    assert first.text == TEXT
    assert registry.writer_schema(7) is first
    assert len(server.asked) == 1


def test_an_unknown_id_is_asked_for_again_after_some_seconds_and_not_before(
    server: Scripted, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("headrace.schemas.registry.time.monotonic", lambda: now)
    server.answers["GET", "/schemas/ids/7"] = (404, {"error_code": 40403, "message": "Schema not found"})
    for _ in range(3):
        with pytest.raises(UnknownWriterSchema, match="no schema 7"):
            registry.writer_schema(7)
    assert len(server.asked) == 1
    server.answers["GET", "/schemas/ids/7"] = (200, {"schema": TEXT})
    now += 11
    assert registry.writer_schema(7).text == TEXT


def test_schemas_that_are_kept_are_bounded(
    server: Scripted, registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.schemas.registry._MAX_CACHED", 2)
    for id_ in (1, 2, 3):
        server.answers["GET", f"/schemas/ids/{id_}"] = (200, {"schema": TEXT})
        registry.writer_schema(id_)
    registry.writer_schema(3)
    assert len(server.asked) == 3
    registry.writer_schema(1)  # the oldest made room
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"schema": "{}", "schemaType": "PROTOBUF"}, "is PROTOBUF; only AVRO is read"),
        ({"schema": TEXT, "references": [{"name": "a"}]}, "refers to others"),
        ({"schema": '"string"'}, "not a record"),
        ({"schema": "not JSON"}, "not JSON"),
    ],
)
def test_what_is_no_avro_record_is_the_messages_fault(
    server: Scripted, registry: SchemaRegistry, answer: Any, said: str
) -> None:
    server.answers["GET", "/schemas/ids/7"] = (200, answer)
    with pytest.raises(UnknownWriterSchema, match=said):
        registry.writer_schema(7)


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (500, {"error_code": 50001, "message": "store is down"}, "500 store is down"),
        (401, {"message": "who are you"}, "401 who are you"),
        (403, "", "403 Forbidden"),
        (404, "<html>", "404 Not Found"),  # the URL of something else
        (404, {"error_code": 404, "message": "HTTP 404"}, "404 HTTP 404"),
        (200, "<html>", "is no schema registry"),
        (200, [1], "is no schema registry"),
        (200, "[" * 100_000, "is no schema registry"),
        (200, {"schema": 5}, "without a text"),
    ],
)
def test_a_registry_that_refuses_or_is_none_is_not_the_messages_fault(
    server: Scripted, registry: SchemaRegistry, status: int, answer: Any, said: str
) -> None:
    server.answers["GET", "/schemas/ids/7"] = (status, answer)
    with pytest.raises(RegistryFailed, match=said) as caught:
        registry.writer_schema(7)
    assert not isinstance(caught.value, MessageError)
    server.answers["GET", "/schemas/ids/7"] = (200, {"schema": TEXT})
    assert registry.writer_schema(7).text == TEXT  # at once: a failure is not kept


def test_nobody_there_is_said_in_time() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with (
            SchemaRegistry(f"http://127.0.0.1:{port}/base") as registry,
            pytest.raises(RegistryFailed, match=f"http://127.0.0.1:{port}/base does not answer"),
        ):
            registry.writer_schema(1)


def test_a_registry_that_hangs_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with (
            SchemaRegistry(f"http://127.0.0.1:{port}", timeout_s=0.05) as registry,
            pytest.raises(RegistryFailed, match="does not answer: timed out"),
        ):
            registry.writer_schema(1)


def test_user_and_password_of_the_url_are_sent_and_never_said(server: Scripted) -> None:
    server.answers["GET", "/x/schemas/ids/7"] = (200, {"schema": TEXT})
    with SchemaRegistry(f"http://ann:s%40cret@127.0.0.1:{server.server_port}/x/") as registry:
        registry.writer_schema(7)
        with pytest.raises(RegistryFailed) as caught:
            registry.register("s", TEXT)
    assert server.asked[0][3] == "Basic " + base64.b64encode(b"ann:s@cret").decode()
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "localhost:8081", "ftp://a", "http://", "kafka://a:1"])
def test_a_url_that_is_none_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(SettingsError, match="http://HOST"):
        SchemaRegistry(url)


def test_registering_asks_what_the_protocol_says(server: Scripted, registry: SchemaRegistry) -> None:
    server.answers["POST", "/subjects/a%2Fb-value/versions"] = (200, {"id": 3})
    server.answers["POST", "/subjects/a%2Fb-value"] = (200, {"id": 3, "version": 1, "subject": "a/b-value"})
    server.answers["PUT", "/config/a%2Fb-value"] = (200, {"compatibility": "BACKWARD"})
    server.answers["GET", "/config/a%2Fb-value"] = (200, {"compatibilityLevel": "BACKWARD"})
    assert registry.register("a/b-value", TEXT) == 3
    assert registry.id_of("a/b-value", TEXT) == 3
    registry.set_compatibility("a/b-value", "BACKWARD")
    assert registry.compatibility("a/b-value") == "BACKWARD"
    bodies = [body for _, _, body, _ in server.asked]
    assert bodies == [{"schema": TEXT}, {"schema": TEXT}, {"compatibility": "BACKWARD"}, None]


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_a_subject_that_has_not_the_schema_has_no_id_for_it(
    server: Scripted, registry: SchemaRegistry, code: int
) -> None:
    server.answers["POST", "/subjects/s"] = (404, {"error_code": code, "message": "not found"})
    assert registry.id_of("s", TEXT) is None


def test_an_incompatible_schema_is_refused_in_the_registrys_words(
    server: Scripted, registry: SchemaRegistry
) -> None:
    server.answers["POST", "/subjects/s/versions"] = (409, {"error_code": 409, "message": "is incompatible"})
    with pytest.raises(RegistryFailed, match="409 is incompatible"):
        registry.register("s", TEXT)
