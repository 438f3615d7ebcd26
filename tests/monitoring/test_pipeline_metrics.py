"""The metrics of a pipeline: names by convention, few series, and their use in deploy/ and the docs."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from procession.monitoring.pipeline_metrics import METRICS, metrics_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"procession_[a-z0-9_]+")

SNAPSHOT: dict[str, Any] = {
    "pid": 1,
    "committed": 50,
    "records_out": 60,
    "late": 0,
    "dead_letters": 2,
    "idle_s": 0.5,
    "bottleneck": {"part": "sink out", "why": "has not voted", "is_stalled": True},
    "verdict": {"outcome": "clean", "lost": 0, "doubled": 0, "disordered": 0, "proved_epoch": 9},
    "epoch": 9,
    "driver": {"fence": 2, "open": {"seconds": 1.5}, "epochs_left_out": 0, "placement": {"tasks": 8, "moved": 1}},
    "phases": {
        "run": {"p50_s": 0.1, "p95_s": 0.2, "p99_s": 0.3},
        "phase 1 out": {"p50_s": 0.4, "p95_s": 0.5, "p99_s": 0.6},
    },
    "stages": [{"name": "parsed", "busy_share": 0.25, "read_s": 1.0, "out_per_s": {"out": 5.0}}],
    "sinks": [{"name": "out", "is_connected": True, "connects": 1, "aborted": 0, "committed_end": 900}],
    "states": [{"stage": "totals", "bytes": 100, "entries": 7}],
    "restarts": {"driver": 1},
    "jvm": {"heap_used_bytes": 1, "heap_max_bytes": 2, "gc_seconds": 0.1, "gc_runs": 3, "threads": 4},
}


def exposed() -> dict[str, list[Any]]:
    """Return the samples that Prometheus reads, by name."""
    from prometheus_client import CollectorRegistry, generate_latest

    from procession.metrics import _Collector

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(lambda: metrics_of(SNAPSHOT)))  # type: ignore[arg-type]
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        name: [sample_ for sample_ in samples if sample_.name == name] for name in {sample.name for sample in samples}
    }


def test_every_metric_has_a_value_for_a_running_pipeline() -> None:
    assert {metric.name for metric in metrics_of(SNAPSHOT) if not metric.values} == set()


def test_an_unknown_figure_has_no_value() -> None:
    stopped = SNAPSHOT | {"driver": None, "jvm": {}, "idle_s": None, "epoch": None, "bottleneck": None, "pid": None}
    values = {metric.name: metric.values for metric in metrics_of(stopped)}
    for name in ("procession_jvm_threads", "procession_pipeline_idle_seconds", "procession_driver_epoch"):
        assert values[name] == []
    assert values["procession_pipeline_up"] == [((), 0.0)]


def test_a_phase_of_a_sink_has_the_sink_as_a_label() -> None:
    labels = [sample.labels for sample in exposed()["procession_round_phase_seconds"]]
    assert {"phase": "phase1", "sink": "out", "quantile": "0.99"} in labels
    assert {"phase": "run", "sink": "", "quantile": "0.5"} in labels


def test_exactly_one_outcome_is_1() -> None:
    samples = exposed()["procession_verdict"]
    assert {sample.labels["outcome"]: sample.value for sample in samples} == {"clean": 1, "violated": 0, "unknown": 0}


def test_names_follow_the_conventions() -> None:
    for name, definition in METRICS.items():
        assert re.fullmatch(r"procession_(pipeline|verdict|driver|round|stage|sink|state|part|jvm)[a-z_]*", name)
        assert not name.endswith("_total"), "prometheus-client adds it to counters"
        assert definition.help.endswith(".")
        assert "stream" not in definition.labels, "there may be any number of streams"


def gateway_names() -> set[str]:
    """Return the names of the metrics of gateways, from the code that defines them."""
    text = (ROOT / "src/procession/gateway/gateway_metrics.py").read_text()
    found = set()
    for kind, what in re.findall(r'(?:metric|by)\(\s*"(counter|gauge)",\s*"([a-z_]+)"', text):
        found |= {f"procession_{part}_{what}{'_total' if kind == 'counter' else ''}" for part in ("gateway", "stream")}
    return found


def known_names() -> set[str]:
    ours = {f"{name}_total" if definition.kind == "counter" else name for name, definition in METRICS.items()}
    assert set(exposed()) == ours
    return ours | gateway_names()


def expressions() -> Iterator[str]:
    for line in (DEPLOY / "prometheus-alerts.yml").read_text().splitlines():
        if line.strip().startswith("expr:"):
            yield line
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    yield from (target["expr"] for panel in panels for target in panel["targets"])


def test_alerts_and_the_grafana_dashboard_use_only_metrics_that_exist() -> None:
    used = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(used) > 20
    assert used - known_names() == set()


def test_the_docs_explain_every_metric() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text()
    assert [name for name in METRICS if name not in text] == []


@pytest.mark.skipif(
    "promtool" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(","),
    reason="PROCESSION_WITHOUT names promtool",
)
def test_promtool_accepts_the_rules_and_runs_their_tests() -> None:
    script = subprocess.run([ROOT / "scripts/promtool"], capture_output=True, text=True, check=False)
    assert not script.returncode, script.stderr
    promtool = script.stdout.strip()
    for arguments in (["check", "rules", "prometheus-alerts.yml"], ["test", "rules", "prometheus-alerts.test.yml"]):
        done = subprocess.run([promtool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stdout + done.stderr
