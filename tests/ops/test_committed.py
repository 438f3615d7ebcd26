"""What a sink has committed, printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.ops.committed import committed_output
from procession.sdk.txnlog import Transaction, TxnLog


def output(directory: Path, name: str, data: bytes, committed: int) -> None:
    (directory / f"{name}.data").write_bytes(data)
    log = TxnLog(directory / f"{name}.txnlog")
    log.open()
    log.vote(Transaction("t", 0, committed), True)
    log.decide("t", True)
    log.vote(Transaction("u", committed, len(data)), True)
    log.close()


def test_only_what_is_committed_comes_out(tmp_path: Path) -> None:
    output(tmp_path, "a", b"one\ntwo\nthr", 8)
    output(tmp_path, "b", b"four\n", 5)
    assert b"".join(committed_output(tmp_path, None)) == b"one\ntwo\nfour\n"
    assert b"".join(committed_output(tmp_path, "b")) == b"four\n"


@pytest.mark.parametrize("instance", [None, "c"])
def test_an_output_that_is_not_there_is_one_sentence(tmp_path: Path, instance: str | None) -> None:
    with pytest.raises(ConfigError):
        list(committed_output(tmp_path, instance))
