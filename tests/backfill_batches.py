"""Lines of OpenAI's batch files, and what a job makes of them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.consumers.catalogue import CatalogueRecords, ServingVersion, serving_key, serving_value
from headrace.consumers.contracts import Alias, alias_key, alias_value
from headrace.producers.backfill.contract_view import contract_view
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.openai_batch import BatchMapping
from headrace.producers.backfill.source import Chunk, RowFault
from headrace.schemas.contract import Contract
from headrace.schemas.messages import JsonObject

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def a_line(url: str = CHAT, *, custom_id: Any = "a", method: Any = "POST", **body: Any) -> JsonObject:
    asked = {"messages": HI} if url == CHAT else {"prompt": "Hi"}
    return {
        "custom_id": custom_id,
        "method": method,
        "url": url,
        "body": {"model": "tagger", **asked, **body},
    }


def a_mapping(output: Any = None, **fields: Any) -> BatchMapping:
    job = job_of({"openai_batch": "calls.jsonl", "output": "answers.jsonl", **fields}, Path("/work"))
    records = CatalogueRecords()
    for model in ("tagger", "teller"):
        speaks = Contract(model, 1, None, output)
        one = ServingVersion(model, 1, "1", "vllm", 4_096, output is not None, False, 5, False, speaks)
        records.take(serving_key(one), serving_value(one))
    records.take(alias_key("gpt-4o-mini"), alias_value(Alias("gpt-4o-mini", "tagger", 1, "me", 1)))
    return BatchMapping(job, contract_view(job, records, name="tagger"), records)


def a_chunk(rows: Sequence[JsonObject | RowFault], first_row: int = 0) -> Chunk:
    return Chunk(0, first_row, list(rows), pa.Table.from_arrays([pa.array(range(len(rows)))], names=["n"]))
