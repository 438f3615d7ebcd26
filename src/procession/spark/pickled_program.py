"""Pickles a pipeline: functions that the other process cannot import are pickled by value.

Invariant: cloudpickle pickles by value what Spark's workers cannot import: the definitions of a notebook or script,
and the module of an app file. Used by `driver/defined_pipeline` and `driver/driver`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from pyspark import cloudpickle


def pickled(value: Any) -> bytes:
    """Return a value as bytes. Raises any error of pickling, because a function may use any object."""
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def ship_by_value(module: ModuleType) -> None:
    """Pickle the functions of the user's module by value, because workers cannot import the user's file."""
    sys.modules.setdefault(module.__name__, module)
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
