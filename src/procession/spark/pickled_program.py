"""A pipeline as bytes: its functions by value where the other process cannot import them.

Invariant: what Spark's workers could not import, cloudpickle writes by value; that is what a notebook or a script
defines. Used by `driver/defined_pipeline`.
"""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle


def pickled(value: Any) -> bytes:
    """Raises what pickling raises: a function may use anything."""
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data
