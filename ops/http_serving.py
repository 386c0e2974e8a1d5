"""Run the OpenAI-compatible endpoint in this process, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.ops.heap import freeze_heap
from headrace.schemas.errors import SettingsError, UsageError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

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
    idle_timeout_s: int = 75  # of a connection without a call: load balancers keep theirs for 60


def serve(
    settings: Settings, options: ServiceOptions, listening: Listening, on_ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C; what runs then is finished within the budget (`DrainingServer`).

    `on_ready` is told the address once it is bound. Raises SettingsError where the address cannot be had or the files
    for TLS are no good, UsageError where what is needed is not installed.
    """
    if listening.tls_certificate is not None and listening.tls_key is not None:
        check_certificate(listening.tls_certificate, listening.tls_key)
    try:
        from headrace.ops.http_draining import DrainingServer
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

    def listens(port: int) -> None:
        host = f"[{listening.host}]" if ":" in listening.host else listening.host
        freeze_heap()
        on_ready(f"{scheme}://{host}:{port}")

    server = DrainingServer(config_of(app, listening), service, listening.drain_budget_s, listens)
    try:
        server.run()
    except SystemExit:
        raise SettingsError(
            f"{listening.host}:{listening.port} cannot be listened on: choose another --host or --port"
        ) from None
    if not server.started:
        raise SettingsError(f"{listening.host}:{listening.port} cannot be listened on: choose another --port")


def config_of(app: FastAPI, listening: Listening) -> uvicorn.Config:
    """What uvicorn is told."""
    import uvicorn

    from headrace.ops.http_draining import CUT_OFF_AFTER_S, Connection

    return uvicorn.Config(
        app,
        host=listening.host,
        port=listening.port,
        http=Connection,
        ws="none",  # else any upgrade would get a protocol of its own, which `DrainingServer` does not know
        ssl_certfile=listening.tls_certificate,
        ssl_keyfile=listening.tls_key,
        access_log=False,
        log_level="warning",
        timeout_keep_alive=listening.idle_timeout_s,
        timeout_graceful_shutdown=math.ceil(CUT_OFF_AFTER_S),
        server_header=False,
    )


def check_certificate(certificate: Path, key: Path) -> None:
    """Raises SettingsError for PEM files that cannot be served with: uvicorn would fail, or ask a terminal.

    A key that is locked with a password is refused: there is nobody to ask.
    """

    def password() -> str:
        raise SettingsError(f"{key} is locked with a password: give a key without one")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # By itself first: what is wrong with both together does not say with which.
        context.load_verify_locations(certificate)
    except (ssl.SSLError, OSError) as error:
        raise SettingsError(
            f"{certificate} cannot be read as a certificate in PEM: {error.strerror}"
        ) from None
    try:
        context.load_cert_chain(certificate, key, password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(
                f"{key} does not fit {certificate}: it is the key of another certificate"
            ) from None
        raise SettingsError(f"{key} cannot be read as a private key in PEM: {error.strerror}") from None
    except OSError as error:
        raise SettingsError(f"{key} cannot be read: {error.strerror}") from None
