"""Calls, as lines of JSON like {"caller": "a", "seconds": 90, "cents": 12}. The output has what each call of more than
a minute cost per minute. Parsing, filter and map run on whole Arrow columns."""

import pyarrow as pa

from procession import Pipeline, col, struct

CALL = pa.schema(
    [
        pa.field("caller", pa.string(), nullable=False),
        pa.field("seconds", pa.int64(), nullable=False),
        pa.field("cents", pa.int64(), nullable=False),
    ]
)

pipeline = Pipeline("long-calls", parallelism=2, dead_letter="file:output")
calls = pipeline.source("calls", codec="json", schema=CALL)
long = calls.filter((col("seconds") > 60) & (col("caller") != "test"))
prices = long.map(struct(caller=col("caller"), cents_a_minute=col("cents") * 60 / col("seconds")))
prices.sink("prices", to="file:output")
