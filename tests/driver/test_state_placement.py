"""The hit rate of placement is the share of tasks that found their states where they ran."""

from __future__ import annotations

from dataclasses import replace

from procession.driver.state_placement import StatePlacement
from procession.storage.state_version import StateVersion, file_prefix
from tests.driver.test_driver_reports import record_of


def state_file(task: int, epoch: int) -> str:
    return f"{file_prefix(1, 'totals', task, epoch, 7)}-0.state"


def test_a_task_counts_once_for_each_epoch_that_it_begins_with_states() -> None:
    placement = StatePlacement()
    files = tuple(((state_file(task, 0), 10),) for task in range(3))
    record = replace(record_of(0), states={"totals": StateVersion((*files, ()))})
    assert placement.as_json() == {"tasks": 0, "moved": 0, "hit_rate": None}
    placement.committed(record)
    placement.committed(record)
    assert placement.as_json() == {"tasks": 3, "moved": 0, "hit_rate": 1.0}
    for name in (state_file(1, 0), state_file(1, 1), state_file(2, 0), "another file"):
        placement.fetched(name)
    placement.committed(record)
    assert placement.as_json() == {"tasks": 6, "moved": 2, "hit_rate": 0.6667}
