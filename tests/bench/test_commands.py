"""`procession bench`: its commands run at a small size and report the figures that they document.

Invariant: no test expects a speed, so a busy machine fails none.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from procession.bench import column_speed
from procession.cli.main import app
from procession.errors import StorageError
from procession.operators.column_stages import column_stages
from tests.systems.postgres_server import needs_postgres

NAMES = (
    "cluster",
    "control-plane",
    "epoch-time",
    "start",
    "recovery",
    "decode",
    "gateway",
    "producers",
    "credits",
    "memory",
    "listing1",
    "conflux",
    "merge",
    "order",
    "loop",
    "epoch-sizes",
    "growth",
    "columns",
    "state",
    "kafka",
    "postgres",
    "delta",
    "replication",
)


def benched(*arguments: str) -> dict[str, Any]:
    with capture_logs():  # in this process nobody has told structlog to write to standard error
        result = CliRunner().invoke(app, ["bench", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures: dict[str, Any] = json.loads(result.stdout)
    return figures


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_is_in_the_list_and_can_answer_in_json(name: str) -> None:
    runner = CliRunner()
    assert name in runner.invoke(app, ["bench", "--help"]).output
    assert "--json" in runner.invoke(app, ["bench", name, "--help"], env={"NO_COLOR": "1"}).output


def test_figures_come_with_the_command_that_repeats_them() -> None:
    figures = benched("decode", "--frames", "1000", "--rounds", "1")
    assert figures["command"] == "procession bench decode --frames 1000 --rounds 1"
    assert figures["decode"].keys() == {"struct", "columns", "ratio"}
    assert figures["encode"].keys() == {"struct", "numpy", "columns", "ratio"}


@pytest.mark.slow  # 73 processes, and three gateways that warm up
def test_many_producers_are_compared_with_one_and_the_memory_of_idle_ones_is_measured() -> None:
    figures = benched("producers", "--records", "6400", "--rounds", "1", "--connections", "20")["producers"]
    assert figures.keys() == {"1", "8", "64", "idle"}
    assert figures["1"]["ratio"] == 1
    assert (figures["idle"]["connections"], figures["idle"]["streams"]) == (20, 200)


@needs_postgres
@pytest.mark.slow
def test_the_postgres_sink_is_compared_with_plain_copy_in_both_modes() -> None:
    figures = benched("postgres", "--records", "2000", "--epochs", "2", "--rounds", "1")
    assert figures["rows_per_s"].keys() == {"copy", "prepared", "prepared_arrow", "token"}
    assert figures["ratio"].keys() == {"prepared", "prepared_arrow", "token"}
    assert all(rate > 0 for rate in figures["rows_per_s"].values())


@pytest.mark.slow
def test_the_delta_sink_is_compared_with_plain_writes_of_the_same_rows() -> None:
    figures = benched("delta", "--records", "2000", "--epochs", "2", "--rounds", "1")
    for what in ("ratio", "cpu_ratio"):
        assert figures[what].keys() == {"json", "arrow"}
        assert all(ratio > 0 for ratio in figures[what].values())


def test_without_json_the_command_is_printed_below_the_figures() -> None:
    result = CliRunner().invoke(app, ["bench", "decode", "--frames", "1000", "--rounds", "1"])
    assert result.stdout.splitlines()[-1] == "(procession bench decode --frames 1000 --rounds 1)"


@pytest.mark.slow
def test_listing_1_reports_the_cost_of_order() -> None:
    figures = benched("listing1", "--records", "2000", "--epoch-records", "1000", "--rounds", "1")
    for variant in ("ordered", "unordered", "baseline"):
        assert figures[variant].keys() == {"records_per_second", "mean_latency_s", "cpu_us_per_record"}
        assert min(figures[variant].values()) > 0
    assert {"ordered_to_unordered_throughput", "ordered_to_baseline_throughput"} <= figures["ratios"].keys()
    assert "ordered_to_baseline_mean_latency" in figures["ratios"]
    assert figures["records_out"] == 1714


@pytest.mark.slow
def test_states_are_compared_with_a_dictionary_and_with_those_of_spark() -> None:
    sizes = ("--records", "2000", "--epoch-records", "1000", "--many-keys", "20000", "--warm-epochs", "1")
    figures = benched("state", "--keys", "100", *sizes, "--rounds", "2")
    for variant in ("ours", "dictionary", "spark_rows", "spark_pandas"):
        assert figures[variant]["records_per_second"] > 0
        assert figures[variant]["cpu_us_per_record"] > 0
    # An epoch writes in proportion to the keys that it changes, not to all keys.
    few, many, *_ = figures["touched"]
    assert (few["keys"], few["of"], many["keys"], many["of"]) == (100, 100, 1000, 20_000)
    assert 0 < few["written_bytes"] < many["written_bytes"] < 30 * few["written_bytes"]


def test_columns_are_compared_with_functions_and_have_the_same_output() -> None:
    figures = benched("columns", "--records", "300", "--keys", "7", "--epochs", "2", "--rounds", "2")
    for workload in ("window", "keys"):
        found = figures[workload]
        for form in ("functions", "functions_with_schema", "columns"):
            assert min(found[form]["records_per_second"], found[form]["cpu_us_per_record"]) > 0
        assert found["ratio"].keys() == found["cpu_ratio"].keys() == {"functions", "functions_with_schema"}


def test_a_form_with_another_output_is_named() -> None:
    outputs = {"functions": b"1", "columns": b"2"}
    with pytest.raises(StorageError, match="the output of 'keys' as 'columns' differs from that as 'functions'"):
        column_speed.check_equal("keys", outputs)


def test_the_pipelines_that_are_compared_are_on_columns_in_one_form_only() -> None:
    for workload in column_speed.WORKLOADS:
        for form in column_speed.FORMS:
            found = column_stages(column_speed.pipeline_of(workload, form).graph())
            assert bool(found.types) is bool(found.keyed) is (form == "columns")


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["w1", "w2"])
def test_the_smaller_workloads_run_too(workload: str) -> None:
    figures = benched("listing1", "--workload", workload, "--records", "2000", "--rounds", "1")
    assert figures["records_out"] == 1714


@pytest.mark.slow
def test_the_benchmark_loop_reports_the_ratio_to_the_pipeline() -> None:
    figures = benched("loop", "--records", "5000", "--warm-records", "1000", "--warm-s", "0", "--rounds", "1")
    for form in ("by_record", "by_batch", "by_fields", "fields_by_batch"):
        one = figures["forms"][form]
        assert min(one["records_per_second"], one["loop_records_per_second"], one["ratio"], one["start_s"]) > 0
        assert {"gateway", "source", "Python workers"} <= one["cpu_us_per_record"].keys()


@pytest.mark.slow  # two gateways and two pipelines, and two replicas for one of each
def test_the_cost_of_replicas_is_reported() -> None:
    figures = benched("replication", "--records", "20000", "--rounds", "1", "--pipeline-records", "20000")
    assert figures["share"] > 0
    assert figures["replicated_bytes_per_byte"] > 0.5
    assert figures["replicated_file_ms"] > 0
    pipeline = figures["pipeline"]
    assert min(pipeline["full_share"], pipeline["half_share"]) > 0
    assert pipeline["full"]["2"]["replicated_bytes_per_byte"] > 1
    assert pipeline["full"]["2"]["cpu_ns_byte"]["each replica"] > 0
    assert pipeline["small_commit_ms"].keys() == {"0", "2"}


@pytest.mark.slow
def test_a_start_is_divided_into_phases_and_parts() -> None:
    figures = benched("start", "--rounds", "1")
    phases = figures["seconds"]
    assert 0 < phases["gateway ready"] < phases["driver ready"] < phases["first commit"] <= figures["worst_s"]
    assert {"driver (JVM)", "driver (Python)", "gateway", "sink", "Python workers"} <= figures["cpu_s"].keys()
    assert figures["cpu_total_s"] == pytest.approx(sum(figures["cpu_s"].values()))


@pytest.mark.slow
def test_growth_tells_time_and_memory_of_each_size() -> None:
    figures = benched("growth", "--records", "2000", "--records", "20000")
    assert list(figures["sizes"]) == ["2000", "20000"]
    for size in figures["sizes"].values():
        assert size["seconds"] > 0
        assert {"gateway", "sink", "driver (JVM)"} <= size["memory_mib"].keys()
    assert figures["time_relative_to_linear"].keys() == figures["cpu_relative_to_linear"].keys() == {"20000"}
