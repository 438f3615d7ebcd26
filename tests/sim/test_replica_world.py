"""Object services and writers on simulated hosts: clean runs are clean, and every planted bug is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from procession.sim.disk import Directory
from procession.sim.replica_world import ReplicaPlan, make_replica_plan, replica_world
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sos import quorum, quorum_copies, volume
from procession.sos.object_file import ObjectFile
from procession.sos.quorum import QuorumWriter
from procession.sos.quorum_copies import CopyView, claims_needed, is_claimed
from procession.sos.volume_rules import ObjectHead, RefusalCode, VolumeState, check_create, refused
from procession.storage.durable import write_durably
from tests.runtime.test_files import simulated
from tests.sim.breach_search import event_log, first_breach

Patch = pytest.MonkeyPatch


def test_acknowledged_data_survives_lost_machines() -> None:
    assert first_breach(replica_world, range(60)) is None


@pytest.mark.slow
def test_acknowledged_data_survives_lost_machines_in_many_runs() -> None:
    assert first_breach(replica_world, range(60, 20_000)) is None


def test_a_run_depends_on_its_seed_only() -> None:
    for seed in range(3):
        assert event_log(replica_world, seed) == event_log(replica_world, seed) != []


def test_runs_have_faults_and_several_writers() -> None:
    injected, writers = set(), 0
    for seed in range(40):
        with replica_world(make_replica_plan(random.Random(seed)), random.Random(seed)) as world:
            assert world.run() is None
            injected |= {fault.kind for fault in world.site.injected}
            writers += len(world.oracle.histories)
    assert {"lose", "lie", "power", "kill", "takeover", "cut", "full", "fsync", "pause"} <= injected
    assert writers > 60


@pytest.mark.parametrize(
    ("replicas", "write_quorum", "losses", "lying_services_max"),
    [(1, 1, 0, 0), (2, 2, 0, 0), (3, 2, 1, 0), (3, 3, 1, 1), (5, 3, 2, 0), (5, 4, 2, 1)],
)
def test_the_faults_are_those_that_the_decision_promises_to_survive(
    replicas: int, write_quorum: int, losses: int, lying_services_max: int
) -> None:
    plan = ReplicaPlan(replicas, write_quorum, 1, 1, ())
    assert (plan.losses, plan.lying_services_max) == (losses, lying_services_max)


def acknowledged_before_the_quorum(patch: Patch) -> None:
    patch.setattr(quorum, "is_written", lambda head, identities: bool(identities))


def restored_from_a_minority(patch: Patch) -> None:
    patch.setattr(quorum_copies, "claims_needed", lambda config: 1)


def an_empty_copy_counts_as_a_member(patch: Patch) -> None:
    def claimed(found: ObjectHead, identities: set[bytes]) -> bool:
        return is_claimed(found, identities) or len(identities) >= claims_needed(found.config)

    patch.setattr(quorum, "is_claimed", claimed)


def the_write_back_is_skipped(patch: Patch) -> None:
    """Skip the write-back of a recovered history, without a check by the service."""
    before = QuorumWriter._bring_up

    def bring_up(self: QuorumWriter, replica: int, copy: CopyView) -> list[Any]:
        whole, self.chain = self.chain, self.chain[-1:]
        try:
            return before(self, replica, copy)
        finally:
            self.chain = whole

    def check(state: Any, fence: int, number: int, found: ObjectHead, mark: int, _: Any) -> bool:
        return check_create(state, fence, number, found, mark, lambda *_: found.checksum)

    patch.setattr(QuorumWriter, "_bring_up", bring_up)
    patch.setattr(volume, "check_create", check)


def two_leaders(patch: Patch) -> None:
    patch.setattr(volume, "check_holder", lambda *_: None)


def restored_twice_from_different_quorums(patch: Patch) -> None:
    """Let two restores have the same fence, each at other copies."""

    def check(state: VolumeState, fence: int, _: bytes) -> None:
        if fence < state.promised:
            raise refused(RefusalCode.FENCED, "The fence is too low.", state.promised)

    patch.setattr(volume, "check_claim", check)
    patch.setattr(volume, "check_holder", check)


def called_synced_before_it_is(patch: Patch) -> None:
    def sync(self: ObjectFile) -> None:
        self.synced = self.index.written

    patch.setattr(ObjectFile, "sync", sync)


PLANTED: list[tuple[Callable[[Patch], None], int]] = [
    (acknowledged_before_the_quorum, 0),
    (restored_from_a_minority, 0),
    (an_empty_copy_counts_as_a_member, 1560),
    (the_write_back_is_skipped, 50),
    (two_leaders, 0),
    (restored_twice_from_different_quorums, 0),
    (called_synced_before_it_is, 0),
]
"""Each planted bug, with the seed at which the search starts, because some are rare."""


@pytest.mark.parametrize(("plant", "first"), PLANTED)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], first: int, monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert first_breach(replica_world, range(first, first + 2000)) is not None


def test_a_disk_that_falsely_reports_syncs_loses_data() -> None:
    files = simulated()
    write_durably(Path("kept"), b"x", files)
    files.disk.is_lying = True
    write_durably(Path("lost"), b"x", files)
    names = {tuple(sorted(_after_power_cut(files, seed).names)) for seed in range(20)}
    assert ("kept",) in names
    assert all("kept" in found for found in names)


def _after_power_cut(files: SimulatedFileSystem, seed: int) -> Directory:
    disk = deepcopy(files.disk)
    disk.cut_power(random.Random(seed))
    return disk.root
