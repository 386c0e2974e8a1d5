"""A schema registry that speaks Confluent's REST protocol: Confluent's own, Apicurio, Karapace, Redpanda.

httpx is imported with the first call, so that a command that needs no registry starts without it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast
from urllib.parse import quote, urlsplit

from headrace.schemas.avro_schema import Schema, parse_schema
from headrace.schemas.errors import RegistryFailed, SchemaIncompatible, SettingsError, UnknownWriterSchema

if TYPE_CHECKING:
    import httpx

Compatibility = Literal[
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
]

_REFUSAL_KEPT_S: Final = 10  # an id that was unknown may be known soon; asking for each message would flood
# Where nothing comes for longer than this, readers are told so at once for as long again: one of them reads for a
# worker that has other things to do, and would wait anew for each partition.
_LONG_SILENCE_S: Final = 1.0
_MAX_CACHED: Final = 256  # schemas; a producer may name every id that the registry has
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_CONFLICT: Final = 409  # the status of a schema that the subject's level forbids
# Confluent's error codes, beside the status 404
_SUBJECT_NOT_FOUND: Final = 40401
_VERSION_NOT_FOUND: Final = 40402
_SCHEMA_NOT_FOUND: Final = 40403
_COMPATIBILITY_NOT_SET: Final = 40408


class SchemaRegistry:
    """A client of one registry; may be used from several threads.

    Every method that asks the registry raises RegistryFailed where it does not answer within `timeout_s` or
    refuses, with the registry's own words.
    """

    def __init__(self, url: str, timeout_s: float = 5) -> None:
        """`url` is the base URL; a user and password in it are sent by basic auth. Raises SettingsError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError("the schema registry's URL must be http://HOST[:PORT][/PATH] or https://…")
        self._url = url
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        # By id: the schema, or why there is none and until when that is believed (monotonic seconds).
        self._schemas: dict[int, Schema | tuple[UnknownWriterSchema, float]] = {}
        self._silence: tuple[str, float] | None = None  # what was said of it, and until when it is believed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def writer_schema(self, id_: int) -> Schema:
        """The Avro schema of that id.

        Kept, since an id never changes its meaning. Raises UnknownWriterSchema where the registry has no such
        id, or what it has is no Avro schema that can be read by; that is kept too, for seconds only.
        """
        kept = self._schemas.get(id_)
        if isinstance(kept, Schema):
            return kept
        asked = time.monotonic()
        if kept is not None and asked < kept[1]:
            raise kept[0]
        silence = self._silence
        if silence is not None and asked < silence[1]:
            raise RegistryFailed(silence[0])
        try:
            found = self._fetch(id_)
        except UnknownWriterSchema as error:
            self._keep(id_, (error, time.monotonic() + _REFUSAL_KEPT_S))
            raise
        except RegistryFailed as error:
            now = time.monotonic()
            if now - asked > _LONG_SILENCE_S:
                self._silence = error.message, 2 * now - asked
            raise
        self._keep(id_, found)
        return found

    def id_of(self, subject: str, schema_text: str) -> int | None:
        """The id under which a subject has this schema; None where it does not have it."""
        answer = self._ask(
            "POST", f"/subjects/{quote(subject, safe='')}", {"schema": schema_text},
            absent=(_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, _SCHEMA_NOT_FOUND),
        )  # fmt: skip
        return None if answer is None else self._number(answer, "id")

    def register(self, subject: str, schema_text: str) -> int:
        """Registers the schema with a subject, where it is not yet; its id.

        Raises SchemaIncompatible where the subject's compatibility level forbids it.
        """
        answer = self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema_text})
        return self._number(answer or {}, "id")

    def compatibility(self, subject: str) -> str | None:
        """The subject's own compatibility level; None where the registry's default holds for it."""
        absent = (_SUBJECT_NOT_FOUND, _COMPATIBILITY_NOT_SET)
        answer = self._ask("GET", f"/config/{quote(subject, safe='')}", absent=absent)
        return None if answer is None else str(answer.get("compatibilityLevel"))

    def set_compatibility(self, subject: str, level: Compatibility) -> None:
        """Sets the subject's compatibility level."""
        self._ask("PUT", f"/config/{quote(subject, safe='')}", {"compatibility": level})

    def _fetch(self, id_: int) -> Schema:
        answer = self._ask("GET", f"/schemas/ids/{id_}", absent=(_SCHEMA_NOT_FOUND, _SUBJECT_NOT_FOUND))
        if answer is None:
            raise UnknownWriterSchema(f"the schema registry has no schema {id_}", offset=1)
        kind = answer.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise UnknownWriterSchema(f"schema {id_} of the registry is {kind}; only AVRO is read", offset=1)
        if answer.get("references"):
            raise UnknownWriterSchema(
                f"schema {id_} of the registry refers to others; register it whole, as one text", offset=1
            )
        text = answer.get("schema")
        if not isinstance(text, str):
            raise RegistryFailed(f"{self._place()}: schema {id_} came without a text")
        return parse_schema(text)

    def _keep(self, id_: int, found: Schema | tuple[UnknownWriterSchema, float]) -> None:
        with self._lock:
            if len(self._schemas) >= _MAX_CACHED and id_ not in self._schemas:
                del self._schemas[next(iter(self._schemas))]  # the oldest
            self._schemas[id_] = found

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, absent: tuple[int, ...] = ()
    ) -> dict[str, Any] | None:
        """The answer's object; None where the registry says 404 with one of the `absent` codes."""
        import httpx

        try:
            response = self._connected().request(method, path, json=body)
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise RegistryFailed(f"{self._place()} does not answer: {reason}") from error
        answer = _object(response)
        if response.status_code == 404 and answer is not None and answer.get("error_code") in absent:
            return None
        if response.is_error:
            said = None if answer is None else answer.get("message")
            error = SchemaIncompatible if response.status_code == _CONFLICT else RegistryFailed
            raise error(
                f"{self._place()} refused {method} {path}: "
                f"{response.status_code} {said or response.reason_phrase}"
            )
        if answer is None:
            raise RegistryFailed(
                f"{self._place()} is no schema registry: {method} {path} gave no JSON object"
            )
        return answer

    def _connected(self) -> httpx.Client:
        import httpx

        with self._lock:
            if self._client is None:
                url = httpx.URL(self._url)
                self._client = httpx.Client(
                    base_url=url.copy_with(username=None, password=None),
                    auth=(url.username, url.password) if url.username else None,
                    timeout=self._timeout_s,
                    headers={"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE},
                )
            return self._client

    def _number(self, answer: dict[str, Any], key: str) -> int:
        found = answer.get(key)
        if not isinstance(found, int):
            raise RegistryFailed(f"{self._place()}: its answer has no {key}")
        return found

    def _place(self) -> str:
        parts = urlsplit(self._url)  # without the password
        port = f":{parts.port}" if parts.port else ""
        return f"the schema registry at {parts.scheme}://{parts.hostname}{port}{parts.path}"


def _object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        answer: Any = response.json()
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", answer) if isinstance(answer, dict) else None
