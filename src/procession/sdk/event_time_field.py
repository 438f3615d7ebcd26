"""The event-time field: reads the event times of JSON records from one of their fields.

Invariant: the time is exact. A record without the field, or with an invalid time, is an error that names the record,
because such a record has no place in event-time order. Pure. `sdk/batching` uses it for every source.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from procession.errors import ConfigError, UsageError
from procession.times import UNITS, Unit, all_nanoseconds, nanoseconds


@dataclass(frozen=True)
class EventTimeField:
    """The field with a record's event time: a number of `unit` since 1970, or an ISO 8601 text.

    Args:
        name: Name of the field. `after.at` is the field `at` in the object `after`, unless a field has that name.
        unit: The unit of numbers: "s", "ms", "us" or "ns".

    >>> EventTimeField("at", "ms").times(pa.array([b'{"at": 1500}']), "orders", [1]).tolist()
    [1500000000]
    """

    name: str
    unit: Unit = "s"

    def times(self, payloads: pa.Array, stream: str, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the event times of these messages of a stream, in nanoseconds. Raises ConfigError."""
        found = []
        for payload, number in zip(payloads.to_pylist(), ids, strict=True):
            try:
                # Decimal, because a float would round the written value.
                found.append(_moment(self._value(json.loads(payload, parse_float=Decimal)), self.unit))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                is_missing = isinstance(error, KeyError)
                reason = f"it has no field {self.name!r}" if is_missing else str(error)
                step = "Name" if is_missing else f"Correct the time, or the unit, which is {self.unit!r}; or name"
                raise ConfigError(
                    f"Message {number} of {stream} has no event time: {reason}.",
                    next_step=f"{step} a field that all records have as event-time field, or remove the option.",
                ) from error
        times = all_nanoseconds(found, "ns")
        return np.zeros(0, np.int64) if times is None else times

    def _value(self, record: Any) -> Any:
        if "." not in self.name or self.name in record:
            return record[self.name]
        for part in self.name.split("."):
            record = record[part]
        return record


def checked_unit(unit: str) -> Unit:
    """Return the unit. Raises UsageError for an unknown one."""
    for known in UNITS:
        if unit == known:
            return cast(Unit, known)
    raise UsageError(f"There is no unit of time {unit!r}.", next_step=f"Choose one of {', '.join(UNITS)}.")


def _moment(value: Any, unit: Unit) -> int:
    return nanoseconds(datetime.fromisoformat(value) if isinstance(value, str) else value, unit)
