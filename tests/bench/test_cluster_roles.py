"""The benchmark of a cluster counts what each role has used, also of processes that have ended."""

from __future__ import annotations

import os

import pytest

from procession.bench.cluster_roles import (
    Usage,
    _cpu_s,
    _sent_bytes,
    costs_between,
    epoch_time_s,
    measure,
    report_lines,
)
from procession.errors import ProcessionError
from tests.systems.namespace_cluster import needs_cluster


def test_the_total_of_a_role_includes_processes_that_ended() -> None:
    usage = Usage({("executors", 1): 2.0, ("executors", 2): 3.0, ("driver", 3): 1.0}, {"executors host-2": 5})
    usage.sent_bytes["executors host-3"] = 7
    assert usage.by_role() == {"executors": 5.0, "driver": 1.0}
    assert usage.sent_by_host() == {"executors": 12}


def test_the_kernels_counters_of_a_process_are_read() -> None:
    assert _cpu_s(os.getpid()) > 0
    assert _sent_bytes(os.getpid()) >= 0


def test_the_time_of_an_epoch_is_from_commit_to_commit_in_the_second_half() -> None:
    second = 1_000_000_000
    assert epoch_time_s([0, 50 * second, 60 * second, 62 * second, 64 * second, 67 * second]) == 2.5


def test_the_report_names_each_run_and_each_role() -> None:
    run = {"cpu_us_per_record": {"driver": 0.5, "executors": 2.0}, "sent_bytes_per_record": {"driver": 40.0}}
    figures = {"records": 800, "executors": {"1": run}, "heavy_functions": run, "small_epoch_s": {"cluster": 0.25}}
    lines = list(report_lines(figures))
    assert lines[0] == "800 records a run; the first 2 of 8 epochs do not count"
    assert lines[1] == "1 executors: processor time, µs a record: driver 0.50, executors 2.00"
    assert lines[-1] == "an epoch of 100 records, cluster: 250 ms"


def test_a_cost_is_what_was_used_between_two_commits_of_a_cluster() -> None:
    first = Usage({("executors", 1): 2.0}, {"executors host-2": 1_000})
    last = Usage({("executors", 1): 4.0, ("executors", 2): 1.0}, {"executors host-2": 5_000})
    assert costs_between([(first, 100), (last, 200), (last, 1_000_100)]) == {
        "records": 1_000_000,
        "cpu_us_per_record": {"executors": 3.0},
        "sent_bytes_per_record": {"executors": 0.004},
    }
    with pytest.raises(ProcessionError, match="more --records"):
        costs_between([(last, 200)])


@needs_cluster
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_on_separate_hosts_the_time_of_functions_counts_for_executors() -> None:
    figures = measure([1], 40_000)
    light, heavy = figures["executors"]["1"], figures["heavy_functions"]
    assert {"driver", "executors", "gateway", "sink", "source"} <= light["cpu_us_per_record"].keys()
    assert heavy["cpu_us_per_record"]["executors"] > 2 * light["cpu_us_per_record"]["executors"]
    assert light["sent_bytes_per_record"]["executors"] > 0
    assert all(seconds > 0 for seconds in figures["small_epoch_s"].values())
