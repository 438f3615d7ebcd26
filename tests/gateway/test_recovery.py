"""The state with which a gateway starts, for every combination of files that a crash can leave in its directory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from procession.errors import ConfigError, StorageError
from procession.gateway import retired_file
from procession.gateway.gateway_directory import SNAPSHOT, find_identity, keep_identity, load_snapshot, save_snapshot
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.recovery import RecoveredGateway, open_directory, recover, renew
from procession.gateway.retired_streams import RetiredStreams, Retiring
from procession.gateway.snapshot import Position, Snapshot
from procession.merge.event_time import DeclaredOrder, ReplayPoint

SNAPSHOTS = ("none", "arrival", "event time", "retired", "damaged")
RETIRED_FILES = ("none", "whole", "longer", "shorter", "of another number")
IDENTITIES = ("none", "first format", "known", "damaged")
CLAIMS = ("elsewhere", "unclaimed", "claimed")
ORDERS = ("arrival", "event time")
LOGS = ("arrivals only", "ordered too")

IDENTITY = "0123456789abcdef0123456789abcdef"
COMMITTED = Snapshot(2, 5, 10, 12, {7: Position("seven", 70)})


def retiring() -> Retiring:
    return RetiredStreams(Limits()).retiring({8: 80}, 0.0)


def config_of(directory: Path, claim: str, order: str) -> GatewayConfig:
    declared = DeclaredOrder(frozenset({7, 8}), 0) if order == "event time" else None
    checkpoint = None if claim == "elsewhere" else directory.parent / "checkpoint"
    return GatewayConfig(directory, declared=declared, checkpoint=checkpoint)


def lay(directory: Path, snapshot: str, retired: str, identity: str, claim: str, log: str) -> None:
    """Write the files of one combination."""
    directory.mkdir(parents=True)
    write = retiring()
    assert write.mark is not None
    if snapshot == "damaged":
        (directory / SNAPSHOT).write_bytes(b'{"format":3,"fence"')
    elif snapshot != "none":
        taken = COMMITTED
        if snapshot == "event time":
            taken = replace(taken, point=ReplayPoint(4, {}, None, frozenset(), {}))
        elif snapshot == "retired":
            taken = replace(taken, retired=write.mark)
        save_snapshot(directory, taken)
    if retired != "none":
        number = write.mark.number + (1 if retired == "of another number" else 0)
        data = {"longer": write.data + b"not counted on", "shorter": write.data[:-1]}.get(retired, write.data)
        retired_file.path_of(directory, number).write_bytes(data)
    if identity == "known":
        keep_identity(directory, IDENTITY)
    elif identity != "none":
        (directory / "identity").write_text(IDENTITY if identity == "first format" else "{}")
    checkpoint = directory.parent / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    if claim == "claimed":
        (checkpoint / "CURRENT").write_text("3\n")
    if log == "ordered too":
        (directory / "ordered").mkdir()


def expected_error(snapshot: str, retired: str, identity: str, order: str, log: str) -> type[Exception] | None:
    if snapshot == "damaged":
        return StorageError
    if order == "arrival" and log == "ordered too":
        return ConfigError
    if order == "event time" and snapshot in ("arrival", "retired"):
        return ConfigError
    if snapshot == "retired" and retired not in ("whole", "longer"):
        return StorageError
    return StorageError if identity == "damaged" else None


def check(found: RecoveredGateway, snapshot: str, identity: str, claim: str, order: str) -> None:
    is_new = snapshot == "none"
    assert found.is_new is is_new
    assert found.snapshot.streams == ({} if is_new else COMMITTED.streams)
    assert found.snapshot.epoch == (-1 if is_new else 5)
    assert found.identity == (None if identity == "none" else IDENTITY)
    assert found.retired == (retiring().data if snapshot == "retired" else b"")
    assert found.is_confirmed is (identity == "none" and claim != "claimed")
    if order == "arrival":
        assert found.log_start == (0 if is_new else 10)
    else:
        assert found.log_start == (4 if snapshot == "event time" else 0)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("snapshot", SNAPSHOTS)
@pytest.mark.parametrize("retired", RETIRED_FILES)
@pytest.mark.parametrize("order", ORDERS)
def test_every_combination_of_files_has_one_outcome(tmp_path: Path, snapshot: str, retired: str, order: str) -> None:
    combinations = itertools.product(IDENTITIES, CLAIMS, LOGS)
    for number, (identity, claim, log) in enumerate(combinations):
        directory = tmp_path / str(number) / "gateway"
        lay(directory, snapshot, retired, identity, claim, log)
        before, config = contents(directory), config_of(directory, claim, order)
        error = expected_error(snapshot, retired, identity, order, log)
        if error is not None:
            with pytest.raises(error):
                recover(config)
            assert contents(directory) == before, "a refused start changes nothing"
            continue
        found = recover(config)
        assert contents(directory) == before, "reading changes nothing"
        check(found, snapshot, identity, claim, order)
        renew(directory, found)
        again = recover(config)
        assert again.snapshot.streams == found.snapshot.streams
        assert (again.retired, again.identity, again.log_start) == (found.retired, found.identity, found.log_start)
        files = sorted(directory.glob(f"{retired_file.PREFIX}*{retired_file.SUFFIX}"))
        if snapshot == "retired":
            assert found.snapshot.retired is not None
            assert files == [retired_file.path_of(directory, found.snapshot.retired.number)], (
                "the start writes one new file"
            )
        elif snapshot != "none":
            assert files == [], "no snapshot names it"


def test_the_directory_gets_an_identity_that_it_keeps(tmp_path: Path) -> None:
    assert find_identity(tmp_path) is None
    made = []
    for _ in range(2):
        opened = open_directory(GatewayConfig(tmp_path))
        opened.log.close()
        made.append(opened.identity)
    assert made == [find_identity(tmp_path)] * 2
    assert load_snapshot(tmp_path) is None
