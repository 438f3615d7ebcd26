"""The work of the peers and of `bench/apps/by_fields`: fields are parsed, a number computed, a line made.

Invariant: it imports nothing, so programs in other environments can run it.
"""

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
