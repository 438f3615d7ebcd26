"""The dead letters in the output of a sink: only committed and complete ones, by number."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from procession.errors import StorageError
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.verify.dead_letter_file import letters_in


def write_letters(directory: Path, lines: list[bytes], *, committed: int | None = None) -> None:
    """Write dead letters as the dead-letter sink of pipeline `p` does; the first `committed` of them are committed."""
    directory.mkdir(exist_ok=True)
    (directory / "p-dead-letter-0.data").write_bytes(b"".join(lines))
    log = TransactionLog(directory / "p-dead-letter-0.txnlog")
    log.open()
    log.vote(Transaction("p-w-dead-letter-0-id-abc.e0.f1:c_id=1", 0, sum(map(len, lines[:committed]))), True)
    log.decide("p-w-dead-letter-0-id-abc.e0.f1:c_id=1", True)
    log.close()


def letter(message_id: int, payload: bytes, **more: object) -> bytes:
    text = base64.b64encode(payload).decode()
    fields = {"stream_id": 7, "message_id": message_id, "stage": "parse", "error": "ValueError: no", **more}
    return json.dumps({**fields, "payload": text}).encode() + b"\n"


def test_letters_are_numbered_and_only_committed_ones_are_there(tmp_path: Path) -> None:
    key = base64.b64encode(b"k\xff").decode()
    lines = [letter(3, b"a\nb"), letter(9, b"\xff", event_time=5, key=key), letter(12, b"not committed")]
    write_letters(tmp_path / "dead", lines, committed=2)
    first, second = letters_in(tmp_path / "dead", "p-dead-letter")
    assert (first.number, first.message_id, first.payload, first.key, first.event_time) == (1, 3, b"a\nb", b"", 0)
    assert (second.number, second.payload, second.key, second.event_time) == (2, b"\xff", b"k\xff", 5)


def test_a_missing_output_has_no_letters(tmp_path: Path) -> None:
    assert list(letters_in(tmp_path / "nowhere", "p-dead-letter")) == []


@pytest.mark.parametrize(
    "line", [b"not JSON\n", b"[]\n", b'{"stream_id": 1}\n', letter(1, b"x").replace(b"eA==", b"e")]
)
def test_a_line_that_is_not_a_letter_is_reported_with_its_number(tmp_path: Path, line: bytes) -> None:
    write_letters(tmp_path / "dead", [letter(1, b"x"), line])
    with pytest.raises(StorageError, match=r"Line 2 of the dead letters in .*dead is not a dead letter"):
        list(letters_in(tmp_path / "dead", "p-dead-letter"))
