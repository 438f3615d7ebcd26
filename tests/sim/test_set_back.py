"""In a simulation, a gateway's directory is set back or lost. It is refused before producers are admitted, and the run
continues with the original directory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from procession.errors import ConfigError, StorageError
from procession.gateway.confirmation import check_offered
from procession.sim.environment import Machine
from procession.sim.fault_plan import SET_BACKS, FaultPlan, PlannedFault, SinkPlan, StreamPlan
from procession.sim.runner import SCHEDULE, plan_of
from procession.sim.set_back import copied
from procession.sim.simulated_files import SimulatedFileSystem
from procession.sim.simulated_process import SimulatedProcess
from procession.sim.world import World
from procession.storage.log import IngressLog
from procession.storage.log_reader import LogReader
from procession.storage.segment import INGRESS_SCHEMA

FIRST, OTHER = 0x1234, 0x5678


def sets_back(plan: FaultPlan) -> bool:
    return any(fault.kind in SET_BACKS for fault in plan.faults)


def rows(*message_ids: int) -> pa.RecordBatch:
    rows = [{"kind": 0, "stream_id": 1, "message_id": message_id, "payload": b"x"} for message_id in message_ids]
    return pa.RecordBatch.from_pylist(rows, INGRESS_SCHEMA)


@pytest.fixture
def files() -> SimulatedFileSystem:
    machine = Machine("m")
    return SimulatedFileSystem(SimulatedProcess(World(plan_of(0), random.Random(0)).site, "p", machine), machine.disk)


def opened(files: SimulatedFileSystem, incarnation: int, segment_bytes_max: int = 1) -> IngressLog:
    return IngressLog(
        Path("log"), segment_bytes_max=segment_bytes_max, files=files, new_incarnation=lambda: incarnation
    )


@pytest.mark.parametrize("segment_bytes_max", [1, 1_200, 1_000_000])
def test_a_log_is_recognized_after_it_was_rolled_opened_and_trimmed(
    files: SimulatedFileSystem, segment_bytes_max: int
) -> None:
    log = opened(files, FIRST, segment_bytes_max)
    offsets = []
    for number in range(5):
        log.append(rows(2 * number, 2 * number + 1))
        log.sync()
        offsets += [log.offset(2 * number + 1), log.offset(2 * number + 2)]
    log = opened(files, OTHER, segment_bytes_max)
    assert [log.offset(sequence) for sequence in range(1, 11)] == offsets
    assert {offset.incarnation for offset in offsets} == {f"{FIRST:016x}"}
    log.trim(6)
    for offset in offsets[6:]:
        check_offered(log, offset, "g")


def test_an_older_copy_is_another_log_also_when_it_is_filled_up_again(files: SimulatedFileSystem) -> None:
    log = opened(files, FIRST)
    log.append(rows(0))
    log.sync()
    found = files.disk.directory("log")
    assert found is not None
    copy = copied(found)
    log.append(rows(1))
    log.sync()
    offered = log.offset(2)
    files.disk.root.change({"log": copy})
    files.disk.renamed()
    log = opened(files, OTHER)
    with pytest.raises(StorageError, match="it ends at record 1"):
        check_offered(log, offered, "g")
    log.append(rows(2))
    with pytest.raises(StorageError, match="the records before 2 are different"):
        check_offered(log, offered, "g")
    with pytest.raises(StorageError, match="the records before 2 are different"):
        list(LogReader(Path("log"), files=files).read(0, 2, offered))


def test_a_new_directory_is_another_log_also_when_the_same_records_are_in_it(files: SimulatedFileSystem) -> None:
    log = opened(files, FIRST)
    log.append(rows(0))
    offered = log.offset(1)
    files.disk.root.change({"log": None})
    files.disk.renamed()
    log = opened(files, OTHER)
    log.append(rows(0))
    with pytest.raises(StorageError, match="created again"):
        check_offered(log, offered, "g")


@pytest.mark.parametrize("is_several", [False, True])
def test_a_directory_that_is_set_back_or_lost_is_refused_or_completed_before_producers_are_admitted(
    monkeypatch: pytest.MonkeyPatch, is_several: bool
) -> None:
    repaired = {"set-back": 0, "lost": 0, "told": 0}
    plans = (plan for seed in range(2_000) if sets_back(plan := plan_of(seed)))
    for plan in [plan for plan in plans if (plan.gateways > 1) is is_several]:
        world = World(plan, random.Random(plan.seed ^ SCHEDULE), is_recorded=True)
        site = world.site
        before = site.oracle.opened

        def opens(stream: int, point: int, site: Any = site, before: Any = before) -> None:
            # With several gateways, the others continue.
            assert is_several or not site.set_back
            before(stream, point)

        monkeypatch.setattr(site.oracle, "opened", opens)
        outcome = world.run()
        assert outcome.breach is None
        log = "\n".join(outcome.event_log)
        *_, fault = (fault for fault in plan.faults if fault.kind in repaired)
        if "put back" in log:
            repaired[fault.kind] += 1
            wrong, _, rest = log.partition("! the directory is ")[2].partition("= the newest directory is put back")
            assert "! refuses: " in wrong
            has_returned = any(line.split()[1:2] == [fault.part] for line in rest.splitlines())
            assert "= recovered" in rest or not has_returned, "a run whose records are all shown may end first"
        repaired["told"] += "= the copy is taken" in log
    assert min(repaired.values()) >= 3


def test_plans_without_this_fault_are_unchanged() -> None:
    plans = [plan_of(seed) for seed in range(500)]
    assert 5 < sum(sets_back(plan) and plan.gateways == 1 for plan in plans) < 30
    assert 5 < sum(sets_back(plan) and plan.gateways > 1 for plan in plans) < 40


@pytest.mark.parametrize("gateways", [1, 3])
def test_this_fault_occurs_at_a_gateway(gateways: int) -> None:
    fault = PlannedFault(f"gateway-{gateways - 1}" if gateways > 1 else "gateway", 1, "lost", 0.1)
    plan = FaultPlan(1, (StreamPlan(1, True),), (SinkPlan(),), (fault,), gateways=gateways)
    assert FaultPlan.from_json(plan.to_json()) == plan
    with pytest.raises(ConfigError, match="is done to a gateway"):
        FaultPlan.from_json(plan.with_faults((PlannedFault("driver", 1, "lost", 0.1),)).to_json())
