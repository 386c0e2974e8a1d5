"""The endpoint as an ASGI application: routes, errors in OpenAI's shape, documentation."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any

import prometheus_client
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from headrace.producers.http import models
from headrace.producers.http.answers import encode_json
from headrace.producers.http.calls import REQUEST_ID, begin
from headrace.producers.http.failures import failure_of_error
from headrace.producers.http.responding import GONE, Answer, error_response
from headrace.producers.http.service import Service
from headrace.producers.http.wanted import ApiError, Endpoint
from headrace.schemas import metrics
from headrace.schemas.messages import JsonObject

log = logging.getLogger(__name__)

# What a page's client may read of an answer beside its body: without these it would try again what it must not.
EXPOSED_HEADERS = [
    *("x-request-id", "x-should-retry", "retry-after", "openai-processing-ms"),
    *("x-headrace-model-version", "x-headrace-queue-ms"),
    *(
        f"x-ratelimit-{kind}-{what}"
        for kind in ("limit", "remaining", "reset")
        for what in ("requests", "tokens")
    ),
]
PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def create_app(
    service: Service,
    *,
    version: str,
    cors_origins: Sequence[str] = (),
    around: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """The application. `around` is entered before the first call and left after the last."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        try:
            if around is None:
                yield
            else:
                async with around():
                    yield
        finally:
            await service.close()

    app = FastAPI(title="Headrace", version=version, lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_errors(app)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    for endpoint in PATHS:
        _add_endpoint(app, service, endpoint)
    _add_models(app, service)
    _add_status(app, service)
    _document(app, service, version)
    return app


def _add_endpoint(app: FastAPI, service: Service, endpoint: Endpoint) -> None:
    async def answer(request: HttpRequest) -> Response:
        try:
            call = await begin(service, request, endpoint)
            return Answer(call, keep_alive_s=service.options.keep_alive_s)
        except ClientDisconnect:
            metrics.child(metrics.HTTP_CALLS, endpoint, str(GONE)).inc()
            return Response(status_code=GONE)  # nobody reads it
        except Exception as error:  # noqa: BLE001 (whatever it was, the caller is told)
            return refused(error)

    def refused(error: Exception) -> Response:
        failure = failure_of_error(error)
        if failure.status >= 500 and not isinstance(error, ApiError):
            log.error("a call failed before it was sent on", exc_info=error)
        metrics.child(metrics.HTTP_CALLS, endpoint, str(failure.status)).inc()
        return error_response(failure)

    app.add_api_route(
        PATHS[endpoint],
        answer,
        methods=["POST"],
        name=endpoint,
        response_class=Response,
    )


def _add_models(app: FastAPI, service: Service) -> None:
    async def list_models(request: HttpRequest) -> Response:
        service.caller_of(request.headers)
        return _json(service.asked(models.listed))

    async def one_model(request: HttpRequest, name: str) -> Response:
        service.caller_of(request.headers)
        return _json(service.asked(lambda records: models.described(name, records)))

    app.add_api_route("/v1/models", list_models, response_class=Response)
    app.add_api_route("/v1/models/{name:path}", one_model, response_class=Response)


def _add_status(app: FastAPI, service: Service) -> None:
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    async def readyz() -> Response:
        reason = service.not_ready()
        return PlainTextResponse(f"{reason or 'ok'}\n", 200 if reason is None else 503)

    async def page() -> Response:
        metrics.HTTP_PENDING.set(service.pending)
        return Response(prometheus_client.generate_latest(), media_type=prometheus_client.CONTENT_TYPE_LATEST)

    for path, answer in (("/healthz", healthz), ("/readyz", readyz), ("/metrics", page)):
        app.add_api_route(path, answer, response_class=Response)


def _document(app: FastAPI, service: Service, version: str) -> None:
    @cache
    def document() -> JsonObject:
        # Made of the schemas of all messages: not before somebody asks for it.
        from headrace.producers.http import openapi

        return openapi.document(service.options, version=version)

    app.openapi = document
    # Its scripts come from here and not from the Internet, which many a company's network does not reach.
    app.mount("/docs/assets", StaticFiles(packages=[("fastapi_offline", "static")]))

    async def docs(request: HttpRequest) -> Response:
        at = str(request.scope.get("root_path", "")).rstrip("/")
        return get_swagger_ui_html(
            openapi_url=f"{at}{app.openapi_url}",
            title="Headrace",
            swagger_js_url=f"{at}/docs/assets/swagger-ui-bundle.js",
            swagger_css_url=f"{at}/docs/assets/swagger-ui.css",
            swagger_favicon_url=f"{at}/docs/assets/favicon.png",
        )

    app.add_api_route("/docs", docs, include_in_schema=False)


def _json(body: JsonObject) -> Response:
    headers = {REQUEST_ID: uuid.uuid4().hex}
    return Response(encode_json(body), headers=headers, media_type="application/json")


def _add_errors(app: FastAPI) -> None:
    async def told(_: HttpRequest, error: Exception) -> Response:
        return error_response(failure_of_error(error))

    async def of_http(request: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            there = ", ".join(PATHS.values())
            message = f"Unknown request URL: {request.method} {request.url.path}. There are: {there}."
            return error_response(ApiError(404, message, reason="unknown_url"))
        headers = dict[str, str](error.headers or {})
        return error_response(ApiError(error.status_code, str(error.detail), headers=headers))

    handlers: dict[Any, Any] = {ApiError: told, HTTPException: of_http, Exception: told}
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
