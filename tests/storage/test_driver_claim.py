"""The file that names the last driver, and what is refused because of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from procession.errors import ConfigError, FencedError, StorageError
from procession.runtime.host_files import HostFileSystem
from procession.storage.driver_claim import CURRENT, check_claimed, check_replicas, read_claim


class Replicated(HostFileSystem):
    """Files whose replicas cannot say who owns them."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def check_owner(self, *, asks: bool = False) -> None:
        raise OSError(self._number, "no")


def test_a_checkpoint_that_nobody_has_claimed_has_the_claim_0(tmp_path: Path) -> None:
    assert read_claim(tmp_path) == 0
    (tmp_path / CURRENT).write_text("7\n")
    assert read_claim(tmp_path) == 7


def test_a_damaged_claim_is_refused(tmp_path: Path) -> None:
    (tmp_path / CURRENT).write_text("seven")
    with pytest.raises(StorageError, match="CURRENT is damaged"):
        read_claim(tmp_path)


def test_a_fence_above_the_last_claim_is_refused(tmp_path: Path) -> None:
    (tmp_path / CURRENT).write_text("7\n")
    for fence in (6, 7):
        check_claimed(fence, tmp_path)
    with pytest.raises(ConfigError, match="Driver 8 has not claimed"):
        check_claimed(8, tmp_path)
    check_claimed(8, None)


@pytest.mark.parametrize(("number", "error"), [(errno.ESTALE, FencedError), (errno.EIO, StorageError)])
def test_only_replicas_of_a_later_driver_fence_this_one(tmp_path: Path, number: int, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_replicas(tmp_path, Replicated(number), asks=True)
