"""Parcels: each task opens exactly one from every task before it, or says which are missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from procession.errors import StorageError
from procession.plan.planner import make_plan
from procession.spark.parcels import Parcel, addressed, manifests, opened, sent, slots
from procession.storage.runs import Manifest, Run

from ..plan.pipelines import PIPELINES

PLAN = make_plan(PIPELINES["w1"]().graph())
"""Three tasks, then four, then two."""


def of_first(partition: int, *runs: Run) -> Manifest:
    return Manifest(5, 0, partition, partition, partition + 1, runs=runs)


def all_sent() -> list[Parcel]:
    return [parcel for partition in range(3) for parcel in sent(PLAN, of_first(partition), 3)]


def test_a_parcel_passes_through_json_unchanged() -> None:
    for run in (None, Run("spread", 2, "file", 3, 4, 1)):
        parcel = Parcel(1, 2, 0, 1, 3, run, is_failed=True)
        assert Parcel.from_json(parcel.to_json()) == parcel


def test_a_task_sends_one_parcel_to_each_task_behind_and_its_manifest_to_the_driver() -> None:
    run = Run("rebalance-2", 3, "file", 10, 100, 1)
    parcels = sent(PLAN, of_first(1, run), 3)
    assert [(parcel.level, parcel.slot, parcel.run) for parcel in parcels] == [
        (1, 0, None),
        (1, 1, None),
        (1, 2, None),
        (1, 3, run),
        (3, 1, None),
    ]
    assert Manifest.from_json(parcels[-1].manifest).runs == (), "the driver need not know what tasks gave one another"


def test_parcels_that_pass_through_a_level_go_to_any_of_its_tasks() -> None:
    assert [slots(PLAN, level) for level in (1, 2)] == [[(1, bucket) for bucket in range(4)], [(2, 0), (2, 1)]]
    for parcel in all_sent():
        at = addressed(PLAN, 1, parcel)
        assert at == (parcel.slot if parcel.level == 1 else parcel.slot % 4)
        assert 0 <= addressed(PLAN, 2, parcel) < 2 or parcel.level == 1


def test_a_task_opens_one_parcel_from_each_task_before_it_in_their_order() -> None:
    mine = [parcel for parcel in reversed(all_sent()) if (parcel.level, parcel.slot) == (1, 2)]
    assert [parcel.partition for parcel in opened(PLAN, 1, 2, mine)] == [0, 1, 2]


def test_a_parcel_that_is_missing_doubled_misdirected_or_of_another_chain_is_found() -> None:
    mine = [parcel for parcel in all_sent() if (parcel.level, parcel.slot) == (1, 2)]
    other = [parcel for parcel in all_sent() if (parcel.level, parcel.slot) == (1, 1)]
    for wrong in (mine[:-1], [*mine, mine[0]], [], [*mine[:-1], other[0]], [*mine, replace(mine[0], chain=2)]):
        with pytest.raises(StorageError):
            opened(PLAN, 1, 2, wrong)


def test_the_driver_wants_a_manifest_of_every_task_of_every_chain() -> None:
    told = [
        parcel
        for chain, tasks in ((0, 2), (1, 4), (2, 2))
        for partition in range(tasks)
        for parcel in sent(PLAN, Manifest(5, chain, partition, 0, 0), tasks)
        if parcel.level == PLAN.levels
    ]
    got = manifests(PLAN, told[::-1])
    assert [(manifest.stage, manifest.partition) for manifest in got] == [
        (chain, partition) for chain, tasks in ((0, 2), (1, 4), (2, 2)) for partition in range(tasks)
    ]
    for wrong in (told[:-1], told[1:], [*told, told[3]]):
        with pytest.raises(StorageError, match="the driver was told by"):
            manifests(PLAN, wrong)
