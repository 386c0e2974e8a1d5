"""Nothing is published as `ok` that its schema does not accept, under many real schemas and both backends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
WITHIN_S = 3_000
# A file of one's own, in the same form: HEADRACE_TEST_SCHEMAS.
OWN = os.environ.get("HEADRACE_TEST_SCHEMAS")
SCHEMAS = [OWN] if OWN else [str(DATA / "real_schemas.jsonl"), str(DATA / "hard_schemas.jsonl")]

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("needs_vllm")]


@pytest.mark.parametrize("backend", ["guidance", "xgrammar"])
def test_every_ok_is_accepted_by_its_schema_and_most_schemas_have_one(
    kafka_bootstrap: str, backend: str
) -> None:
    script = [sys.executable, str(HERE / "published_outputs.py"), *SCHEMAS]
    ended = subprocess.run(
        [*script, "--bootstrap", kafka_bootstrap, "--backend", backend],
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(json.dumps(report, indent=1))
    assert (report["wrong"], report["doubted"], report["leaked"]) == ([], [], [])
    # A grammar may end too early, or at llguidance's limits: seldom, and never as anything but that.
    failed = report["statuses"].pop("failed", 0)
    assert failed == report["codes"].get("constraint_error", 0)
    assert failed <= 0.002 * report["generations"]
    assert report["statuses"].keys() <= {"ok", "invalid_output", "truncated"}
    assert report["generations"] == 10 * report["schemas"]
    assert report["with_an_ok"] >= 0.8 * report["schemas"], report["without_an_ok"]
