"""The summary at the end of `procession run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession.jobs.run_app import is_clean, sentence
from procession.merge.event_time import DeclaredOrder
from procession.monitoring.progress import Display, PipelineProgress
from procession.wire.messages import Eos
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.producer import Producer

DONE = {
    "committed": 1_200,
    "records_in": 1_300,
    "epochs": 12,
    "late": 0,
    "late_rule": None,
    "dead_letters": 0,
    "dead_letter_share_max": 0.5,
    "held_back": [],
    "has_inputs": True,
    "is_done": True,
}


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({}, "1,200 of 1,300 records committed in 12 epochs"),
        ({"epochs": 1}, "1,200 of 1,300 records committed in 1 epoch"),
        (
            {"late_at": {"w": 1_234}},
            "1,200 of 1,300 records committed in 12 epochs; 1,234 arrived too late for stage 'w'",
        ),
        (
            {"counters": {"large": 1_234}},
            "1,200 of 1,300 records committed in 12 epochs; counter large: 1,234",
        ),
        ({"late_rule": "drop"}, "1,200 of 1,300 records committed in 12 epochs"),
        (
            {"late": 37, "late_rule": "drop"},
            "1,200 of 1,300 records committed in 12 epochs; 37 of them arrived late, and were dropped",
        ),
        (
            {"late": 1, "late_rule": "dead-letter"},
            "1,200 of 1,300 records committed in 12 epochs; 1 of them arrived late, and is a dead letter",
        ),
        ({"late": 2, "late_rule": "fail"}, "1,200 of 1,300 records committed in 12 epochs; 2 of them arrived late"),
        ({"dead_letters": 600}, "1,200 of 1,300 records committed in 12 epochs; 600 set aside as dead letters"),
        (
            {"dead_letters": 1_200},
            "1,200 of 1,300 records committed in 12 epochs; 1,200 set aside as dead letters, more than"
            " dead_letter_share_max (0.5) allows",
        ),
        (
            {"is_done": False, "held_back": ["the totals of 'a'", "the open windows of 'b'"]},
            "1,200 of 1,300 records committed in 12 epochs; stopped before the whole input and its end were committed;"
            " start again to continue; still held back: the totals of 'a', the open windows of 'b'",
        ),
        (
            {"has_inputs": False, "is_done": False, "held_back": ["the totals of 'a'"]},
            "1,200 of 1,300 records committed in 12 epochs; still held back: the totals of 'a'",
        ),
    ],
)
def test_the_summary_has_the_committed_and_the_late_records(figures: dict[str, object], message: str) -> None:
    assert sentence(DONE | figures) == message


@pytest.mark.parametrize(
    ("figures", "is_fine"),
    [
        ({}, True),
        ({"is_done": False}, False),
        ({"is_done": False, "has_inputs": False}, True),
        ({"dead_letters": 600}, True),
        ({"dead_letters": 601}, False),
        ({"dead_letters": 9_000, "dead_letter_share_max": 1.0}, True),
        ({"committed": 0}, True),
        ({"committed": 1, "dead_letters": 1}, False),
    ],
)
def test_a_run_is_clean_if_it_is_complete_and_has_few_dead_letters(figures: dict[str, object], is_fine: bool) -> None:
    assert is_clean(DONE | figures) is is_fine


def test_the_progress_counts_late_records_from_the_log_of_epochs(tmp_path: Path) -> None:
    line = {"epoch": 3, "records_in": 50, "last": 60, "latency_ms": []}
    log = tmp_path / "epochs.jsonl"
    log.write_text(json.dumps(line) + "\n")
    assert PipelineProgress.from_now(tmp_path).late == 0
    with log.open("a") as file:
        file.write(json.dumps(line | {"epoch": 4, "late": 7, "late at minutes": 3}) + "\n")
    assert PipelineProgress.from_now(tmp_path).late == 7
    assert PipelineProgress.from_now(tmp_path).late_at == {"minutes": 3}


@pytest.mark.parametrize("declared", [None, DeclaredOrder(frozenset({1, 2}))], ids=["arrival", "event time"])
def test_records_in_are_those_in_the_log_without_the_ends_of_streams(
    tmp_path: Path, declared: DeclaredOrder | None
) -> None:
    gateway = GatewayProcess(tmp_path / "gateway", {"declared": declared}).start()
    try:
        with Producer(gateway.listen) as producer:
            producer.hello()
            producer.notify(1)
            producer.messages(1, range(3))
            producer.send(Eos(1))
            progress = PipelineProgress.from_now(tmp_path)
            seen: list[int] = []
            while not seen or seen[-1] < 3:
                seen.append(progress.poll().records_in)
            with gateway.client() as control:
                while control.status()["next_sequence"] < 4:
                    pass
            assert [progress.poll().records_in, *seen[-1:]] == [3, 3]
            line = {"epoch": 0, "records_in": 3, "last": 4, "latency_ms": []}
            (tmp_path / "epochs.jsonl").write_text(json.dumps(line) + "\n")
            assert progress.poll().records_in == 3
    finally:
        gateway.kill()


def test_a_gateway_that_is_away_is_named_while_others_wait_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = GatewayProcess(tmp_path / "gateway", {}).start()
    joined = {"join": tmp_path / "gateway", "name": "gateway-1"}
    second = GatewayProcess(tmp_path / "gateway-1", joined).start()
    try:
        progress = PipelineProgress.from_now(tmp_path)
        with first.client() as control:
            while [gateway["is_connected"] for gateway in control.gateways()] != [True, True]:
                pass
            assert progress.poll().away == ()
            second.kill()
            while all(listed["is_connected"] for listed in control.gateways()):
                pass
        with Display() as display:
            display.show(progress.poll(), 0)
        assert capsys.readouterr().err.rstrip().endswith("away gateway-1")
    finally:
        first.kill()
        second.kill()


def test_a_disk_with_little_room_is_reported_with_its_path_in_the_progress_and_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway = GatewayProcess(tmp_path / "gateway", {"disk_free_bytes_min": 2**62}).start()
    try:
        progress = PipelineProgress.from_now(tmp_path)
        assert progress.poll().disks_low == (tmp_path / "gateway",)
        with Display() as display:
            display.show(progress, 0)
            progress.disks_low = ()
            display.show(progress, 0)
        output = capsys.readouterr().err
        assert (
            f"the disk of {tmp_path / 'gateway'} has fewer free bytes than disk_free_bytes_min: producers wait"
            in output
        )
        assert f"disk low {tmp_path / 'gateway'}" in output
        assert "has enough free space again" in output
        log = gateway.log.read_text()
        assert "gateway.disk_low" in log
        assert f"path={tmp_path / 'gateway' / 'log'}" in log
    finally:
        gateway.kill()
