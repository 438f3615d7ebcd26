"""Abandoned gateways: what the next driver voids, what stays decided, and which drivers know of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from procession.commit.abandoned_gateways import (
    SUFFIX,
    AbandonedGateway,
    abandoned_before,
    are_voided,
    is_abandoned,
)
from procession.commit.checkpoint import Checkpoint
from procession.commit.log_locations import LogLocations, abandon
from procession.commit.round_record import RoundRecord, SinkShare
from procession.errors import ConfigError, StorageError
from procession.storage.log_ranges import LogLocation, LogOffset

LOST = AbandonedGateway("gateway-1", "its identity", 3)


def claim(root: Path) -> Checkpoint:
    return Checkpoint.claim(root, name="p", fingerprint="f")


def offer(checkpoint: Checkpoint, epoch: int, ends: Mapping[str, int]) -> None:
    _write(checkpoint.directory / "offsets" / str(epoch), f"v1\n{{}}\n{json.dumps(ends)}")
    checkpoint.rounds.write(RoundRecord(epoch, 1, "f", 0, 9, {"a": SinkShare(f"t{epoch}", 0, 10)}))


def commit(checkpoint: Checkpoint, epoch: int) -> None:
    _write(checkpoint.directory / "commits" / str(epoch), "v1\n{}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def with_offer(root: Path, ends: Mapping[str, int]) -> Checkpoint:
    """Return a driver's copy with a committed epoch of two gateways, and an undecided one."""
    checkpoint = claim(root)
    offer(checkpoint, 0, {"gateway-0": 5, "gateway-1": 5})
    commit(checkpoint, 0)
    (checkpoint.directory / "metadata").write_text('{"id":"x"}')
    offer(checkpoint, 1, ends)
    return checkpoint


def test_an_undecided_epoch_with_records_of_the_gateway_is_voided(tmp_path: Path) -> None:
    with_offer(tmp_path, {"gateway-0": 9, "gateway-1": 6})
    abandon(tmp_path, "gateway-1", "its identity")
    found = claim(tmp_path).log
    assert (found.offered, found.committed) == (0, 0)
    assert claim(tmp_path).log.offered == 0, "and a later driver decides the same"


def test_an_undecided_epoch_without_records_of_the_gateway_is_run_again(tmp_path: Path) -> None:
    with_offer(tmp_path, {"gateway-0": 9, "gateway-1": 5})
    abandon(tmp_path, "gateway-1", "its identity")
    assert claim(tmp_path).log.offered == 1


def test_the_first_epoch_is_voided_too(tmp_path: Path) -> None:
    checkpoint = claim(tmp_path)
    offer(checkpoint, 0, {"gateway-0": 0, "gateway-1": 2})
    abandon(tmp_path, "gateway-1", "its identity")
    found = claim(tmp_path).log
    assert (found.offered, found.committed, found.offsets) == (-1, -1, {})


def test_an_epoch_that_the_last_driver_has_decided_stays_decided(tmp_path: Path) -> None:
    old = with_offer(tmp_path, {"gateway-0": 9, "gateway-1": 6})
    abandon(tmp_path, "gateway-1", "its identity")
    commit(old, 1)
    found = claim(tmp_path).log
    assert (found.offered, found.committed) == (1, 1)
    assert found.offsets["gateway-1"].sequence == 6


def test_a_driver_that_has_claimed_before_does_not_treat_the_gateway_as_abandoned(tmp_path: Path) -> None:
    old = claim(tmp_path)
    lost = abandon(tmp_path, "gateway-1", "its identity")
    assert lost.fence == old.fence
    assert abandoned_before(old.places.abandoned, old.fence) == {}
    new = claim(tmp_path)
    assert abandoned_before(new.places.abandoned, new.fence) == {"gateway-1": lost}


def test_a_second_command_changes_nothing(tmp_path: Path) -> None:
    claim(tmp_path)
    first = abandon(tmp_path, "gateway-1", "its identity")
    claim(tmp_path)
    assert abandon(tmp_path, "gateway-1", "another") == first


def test_the_first_gateway_cannot_be_abandoned(tmp_path: Path) -> None:
    claim(tmp_path)
    with pytest.raises(ConfigError, match="first gateway"):
        abandon(tmp_path, "gateway-0", "its identity")


def test_a_claim_writes_the_files_again_before_it_relies_on_them(tmp_path: Path) -> None:
    claim(tmp_path)
    abandon(tmp_path, "gateway-1", "its identity")
    path = tmp_path / "gateways" / f"gateway-1{SUFFIX}"
    before = path.stat().st_ino
    claim(tmp_path)
    assert path.stat().st_ino != before


def test_locations_and_abandoned_gateways_do_not_mix(tmp_path: Path) -> None:
    claim(tmp_path).places.keep("gateway-1", LogLocation("there", "its identity"))
    abandon(tmp_path, "gateway-1", "its identity")
    places = LogLocations(tmp_path)
    assert places.all() == {"gateway-1": LogLocation("there", "its identity")}
    assert list(places.abandoned) == ["gateway-1"]


def test_a_gateway_is_recognized_by_its_name_and_by_its_directory() -> None:
    abandoned = {"gateway-1": LOST, "gateway-2": AbandonedGateway("gateway-2", "", 3)}
    assert is_abandoned(AbandonedGateway("gateway-1", "a new directory", 0), abandoned)
    assert is_abandoned(AbandonedGateway("a new name", "its identity", 0), abandoned)
    assert is_abandoned(AbandonedGateway("gateway-2", "any", 0), abandoned)
    assert not is_abandoned(AbandonedGateway("gateway-3", "", 0), abandoned)


def test_only_records_of_an_abandoned_gateway_void_an_epoch() -> None:
    starts, ends = {"a": LogOffset(1)}, {"a": LogOffset(1), "b": LogOffset(2)}
    assert are_voided(starts, ends, ["b"])
    assert not are_voided(starts, ends, ["a", "c"])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"format":1}', b'{"format":1,"name":"n","what":1}'])
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(StorageError, match="is damaged"):
        AbandonedGateway.from_json(data, tmp_path)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert AbandonedGateway.from_json(LOST.as_json(), tmp_path) == LOST
