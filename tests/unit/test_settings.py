"""Settings: read once, and a mistake in a variable is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.schemas.errors import SettingsError
from headrace.schemas.settings import Settings


def test_the_environment_is_read_and_what_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MAX_IN_FLIGHT", "7")
    monkeypatch.setenv("HEADRACE_SLOT", "from-environment")
    settings = Settings.from_environment(slot="given", prefix=None)
    assert (settings.max_in_flight, settings.slot, settings.prefix) == (7, "given", "headrace")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HEADRACE_MAX_IN_FLIGHT", "0", "HEADRACE_MAX_IN_FLIGHT"),
        ("HEADRACE_COMMIT_INTERVAL_MS", "soon", "HEADRACE_COMMIT_INTERVAL_MS"),
        ("HEADRACE_BOOTSTRAP_SERVER", "x:1", "did you mean HEADRACE_BOOTSTRAP_SERVERS"),
        ("HEADRACE_KAFKA_SASL_USERNAME", "me", "did you mean HEADRACE_KAFKA_SASL_PLAIN_USERNAME"),
        ("HEADRACE_KAFKA_COLOUR", "red", "HEADRACE_KAFKA_COLOUR is not a setting"),
        ("HEADRACE_KAFKA_SSL_CAFILE", "/no/such/file.pem", "HEADRACE_KAFKA_SSL_CAFILE"),
        ("HEADRACE_KAFKA_SECURITY_PROTOCOL", "TLS", "HEADRACE_KAFKA_SECURITY_PROTOCOL"),
    ],
)
def test_a_mistake_is_an_error_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=says):
        Settings.from_environment()


def test_variables_of_the_makefile_and_of_others_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADRACE_VENV", "HEADRACE_PYTHON", "HEADRACE_TORCH_INDEX", "HEADRACE_TEST_REGISTRY"):
        monkeypatch.setenv(name, "x")
    Settings.from_environment()


def test_only_what_was_set_reaches_the_kafka_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("certificate")
    monkeypatch.setenv("HEADRACE_KAFKA_SECURITY_PROTOCOL", "SSL")
    monkeypatch.setenv("HEADRACE_KAFKA_SSL_CAFILE", str(authority))
    options = Settings.from_environment().kafka.client_options()
    assert options == {"security_protocol": "SSL", "ssl_cafile": str(authority)}
