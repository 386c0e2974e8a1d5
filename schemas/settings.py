"""What can be set from outside, read once from the environment into frozen objects.

`Settings.from_environment()` reads `HEADRACE_*`; the command line's defaults come from it. A malformed value is an
error, and so is a `HEADRACE_KAFKA_*` variable that no setting has, or any that looks like a misspelt one: a misspelt
security setting must not pass for none.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import platformdirs
from pydantic import Field, FilePath, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from headrace.schemas.errors import SettingsError

Positive = Annotated[int, Field(gt=0)]
TopicPrefix = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,80}$")]


class KafkaSecurity(BaseSettings):
    """`HEADRACE_KAFKA_*`: how every Kafka client that we make reaches its brokers."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_KAFKA_", frozen=True, extra="forbid")

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_cafile: FilePath | None = None
    ssl_certfile: FilePath | None = None
    ssl_keyfile: FilePath | None = None
    ssl_password: str | None = None
    ssl_check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"] | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = None
    sasl_kerberos_service_name: str | None = None
    sasl_kerberos_domain_name: str | None = None
    request_timeout_ms: Positive | None = None

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for kafka-python's clients: only what was set."""
        options: dict[str, Any] = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            options[name] = str(value) if isinstance(value, Path) else value
        return options


class Settings(BaseSettings):
    """`HEADRACE_*`: everything else."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", frozen=True, extra="ignore")

    bootstrap_servers: str | None = None  # host:port, several with commas
    prefix: TopicPrefix = "headrace"  # begins the name of every topic and group
    schema_registry_url: str | None = None  # Confluent-compatible; unset: Avro single-object encoding
    slot: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] | None = None  # unset: the host's name
    cache_dir: Path = Field(default_factory=lambda: Path(platformdirs.user_cache_dir("headrace")))
    max_in_flight: Positive | None = None  # requests handed to the engine at a time; unset: it says itself
    commit_interval_ms: Positive = 100  # finished requests wait at most this long for their transaction
    backfill_commit_interval_ms: Positive = 1_000  # those of the backfill lane
    drain_budget_s: Positive = 60  # how long in-flight requests may take when their partition moves
    dedupe_window: Annotated[int, Field(ge=0)] = 50_000  # results of a partition whose ids are remembered
    backfill_share: Annotated[float, Field(gt=0, le=1)] = 0.75  # of the engine's places: the most it may fill
    session_timeout_ms: Positive = 10_000
    heartbeat_interval_ms: Positive = 500
    transaction_timeout_ms: Positive = 10_000
    max_record_bytes: Positive = 8 * 1024 * 1024  # of a record of `results` and `dead`
    allowed_result_topics: str = ""  # names with commas; `*` at the end stands for any ending
    simulated_time_scale: Annotated[float, Field(ge=0)] = 1.0  # of the simulated engine: 0, no time passes
    simulated_failures: str = ""  # JSON list: which jobs of the simulated engine fail, and how
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 9400  # 0: any free one
    api_keys: Path | None = None  # of the HTTP endpoint; unset: api_keys.json in the cache directory

    kafka: KafkaSecurity = Field(default_factory=KafkaSecurity)

    @classmethod
    def from_environment(cls, **overrides: Any) -> Self:
        """Read the environment; `overrides` (of the command line) win where they are not None.

        Raises SettingsError that names the variable and what it must hold.
        """
        _refuse_unknown_variables()
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            raise SettingsError(_explain(error)) from None


def _refuse_unknown_variables() -> None:
    """Every unknown HEADRACE_KAFKA_*, and what looks like a misspelt setting; other tools may have theirs."""
    ours = {"HEADRACE_" + name.upper() for name in Settings.model_fields if name != "kafka"}
    kafka = {"HEADRACE_KAFKA_" + name.upper() for name in KafkaSecurity.model_fields}
    for name in sorted(os.environ):
        if not name.startswith("HEADRACE_") or name in ours | kafka:
            continue
        close = difflib.get_close_matches(name, ours | kafka, n=1, cutoff=0.9)
        if close:
            raise SettingsError(f"{name} is not a setting; did you mean {close[0]}?")
        if name.startswith("HEADRACE_KAFKA_"):
            near = difflib.get_close_matches(name, kafka, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(kafka))}"
            raise SettingsError(f"{name} is not a setting{hint}")


def _explain(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][-1]).upper() if first["loc"] else "?"
    model = str(error.title)
    prefix = "HEADRACE_KAFKA_" if model == KafkaSecurity.__name__ else "HEADRACE_"
    return f"{prefix}{name}: {first['msg']} (given: {first['input']!r})"
