"""The oracle's own readers of files say what the shipped writers wrote, and share no code with the shipped readers."""

from __future__ import annotations

import ast
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from procession.commit.round_record import RoundRecord, SinkShare
from procession.commit.transaction_id import TransactionId
from procession.gateway.gateway_limits import Limits
from procession.gateway.retired_streams import HEADER, Mark, RetiredStreams
from procession.gateway.snapshot import Position, Snapshot, encode_snapshot
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.sim import file_formats
from procession.sim.file_formats import (
    SegmentRow,
    SinkRange,
    epoch_and_attempt,
    read_positions,
    read_retired,
    read_round,
    read_rows,
    read_transactions,
    retired_name,
    segment_base,
    segment_end,
)
from procession.sim.runner import plan_of, run_plan
from procession.storage import log_reader
from procession.storage.segment import (
    INGRESS_SCHEMA,
    SegmentHeader,
    batch_at,
    encode_entry,
    encode_header,
    segment_name,
)
from procession.storage.state_version import StateVersion


def test_the_readers_import_nothing_of_procession() -> None:
    tree = ast.parse(Path(file_formats.__file__).read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not [name for name in names if name.startswith("procession")]


def test_a_round_record_is_read() -> None:
    states = {"count": StateVersion(((("a.state", 1), ("b.state", 2)), ()), "fold")}
    record = RoundRecord(3, 2, "f", 5, 9, {"out": SinkShare("t", 7, 11)}, {4: 12}, states=states, ends={"gateway-0": 9})
    read = read_round(record.to_json())
    assert read == ({"out": SinkRange("t", 7, 11)}, {4: 12}, {"gateway-0": 9}, {"a.state", "b.state"})


def test_the_id_of_a_transaction_names_its_epoch_and_its_attempt() -> None:
    assert epoch_and_attempt(str(TransactionId(7, 2, 31, "abc123", "p", "out"))) == (7, 31)
    assert epoch_and_attempt("of somebody else") is None


def test_a_transaction_log_is_read_before_and_after_it_is_compacted_and_up_to_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "out.txnlog"
    log = TransactionLog(path, entries_max=4, transactions_kept=1)
    log.open()
    for number in range(3):
        log.vote(Transaction(f"t{number}", number, number + 1), commit=True)
        log.decide(f"t{number}", commit=True)
    log.vote(Transaction("refused", 3, 4), commit=False)
    log.vote(Transaction("aborted", 3, 4), commit=True)
    log.decide("aborted", commit=False)
    log.vote(Transaction("open", 3, 5), commit=True)
    whole = read_transactions(path.read_bytes())
    assert whole.committed == (("t0", 0, 1), ("t1", 1, 2), ("t2", 2, 3))
    assert whole.prepared == {"open": ("open", 3, 5)}
    assert whole.accepted == {"t0", "t1", "t2", "aborted", "open"}
    assert whole.committed_end == 3
    assert read_transactions(path.read_bytes()[:-2]).prepared == {}
    assert read_transactions(path.read_bytes()[:-8] + bytes(7) + b"\n").prepared == {}
    log.compact()
    log.close()
    short = read_transactions(path.read_bytes())
    assert short.committed == (("t1", 0, 2), ("t2", 2, 3))
    assert (short.prepared, short.committed_end) == (whole.prepared, 3)
    assert read_transactions(b"").committed_end == 0


def test_a_snapshot_and_the_retired_streams_that_it_names_are_read() -> None:
    retiring = RetiredStreams(Limits()).retiring({5: 50, 6: 60}, 0.0)
    assert retiring.mark is not None
    snapshot = Snapshot(1, 4, 17, 20, {2: Position("two", 8)}, retired=retiring.mark)
    assert read_positions(encode_snapshot(snapshot)) == (4, 17, {2: 8}, (0, retiring.mark.length))
    assert read_positions(encode_snapshot(Snapshot())) == file_formats.Positions()
    assert read_retired(retiring.data[: retiring.mark.length]) == {5: 50, 6: 60}
    mark = Mark(0, len(HEADER), zlib.crc32(HEADER), 0)
    assert RetiredStreams(Limits(), mark, HEADER).committed(5) is None
    assert read_retired(HEADER) == {}
    assert retired_name(3) == "retired-0000000003.streams"


def batch(*ids: int) -> pa.RecordBatch:
    rows = [{"kind": 0, "stream_id": 1, "message_id": at, "event_time": 0, "key": b"", "payload": b"p"} for at in ids]
    return pa.RecordBatch.from_pylist(rows, INGRESS_SCHEMA)


def segment(base: int, *batches: pa.RecordBatch) -> bytes:
    data, sequence = encode_header(SegmentHeader(base)), base
    for piece in batches:
        data += b"".join(bytes(part) for part in encode_entry(piece, sequence, base))
        sequence += piece.num_rows
    return data


def rows(*ids: int) -> list[SegmentRow]:
    return [SegmentRow(0, 1, at, b"p") for at in ids]


def test_rows_are_read_across_entries_and_files_and_a_file_counts_up_to_the_next() -> None:
    files = {0: segment(0, batch(10, 11), batch(12, 13)), 3: segment(3, batch(13), batch(14))}
    assert read_rows(files, 0, 5) == rows(10, 11, 12, 13, 14)
    assert read_rows(files, 1, 4) == rows(11, 12, 13)
    assert read_rows(files, 3, 5) == rows(13, 14)
    assert read_rows(files, 5, 9) == []
    assert segment_end(files[3], 3) == 5
    assert (segment_base(segment_name(3)), segment_base("identity")) == (3, None)


@pytest.mark.parametrize("damage", [-1, 50, 60])
def test_an_entry_that_is_torn_or_damaged_ends_a_segment(damage: int) -> None:
    first = len(segment(0, batch(10)))
    data = bytearray(segment(0, batch(10), batch(11)))
    assert segment_end(bytes(data[:-1]), 0) == 1
    data[damage if damage < 0 else first + damage] ^= 1
    assert segment_end(bytes(data), 0) == 1
    assert read_rows({0: bytes(data)}, 0, 2) == rows(10)


def test_a_mistake_of_the_shipped_reader_of_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_payloads(*arguments: object) -> pa.RecordBatch:
        found = batch_at(*arguments)  # type: ignore[arg-type]
        place = found.schema.get_field_index("payload")
        return found.set_column(place, "payload", pa.array([b"?"] * found.num_rows, pa.binary()))

    monkeypatch.setattr(log_reader, "batch_at", without_payloads)
    breach = next(breach for seed in range(20) if (breach := run_plan(plan_of(seed)).breach) is not None)
    assert breach.invariant == "I5"
    assert "are read as" in breach.sentence
