"""The benchmark of peers: how outputs are read and compared, figures, and programs that fail. One test runs Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from procession.bench import peer_systems
from procession.bench.peer_systems import PEERS, Job, ProgramRuns, measure, report_lines
from procession.errors import ConfigError, ProcessionError, StorageError, UsageError


def test_a_rate_is_that_of_the_additional_records() -> None:
    runs = ProgramRuns(short_s=[2.0, 3.0, 2.0], long_s=[3.0, 4.0, 9.0], cpu_s=[1.0, 2.0, 3.0])
    found = runs.figures(1_000_000)
    assert found == {"records_per_second": 1_000_000.0, "cpu_us_per_record": 2.0, "short_run_s": 2.0}


def test_a_rate_that_the_start_hides_is_not_told() -> None:
    found = ProgramRuns(short_s=[3.0], long_s=[2.9], cpu_s=[0.1]).figures(10)
    assert found["records_per_second"] is None
    row = {**found, "guarantee": "exactly once", "order": "total"}
    assert "too few records" in next(iter(report_lines({"peers": {"bytewax": row}})))


def test_the_outputs_of_all_kinds_are_read_as_lines(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"1,a\n2,b\n")
    assert list(PEERS["bytewax"].lines(tmp_path / "lines")) == [b"1,a", b"2,b"]
    (tmp_path / "table").write_text('record,time,diff\n"1,a",7,1\n"2,b",7,1\n')
    assert list(PEERS["pathway"].lines(tmp_path / "table")) == [b"1,a", b"2,b"]
    for name in ("_spark_metadata/0", ".part-1.crc", "part-1", "part-0", "_SUCCESS"):
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_text(f"{name}\n")
    assert list(PEERS["pyspark"].lines(tmp_path / "files")) == [b"part-0", b"part-1"]


@pytest.mark.parametrize("name", ["bytewax", "pathway"])
def test_an_output_that_is_not_the_loops_is_refused(name: str, tmp_path: Path) -> None:
    expected = [b"1,a", b"2,b"]

    def check(*lines: str) -> None:
        table = "record,time,diff\n" + "".join(f'"{line}",7,1\n' for line in lines)
        (tmp_path / "output").write_text(table if name == "pathway" else "".join(f"{line}\n" for line in lines))
        peer_systems._check(name, tmp_path / "output", expected)

    check("1,a", "2,b")
    for wrong in (("1,a",), ("1,a", "2,b", "2,b"), ("1,a", "2,c")):
        with pytest.raises(StorageError, match=f"the output of {name} is not"):
            check(*wrong)
    if PEERS[name].keeps_order:
        with pytest.raises(StorageError):
            check("2,b", "1,a")
    else:
        check("2,b", "1,a")


def test_a_program_that_fails_is_a_sentence_with_its_last_lines(tmp_path: Path) -> None:
    run = Job(tmp_path / "input", tmp_path / "work")
    with pytest.raises(ProcessionError, match="pyspark failed: no such option"):
        peer_systems._timed("pyspark", ("/bin/sh", "-c", "echo no such option; exit 3"), run)


def test_processor_time_has_that_of_descendants_that_were_left_behind(tmp_path: Path) -> None:
    run = Job(tmp_path / "input", tmp_path / "work")
    busy = "import time\nwhile time.process_time() < 0.4: pass"
    left = ("/bin/sh", "-c", f"'{sys.executable}' -c '{busy}' & exit 0")
    assert peer_systems._timed("pyspark", left, run)[1] >= 0.3


def test_an_unknown_or_missing_program_is_reported_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no program 'storm'"):
        measure(10, 1, ["storm"], tmp_path)
    with pytest.raises(ConfigError, match="bytewax is not installed") as refusal:
        measure(10, 1, ["procession", "bytewax"], tmp_path)
    assert refusal.value.next_step == "Run scripts/peers bytewax."


@pytest.mark.slow  # starts Spark four times
def test_plain_pyspark_and_ours_give_the_lines_of_the_loop(tmp_path: Path) -> None:
    found = measure(2_000, 1, ["procession", "pyspark"], tmp_path)
    assert set(found["peers"]) == {"procession", "pyspark"}
