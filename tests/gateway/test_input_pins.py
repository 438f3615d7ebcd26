"""Pins keep rows of a gateway's log from being trimmed, up to a limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.gateway.input_pins import InputPin, InputPins, trim
from procession.gateway.log_rows import LogRow, batch_of
from procession.storage.log import IngressLog
from procession.storage.segment import KIND_RECORD

ROWS = 40


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IngressLog]:
    """A log with many small segments."""
    with IngressLog(tmp_path / "log", segment_bytes_max=2000) as found:
        for number in range(ROWS):
            found.append(batch_of([LogRow(KIND_RECORD, 3, number, 0, b"", b"x" * 500)]))
            found.sync()
        yield found


def test_without_a_pin_the_log_is_trimmed(log: IngressLog, tmp_path: Path) -> None:
    trim(log, 30, tmp_path)
    assert 20 < log.start_sequence <= 30


def test_the_lowest_pin_keeps_the_log_until_it_is_removed(log: IngressLog, tmp_path: Path) -> None:
    pins = InputPins(tmp_path)
    pins.write(InputPin("early", 5, 10**6))
    pins.write(InputPin("late", 20, 10**6))
    trim(log, 30, tmp_path)
    assert log.start_sequence <= 5
    pins.drop("early")
    trim(log, 30, tmp_path)
    assert 5 < log.start_sequence <= 20
    assert [row["message_id"] for batch in log.read(20, 22) for row in batch.to_pylist()] == [20, 21]


def test_a_pin_that_keeps_too_much_is_released_permanently(log: IngressLog, tmp_path: Path) -> None:
    pins = InputPins(tmp_path)
    pins.write(InputPin("small", 5, 6000))
    trim(log, 8, tmp_path)
    assert not pins.all()["small"].is_released
    trim(log, 30, tmp_path)
    assert pins.all()["small"].is_released
    assert log.start_sequence > 20


def test_a_damaged_pin_is_named_and_nothing_is_trimmed(log: IngressLog, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "torn.pin").write_text('{"name"')
    with pytest.raises(StorageError, match=r"torn\.pin cannot be read"):
        trim(log, 30, tmp_path)
    assert log.start_sequence == 0
