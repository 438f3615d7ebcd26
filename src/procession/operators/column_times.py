"""Event times in columns: a whole column of times as nanoseconds.

Invariant: each time is the result of `times.nanoseconds` for the value. Used by `operators/function_calls`. Pure.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from procession.operators.stage_rows import Numbers
from procession.times import TIME_MAX, UNITS, Unit


def time_column(values: pa.Array, unit: Unit) -> Numbers | None:
    """Convert times to nanoseconds. Returns None if a value must be converted alone, such as a float."""
    if values.type == pa.int64():
        factor = UNITS[unit]
    elif types.is_timestamp(values.type) and values.type.unit == "us":
        factor, values = UNITS["us"], values.cast(pa.int64())
    else:
        return None
    if values.null_count or not len(values):
        return None
    bounds = pc.min_max(values)
    most = TIME_MAX // factor
    if bounds["min"].as_py() < -most or bounds["max"].as_py() > most:
        return None
    times: Numbers = values.to_numpy() * factor
    return times
