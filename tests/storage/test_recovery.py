"""Where a log continues, for every combination of segment files that a crash can leave, and for damage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.storage.log import IngressLog
from procession.storage.recovery import recover_log, recover_segment, unsynced_from
from procession.storage.segment import HEADER_BYTES, SegmentIndex
from tests.storage.test_log import batch, rows

SEGMENTS = 3
ROWS = 4
"""Rows in each segment, as two entries. The second entry records that the first one was synced."""


def of_two_entries(directory: Path) -> list[Path]:
    with IngressLog(directory, segment_bytes_max=1) as log:
        for start in range(0, SEGMENTS * ROWS, ROWS):
            log.append(batch(rows(start, ROWS // 2)))
            log.sync()
            log.segment_bytes_max = 1 << 30  # the second entry goes into the same file
            log.append(batch(rows(start + ROWS // 2, ROWS // 2)))
            log.segment_bytes_max = 1
        log.sync()
    return sorted(directory.glob("*.segment"))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


CHANGES: dict[str, Callable[[Path], object]] = {
    "whole": lambda path: None,
    "missing": Path.unlink,
    "empty": lambda path: cut(path, 0),
    "a part of the header": lambda path: cut(path, HEADER_BYTES - 1),
    "the header": lambda path: cut(path, HEADER_BYTES),
    "a torn last entry": lambda path: cut(path, path.stat().st_size - 1),
    "a tail of zeros": lambda path: path.write_bytes(path.read_bytes() + bytes(40)),
    "a flipped bit in the synced entry": lambda path: flip(path, HEADER_BYTES + 60),
    "a flipped bit in the last entry": lambda path: flip(path, path.stat().st_size - 10),
}
# State of the last segment after a crash -> where the log ends, in rows of that segment; None: it is refused.
LAST_ENDS: dict[str, int | None] = {
    "whole": ROWS,
    "missing": 0,
    "empty": 0,
    "a part of the header": 0,
    "the header": 0,
    "a torn last entry": ROWS // 2,
    "a tail of zeros": ROWS,
    "a flipped bit in the synced entry": None,
    "a flipped bit in the last entry": ROWS // 2,
}


@pytest.mark.parametrize("last", CHANGES)
def test_every_combination_of_files_has_one_outcome(tmp_path: Path, last: str) -> None:
    for number, (first, middle) in enumerate(itertools.product(CHANGES, repeat=2)):
        directory = tmp_path / str(number)
        directory.mkdir()
        paths = of_two_entries(directory)
        for path, change in zip(paths, (first, middle, last), strict=True):
            CHANGES[change](path)
        end = expected_end(first, middle, last)
        if end is None:
            with pytest.raises(StorageError) as caught:
                recover_log(directory)
            assert caught.value.next_step, (first, middle, last)
        else:
            found = recover_log(directory)
            assert (found.segments[-1].end if found.segments else found.unbegun or 0) == end, (first, middle, last)


def expected_end(first: str, middle: str, last: str) -> int | None:
    """Return where the log ends.

    Trimmed segments are missing at the front, and no segment after the first may be missing. All rows up to the next
    segment must be intact. Anything after them in the file does not count, because an earlier recovery left it.
    """
    changes = [first, middle, last]
    present = [number for number, change in enumerate(changes) if change != "missing"]
    if not present:
        return 0
    newest = present[-1]
    if present != list(range(present[0], newest + 1)):
        return None
    if any(changes[number] not in ("whole", "a tail of zeros") for number in present[:-1]):
        return None
    ends = LAST_ENDS[changes[newest]]
    return None if ends is None else newest * ROWS + ends


def test_a_segment_is_rewritten_from_its_first_entry_that_may_not_be_on_disk(tmp_path: Path) -> None:
    """A segment without entries is rewritten as a whole: its name may not be on disk."""
    path = of_two_entries(tmp_path)[-1]
    base = (SEGMENTS - 1) * ROWS
    whole = recover_segment(path, base)
    found = unsynced_from(whole)
    assert found is not None
    assert (found.base, found.checksum) == (base + ROWS // 2, whole.checksum_at(base + ROWS // 2))
    whole.durable_end = whole.end
    assert unsynced_from(whole) is None
    assert unsynced_from(SegmentIndex(whole.header)) == whole.header


def test_a_segment_with_an_entry_across_the_begin_of_the_next_one_is_damaged(tmp_path: Path) -> None:
    path = of_two_entries(tmp_path)[0]
    assert recover_segment(path, 0, upper=ROWS // 2).end == ROWS // 2
    with pytest.raises(StorageError, match="is damaged"):
        recover_segment(path, 0, upper=ROWS // 2 + 1)
