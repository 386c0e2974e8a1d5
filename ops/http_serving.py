"""Run the OpenAI-compatible endpoint in this process, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from headrace.schemas.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from headrace.consumers.backlog import Backlog
    from headrace.consumers.contracts import ContractId
    from headrace.producers.client import Client
    from headrace.producers.http.service import ServiceOptions
    from headrace.schemas.messages import Lane
    from headrace.schemas.settings import Settings

log = logging.getLogger(__name__)

NEEDED = "the endpoint needs `pip install 'headrace[http]'` (fastapi, uvicorn)"


@dataclass(frozen=True, slots=True)
class Listening:
    """Where to listen, and for how long to go on with what runs when told to stop."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free one
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    cors_origins: Sequence[str] = field(default=())
    drain_budget_s: int = 60


def serve(
    settings: Settings, options: ServiceOptions, listening: Listening, on_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; what runs then is finished within the budget.

    `on_ready` is told the address once it is bound. Raises SettingsError where the address cannot be had, UsageError
    where what is needed is not installed.
    """
    try:
        import uvicorn

        from headrace.producers.http.app import create_app
    except ModuleNotFoundError as error:
        raise UsageError(f"{NEEDED}: {error.name} is not there") from error
    from headrace.consumers.backlog import BacklogReader
    from headrace.consumers.catalogue import Catalogue
    from headrace.producers.client import Client
    from headrace.producers.http.service import Service
    from headrace.schemas.messages import LANES
    from headrace.topics.names import ContractNames

    catalogue = Catalogue(settings)

    def connect(contract: ContractId) -> Client:
        return Client.connect(*contract, settings=settings)

    def watch(contract: ContractId, tell: Callable[[Mapping[Lane, Backlog]], None]) -> BacklogReader:
        reader = BacklogReader(settings, ContractNames(settings.prefix, *contract), LANES, tell)
        threading.Thread(target=reader.run, name=f"headrace-backlog-{contract[0]}", daemon=True).start()
        return reader

    service = Service(options, catalogue, connect, watch)

    @asynccontextmanager
    async def around() -> AsyncGenerator[None]:
        following = threading.Thread(target=catalogue.run, name="headrace-catalogue", daemon=True)
        following.start()
        try:
            yield
        finally:
            catalogue.stop()
            await asyncio.to_thread(following.join)

    app = create_app(service, version=version("headrace"), cors_origins=listening.cors_origins, around=around)
    scheme = "http" if listening.tls_certificate is None else "https"

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None]:
            """uvicorn's own raises the signal once more at the end: whoever told it to end would see it killed."""
            handlers = {
                each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)
            }
            try:
                yield
            finally:
                for each, handler in handlers.items():
                    signal.signal(each, handler)

        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                port = self.servers[0].sockets[0].getsockname()[1]
                host = f"[{listening.host}]" if ":" in listening.host else listening.host
                on_ready(f"{scheme}://{host}:{port}")

    config = uvicorn.Config(
        app,
        host=listening.host,
        port=listening.port,
        ssl_certfile=listening.tls_certificate,
        ssl_keyfile=listening.tls_key,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=listening.drain_budget_s,
        server_header=False,
    )
    server = Server(config)
    try:
        server.run()
    except SystemExit:
        raise SettingsError(
            f"{listening.host}:{listening.port} cannot be listened on: choose another --host or --port"
        ) from None
    if not server.started:
        raise SettingsError(f"{listening.host}:{listening.port} cannot be listened on: choose another --port")
