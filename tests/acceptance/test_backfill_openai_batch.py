"""An OpenAI batch file from end to end, on a broker with a simulated worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from openai.types import Completion
from openai.types.chat import ChatCompletion
from waiting import wait_until
from worker_processes import Scene, scene

from headrace.consumers.catalogue import read_catalogue
from headrace.ops.cli.backfill import backfill
from headrace.producers.backfill.job import job_of
from headrace.producers.backfill.job_process import JobProcess
from headrace.schemas.settings import Settings

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def line(custom_id: str | None, url: str = CHAT, **body: Any) -> dict[str, Any]:
    """A call, as OpenAI's guide writes one."""
    if url == CHAT:
        body = {"messages": [{"role": "user", "content": "Name a film."}], "max_tokens": 20} | body
    body = {"model": "tagger"} | body
    call: dict[str, Any] = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return call if custom_id is not None else {name: call[name] for name in ("method", "url", "body")}


LINES: list[dict[str, Any] | str] = [
    line("chat"),
    line("completion", COMPLETIONS, prompt="Once upon a time", max_tokens=12),
    line("embedding", "/v1/embeddings", input="a"),
    line(None),
    line("chat", messages=[{"role": "user", "content": "Another film."}]),
    line("two choices", n=2, temperature=1.0, messages=[{"role": "user", "content": "Name two."}]),
    line("streamed", stream=True),
    '{"custom_id": "torn", "method": "POST"',
    line("other model", model="no-such-model"),
    line("the same again"),
]
ANSWERED = ["chat", "completion", "two choices", "the same again"]
REFUSED = ["embedding", None, "chat", "streamed", None, "other model"]  # what is no JSON has no id


@pytest.fixture(scope="module")
def stage(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A worker that serves plain text."""
    place = tmp_path_factory.mktemp("batch")
    prefix = f"t{place.name}{id(place):x}"
    with scene(kafka_bootstrap, prefix, place) as made:
        made.start()
        settings = Settings(bootstrap_servers=kafka_bootstrap, prefix=prefix)
        wait_until(lambda: read_catalogue(settings).known == [("tagger", 1)], 60, "what is served")
        yield made


def batch_file(directory: Path) -> Path:
    file = directory / "requests.jsonl"
    lines = [each if isinstance(each, str) else json.dumps(each) for each in LINES]
    file.write_text("\n".join(lines) + "\n")
    return file


def run(stage: Scene, file: Path, *options: str) -> Result:
    broker = ["--bootstrap-servers", stage.bootstrap, "--prefix", stage.names.prefix]
    job = [
        "--openai-batch",
        str(file),
        "--output",
        str(file.parent / "answers.jsonl"),
        "--rows-per-part",
        "3",
    ]
    return CliRunner().invoke(backfill, ["run", *job, *broker, *options], standalone_mode=False)


def lines_of(file: Path) -> list[dict[str, Any]]:
    """A file's lines, each with the fields of the batch format and no others."""
    found = [json.loads(each) for each in file.read_text().splitlines()]
    for each in found:
        assert set(each) == {"id", "custom_id", "response", "error"}
        assert (each["response"] is None) != (each["error"] is None)
        if each["response"] is not None:
            assert set(each["response"]) == {"status_code", "request_id", "body"}
        else:
            assert set(each["error"]) == {"code", "message"}
    return found


def test_an_existing_batch_file_runs_unchanged(stage: Scene, tmp_path: Path) -> None:
    file = batch_file(tmp_path)
    ended = run(stage, file, "--max-failures", "100%", "--json")
    assert ended.exception is None
    assert ended.return_value == 0, ended.output
    told = json.loads(ended.stdout)
    errors_file = tmp_path / "answers.errors.jsonl"
    assert (told["rows"], told["statuses"]) == (len(LINES), {"ok": 4, "rejected": 6})
    assert told["rejects"] == str(errors_file)

    answers, errors = lines_of(tmp_path / "answers.jsonl"), lines_of(errors_file)
    assert [each["custom_id"] for each in answers] == ANSWERED
    assert [each["custom_id"] for each in errors] == REFUSED
    assert len({each["id"] for each in answers + errors}) == len(LINES)

    bodies = {each["custom_id"]: each["response"]["body"] for each in answers}
    assert {each["response"]["status_code"] for each in answers} == {200}
    chat = ChatCompletion.model_validate(bodies["chat"])
    assert (chat.object, chat.choices[0].message.role) == ("chat.completion", "assistant")
    assert chat.choices[0].message.content
    assert chat.usage is not None
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens > 0
    completion = Completion.model_validate(bodies["completion"])
    assert (completion.object, len(completion.choices)) == ("text_completion", 1)
    two = ChatCompletion.model_validate(bodies["two choices"])
    assert [choice.index for choice in two.choices] == [0, 1]
    assert bodies["the same again"]["choices"] == bodies["chat"]["choices"]

    embedding, no_id, twice, streamed, torn, other = errors
    assert embedding["error"]["code"] == "invalid_url"
    assert "/v1/embeddings" in embedding["error"]["message"]
    assert no_id["error"]["code"] == "missing_required_parameter"
    assert twice["error"] == {
        "code": "duplicate_custom_id",
        "message": "row 4: the custom_id is that of row 0 already",
    }
    assert streamed["response"]["status_code"] == 400
    assert streamed["response"]["body"]["error"]["param"] == "stream"
    assert torn["error"]["code"] == "undecodable"
    assert other["response"]["status_code"] == 404
    assert other["response"]["body"]["error"]["code"] == "model_not_found"

    again = run(stage, file, "--max-failures", "100%")
    assert again.return_value == 0
    assert lines_of(errors_file) == errors


def test_asking_anew_for_what_was_refused_leaves_the_answers_as_they_are(
    stage: Scene, tmp_path: Path
) -> None:
    file = batch_file(tmp_path)
    assert run(stage, file, "--max-failures", "100%").return_value == 0
    files = [tmp_path / "answers.jsonl", tmp_path / "answers.errors.jsonl"]
    before = [each.read_bytes() for each in files]
    settings = Settings(bootstrap_servers=stage.bootstrap, prefix=stage.names.prefix)
    fields = {
        "openai_batch": str(file),
        "output": str(files[0]),
        "rows_per_part": 3,
        "max_failures": "100%",
    }
    finished = JobProcess(settings, job_of(fields, tmp_path), redo="rejects").run()
    assert finished.error is None
    assert (finished.state.status, finished.state.round) == ("done", 1)
    assert finished.state.statuses == {"ok": 4, "rejected": 6}
    assert [each.read_bytes() for each in files] == before
