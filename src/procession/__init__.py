"""Procession: every record, once, in order. A stream processor for Python people that runs on Spark."""

from procession.errors import PlanError, ProcessionError
from procession.plan import aggregates, sides, windows
from procession.plan.aggregates import Aggregate
from procession.plan.pipeline import Pipeline
from procession.plan.stage import Stage

__all__ = ["Aggregate", "Pipeline", "PlanError", "ProcessionError", "Stage", "aggregates", "sides", "windows"]
__version__ = "0.1.0"
