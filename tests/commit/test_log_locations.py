"""Log locations: the name of a gateway always belongs to one directory, whichever driver writes it first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from procession.commit.log_locations import LogLocations
from procession.errors import StorageError
from procession.storage.log_ranges import LogLocation

FIRST = LogLocation("gateway-0", "one", "127.0.0.1:1")
LOST_AND_CREATED_AGAIN = LogLocation("gateway-0", "two", "127.0.0.1:1")


def test_a_driver_that_was_replaced_cannot_give_the_name_to_another_directory(tmp_path: Path) -> None:
    suspended, successor = LogLocations(tmp_path), LogLocations(tmp_path)
    successor.keep("gateway-0", FIRST)
    with pytest.raises(StorageError, match="not the one that this checkpoint was made with"):
        suspended.keep("gateway-0", LOST_AND_CREATED_AGAIN)
    assert LogLocations(tmp_path).all() == {"gateway-0": FIRST}


def test_a_directory_whose_address_has_changed_keeps_its_name(tmp_path: Path) -> None:
    suspended, successor = LogLocations(tmp_path), LogLocations(tmp_path)
    moved = replace(FIRST, flight="127.0.0.1:2")
    successor.keep("gateway-0", FIRST)
    suspended.keep("gateway-0", moved)
    assert LogLocations(tmp_path).all() == {"gateway-0": moved}


def test_the_identity_in_an_old_checkpoint_counts_too(tmp_path: Path) -> None:
    (tmp_path / "GATEWAY").write_text("one")
    with pytest.raises(StorageError):
        LogLocations(tmp_path).keep("gateway-0", LOST_AND_CREATED_AGAIN)
    LogLocations(tmp_path).keep("gateway-0", FIRST)
    assert LogLocations(tmp_path).all() == {"gateway-0": FIRST}
