"""`procession merge` as a command: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.sdk.lanes import LaneWriter, dealt
from tests.walk.commands import run, running


def written(directory: Path, epochs: int = 2) -> LaneWriter:
    writer = LaneWriter(directory, 3)
    for epoch in range(epochs):
        writer.epoch(dealt(range(epoch * 100, epoch * 100 + 100), 3, epoch))
    return writer


def lines(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


def test_merge_prints_the_sequence_and_a_summary(tmp_path: Path) -> None:
    written(tmp_path / "lanes")
    done = run("merge", "lanes:lanes", "--verify", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, lines(200))
    assert done.stderr.splitlines()[-1] == "merged 200 records of 2 epochs"


def test_lanes_of_two_pipelines_are_merged_by_event_time_and_a_second_run_continues(tmp_path: Path) -> None:
    writers = [LaneWriter(tmp_path / name, 2, pipeline=name) for name in ("even", "odd")]
    command = ("merge", "lanes:even", "lanes:odd", "--by-event-time", "--verify")
    for start in (0, 200):
        for parity, writer in enumerate(writers):
            writer.epoch(dealt(range(start + parity, start + 200, 2), 2, start))
        done = run(*command, "--to", "file:out", "--transaction-bytes", "300", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert run("cat", "out", cwd=tmp_path).stdout == lines(start + 200)
    assert json.loads(done.stderr.splitlines()[-1])["records"] == 400
    assert run(*command, cwd=tmp_path).stdout == lines(400)
    refused = run("merge", "lanes:even", "--by-event-time", "--to", "file:out", cwd=tmp_path)
    assert "The position belongs to 2 pipelines, but 1 are given" in refused.stderr


def test_a_pipeline_that_delays_another_is_named(tmp_path: Path) -> None:
    for name, numbers in (("even", range(0, 100, 2)), ("odd", range(1, 50, 2))):
        LaneWriter(tmp_path / name, 2, pipeline=name).epoch(dealt(list(numbers), 2, 1))
    with running("merge", "lanes:even", "lanes:odd", "--by-event-time", "--follow", "--json", cwd=tmp_path) as merger:
        while '"waiting_for": ["odd-trades-0", "odd-trades-1"]' not in merger.said:
            assert merger.process.poll() is None, merger.said
        merger.process.send_signal(signal.SIGINT)
        assert merger.wait() == 0


def test_ctrl_c_ends_a_merger_that_waits_and_its_output_is_committed(tmp_path: Path) -> None:
    writer = written(tmp_path / "lanes")
    writer.epoch([[200], [201], [202]], only=[0, 1])
    with running("merge", "lanes:lanes", "--to", "file:out", "--follow", "--json", cwd=tmp_path) as merger:
        while '"waiting_for": ["shop-trades-2"]' not in merger.said:
            assert merger.process.poll() is None, merger.said
        merger.process.send_signal(signal.SIGINT)
        assert merger.wait() == 0
    last = json.loads(merger.said.splitlines()[-1])
    assert (last["event"], last["records"], last["inversions"]) == ("merged", 200, {})
    assert last["waited_s"]["shop-trades-2"] > 0
    assert run("cat", "out", cwd=tmp_path).stdout == lines(200)


def test_inversions_after_a_time_out_equal_an_independent_count(tmp_path: Path) -> None:
    writer = written(tmp_path / "lanes", 1)
    for epoch in range(1, 6):
        writer.epoch(dealt(range(epoch * 100, epoch * 100 + 100), 3, epoch), only=[0, 2])
    arguments = ("merge", "lanes:lanes", "--to", "file:out", "--follow", "--timeout-s", "0.3", "--json")
    with running(*arguments, cwd=tmp_path) as merger:
        while '"epochs": 6' not in merger.said:  # the silent lane was skipped
            assert merger.process.poll() is None, merger.said
        for epoch in range(1, 6):
            writer.commit(epoch, 1)
        while '"records": 600' not in merger.said:
            assert merger.process.poll() is None, merger.said
        merger.process.send_signal(signal.SIGINT)
        assert merger.wait() == 0
    numbers = [int(line) for line in run("cat", "out", cwd=tmp_path).stdout.splitlines()]
    assert sorted(numbers) == list(range(600))
    greatest, inversions = -1, 0
    for number in numbers:
        inversions += number < greatest
        greatest = max(greatest, number)
    last = json.loads(merger.said.splitlines()[-1])
    assert last["inversions"] == {"shop-trades-1": inversions}
    assert inversions > 100
    assert last["passed_over"]["shop-trades-1"] >= 1


def test_a_lane_that_is_waited_for_is_in_the_metrics(tmp_path: Path) -> None:
    writer = written(tmp_path / "lanes")
    writer.epoch([[200], [201], [202]], only=[0, 1])
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"
    with running("merge", "lanes:lanes", "--to", "file:out", "--follow", "--metrics", at, cwd=tmp_path) as merger:
        while "waiting for shop-trades-2" not in merger.said:
            assert merger.process.poll() is None, merger.said
        page = urllib.request.urlopen(f"http://{at}/metrics").read().decode()
        merger.process.send_signal(signal.SIGTERM)
        assert merger.wait() == 0
    assert 'procession_merge_waiting{lane="shop-trades-2"} 1.0' in page
    assert "procession_merge_records_total 200.0" in page


def test_cat_and_verify_read_lanes_in_order(tmp_path: Path) -> None:
    written(tmp_path / "lanes")
    (tmp_path / "input").write_text(lines(200))
    assert run("cat", "lanes", cwd=tmp_path).stdout == lines(200)
    judged = run("verify", "input", "lanes", cwd=tmp_path)
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere:x"], "whose scheme no connector has"),
        (["lanes:nowhere"], "There is no directory nowhere"),
        (["file:x"], "file:DIR has no lanes"),
        (["lanes:lanes", "--shard", "4/4"], "'4/4' is not a shard"),
        (["lanes:lanes", "--lanes", "3-1"], "'3-1' are not lane numbers"),
        (["lanes:lanes", "--lanes", "0-9", "--to", "lanes:x"], "has the lanes 0 to 2, and no lane 9"),
        (["lanes:lanes", "--lanes", "9", "--to", "lanes:x"], "has the lanes 0 to 2, and no lane 9"),
        (["lanes:lanes", "--late", "dead-letter"], "needs --to and --timeout-s"),
        (["lanes:lanes", "--to", "lanes:x", "--timeout-s", "1"], "A lane must be sorted"),
        (["lanes:lanes", "--to", "lanes:x", "--by-event-time"], "so they cannot be a lane"),
        (["lanes:lanes", "--by-event-time", "--shard", "0/2"], "cannot be used with --shard"),
    ],
)
def test_an_invalid_argument_of_merge_is_reported_in_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    written(tmp_path / "lanes", 1)
    done = run("merge", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
