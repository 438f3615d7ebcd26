"""Each task reads exactly one manifest from every task of the chain before it, or names those that are missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from procession import Pipeline
from procession.errors import RoundError, StorageError
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.spark.manifest_routing import (
    RoutedManifest,
    addressed,
    as_rows,
    attempts_digest,
    from_rows,
    is_shared,
    loaded,
    manifests,
    opened,
    sent,
    slots,
    unloaded,
    wide_exchanges,
)
from procession.storage.inline_runs import CELL_BYTES_MAX, CellStore
from procession.storage.run_store import EVERY_BUCKET, Manifest, Run
from tests.planner.pipelines import PIPELINES

PLAN = make_plan(PIPELINES["w1"]().graph())
"""A plan of three tasks, then four, then two."""


def of_first(partition: int, *runs: Run) -> Manifest:
    return Manifest(5, 0, partition, partition, partition + 1, runs=runs)


def all_sent() -> list[RoutedManifest]:
    return [envelope for partition in range(3) for envelope in sent(PLAN, of_first(partition), 3)]


def test_an_envelope_passes_through_json_unchanged() -> None:
    for run in (None, Run("spread", 2, "file", 3, 4, 1)):
        envelope = RoutedManifest(1, 2, 0, 1, 3, run, is_failed=True, attempt=7, piece=1, pieces=2)
        assert RoutedManifest.from_json(envelope.to_json()) == envelope
        assert RoutedManifest.from_json(replace(envelope, cell=b"rows").to_json(), b"rows") == replace(
            envelope, cell=b"rows"
        )


def test_a_task_sends_one_envelope_to_each_task_behind_and_its_manifest_to_the_driver() -> None:
    run = Run("rebalance-2.stage", 3, "file", 10, 100, 1)
    envelopes = sent(PLAN, of_first(1, run), 3)
    assert [(envelope.level, envelope.slot, envelope.run) for envelope in envelopes] == [
        (1, 0, None),
        (1, 1, None),
        (1, 2, None),
        (1, 3, run),
        (3, 1, None),
    ]
    assert Manifest.from_json(envelopes[-1].manifest).runs == (), "the driver does not get the messages between tasks"


def test_envelopes_that_pass_through_a_level_go_to_any_of_its_tasks() -> None:
    assert [slots(PLAN, level) for level in (1, 2)] == [[(1, bucket) for bucket in range(4)], [(2, 0), (2, 1)]]
    for envelope in all_sent():
        at = addressed(PLAN, 1, envelope)
        assert at == (envelope.slot if envelope.level == 1 else envelope.slot % 4)
        assert 0 <= addressed(PLAN, 2, envelope) < 2 or envelope.level == 1


def test_a_task_opens_one_envelope_from_each_task_before_it_in_their_order() -> None:
    mine = [envelope for envelope in reversed(all_sent()) if (envelope.level, envelope.slot) == (1, 2)]
    assert [envelope.partition for envelope in opened(PLAN, 1, 2, mine)] == [0, 1, 2]


def test_an_envelope_that_is_missing_doubled_misdirected_or_of_another_chain_is_found() -> None:
    mine = [envelope for envelope in all_sent() if (envelope.level, envelope.slot) == (1, 2)]
    other = [envelope for envelope in all_sent() if (envelope.level, envelope.slot) == (1, 1)]
    for wrong in (mine[:-1], [*mine, mine[0]], [], [*mine[:-1], other[0]], [*mine, replace(mine[0], chain=2)]):
        with pytest.raises(StorageError):
            opened(PLAN, 1, 2, wrong)


def wide() -> Plan:
    pipeline = Pipeline("wide", parallelism=40)
    pipeline.source().filter(len).rebalance().sink("out", to="file:out")
    return make_plan(pipeline.graph())


def test_a_task_sends_one_envelope_to_all_tasks_behind_a_wide_exchange_and_each_reads_its_own_bucket() -> None:
    plan = wide()
    (to,) = wide_exchanges(plan, 0)
    made = [
        envelope
        for task in range(40)
        for envelope in sent(plan, of_first(task, Run(to, EVERY_BUCKET, f"file-{task}", 9, 9)), 40)
    ]
    shared = [envelope for envelope in made if is_shared(1, envelope)]
    assert len(made) == 2 * 40, "one for the tasks behind, one for the driver"
    assert len(shared) == 40
    for slot in (0, 17, 39):
        runs = [envelope.run for envelope in opened(plan, 1, slot, reversed(shared))]
        assert [(run.file, run.bucket) for run in runs if run is not None] == [
            (f"file-{task}", slot) for task in range(40)
        ]
    with pytest.raises(StorageError, match="missing or duplicates"):
        opened(plan, 1, 17, shared[1:])


TASKS = ((0, 2), (1, 4), (2, 2))


def all_manifests(odd_one: tuple[int, int] | None = None, **changes: Any) -> list[RoutedManifest]:
    """Return the manifests of all tasks. Each has read the first attempt of every earlier task, with one exception."""
    tries = {
        number: attempts_digest(
            RoutedManifest(0, 0, number - 1, partition, tasks, attempt=1) for partition in range(tasks)
        )
        for number, tasks in ((1, 2), (2, 4))
    }
    reported = [
        Manifest(5, chain, partition, 0, 0, attempt=1, inputs_digest=tries.get(chain, 0))
        for chain, tasks in TASKS
        for partition in range(tasks)
    ]
    reported = [
        replace(manifest, **changes) if (manifest.stage, manifest.partition) == odd_one else manifest
        for manifest in reported
    ]
    tasks_of = dict(TASKS)
    return [
        envelope
        for one in reported
        for envelope in sent(PLAN, one, tasks_of[one.stage])
        if envelope.level == PLAN.levels
    ]


@pytest.mark.parametrize(
    ("task", "changes"), [((0, 1), {"attempt": 2}), ((2, 0), {"inputs_digest": 99}), ((1, 3), {"inputs_digest": 0})]
)
def test_an_epoch_whose_tasks_read_different_attempts_is_run_again(
    task: tuple[int, int], changes: dict[str, int]
) -> None:
    with pytest.raises(RoundError, match="another attempt"):
        manifests(PLAN, all_manifests(task, **changes))


def test_a_task_that_failed_is_reported_whatever_else_was_read() -> None:
    failure = {"kind": "RecordError", "sentence": "no", "next_step": "", "fields": {}}
    reported = manifests(PLAN, all_manifests((0, 1), attempt=2, failure=failure))
    assert [manifest.failure for manifest in reported if manifest.failure] == [failure]


# Cells


def celled(rows: int) -> tuple[Manifest, CellStore]:
    store = CellStore()
    writer = store.writer(5, 0, 1, 9)
    payload = pa.array([b"x" * 1000] * rows, pa.binary())
    for bucket in (1, 3):
        writer.add("rebalance-2.stage", pa.record_batch({"payload": payload, "order_0": pa.array(range(rows))}), bucket)
    return writer.publish(of_first(1)), store


def test_a_run_goes_along_in_cells_of_bounded_size_and_is_whole_again_in_whatever_order_they_come() -> None:
    rows = 3 * CELL_BYTES_MAX // 1000
    manifest, store = celled(rows)
    sending = list(loaded(sent(PLAN, manifest, 3), store))
    assert max(len(envelope.cell or b"") for envelope in sending) < 1.1 * CELL_BYTES_MAX
    assert {envelope.pieces for envelope in sending if envelope.cell} == {3}
    batches = list(as_rows(PLAN, 1, sending[::-1]))
    assert len(batches) > 1, "no more than a few cells are held as one batch"
    other = CellStore()
    came = unloaded([envelope for batch in batches for envelope in from_rows(batch)], other)
    assert sorted(envelope.slot for envelope in came if envelope.level == 1) == [0, 1, 2, 3]
    for envelope in came:
        if envelope.run is not None:
            found = pa.concat_batches(list(other.read(5, envelope.run)))
            assert found.column("order_0").to_pylist() == list(range(rows))


def test_a_cell_that_is_missing_doubled_or_torn_is_found() -> None:
    manifest, store = celled(3 * CELL_BYTES_MAX // 1000)
    sending = [envelope for envelope in loaded(sent(PLAN, manifest, 3), store) if envelope.slot == 1 and envelope.cell]
    for wrong in (sending[:-1], sending[1:], [*sending, sending[0]]):
        with pytest.raises(StorageError, match="has 3 cells"):
            unloaded(wrong, CellStore())
    torn = CellStore()
    unloaded([replace(envelope, cell=(envelope.cell or b"")[:100]) for envelope in sending], torn)
    assert sending[0].run is not None
    with pytest.raises(StorageError, match="is incomplete"):
        list(torn.read(5, sending[0].run))
    with pytest.raises(StorageError, match="did not come"):
        list(CellStore().read(5, sending[0].run))


def test_a_task_holds_no_more_cells_than_it_may() -> None:
    store = CellStore(bytes_max=1000)
    store.put("one", [b"x" * 600])
    with pytest.raises(StorageError, match="more than 1,000 bytes") as caught:
        store.put("two", [b"x" * 600])
    assert "epoch_bytes_max" in caught.value.next_step


def test_the_driver_requires_a_manifest_of_every_task_of_every_chain() -> None:
    reported = all_manifests()
    got = manifests(PLAN, reported[::-1])
    assert [(manifest.stage, manifest.partition) for manifest in got] == [
        (chain, partition) for chain, tasks in TASKS for partition in range(tasks)
    ]
    for wrong in (reported[:-1], reported[1:], [*reported, reported[3]]):
        with pytest.raises(StorageError, match="the driver got envelopes from"):
            manifests(PLAN, wrong)
