"""`headrace send` and `headrace results`, run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.kafka_responder import Responder, create_topics
from waiting import wait_until

from headrace.producers.testing import Fault
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames

MODEL = "movie-tagger"
TAGS = {"genre": "drama", "moods": ["tense"]}
ENOUGH = 60  # seconds

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment(settings: Settings) -> dict[str, str]:
    given = {
        "HEADRACE_BOOTSTRAP_SERVERS": settings.bootstrap_servers or "",
        "HEADRACE_PREFIX": settings.prefix,
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")} | given


@pytest.fixture
def settings(broker_bootstrap: str, unique_prefix: str) -> Settings:
    return Settings(bootstrap_servers=broker_bootstrap, prefix=unique_prefix)


@pytest.fixture
def responder(settings: Settings) -> Iterator[Responder]:
    names = ContractNames(settings.prefix, MODEL, 1)
    create_topics(settings, names)
    running = Responder(settings, names)
    running.worker.answer = TAGS
    yield running
    running.stop()


@pytest.fixture
def run(settings: Settings) -> Run:
    def headrace(command: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace.ops.cli", command, "--model", MODEL, *arguments],
            input=text,
            capture_output=True,
            text=True,
            env=environment(settings),
            timeout=ENOUGH,
        )

    return headrace


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_bad_lines_are_named_and_the_others_are_sent(run: Run, responder: Responder, tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    lines = [
        '{"id": "good-1", "variables": {"title": "Heat"}}',
        '{"id": "bad", "prompt": "x", "sampling": {"max_tokens": 0}}',
        "",
        '{"id": "odd", "prompt": "x", "temprature": 1}',
        "{nonsense",
        "[1]",
        '{"prompt": "no id"}',
    ]
    file.write_text("\n".join(lines))
    done = run("send", str(file))
    assert done.returncode == 1
    complaints = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in complaints[:-1]] == ["line 2", "line 4", "line 5", "line 6"]
    assert "/sampling/max_tokens" in complaints[0]
    assert "temprature" in complaints[1]
    assert complaints[-1].endswith("2 sent, 4 refused")
    (new_id,) = done.stdout.split()
    wait_until(lambda: len(responder.generated) == 2, ENOUGH, "the two good ones")
    assert {request.id for request in responder.generated} == {"good-1", new_id}


def test_what_was_sent_is_told_as_json(run: Run, responder: Responder) -> None:
    text = '{"id": "a", "prompt": "x"}\n{"id": "b"}\n'
    done = run("send", "-", "--json", "--lane", "backfill", text=text)
    assert done.returncode == 1
    by_line = {line["line"]: line for line in json_lines(done.stdout)}
    assert by_line[1]["id"] == "a"
    assert by_line[1]["topic"].endswith(".requests.backfill")
    assert by_line[2]["error"]["code"] == "invalid_field"


def test_rows_are_sent_as_variables_and_their_results_come_back(run: Run, responder: Responder) -> None:
    rows = "".join(json.dumps({"title": f"film {n}"}) + "\n" for n in range(20))
    done = run("send", "-", "--as-variables", "--wait", "--json", text=rows)
    assert done.returncode == 0, done.stderr
    results = json_lines(done.stdout)
    assert [result["status"] for result in results] == ["ok"] * 20
    assert all(result["outputs"][0]["value"] == TAGS for result in results)
    sent = [request.variables for request in responder.generated]
    assert sorted(each["title"] for each in sent if each) == sorted(f"film {n}" for n in range(20))


def test_one_prompt_prints_its_text(run: Run, responder: Responder) -> None:
    responder.worker.answer = "a mill"
    done = run("send", "--prompt", "Once upon a time", "--wait")
    assert (done.returncode, done.stdout) == (0, "a mill\n")


def test_a_result_that_is_not_ok_makes_the_exit_code_1(run: Run, responder: Responder) -> None:
    responder.worker.faults.append(Fault("status", "truncated", "ran into max_tokens"))
    done = run("send", "--variables", '{"title": "Heat"}', "--wait")
    assert done.returncode == 1
    assert "truncated" in done.stdout
    assert "ran into max_tokens" in done.stdout
    responder.worker.faults.append(Fault("silence"))
    done = run("send", "--prompt", "x", "--wait", "--timeout", "0.5")
    assert done.returncode == 1
    assert "no reply within 0.5 s" in done.stderr


def test_results_are_filtered_and_end_where_the_topic_ends(run: Run, responder: Responder) -> None:
    responder.worker.answer = "\x1b[31mred\x07 text"
    responder.worker.faults.append(Fault("status", "rejected", "no"))
    text = "".join(json.dumps({"id": f"r{n}", "prompt": "x"}) + "\n" for n in range(6))
    assert run("send", "-", "--wait", text=text).returncode == 1
    table = run("results")
    assert table.returncode == 0
    assert table.stdout.splitlines()[0].split() == ["id", "status", "text", "tokens", "ms", "version"]
    assert len(table.stdout.splitlines()) == 7
    assert "\x1b" not in table.stdout
    assert "\x07" not in table.stdout
    ok = json_lines(run("results", "--json", "--status", "ok").stdout)
    assert len(ok) == 5
    bad = json_lines(run("results", "--json", "--status", "rejected,failed").stdout)
    assert [result["status"] for result in bad] == ["rejected"]
    assert len(json_lines(run("results", "--json", "--limit", "2").stdout)) == 2
    one = json_lines(run("results", "--json", "--id", ok[0]["id"], "--since", "10m").stdout)
    assert one == [ok[0]]
    nothing = run("results", "--id", "nobody")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert "nothing found" in nothing.stderr


def test_followed_results_come_as_they_are_and_ctrl_c_ends_cleanly(
    run: Run, responder: Responder, settings: Settings
) -> None:
    command = [sys.executable, "-m", "headrace.ops.cli", "results", "--model", MODEL, "--follow", "--json"]
    command += ["--since", "1h"]  # it may get ready after the first result
    following = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(settings)
    )
    assert following.stdout
    try:
        for n in range(2):
            assert run("send", "-", text=json.dumps({"id": f"r{n}", "prompt": "x"})).returncode == 0
            assert json.loads(following.stdout.readline())["id"] == f"r{n}"
        following.send_signal(signal.SIGINT)
        rest, complaints = following.communicate(timeout=ENOUGH)
        assert (following.returncode, rest, complaints) == (0, "", "")
    finally:
        following.kill()
        following.communicate()


def test_ctrl_c_ends_a_send_whose_input_is_silent(responder: Responder, settings: Settings) -> None:
    command = [sys.executable, "-m", "headrace.ops.cli", "send", "--model", MODEL, "--json", "-"]
    sending = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(settings),
    )
    assert sending.stdin
    assert sending.stdout
    try:
        sending.stdin.write('{"id": "first", "prompt": "x"}\n')
        sending.stdin.flush()
        assert json.loads(sending.stdout.readline())["id"] == "first"
        sending.send_signal(signal.SIGINT)
        assert sending.wait(ENOUGH) == 130
        assert sending.stderr
        assert sending.stderr.read().split() == ["aborted"]
    finally:
        sending.kill()
        sending.communicate()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("send",), "exactly one of"),
        (("send", "-", "--prompt", "x"), "exactly one of"),
        (("send", "--prompt", "x", "--timeout", "3"), "--wait"),
        (("send", "--prompt", "x", "--as-variables"), "FILE"),
        (("send", "-", "--id-field", "id"), "--as-variables"),
        (("send", "--variables", "[1]"), "JSON object"),
        (("send", "--prompt", "x", "--lane", "fast"), "interactive"),
        (("send", "no-such-file.jsonl"), "no-such-file.jsonl"),
        (("results", "--status", "fine"), "invalid_output"),
        (("results", "--since", "yesterday"), "10m"),
    ],
)
def test_wrong_options_are_said_with_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    command, *rest = arguments
    done = subprocess.run(
        [sys.executable, "-m", "headrace.ops.cli", command, "--model", MODEL, *rest],
        capture_output=True,
        text=True,
        env=os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": "127.0.0.1:1"},
        timeout=ENOUGH,
    )
    assert done.returncode == 2, done.stderr
    assert says in done.stderr


@pytest.mark.parametrize("command", ["send", "results"])
def test_help_has_examples_and_exit_codes(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.ops.cli", command, "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert f"headrace {command} --model" in done.stdout
    assert "Exit codes" in done.stdout


def test_without_a_broker_the_exit_code_is_3() -> None:
    for bootstrap, says in (
        ("127.0.0.1:1", "check HEADRACE_BOOTSTRAP_SERVERS"),
        ("", "set HEADRACE_BOOTSTRAP"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "headrace.ops.cli", "send", "--model", MODEL, "--prompt", "x"],
            capture_output=True,
            text=True,
            env=os.environ | {"HEADRACE_BOOTSTRAP_SERVERS": bootstrap},
            timeout=ENOUGH,
        )
        assert done.returncode == 3, done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_topics_that_do_not_exist_are_named(run: Run) -> None:
    done = run("results")
    assert done.returncode == 1
    assert "headrace topics apply" in done.stderr
