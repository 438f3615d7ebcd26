"""A replicated directory on simulated hosts: synced data survives the loss of its machine, and every planted bug is
found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from procession.sim.directory_world import directory_world
from procession.sos.file_journal import FileJournal
from procession.sos.quorum import QuorumWriter
from procession.sos.replicated_files import ReplicatedFiles
from tests.sim.breach_search import event_log, first_breach

Patch = pytest.MonkeyPatch


def test_synced_data_survives_the_loss_of_its_machine() -> None:
    assert first_breach(directory_world, range(40)) is None


@pytest.mark.slow
def test_synced_data_survives_the_loss_of_its_machine_in_many_runs() -> None:
    assert first_breach(directory_world, range(40, 10_000)) is None


def test_a_run_depends_on_its_seed_only() -> None:
    for seed in range(3):
        assert event_log(directory_world, seed) == event_log(directory_world, seed) != []


def a_sync_does_not_wait_for_the_quorum(patch: Patch) -> None:
    patch.setattr(FileJournal, "wait", lambda self, barrier: None)


def a_claim_that_another_has_won_counts_as_own(patch: Patch) -> None:
    claim = QuorumWriter._claim

    def claimed(self: QuorumWriter, fence: int) -> object:
        self._own_fences |= {fence}
        return claim(self, fence)

    patch.setattr(QuorumWriter, "_claim", claimed)


def a_name_is_not_journalled_when_it_is_replaced(patch: Patch) -> None:
    def rename(self: ReplicatedFiles, old: object, new: object) -> None:
        self.inner.rename(old, new)  # type: ignore[arg-type]

    patch.setattr(ReplicatedFiles, "rename", rename)


@pytest.mark.parametrize(
    "plant",
    [
        a_sync_does_not_wait_for_the_quorum,
        a_claim_that_another_has_won_counts_as_own,
        a_name_is_not_journalled_when_it_is_replaced,
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert first_breach(directory_world, range(600)) is not None
