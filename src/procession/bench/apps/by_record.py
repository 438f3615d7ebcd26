"""The work of `procession bench loop` with one function call per record, in two chains with an exchange between
them."""

from procession import Pipeline


def is_wanted(record: bytes) -> bool:
    return int(record[:10]) % 7 != 0


def parted(record: bytes) -> bytes:
    return record.replace(b" ", b",")


def marked(record: bytes) -> bytes:
    return record + b",seen"


pipeline = Pipeline("by-record", parallelism=2)
(pipeline.source("lines").filter(is_wanted).map(parted).rebalance().map(marked).sink("output", to="file:output"))
