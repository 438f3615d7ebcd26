"""Event times of records that are JSON objects: the value of one of their fields.

The one rule: the field says when, exactly; a record without it, or with something else in it, is refused by name, since
nobody could tell its place in the order of event time. Before it a source that reads records; after it the gateway.
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
    """The field that has a record's event time: a number of `unit` since 1970, or a text as ISO 8601 has it."""

    name: str
    unit: Unit = "s"

    def times(self, payloads: pa.Array, where: str, ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """The event times of these records, in nanoseconds. Raises ConfigError."""
        found = []
        for payload, number in zip(payloads.to_pylist(), ids, strict=True):
            try:
                # Decimal: what is written there counts, not the float that is nearest.
                found.append(_moment(json.loads(payload, parse_float=Decimal)[self.name], self.unit))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                told = f"it has no field {self.name!r}" if isinstance(error, KeyError) else str(error)
                raise ConfigError(
                    f"The record at byte {number} of {where} has no event time: {told}.",
                    next_step="Name the field that all records have with --event-time, or leave it away.",
                ) from error
        times = all_nanoseconds(found, "ns")
        return np.zeros(0, np.int64) if times is None else times


def checked_unit(unit: str) -> Unit:
    """A unit of times. Raises UsageError."""
    for known in UNITS:
        if unit == known:
            return cast(Unit, known)
    raise UsageError(f"There is no unit of time {unit!r}.", next_step=f"Choose one of {', '.join(UNITS)}.")


def _moment(value: Any, unit: Unit) -> int:
    return nanoseconds(datetime.fromisoformat(value) if isinstance(value, str) else value, unit)
