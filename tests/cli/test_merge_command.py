"""`procession merge` as a user types it: what it prints, how it ends, and what it refuses."""

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


def test_it_prints_the_sequence_and_what_it_has_done(tmp_path: Path) -> None:
    written(tmp_path / "lanes")
    done = run("merge", "lanes:lanes", "--verify", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, lines(200))
    assert done.stderr.splitlines()[-1] == "merged 200 records of 2 epochs"


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
        (["lanes:lanes", "--lanes", "3-1"], "'3-1' are no lanes"),
        (["lanes:lanes", "--late", "dead-letter"], "needs --to and --timeout-s"),
        (["lanes:lanes", "--to", "lanes:x", "--timeout-s", "1"], "A lane must be sorted"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    written(tmp_path / "lanes", 1)
    done = run("merge", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
