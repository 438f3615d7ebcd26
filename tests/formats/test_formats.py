"""Samples of every on-disk format: each release reads the files of earlier ones, or refuses them with a sentence.

`landed` was written by the first version, which had no format numbers. `format-2` has gateway files with an incarnation
and a running checksum. In `format-3` every file that a later version relies on has a number. A change of a format adds
a folder of samples and never edits one.

`run` is a pipeline with states, a table and dead letters; in `landed` one epoch is offered but not committed.
`two-gateways` has a range that is offered but not committed; `event-time` has an arrival log and an ordered log.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from procession.commit.checkpoint import Checkpoint
from procession.commit.round_files import RoundRecords
from procession.errors import StorageError
from procession.gateway.confirmation import check_offered
from procession.gateway.gateway_directory import MemberFile, load_snapshot
from procession.gateway.members import Members
from procession.sdk.ack_log import acknowledged
from procession.sdk.backlog import Spool
from procession.sdk.transaction_log import TransactionLog
from procession.storage.log import IngressLog
from procession.storage.segment import ORDERED
from procession.storage.state_file import StateFile
from tests.walk import commands

SAMPLES = Path(__file__).parent
SAMPLE_BYTES_MAX = 1_000_000
RELEASES = ("landed", "format-2", "format-3")

Copied = Callable[[str], Path]


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def copied(release: str, tmp_path: Path) -> Copied:
    """Return a copy of one release's samples in a temporary directory."""

    def copy(name: str) -> Path:
        # A sample that a release lacks is unchanged since the last release that has it.
        until = RELEASES[: RELEASES.index(release) + 1]
        source = next(path for one in reversed(until) if (path := SAMPLES / one / name).exists())
        target = tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            target.write_bytes(source.read_bytes())
        return target

    return copy


def test_the_samples_are_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < SAMPLE_BYTES_MAX


def test_the_ingress_log_is_read(copied: Copied) -> None:
    with IngressLog(copied("two-gateways") / "gateway-0" / "log") as log:
        rows = [row for batch in log.read(0, log.next_sequence) for row in batch.to_pylist()]
        assert [row["message_id"] for row in rows] == list(range(14))
        assert {row["stream_id"] for row in rows} == {7}


def test_the_ordered_log_is_read(copied: Copied) -> None:
    with IngressLog(copied("event-time") / "ordered", use=ORDERED) as log:
        rows = [row for batch in log.read(0, log.next_sequence) for row in batch.to_pylist()]
        assert [(row["stream_id"], row["message_id"]) for row in rows] == [(1, 0), (2, 5), (1, 1), (2, 6), (2, 7)]


def test_the_snapshot_is_read(copied: Copied) -> None:
    found = load_snapshot(copied("two-gateways") / "gateway-1")
    assert (found.fence, found.end_sequence) == (1, 10)
    assert {stream_id: at.committed for stream_id, at in found.streams.items()} == {7: 9, 8: 9}


def test_the_snapshot_of_an_order_by_event_time_is_read(copied: Copied) -> None:
    found = load_snapshot(copied("event-time"))
    assert found.point is not None
    assert found.end_sequence == 4


def test_the_members_are_read(copied: Copied) -> None:
    assert sorted(Members(MemberFile(copied("two-gateways") / "gateway-0")).present) == ["gateway-0", "gateway-1"]


def test_the_checkpoint_is_claimed(copied: Copied) -> None:
    checkpoint = Checkpoint.claim(copied("two-gateways") / "checkpoint", name="taker", fingerprint="")
    assert checkpoint.fence == 2
    assert (checkpoint.log.offered, checkpoint.log.committed) == (2, 1)


def test_the_round_records_are_read(copied: Copied) -> None:
    rounds = RoundRecords(copied("run") / "pipeline" / "checkpoint" / "0000000001" / "rounds").read_all()
    last = rounds[max(rounds)]
    assert sorted(rounds) == list(range(last.epoch + 1))
    assert last.offsets["gateway-0"] in (120, 121)
    assert last.counters["records_in"] == 120
    assert sorted(last.states) == ["totals"]


@pytest.mark.parametrize("release", ["format-3"])
def test_the_states_are_read(copied: Copied) -> None:
    sample = copied("run") / "pipeline"
    version = RoundRecords(sample / "checkpoint" / "0000000001" / "rounds").states(1)["totals"]
    version.check_format("totals")
    (folder,) = (sample / "state").iterdir()
    assert sum(StateFile(folder / name).count for task in version.tasks for name, _ in task) == 2


@pytest.mark.parametrize("release", ["landed"])
def test_states_whose_keys_have_no_types_are_refused_before_the_checkpoint_is_claimed(copied: Copied) -> None:
    rounds = RoundRecords(copied("run") / "pipeline" / "checkpoint" / "0000000001" / "rounds").read_all()
    with pytest.raises(StorageError, match="the states of stage 'totals' have format 1") as caught:
        rounds[3].states["totals"].check_format("totals")
    assert "start over" in caught.value.next_step


@pytest.mark.parametrize("release", ["landed"])
def test_state_files_of_an_earlier_format_are_refused(copied: Copied) -> None:
    (folder,) = (copied("run") / "pipeline" / "state").iterdir()
    for path in folder.iterdir():
        with pytest.raises(StorageError, match="7 and '7' were one"):
            StateFile(path)


def test_the_transaction_log_is_read(copied: Copied) -> None:
    log = TransactionLog(copied("run") / "out" / "sample-priced-0.txnlog")
    log.open()
    assert log.committed_end == 6860
    assert log.prepared == ()
    log.close()


def test_the_spool_is_read(copied: Copied) -> None:
    spool = Spool(copied("spool"))
    spool.open(None)
    batch = spool.read(None)
    assert batch is not None
    assert batch.payloads.to_pylist() == [b"record %d" % number for number in range(5)]
    spool.close()


def test_the_log_of_acknowledgements_is_read(copied: Copied) -> None:
    assert acknowledged([copied("acks.journal")]) == {7: 13}


def test_the_names_of_log_locations_are_read(copied: Copied) -> None:
    place = json.loads((copied("run") / "pipeline" / "checkpoint" / "gateways" / "gateway-0.json").read_text())
    assert place["directory"] == "/srv/run/pipeline/gateway/log"


def test_an_offered_range_is_compared_with_the_log_that_it_came_from(copied: Copied) -> None:
    sample = copied("two-gateways")
    offsets = Checkpoint.claim(sample / "checkpoint", name="taker", fingerprint="").log.offsets
    assert {name: offset.sequence for name, offset in offsets.items()} == {"gateway-0": 14, "gateway-1": 14}
    with (
        IngressLog(sample / "gateway-0" / "log") as own,
        IngressLog(sample / "gateway-1" / "log") as other,
    ):
        check_offered(own, offsets["gateway-0"], "gateway-0")
        if offsets["gateway-0"].checksum:
            with pytest.raises(StorageError, match="not the one"):
                check_offered(other, offsets["gateway-0"], "gateway-0")


@pytest.mark.parametrize("release", ["landed", "format-3"])
def test_a_pipeline_of_an_earlier_version_continues_or_is_refused(release: str, tmp_path: Path) -> None:
    """It continues with its states, its open epoch and its outputs: nothing is lost or duplicated, and totals
    continue."""
    shutil.copytree(SAMPLES / release / "run", tmp_path / "run")
    (tmp_path / "run" / "out").rename(tmp_path / "run" / "output")
    arguments = ("run", "sample.py", "--dir", "pipeline", "--listen", "127.0.0.1:0", "--input", "more.jsonl")
    done = commands.run(*arguments, cwd=tmp_path / "run")
    if release == "landed":
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert "version" in done.stderr, f"refused, but not with a sentence about versions: {done.stderr}"
        return
    shown = commands.run("cat", "output", "--instance", "sample-priced", cwd=tmp_path / "run")
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    orders = [json.loads(line) for name in ("orders", "more") for line in (tmp_path / "run" / f"{name}.jsonl").open()]
    assert [line["id"] for line in lines] == [order["id"] for order in orders if order["item"] != "plum"]
    totals = {"apple": 0, "pear": 0}
    for line in lines:
        totals[line["item"]] += line["cents"]
        assert line["total"] == totals[line["item"]]
