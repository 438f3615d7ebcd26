"""Procession: every record, once, in order. A stream processor for Python that runs on Spark."""

# Names are imported on first use, so that commands and connectors load only the modules that they use.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from procession.api.pipeline import Pipeline
    from procession.api.stage import Stage
    from procession.errors import PlanError, ProcessionError
    from procession.operators import aggregates, patterns, tables, windows
    from procession.operators.aggregates import Aggregate
    from procession.operators.context import Context
    from procession.operators.expressions import col, struct
    from procession.operators.process import ProcessContext
    from procession.operators.typed_json import json_of
    from procession.planner.upgrade import Upgrade

__all__ = [
    "Aggregate",
    "Context",
    "Pipeline",
    "PlanError",
    "ProcessContext",
    "ProcessionError",
    "Stage",
    "Upgrade",
    "aggregates",
    "col",
    "json_of",
    "patterns",
    "struct",
    "tables",
    "windows",
]
__version__ = "0.1.0"

_ROOMS = {
    "Aggregate": "operators.aggregates",
    "Context": "operators.context",
    "Pipeline": "api.pipeline",
    "PlanError": "errors",
    "ProcessContext": "operators.process",
    "ProcessionError": "errors",
    "Stage": "api.stage",
    "Upgrade": "planner.upgrade",
    "col": "operators.expressions",
    "json_of": "operators.typed_json",
    "struct": "operators.expressions",
}
_MODULES = ("aggregates", "patterns", "tables", "windows")


def __getattr__(name: str) -> object:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"procession.operators.{name}")
    if name not in _ROOMS:
        raise AttributeError(f"module 'procession' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"procession.{_ROOMS[name]}"), name)
    return found
