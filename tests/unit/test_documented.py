"""Every setting and every metric is documented, and nothing is documented that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from click.testing import CliRunner
from prometheus_client.metrics import MetricWrapperBase

from headrace.ops.cli.schema import schema
from headrace.producers.http.parameters import markdown_table
from headrace.schemas import metrics
from headrace.schemas.settings import KafkaSecurity, Settings

DOCS = Path(__file__).parents[2] / "docs"


def test_every_setting_is_documented_and_no_other() -> None:
    documented = set(
        re.findall(r"^\| `(HEADRACE_[A-Z_]+)`", (DOCS / "settings.md").read_text(), re.MULTILINE)
    )
    ours = {f"HEADRACE_{name.upper()}" for name in Settings.model_fields if name != "kafka"}
    kafka = {f"HEADRACE_KAFKA_{name.upper()}" for name in KafkaSecurity.model_fields}
    assert documented == ours | kafka


def test_the_table_of_keywords_is_that_of_the_data() -> None:
    text = (DOCS / "structured-output.md").read_text()
    (table,) = re.findall(
        r"<!-- keyword support: begin -->\n\n(.*)\n<!-- keyword support: end -->", text, re.DOTALL
    )
    printed = CliRunner().invoke(schema, ["keywords", "--markdown"]).output
    assert table == printed, "write it anew: headrace schema keywords --markdown"


def test_the_table_of_the_endpoints_parameters_is_that_of_the_code() -> None:
    text = (DOCS / "http.md").read_text()
    (table,) = re.findall(r"<!-- parameters: begin -->\n\n(.*)\n<!-- parameters: end -->", text, re.DOTALL)
    assert table.strip() == markdown_table().strip(), "write it anew: headrace serve --parameters"


def test_every_metric_is_documented_with_its_labels_and_no_other() -> None:
    text = (DOCS / "metrics.md").read_text()
    documented = {
        name: [label.strip() for label in labels.split(",") if label.strip()]
        for name, labels in re.findall(r"^\| `(headrace_\w+)` \| \w+ \| ([\w, ]*) \|", text, re.MULTILINE)
    }
    declared = {}
    for metric in vars(metrics).values():
        if isinstance(metric, MetricWrapperBase):
            family = metric.describe()[0]
            name = f"{family.name}_total" if family.type == "counter" else family.name
            declared[name] = list(metric._labelnames)
    assert documented == declared
