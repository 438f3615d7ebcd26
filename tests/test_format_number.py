"""Format numbers: a known number is read, and any other is refused with the version to start."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from procession.errors import StorageError
from procession.format_number import check_format, is_known_format

PATH = PurePath("a/b.json")


@pytest.mark.parametrize("newest", [1, 2, 7])
def test_the_numbers_from_1_to_the_newest_are_known(newest: int) -> None:
    assert [number for number in range(-2, newest + 3) if is_known_format(number, newest)] == list(range(1, newest + 1))


@pytest.mark.parametrize("found", [True, False, None, "1", 1.0, b"1", [1]])
def test_a_value_that_is_not_an_int_is_not_a_format(found: object) -> None:
    assert not is_known_format(found, 2)
    with pytest.raises(StorageError):
        check_format(PATH, found, 2)


def test_an_unknown_format_is_refused_with_its_file_and_what_to_start() -> None:
    check_format(PATH, 2, 2)
    with pytest.raises(StorageError) as caught:
        check_format(PATH, 3, 2)
    assert caught.value.sentence == "a/b.json has format 3, and this version reads formats 1 to 2."
    assert caught.value.next_step == "Start the version that wrote it, or a later one."
    assert caught.value.path == "a/b.json"


def test_a_hostile_format_does_not_fill_the_sentence() -> None:
    with pytest.raises(StorageError) as caught:
        check_format(PATH, "9" * 10_000, 2)
    assert len(caught.value.sentence) < 200
