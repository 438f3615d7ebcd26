"""A gateway checks what arrives against what it knows: ends of epochs, message ids, fences, and its own snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from procession.errors import ConfigError, StorageError
from procession.gateway.gateway_directory import SNAPSHOT, load_snapshot
from procession.gateway.gateway_events import EpochCommitted
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import LogTail
from procession.gateway.plausibility import check_end, check_positions
from procession.gateway.registry import Registry
from procession.gateway.snapshot import Position, Snapshot
from procession.gateway.state import GatewayState
from procession.gateway.stream_leases import StreamLeases
from procession.storage.driver_claim import check_claimed
from procession.wire.messages import Notify

REGISTRY = Registry({7: Position("seven", 41)}, LogTail())


def claims(*found: int, opened: int | None = None, is_alone: bool = False) -> StreamLeases:
    made = StreamLeases(found)
    if opened is not None:
        made.has_leader = True
        made.notify(1, Notify(opened, "", 0))
        made.answered(opened, is_granted=True)
    made.is_alone = is_alone
    return made


def test_a_commit_must_end_where_an_offer_ended() -> None:
    check_end(0, 5, 5)
    with pytest.raises(StorageError, match="ends at 6, but no record from 5 on was offered"):
        check_end(0, 6, 5)


@pytest.mark.parametrize(
    "among", [None, claims(opened=7), claims(is_alone=True)], ids=["no others", "held here", "alone"]
)
def test_a_commit_beyond_the_last_received_message_id_is_refused(among: StreamLeases | None) -> None:
    check_positions({7: 41}, REGISTRY, among)
    with pytest.raises(StorageError, match=r"Message 42 of stream 7 .* the last received id is 41"):
        check_positions({7: 42}, REGISTRY, among)


def test_a_commit_beyond_the_log_is_accepted_for_a_stream_that_may_have_moved() -> None:
    check_positions({7: 42}, REGISTRY, claims(7))


def test_a_commit_is_accepted_for_a_stream_of_which_only_the_end_is_in_the_log() -> None:
    """Another gateway received the records before the stream moved here. This gateway has restarted since."""
    tail = LogTail()
    tail.eos_sequences[8] = 0
    check_positions({8: 3}, Registry({}, tail), claims(8))


def test_a_commit_of_a_stream_without_records_is_refused_by_a_single_gateway() -> None:
    with pytest.raises(StorageError, match="stream 8 was reported as committed, but none was received"):
        check_positions({8: 0}, REGISTRY, claims(is_alone=True))
    check_positions({8: 0}, REGISTRY, claims())  # another gateway may have its records


def test_a_fence_that_no_driver_has_claimed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Driver 1 has not claimed"):
        check_claimed(1, tmp_path)
    (tmp_path / "CURRENT").write_text("3\n")
    check_claimed(3, tmp_path)
    with pytest.raises(ConfigError, match=r"Driver 1000000 has not claimed .* last driver is 3"):
        check_claimed(1_000_000, tmp_path)
    check_claimed(1_000_000, None)
    (tmp_path / "CURRENT").write_text("garbage")
    with pytest.raises(StorageError, match="is damaged"):
        check_claimed(1, tmp_path)


GOOD = {"fence": 1, "epoch": 2, "end_sequence": 3, "next_sequence": 3, "streams": {"7": {"name": "s", "committed": 2}}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "[" * 100_000,
        json.dumps(GOOD | {"fence": -1}),
        json.dumps(GOOD | {"fence": 2**64}),
        json.dumps(GOOD | {"epoch": 1.5}),
        json.dumps(GOOD).replace('"epoch": 2', '"epoch": 1e999'),
        json.dumps(GOOD | {"end_sequence": "3"}),
        json.dumps(GOOD | {"next_sequence": None}),
        json.dumps(GOOD | {"streams": [7]}),
        json.dumps(GOOD | {"streams": {"x": {"name": "s", "committed": 2}}}),
        json.dumps(GOOD | {"streams": {"-7": {"name": "s", "committed": 2}}}),
        json.dumps(GOOD | {"streams": {"7": {"name": "s", "committed": -1}}}),
        json.dumps(GOOD | {"streams": {"7": {"name": "s"}}}),
        json.dumps(GOOD | {"streams": {"7": 2}}),
        "\x00" * 100,
        "1" * 10_000,
    ],
)
def test_a_damaged_or_hostile_snapshot_is_reported_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / SNAPSHOT).write_text(text)
    with pytest.raises(StorageError, match=r"cannot be read") as caught:
        load_snapshot(tmp_path)
    assert caught.value.next_step


def test_a_gateway_state_refuses_a_commit_that_its_log_does_not_have() -> None:
    state = GatewayState(Limits(), Snapshot(streams={7: Position("s", 3)}), next_sequence=5)
    with pytest.raises(StorageError, match="Message 9 of stream 7"):
        state.handle(EpochCommitted(0, 0, 5, {7: 9}))
    assert state.handle(EpochCommitted(0, 0, 5, {7: 3}))
