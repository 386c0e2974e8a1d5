"""What a worker says of its contract is all that a backfill needs to know of it."""

from __future__ import annotations

from pathlib import Path

from packages import TAGS_SCHEMA
from waiting import wait_until
from worker_processes import scene

from headrace.consumers.catalogue import read_catalogue
from headrace.producers.backfill.contract_view import read_contract_view
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.rows import RowMapping
from headrace.schemas.contract import Contract
from headrace.schemas.package import load_package
from headrace.schemas.settings import Settings


def test_a_job_knows_the_contract_that_a_ready_worker_serves(
    kafka_bootstrap: str, unique_prefix: str, tmp_path: Path
) -> None:
    settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=unique_prefix)
    job = job_of({"model": "tagger", "input": "films.csv", "output": "tags.parquet"}, tmp_path)
    with scene(kafka_bootstrap, unique_prefix, tmp_path, output=TAGS_SCHEMA) as stage:
        stage.start()
        wait_until(lambda: read_catalogue(settings).known == [("tagger", 1)], 60, "what is served")
        view, _ = read_contract_view(settings, job)
        assert view.source == "served"
        assert view.contract == Contract.of(load_package(tmp_path / "package"))
        mapping = RowMapping(job, view, ["title"])
        stage.seen.send({"id": "row-0", **mapping.request_of({"title": "Heat"})}, "backfill")
        [result] = stage.seen.wait_for("row-0")
        outcome = mapping.outcome_of(result)
        assert (outcome.status, outcome.version, outcome.request_id) == ("ok", "1", "row-0")
        assert set(outcome.value) == {"mood", "score", "tags"}
