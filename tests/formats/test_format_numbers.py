"""Each file that a later version relies on has a format number. A newer or unknown number is refused with a sentence
that says who must act; a file without a number is of the first version, and is read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procession.commit import (
    abandoned_gateways,
    checkpoint,
    emitter_frames,
    emitter_server,
    log_locations,
    round_files,
    round_record,
)
from procession.commit.checkpoint import Checkpoint, read_pipeline
from procession.commit.log_locations import LogLocations
from procession.commit.round_files import (
    RoundRecords,
    read_reserved,
    write_reserved,
)
from procession.commit.round_record import (
    RoundRecord,
    SinkShare,
)
from procession.connectors import (
    file_sequence,
    kafka_identity,
    kafka_positions,
    kafka_token,
    parquet_directory,
    parquet_output,
    parquet_ranges,
    postgres_position,
    stdout_sink,
)
from procession.connectors.stdout_sink import Stdout, StdoutOutput
from procession.driver import table_versions
from procession.driver.table_versions import FIRST, TableRefresh
from procession.errors import ConfigError, StorageError
from procession.format_number import is_known_format
from procession.gateway import input_pins, members, request_parsing, snapshot
from procession.gateway.control_client import ControlClient
from procession.gateway.gateway_directory import find_identity, keep_identity
from procession.jobs import letter_replay
from procession.operators.tables import SideTable
from procession.savepoints import rollback, rollback_input, savepoint, savepoint_volume
from procession.sdk import ack_log, lane_files, lane_merge, transaction_log
from procession.sdk.ack_log import AckLog, acknowledged
from procession.sdk.transaction_log import Transaction, TransactionLog, committed_ranges
from procession.sos import file_operations, object_file
from procession.sos import recovery as sos_recovery
from procession.storage import (
    batch_file,
    executor_host,
    flight_reader,
    host_runs,
    run_store,
    segment,
    shared_files,
    state_version,
)
from procession.storage.flight_reader import FlightAccess, FlightLog, open_log
from procession.storage.journal import encode, read_journal
from procession.storage.log_ranges import LogLocation
from procession.storage.run_store import Manifest, RunStore
from procession.storage.table_copies import TableCopies
from procession.wire import lane_blocks
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

SAMPLES = Path(__file__).parent
LATER = 99

Write = Callable[[Path], Path]
Read = Callable[[Path], object]


def write_pipeline(root: Path) -> Path:
    Checkpoint.claim(root, name="p", fingerprint="f")
    return root / "pipeline.json"


def write_round(root: Path) -> Path:
    RoundRecords(root).write(RoundRecord(3, 1, "f", 0, 10, {"out": SinkShare("t", 0, 5)}, {7: 9}))
    return root / f"{3:020d}"


def write_place(root: Path) -> Path:
    LogLocations(root).keep("gateway-0", LogLocation("log", "identity"))
    return root / "gateways" / "gateway-0.json"


def write_attempts(root: Path) -> Path:
    write_reserved(root, 7)
    return root / "attempts.json"


def identity(directory: Path) -> str:
    """Find or create the identity, as the start of a gateway does."""
    found = find_identity(directory) or "f" * 32
    keep_identity(directory, found)
    return found


def write_identity(root: Path) -> Path:
    identity(root)
    return root / "identity"


def refreshed(path: Path) -> TableRefresh:
    table = path.parent.parent / "table.csv"
    if not table.exists():
        table.write_text("a,b\n1,2\n")
    side = SideTable.__new__(SideTable)
    return TableRefresh(TableCopies(path.parent, 1), {table: (side,)}, print)


def write_first(root: Path) -> Path:
    path = root / "tables" / FIRST
    refreshed(path).begin({})
    return path


FILES: dict[str, tuple[Write, Read, bool]] = {
    "pipeline.json": (write_pipeline, lambda path: Checkpoint.claim(path.parent, name="p", fingerprint="f"), True),
    "pipeline.json, for a verifier": (write_pipeline, lambda path: read_pipeline(path.parent), True),
    "round record": (write_round, lambda path: RoundRecords(path.parent).read(3), True),
    "place of a log": (write_place, lambda path: LogLocations(path.parents[1]), True),
    "attempts": (write_attempts, lambda path: read_reserved(path.parent, 0), False),
    "identity": (write_identity, lambda path: identity(path.parent), False),
    "identity, for an executor": (
        write_identity,
        lambda path: open_log(LogLocation(str(path.parent / "log"), "another"), FlightAccess()),
        False,
    ),
    "versions of tables": (write_first, lambda path: refreshed(path).begin({}), False),
}
"""For each file: how it is written and read, and whether format 1 is the same file without a number."""


@pytest.mark.parametrize(("write", "read", "_"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("number", [LATER, 0, -1, "2", None, True, 1.0])
def test_a_file_of_a_later_or_unknown_format_is_refused(
    write: Write, read: Read, _: bool, number: object, tmp_path: Path
) -> None:
    path = write(tmp_path)
    document = json.loads(path.read_bytes())
    assert is_known_format(document["format"], LATER)
    path.write_text(json.dumps({**document, "format": number, "more": "words"}))
    with pytest.raises(StorageError, match=rf"has format {number}, and this version reads formats 1 to \d") as caught:
        read(path)
    assert str(path.name) in caught.value.sentence
    assert caught.value.next_step == "Start the version that wrote it, or a later one."
    assert json.loads(path.read_bytes())["format"] == number, "the file is not changed"


@pytest.mark.parametrize(
    ("write", "read"),
    [pytest.param(write, read, id=name) for name, (write, read, is_same) in FILES.items() if is_same],
)
def test_a_file_without_a_number_is_read_as_before(write: Write, read: Read, tmp_path: Path) -> None:
    path = write(tmp_path)
    document = json.loads(path.read_bytes())
    del document["format"]
    path.write_text(json.dumps(document))
    read(path)


def test_a_claim_adds_the_missing_format_number_of_a_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "landed" / "two-gateways" / "checkpoint", tmp_path / "checkpoint")
    assert "format" not in json.loads((tmp_path / "checkpoint" / "pipeline.json").read_text())
    Checkpoint.claim(tmp_path / "checkpoint", name="taker", fingerprint="")
    for path in ("pipeline.json", "gateways/gateway-0.json"):
        assert json.loads((tmp_path / "checkpoint" / path).read_text())["format"] == 2


def test_a_start_adds_the_missing_format_number_of_an_identity(tmp_path: Path) -> None:
    landed = (SAMPLES / "landed" / "event-time" / "identity").read_text()
    (tmp_path / "identity").write_text(landed)
    assert identity(tmp_path) == landed
    assert json.loads((tmp_path / "identity").read_text()) == {"format": 2, "identity": landed}
    assert identity(tmp_path) == landed


@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"format": 2}', "{"])
def test_a_damaged_identity_is_reported_in_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "identity").write_text(content)
    with pytest.raises(StorageError):
        identity(tmp_path)


def test_versions_of_tables_that_the_landed_version_wrote_are_read(tmp_path: Path) -> None:
    path = write_first(tmp_path)
    known = json.loads(path.read_bytes())["tables"]
    path.write_text(json.dumps(known))
    again = refreshed(path)
    again.begin({})
    assert again.first == known


def test_the_first_entry_of_a_transaction_log_carries_the_number(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    log = TransactionLog(path)
    log.open()
    log.vote(Transaction("a", 0, 5), commit=True)
    log.decide("a", commit=True)
    log.close()
    first, second = read_journal(path)
    assert (first["format"], "format" in second) == (2, False)
    assert committed_ranges(path) == [(0, 5)]
    path.write_bytes(encode({**first, "format": LATER}) + encode(second))
    for read in (committed_ranges, lambda path: TransactionLog(path).open()):
        with pytest.raises(StorageError, match=r"out.txnlog has format 99"):
            read(path)


def test_the_first_entry_of_a_log_of_acknowledgements_carries_the_number(tmp_path: Path) -> None:
    path = tmp_path / "acks"
    for _ in range(2):
        log = AckLog(path)
        log.record(7, 9, 0.0)
        log.close()
    assert [entry.get("format") for entry in read_journal(path)] == [2, None, None]
    path.write_bytes(encode({"format": LATER}))
    for read in (lambda path: acknowledged([path]), AckLog):
        with pytest.raises(StorageError, match="acks has format 99"):
            read(path)


@pytest.mark.parametrize("number", [LATER, None])
def test_a_manifest_of_another_version_is_refused(number: int | None, tmp_path: Path) -> None:
    whole = RunStore(tmp_path).writer(1, 0, 0, 5).publish(Manifest(1, 0, 0, 0, 10))
    assert RunStore(tmp_path).published(1, 0, 0) == whole
    document: dict[str, Any] = json.loads(whole.to_json())
    with pytest.raises(StorageError, match=f"manifest of a task has format {number}"):
        Manifest.from_json(json.dumps({**document, "format": number}))


@pytest.mark.parametrize(("note", "end"), [(b"%020d %020d\n" % (5, 5), 5), (b"2 %020d %020d\n" % (6, 6), 6)])
def test_the_print_position_is_read_with_and_without_a_format_number(note: bytes, end: int, tmp_path: Path) -> None:
    (tmp_path / "out.printed").write_bytes(note)
    with open(tmp_path / "printed", "wb") as file:
        output = StdoutOutput(tmp_path / "out", Stdout(file.fileno()))
        assert output._printed.end == end
        output.close()


def test_a_print_position_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.printed").write_bytes(b"3 %020d %020d\n" % (6, 6))
    with open(tmp_path / "printed", "wb") as file, pytest.raises(StorageError, match=r"out.printed has format 3"):
        StdoutOutput(tmp_path / "out", Stdout(file.fileno()))


def test_the_answer_of_a_gateway_of_a_later_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = GatewayProcess(tmp_path / "gateway", {}).start()
    theirs = f"answers in format {request_parsing.FORMAT}"
    try:
        monkeypatch.setattr("procession.gateway.request_parsing.FORMAT", 1)  # as if this were an earlier version
        with gateway.client() as driver, pytest.raises(ConfigError, match=theirs) as caught:
            driver.status()
        assert caught.value.next_step == "Start gateways, driver and commands in the same version."
    finally:
        gateway.kill()


@pytest.mark.parametrize("number", [True, 0, "2", 99])
def test_a_request_of_an_unknown_format_is_refused(
    number: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = GatewayProcess(tmp_path / "gateway", {}).start()
    try:
        monkeypatch.setattr("procession.gateway.control_client.FORMAT", number)
        with ControlClient(gateway.directory) as driver, pytest.raises(ConfigError, match="this gateway understands"):
            driver.status()
    finally:
        gateway.kill()


def test_a_ticket_of_a_later_version_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = GatewayProcess(tmp_path / "gateway", {"flight": "127.0.0.1:0"}).start()
    try:
        with Producer(gateway.listen) as producer, gateway.client() as client:
            producer.hello()
            assert producer.notify(7).success
            producer.messages(7, range(3))
            while client.offer(1, 0, 2**40, 2**40).end < 3:
                pass
            (member,) = client.fence(1).gateways
        log = FlightLog(LogLocation("elsewhere/log", member.identity, member.flight), FlightAccess())
        assert sum(batch.num_rows for batch in log.read(0, 3)) == 3
        monkeypatch.setattr("procession.storage.flight_reader.TICKET_FORMAT", LATER)
        with pytest.raises(StorageError, match="the ticket has format 99; this gateway reads formats 1 to 2") as caught:
            list(log.read(0, 3))
        assert caught.value.next_step == "start gateways, driver and executors in the same version"
    finally:
        gateway.kill()


def test_the_page_of_formats_has_the_numbers_that_are_written() -> None:
    page = (SAMPLES.parents[1] / "docs" / "reference" / "formats.md").read_text()
    rows = dict(re.findall(r"^\| (.+?) \| (\d+)", page, re.MULTILINE))
    numbers = {
        "`gateway/identity`": flight_reader.IDENTITY_FORMAT,
        "`gateway/log/`, `gateway/ordered/` (`*.segment`)": segment.VERSION,
        "`gateway/positions.json`": snapshot.FORMAT,
        "`gateway/gateways.json`": members.FORMAT,
        "`checkpoint/pipeline.json`": checkpoint.FORMAT,
        "`checkpoint/gateways/*.json`": log_locations.FORMAT,
        "`checkpoint/gateways/*.abandoned`": abandoned_gateways.FORMAT,
        "`checkpoint/*/rounds/*`": round_record.FORMAT,
        "`checkpoint/*/attempts.json`": round_files.ATTEMPTS_FORMAT,
        "`state/` (`*.state`)": batch_file.FORMAT,
        "`sides/ID/first.json`": table_versions.FORMAT,
        "`runs/` (`*.arrow`, `*.manifest`)": run_store.FORMAT,
        "`letters.journal`": letter_replay.FORMAT,
        "`savepoints/*/savepoint.json`": savepoint.FORMAT,
        "a savepoint in a volume of object services": savepoint_volume.FORMAT,
        "`checkpoint/ROLLBACK`": rollback.FORMAT,
        "`rolled-back.json`, `gateway/replayed.json`, `gateway/rewound.json`": rollback_input.FORMAT,
        "`gateway/pins/*.pin`": input_pins.FORMAT,
        "`*.txnlog`": transaction_log.FORMAT,
        "`*.lane`": lane_blocks.FORMAT,
        "`*.rollbacks`": lane_files.ROLLBACKS_FORMAT,
        "the position of a merger, in `*.txnlog`": lane_merge.POSITION_FORMAT,
        "`*.printed` (`sink stdout`)": stdout_sink.NOTE_FORMAT,
        "`*.kafka` (Kafka sink)": kafka_identity.IDENTITY_FORMAT,
        "tokens in the Kafka control topic": kafka_token.FORMAT,
        "`*.upload` (lake sinks)": parquet_output.FORMAT,
        "`_procession/OUTPUT/*.json` of a Parquet table": parquet_directory.FORMAT,
        "`_procession/OUTPUT/ranges/*.json` of a Parquet table": parquet_ranges.FORMAT,
        "`*.kafka` (`source kafka`)": kafka_positions.FORMAT,
        "`files.json` (`source file --one-stream`)": file_sequence.FORMAT,
        "`position.json` (`source postgres`)": postgres_position.FORMAT,
        "`--spool` (`*.segment`; `unsent`, an empty file, until the first record is sent)": segment.VERSION,
        "`--acks`": ack_log.FORMAT,
        "requests at the control port": request_parsing.FORMAT,
        "answers at the control port": request_parsing.FORMAT,
        "Flight tickets": flight_reader.TICKET_FORMAT,
        "requests to a host service": host_runs.TICKET_FORMAT,
        "requests to a driver's file service": shared_files.REQUEST_FORMAT,
        "`host.json` (`procession host`)": host_runs.FORMAT,
        "`procession-executor.json` (`procession submit`)": executor_host.FORMAT,
        "`emitter.json` (`procession emitter`)": emitter_server.ANNOUNCEMENT_FORMAT,
        "greeting and requests to an emitter": emitter_frames.FORMAT,
        "`volumes/*/volume.json`": sos_recovery.FORMAT,
        "`volumes/*/*.object`": object_file.FORMAT,
        "the bytes of objects: a journal of file operations": file_operations.FORMAT,
        "manifests in Spark's rows": run_store.FORMAT,
    }
    assert rows == {name: str(number) for name, number in numbers.items()}
    assert f"has the format of keys and values, {state_version.FORMAT} |" in page
