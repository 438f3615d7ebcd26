"""The work of `procession bench loop` as a small job does it: fields are parsed, a number computed, a line made."""

from procession import Pipeline

HALF = 2**31


def is_wanted(record: bytes) -> bool:
    number, _, _ = record.partition(b" ")
    return int(number) % 7 != 0


def parted(record: bytes) -> bytes:
    number, _, check = record.partition(b" ")
    return b"%s,%d" % (number, int(check, 16))


def marked(record: bytes) -> bytes:
    _, _, value = record.partition(b",")
    return record + (b",high" if int(value) >= HALF else b",low")


pipeline = Pipeline("by-fields", parallelism=2)
(pipeline.source("lines").filter(is_wanted).map(parted).rebalance().map(marked).sink("output", to="file:output"))
