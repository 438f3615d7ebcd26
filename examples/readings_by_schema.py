"""Readings of sensors, as lines of JSON like {"sensor": "s1", "celsius": "81.50", "at": "2026-03-01T10:00:00Z"}. The
source validates them against a schema; those that do not fit become dead letters with the reason. The output is the
largest reading of each sensor so far."""

from typing import Any

import pyarrow as pa

from procession import Pipeline

READING = pa.schema(
    [
        pa.field("sensor", pa.string(), nullable=False),
        pa.field("celsius", pa.decimal128(6, 2), nullable=False),
        pa.field("at", pa.timestamp("ms", tz="UTC"), nullable=False),
        ("place", pa.string()),
    ]
)


def larger(before: dict[str, Any], reading: dict[str, Any]) -> dict[str, Any]:
    return max(before, reading, key=lambda one: one["celsius"])


pipeline = Pipeline("readings-by-schema", parallelism=2, dead_letter="file:output")
readings = pipeline.source("readings", codec="json", schema=READING)
readings.reduce(larger, key=lambda reading: reading["sensor"]).sink("largest", to="file:output")
