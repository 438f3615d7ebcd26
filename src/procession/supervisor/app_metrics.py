"""The counters of an app as metrics for Prometheus.

Invariant: a value is that of the committed epochs, read from the last round record when Prometheus asks. There are at
most `COUNTERS_MAX` of them (`commit/epoch_totals`). A checkpoint that cannot be read has no counters: metrics must not
fail because of it. The first gateway serves them.
"""

from __future__ import annotations

from pathlib import Path

from procession.commit.epoch_totals import app_counters
from procession.errors import ProcessionError
from procession.metrics import Metric
from procession.verify.decisions import DecisionReader

NAME = "procession_app_counter"


def app_metrics(checkpoint: Path) -> list[Metric]:
    """The counters of the app after the last committed epoch. They are gauges, because an app may subtract."""
    try:
        record = DecisionReader(checkpoint).last()
    except (ProcessionError, OSError):
        return []
    counters = {} if record is None else app_counters(record.counters)
    values = [((name,), float(value)) for name, value in counters.items()]
    return [Metric(NAME, "gauge", "A counter of the app, of the committed epochs.", ("counter",), values)]
