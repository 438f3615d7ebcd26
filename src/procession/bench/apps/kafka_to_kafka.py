"""The work of `procession bench kafka`: filter and map between two topics. The environment names the second."""

import os

from procession import Pipeline


def is_wanted(record: bytes) -> bool:
    return record[9] != 55  # a number that ends with 7


def marked(record: bytes) -> bytes:
    return record + b",seen"


pipeline = Pipeline("kafka-to-kafka", parallelism=2)
(
    pipeline.source("messages")
    .filter(is_wanted)
    .map(marked)
    .sink("output", to=os.environ.get("PROCESSION_BENCH_KAFKA", "kafka://127.0.0.1:9092/output"))
)
