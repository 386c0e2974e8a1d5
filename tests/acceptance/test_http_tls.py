"""`--tls-certificate` and `--tls-key`: the official client over HTTPS, and files that do not go together."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from conformance.http_parts import (
    FREE,
    READY_S,
    SOON_S,
    Instance,
    create_topics,
    says,
    text_of,
    write_packages,
)
from kafka_fixtures import not_to_be_had
from waiting import wait_until
from worker_processes import WorkerProcess

from headrace.schemas.settings import Settings

SECRET = "of the mill"  # of the key that is locked


class Files(NamedTuple):
    """Of one name: what its holder shows, and the key that fits it."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def ours(place: Path) -> Files:
    return made(place, "ours")


def made(place: Path, name: str) -> Files:
    """A certificate that signs itself, for this machine."""
    files = Files(place / f"{name}.pem", place / f"{name}-key.pem")
    openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        *("-keyout", str(files.key), "-out", str(files.certificate)),
    )
    return files


def openssl(*arguments: str) -> None:
    command = shutil.which("openssl")
    if command is None:
        not_to_be_had("no `openssl` to make a certificate with")
    subprocess.run([command, *arguments], check=True, capture_output=True, timeout=60)


# --- served ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoint(kafka_bootstrap: str, place: Path, ours: Files) -> Iterator[Instance]:
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=f"t{uuid.uuid4().hex[:12]}")
    create_topics(settings)
    options = ("--no-auth", "--tls-certificate", str(ours.certificate), "--tls-key", str(ours.key))
    with ExitStack() as stack:
        worker = stack.enter_context(
            WorkerProcess(
                kafka_bootstrap, write_packages(place)[0], prefix=settings.prefix, log=place / "worker.log"
            )
        )
        found = stack.enter_context(Instance(settings, log=place / "endpoint.log", options=options))
        worker.wait_ready(READY_S)
        wait_until(lambda: found.address, READY_S, "the endpoint to listen")
        with httpx.Client(verify=trusting(ours)) as client:
            wait_until(
                lambda: client.get(f"{found.url}/models/{FREE}").status_code == 200,
                SOON_S,
                "the model to be known",
            )
        yield found


def trusting(files: Files) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.certificate)


def client_over(endpoint: Instance, context: ssl.SSLContext) -> openai.OpenAI:
    transport: Any = httpx.Client(verify=context)
    return openai.OpenAI(base_url=endpoint.url, api_key="none", http_client=transport, max_retries=0)


def test_the_official_client_calls_over_tls(endpoint: Instance, ours: Files) -> None:
    assert endpoint.url.startswith("https://")
    with client_over(endpoint, trusting(ours)) as client:
        create: Any = client.chat.completions.create
        whole = create(**says())
        assert whole.choices[0].message.content
        assert text_of(list(create(**says(), stream=True))) == whole.choices[0].message.content


def test_who_does_not_trust_the_certificate_does_not_call(endpoint: Instance) -> None:
    with (
        client_over(endpoint, ssl.create_default_context()) as client,
        pytest.raises(openai.APIConnectionError),
    ):
        client.models.list()


def test_nothing_is_served_in_the_clear(endpoint: Instance) -> None:
    with httpx.Client() as client, pytest.raises(httpx.TransportError):
        client.get(f"http://127.0.0.1:{endpoint.port}/healthz")


# --- refused --------------------------------------------------------------------------------------------------------


def ended(place: Path, certificate: Path, key: Path) -> tuple[int, str]:
    """The exit code and the words of an endpoint with these files; it ends before it looks for a broker."""
    settings = Settings(bootstrap_servers="127.0.0.1:1", prefix="t")
    log = place / f"refused-{uuid.uuid4().hex}.log"
    options = ("--no-auth", "--tls-certificate", str(certificate), "--tls-key", str(key))
    with Instance(settings, log=log, options=options) as found:
        return found.process.wait(SOON_S), found.said()


def test_a_key_of_another_certificate_is_refused_with_a_word(place: Path, ours: Files) -> None:
    other = made(place, "other")
    code, said = ended(place, ours.certificate, other.key)
    assert (code, "Traceback" in said) == (2, False), said
    assert str(other.key) in said
    assert "does not fit" in said


@pytest.mark.parametrize("broken", ["certificate", "key"])
def test_a_file_that_is_no_pem_is_refused_with_a_word(place: Path, ours: Files, broken: str) -> None:
    bad = place / f"bad-{broken}.pem"
    bad.write_text("no PEM at all")
    code, said = ended(place, *ours._replace(**{broken: bad}))
    assert (code, "Traceback" in said) == (2, False), said
    assert str(bad) in said


def test_a_locked_key_is_refused_and_nobody_is_asked_for_its_password(place: Path, ours: Files) -> None:
    locked = place / "locked-key.pem"
    openssl("rsa", "-aes256", "-in", str(ours.key), "-out", str(locked), "-passout", f"pass:{SECRET}")
    code, said = ended(place, ours.certificate, locked)
    assert (code, "Traceback" in said) == (2, False), said
    assert str(locked) in said
    assert "password" in said


def test_a_certificate_without_its_key_is_refused(place: Path, ours: Files) -> None:
    settings = Settings(bootstrap_servers="127.0.0.1:1", prefix="t")
    options = ("--no-auth", "--tls-certificate", str(ours.certificate))
    with Instance(settings, log=place / "alone.log", options=options) as found:
        assert found.process.wait(SOON_S) == 2
        assert "go together" in found.said()
