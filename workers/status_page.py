"""The worker's one page: `/metrics` (vLLM's families and ours), `/healthz`, `/readyz`."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client

from headrace.schemas.errors import SettingsError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Scrapes come every few seconds: no line for each."""


class StatusPage:
    """Serves the page in a thread until `close()`.

    `unhealthy` and `not_ready` return the reason, or None when all is well.
    """

    def __init__(
        self, port: int, *, unhealthy: Callable[[], str | None], not_ready: Callable[[], str | None]
    ) -> None:
        self._unhealthy = unhealthy
        self._not_ready = not_ready
        self._metrics = cast("WSGIApplication", cast(Any, prometheus_client).make_wsgi_app())
        try:
            self._server = make_server("", port, self._answer, server_class=_Server, handler_class=_Quiet)
        except OSError as error:
            raise SettingsError(
                f"port {port} for /metrics cannot be had ({error.strerror}): "
                "set HEADRACE_METRICS_PORT to another, 0 for any free one"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, name="status-page", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path in ("/healthz", "/readyz"):
            reason = self._unhealthy() if path == "/healthz" else self._unhealthy() or self._not_ready()
            status = "200 OK" if reason is None else "503 Service Unavailable"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [(reason or "ok").encode() + b"\n"]
        start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"there are /metrics, /healthz and /readyz\n"]
