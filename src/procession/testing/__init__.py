"""Runs a pipeline inside a test: in this process, in milliseconds, without Spark.

    >>> from procession import Pipeline
    >>> from procession.testing import run
    >>> pipeline = Pipeline("alerts")
    >>> orders = pipeline.source("orders", codec="json")
    >>> large = orders.filter(lambda order: order["amount"] > 100)
    >>> alerts = large.map(lambda order: order["id"]).sink("alerts", to="file:out")
    >>> run(pipeline, {"orders": [{"id": 1, "amount": 20}, {"id": 2, "amount": 500}]})
    {'alerts': [2]}

The guide is docs/how-to/testing.md.
"""

from procession.api.app_settings import with_settings
from procession.testing.arrivals import Record
from procession.testing.in_process import Outputs, run
from procession.testing.schedules import Schedule, run_everywhere
from procession.testing.upgrade_run import run_upgrade

__all__ = ["Outputs", "Record", "Schedule", "run", "run_everywhere", "run_upgrade", "with_settings"]
