"""The later input of a rollback comes from the logs of several gateways, or from sources that can be read again."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from procession.commit.spark_log import parse_offsets
from procession.connectors.file_source import stream_id_of
from procession.deployment.run_details import DETAILS
from procession.errors import ConfigError
from procession.gateway import retired_file
from procession.gateway.confirmation import check_offered
from procession.gateway.gateway_directory import MemberFile, load_snapshot, save_snapshot
from procession.gateway.gateway_limits import Limits
from procession.gateway.input_pins import InputPins, pin_new_gateway
from procession.gateway.log_rows import LogRow, batch_of
from procession.gateway.members import Member, MemberStatus, written
from procession.gateway.retired_streams import HEADER, RetiredStreams
from procession.gateway.snapshot import Position, Snapshot
from procession.savepoints.rollback import roll_back
from procession.savepoints.rollback_input import REWOUND
from procession.savepoints.savepoint import Savepoint, find
from procession.savepoints.savepoint_create import create
from procession.storage.durable import lock_directory
from procession.storage.log import IngressLog
from procession.storage.segment import KIND_RECORD
from procession.verify.decisions import DecisionReader
from tests.savepoints.test_rollback import describe, files_of, killed_at, write_output
from tests.savepoints.test_rollback import place as arrived
from tests.savepoints.test_upgrade_steps import STATES, Place
from tests.walk.test_rollback import STEPS

__all__ = ["arrived"]
IDS = (0, 2, 4, 6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "words.txt"
    found.write_text("a\nb\na\nc\n")
    return found


@pytest.fixture
def fed(tmp_path: Path, path: Path) -> Place:
    """Return a pipeline that reads a file: two of its records are in the savepoint, and two are committed later."""
    place = Place(tmp_path, stream_id_of(path), IDS)
    describe(place)
    details = json.loads((place.directory / DETAILS).read_text())
    (place.directory / DETAILS).write_text(json.dumps(details | {"inputs": [str(path)]}))
    write_output(tmp_path / "out")
    return place


def made(place: Place, *, has_log: bool = False) -> Savepoint:
    """Create a savepoint after two records, commit two more, and write one that waits in the log."""
    savepoint = create(place.directory, "good")
    place.commit(1, end=4)
    gateway = place.directory / "gateway"
    if not has_log:
        for segment in (gateway / "log").glob("*.segment"):
            segment.unlink()
    save_snapshot(gateway, Snapshot(1, 1, 4, 4, {place.stream: Position("words", IDS[3])}))
    with IngressLog(gateway / "log", committed_end=4) as log:
        log.append(batch_of([LogRow(KIND_RECORD, place.stream, 8, 0, b"", b"d")]))
        log.sync()
    return savepoint


def check_rewound(place: Place) -> None:
    last = DecisionReader(place.directory / "checkpoint").last()
    assert last is not None
    assert (last.epoch, dict(last.offsets), last.first, last.last, last.parts["out"].end) == (
        1,
        {"gateway-0": 5},
        5,
        5,
        10,
    )
    assert place.states("counted") == STATES
    # The gateway sends the savepoint's position to the source, and skips the records that it had received.
    snapshot = load_snapshot(place.directory / "gateway")
    assert snapshot == Snapshot(1, 1, 5, 5, {place.stream: Position("words", IDS[1])})
    copy = DecisionReader(place.directory / "checkpoint").copy()
    offsets = parse_offsets((copy / "offsets" / "1").read_bytes(), copy)
    with IngressLog(place.directory / "gateway" / "log", committed_end=5) as log:
        assert log.next_sequence == 5
        check_offered(log, offsets["gateway-0"], "gateway")
    assert place.accepted() == ["old"]


def test_a_source_that_has_the_input_gets_the_position_of_the_savepoint(fed: Place) -> None:
    result = roll_back(fed.directory, made(fed))
    assert (result.epochs, result.records, result.streams) == (1, 0, 1)
    check_rewound(fed)


@pytest.mark.parametrize("step", STEPS)
def test_a_rollback_that_is_killed_at_any_step_is_finished_without_a_new_check_of_the_sources(
    fed: Place, path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint = made(fed)
    with killed_at(step, monkeypatch):
        roll_back(fed.directory, savepoint)
    path.unlink()
    roll_back(fed.directory, savepoint)
    check_rewound(fed)


@pytest.mark.parametrize(
    ("contents", "why"),
    [
        (None, r"no source that this pipeline starts sends streams words \(source '.*words.txt': Cannot read"),
        (
            "a\nb\na\n",
            "streams words cannot be read again: .*words.txt is not the file that was read before: no record",
        ),
        ("another\nfile\n", "no record begins at byte 2"),
    ],
)
def test_a_source_without_the_input_is_named_and_nothing_changes(
    fed: Place, path: Path, contents: str | None, why: str
) -> None:
    savepoint = made(fed)
    path.unlink()
    if contents is not None:
        path.write_text(contents)
    before = files_of(fed)
    with pytest.raises(ConfigError, match=why):
        roll_back(fed.directory, savepoint)
    assert files_of(fed) == before


def test_a_file_that_a_producer_sends_can_be_named(fed: Place, path: Path) -> None:
    savepoint = made(fed)
    describe(fed)  # without the inputs of the run
    with pytest.raises(ConfigError, match="no source that this pipeline starts sends streams words"):
        roll_back(fed.directory, savepoint)
    assert roll_back(fed.directory, savepoint, [path]).streams == 1
    check_rewound(fed)


def test_a_waiting_record_that_cannot_be_sent_again_prevents_the_rollback(fed: Place, path: Path) -> None:
    savepoint = made(fed)
    with IngressLog(fed.directory / "gateway" / "log", committed_end=4) as log:
        log.append(batch_of([LogRow(KIND_RECORD, 77, 0, 0, b"", b"from elsewhere")]))
        log.sync()
    with pytest.raises(ConfigError, match="no source that this pipeline starts sends streams 77"):
        roll_back(fed.directory, savepoint)


def test_a_savepoint_without_the_positions_of_streams_prevents_the_rollback(fed: Place) -> None:
    savepoint = made(fed)
    savepoint = replace(savepoint, manifest={**savepoint.manifest, "has_streams": False})
    with pytest.raises(ConfigError, match="does not know the committed positions of the streams"):
        roll_back(fed.directory, savepoint)


def test_a_later_rollback_does_not_offer_the_skipped_rows(fed: Place, path: Path) -> None:
    with IngressLog(fed.directory / "gateway" / "log", committed_end=2) as log:
        offsets = json.dumps({"gateway-0": log.offset(2).as_json()})
    (fed.checkpoint.directory / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets}")
    savepoint = made(fed, has_log=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("procession.savepoints.rollback.KeptInput.problems", lambda _: ["not this way"])
        assert roll_back(fed.directory, savepoint).streams == 1
    check_rewound(fed)
    assert roll_back(fed.directory, savepoint).streams == 0  # from the sources again, although the log has the rows
    check_rewound(fed)
    (fed.directory / "gateway" / REWOUND).unlink()
    assert roll_back(fed.directory, savepoint).records == 3  # otherwise they would be duplicated


def test_retired_streams_are_those_of_the_savepoint(fed: Place) -> None:
    gateway = fed.directory / "gateway"
    retiring = RetiredStreams(Limits()).retiring({9: 5}, 0.0)
    retired_file.write(gateway, retiring)
    snapshot = load_snapshot(gateway)
    assert snapshot is not None
    save_snapshot(gateway, replace(snapshot, retired=retiring.mark))
    savepoint = made(fed)
    now = load_snapshot(gateway)
    assert now is not None
    roll_back(fed.directory, savepoint)
    found = load_snapshot(gateway)
    assert found is not None
    assert found.retired is not None
    assert retiring.mark is not None
    assert found.retired.number != retiring.mark.number
    assert retired_file.read(gateway, found.retired) == HEADER + retiring.data[len(HEADER) :]


def several(place: Place, streams: tuple[int, ...]) -> Savepoint:
    """Return a savepoint of a pipeline with a second gateway, which later commits a record of each of these streams."""
    second = place.directory / "gateway-1"
    with IngressLog(second / "log") as log:
        log.append(batch_of([LogRow(KIND_RECORD, stream, 9, 0, b"", b"x") for stream in streams]))
        log.sync()
        other = log.offset(0).as_json()
    save_snapshot(second, Snapshot(1, 0, 0, 0))
    with IngressLog(place.directory / "gateway" / "log", committed_end=2) as log:
        offsets = json.dumps({"gateway-0": log.offset(2).as_json(), "gateway-1": other})
    (place.checkpoint.directory / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets}")
    savepoint = create(place.directory, "good", keep_input=True)
    place.commit(1, end=4)
    record = place.checkpoint.rounds.read(1)
    assert record is not None
    place.checkpoint.rounds.write(replace(record, ends={"gateway-0": 4, "gateway-1": len(streams)}))
    save_snapshot(place.directory / "gateway", Snapshot(1, 1, 4, 4, {3: Position("words", 3)}))
    save_snapshot(
        second, Snapshot(1, 1, len(streams), len(streams), {stream: Position(f"s{stream}", 9) for stream in streams})
    )
    return savepoint


def test_the_input_of_several_gateways_is_kept_and_processed_again(arrived: Place) -> None:
    savepoint = several(arrived, (5, 6, 7))
    assert {name: pin.sequence for name, pin in InputPins(arrived.directory / "gateway-1").all().items()} == {"good": 0}
    kept = savepoint.described()["kept_input"]
    assert (kept["state"], kept["bytes"] > 0, kept["bytes_max"]) == ("kept", True, 2 * 1024**3)
    assert roll_back(arrived.directory, savepoint).records == 2 + 3
    ends = [load_snapshot(arrived.directory / name) for name in ("gateway", "gateway-1")]
    assert [(at.epoch, at.end_sequence) for at in ends if at] == [(1, 2), (1, 0)]
    find(arrived.directory, "good").drop()
    assert not InputPins(arrived.directory / "gateway-1").all()


def test_a_stream_that_moved_between_gateways_since_is_named(arrived: Place) -> None:
    with pytest.raises(ConfigError, match=r"streams (s3|words) moved from one gateway to another since"):
        roll_back(arrived.directory, several(arrived, (5, 3)))


def test_a_gateway_whose_log_has_no_start_any_more_is_a_reason(arrived: Place) -> None:
    savepoint = several(arrived, (5, 6))
    for segment in (arrived.directory / "gateway-1" / "log").glob("*.segment"):
        segment.unlink()
    with pytest.raises(ConfigError, match="the later records of streams s5, s6, words are not in the log any more"):
        roll_back(arrived.directory, savepoint)


def test_a_gateway_that_joins_keeps_its_input_for_the_savepoints_that_are_there(arrived: Place) -> None:
    several(arrived, (5,))
    pin_new_gateway(arrived.directory / "gateway", arrived.directory / "gateway-2")
    assert InputPins(arrived.directory / "gateway-2").all()["good"].sequence == 0
    pin_new_gateway(arrived.directory / "gateway", arrived.directory / "gateway-1")
    assert InputPins(arrived.directory / "gateway-1").all()["good"].sequence == 0


def test_a_gateway_that_has_left_with_later_records_is_named(arrived: Place) -> None:
    savepoint = several(arrived, (5, 6))
    gone = Member("gateway-1", "i", "", "", str(arrived.directory / "gateway-1" / "log"), standing=MemberStatus.LEFT)
    MemberFile(arrived.directory / "gateway").save(written({"gateway-1": gone}))
    with pytest.raises(ConfigError, match="gateway-1 has left the pipeline, and its log has later records"):
        roll_back(arrived.directory, savepoint)


def test_a_gateway_that_still_runs_is_named(arrived: Place) -> None:
    savepoint = several(arrived, (5, 6))
    with (
        closing(lock_directory(arrived.directory / "gateway-1" / "log")),
        pytest.raises(ConfigError, match="gateway-1 still runs"),
    ):
        roll_back(arrived.directory, savepoint)
