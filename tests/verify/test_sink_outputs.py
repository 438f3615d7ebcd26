"""Prints the committed output of a sink."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from procession.errors import ConfigError
from procession.sdk.transaction_log import Transaction, TransactionLog
from procession.verify.comparison import ComparisonRequest
from procession.verify.sink_outputs import committed_output


def output(directory: Path, name: str, data: bytes, committed: int) -> None:
    (directory / f"{name}.data").write_bytes(data)
    log = TransactionLog(directory / f"{name}.txnlog")
    log.open()
    log.vote(Transaction("t", 0, committed), True)
    log.decide("t", True)
    log.vote(Transaction("u", committed, len(data)), True)
    log.close()


def test_only_committed_output_is_printed(tmp_path: Path) -> None:
    output(tmp_path, "a", b"one\ntwo\nthr", 8)
    output(tmp_path, "b", b"four\n", 5)
    assert b"".join(committed_output(tmp_path, None)) == b"one\ntwo\nfour\n"
    assert b"".join(committed_output(tmp_path, "b")) == b"four\n"


def test_a_directory_with_the_outputs_of_several_pipelines_asks_which(tmp_path: Path) -> None:
    for pipeline in ("first", "second"):
        for sink in ("out", "other"):
            path = tmp_path / f"{pipeline}-{sink}-0"
            path.with_suffix(".data").write_bytes(f"{pipeline}\n".encode())
            log = TransactionLog(path.with_suffix(".txnlog"))
            log.open()
            txn = f"{pipeline}-w-{sink}-id-abc.e0.f1:c_id=1"
            log.vote(Transaction(txn, 0, len(pipeline) + 1), True)
            log.decide(txn, True)
            log.close()
    with pytest.raises(ConfigError, match="several pipelines: first, second") as caught:
        list(committed_output(tmp_path, None))
    assert caught.value.explain().startswith(f"The directory {tmp_path} has")
    assert caught.value.next_step == (
        "choose one with --instance, one of first-other, first-out, second-other, second-out"
    )
    assert b"".join(committed_output(tmp_path, "second-out")) == b"second\n"
    (tmp_path / "input").write_bytes(b"second\n")
    request = ComparisonRequest([tmp_path / "input"], tmp_path)
    with pytest.raises(ConfigError, match="several pipelines"):
        request.check()
    replace(request, instance="second-out").check()
    for path in tmp_path.glob("first-*"):
        path.unlink()
    assert b"".join(committed_output(tmp_path, None)) == b"second\nsecond\n", (
        "several sinks of one pipeline need no choice"
    )


@pytest.mark.parametrize("instance", [None, "c"])
def test_a_missing_output_is_reported_in_one_sentence(tmp_path: Path, instance: str | None) -> None:
    with pytest.raises(ConfigError):
        list(committed_output(tmp_path, instance))
