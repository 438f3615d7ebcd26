"""Procession: every record, once, in order. A stream processor for Python people that runs on Spark."""

# Imported when they are asked for: a command, or a connector, does not wait for what only an app needs.
# Ctrl-C has no handler of ours yet while this module is read, so it reads no other one itself.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from procession.api.pipeline import Pipeline
    from procession.api.stage import Stage
    from procession.errors import PlanError, ProcessionError
    from procession.operators import aggregates, tables, windows
    from procession.operators.aggregates import Aggregate
    from procession.operators.context import Context

__all__ = [
    "Aggregate",
    "Context",
    "Pipeline",
    "PlanError",
    "ProcessionError",
    "Stage",
    "aggregates",
    "tables",
    "windows",
]
__version__ = "0.1.0"

_HOMES = {
    "Aggregate": "operators.aggregates",
    "Context": "operators.context",
    "Pipeline": "api.pipeline",
    "PlanError": "errors",
    "ProcessionError": "errors",
    "Stage": "api.stage",
}
_MODULES = ("aggregates", "tables", "windows")


def __getattr__(name: str) -> object:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"procession.operators.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'procession' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"procession.{_HOMES[name]}"), name)
    return found
