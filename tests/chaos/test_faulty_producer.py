"""A faulty producer at a gateway: which answers it must get, and how it reports one that is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from procession.address import Address, parse_address
from procession.chaos.faulty_producer import (
    PRODUCER_FAULTS,
    REPETITIONS,
    WENT_BACK_MAX,
    FaultyProducer,
    GatewayMisbehaved,
    SessionLost,
)
from procession.connectors.file_source import stream_id_of
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE
from procession.sdk.ack_log import AckLog, acknowledged

GATEWAY = (sys.executable, "-m", "procession", "gateway", "--listen", "127.0.0.1:0", "--open-producers")
PATIENCE_S = 60.0


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Address]:
    announcement = tmp_path / "gateway" / ADDRESS_FILE
    process = subprocess.Popen([*GATEWAY, "--dir", str(announcement.parent)], stderr=subprocess.DEVNULL)
    limit = time.monotonic() + PATIENCE_S
    while not announcement.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    yield parse_address(json.loads(announcement.read_text())["listen"])
    process.terminate()
    process.wait(PATIENCE_S)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    return path


def test_a_producer_that_goes_back_gets_an_error_every_time_and_loses_its_session(gateway: Address, path: Path) -> None:
    faulty = FaultyProducer(gateway, path)
    for number in range(3):
        faulty._is_rejected = False
        assert faulty._back()
        assert faulty._is_rejected
        assert faulty._went_back == number + 1


@pytest.mark.parametrize("fault", ["zero", "duplicates"])
def test_repeated_records_count_as_a_fault_when_the_gateway_has_received_them_again(
    gateway: Address, path: Path, tmp_path: Path, fault: str
) -> None:
    assert getattr(FaultyProducer(gateway, path), f"_{fault}")()
    limit = time.monotonic() + PATIENCE_S
    with ControlClient(tmp_path / "gateway") as driver:
        while (count := driver.status()["duplicates"]) < 50:
            assert time.monotonic() < limit, count
            time.sleep(0.02)


def test_a_fight_for_a_stream_counts_as_a_fault_when_it_is_lost(gateway: Address, path: Path) -> None:
    assert FaultyProducer(gateway, path)._fight()


@pytest.mark.parametrize("fault", [fault for fault in PRODUCER_FAULTS if fault != "reopen"])
def test_a_fault_that_found_no_gateway_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    faulty = FaultyProducer(Address("127.0.0.1", 1), path)
    tries: list[str] = []

    def comes_back_late() -> bool:
        tries.append(fault)
        if len(tries) < 20:
            raise SessionLost("closed")
        faulty._is_rejected = len(tries) > 30
        return len(tries) > 30  # a refusal of its stream does not count as a fault, either

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(faulty, f"_{fault}", comes_back_late)
    monkeypatch.setattr(faulty, "finish", lambda end: None)
    faulty.run(fault)
    assert len(tries) == 30 + REPETITIONS


def test_the_producer_logs_its_acknowledgements_and_the_id_of_a_line_is_its_position(
    gateway: Address, path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "faulty.acks"
    faulty = FaultyProducer(gateway, path, AckLog(log))
    lines = path.read_bytes().splitlines(keepends=True)
    last = sum(map(len, lines[:-1]))
    with ControlClient(tmp_path / "gateway") as driver, ThreadPoolExecutor(1) as thread:
        done = thread.submit(faulty.finish, len(lines))
        limit = time.monotonic() + PATIENCE_S
        while (seen := [stream["seen"] for stream in driver.status()["streams"]]) != [last]:
            assert time.monotonic() < limit, seen
            time.sleep(0.02)
        assert acknowledged([log]) == {}, "nothing is committed yet"
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "CURRENT").write_text("1")
        driver.fence(1)
        driver.offer(1, 0, len(lines), 1 << 20)
        driver.commit(1, 0, len(lines), {stream_id_of(path): last})
        done.result(PATIENCE_S)
    assert acknowledged([log]) == {stream_id_of(path): last}


def test_a_gateway_that_never_reports_an_id_that_goes_back_is_broken(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = FaultyProducer(Address("127.0.0.1", 1), path)

    def without_an_answer() -> bool:
        faulty._went_back += 1
        faulty._unanswered += 1
        return True

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(faulty, "_back", without_an_answer)
    with pytest.raises(GatewayMisbehaved, match="never reported it"):
        faulty.run("back")
    assert faulty._went_back == WENT_BACK_MAX
