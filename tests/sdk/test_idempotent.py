"""An idempotent participant accepts committed positions again with the same bytes, and counts them once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procession.connectors.file_sink import opener
from procession.errors import RemoteProtocolError, StorageError
from procession.sdk.output import refuse_to_wait
from procession.sdk.participant import SinkParticipant
from procession.sdk.sink_directory import SinkDirectory
from procession.sdk.transaction_log import committed_ranges


class Place:
    """A file sink's directory. Each `open` starts a run of the sink."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._home: SinkDirectory | None = None

    def open(self, instance: str = "app") -> SinkParticipant:
        self.close()
        self._home = SinkDirectory(self.directory, opener(self.directory, {"app"}), idempotent={"app"})
        participant = self._home.open_participant(instance, refuse_to_wait)
        participant.begin()
        return participant

    def close(self) -> None:
        if self._home is not None:
            self._home.close()
        self._home = None

    def shown(self) -> bytes:
        data = (self.directory / "app.data").read_bytes()
        return b"".join(data[start:end] for start, end in committed_ranges(self.directory / "app.txnlog"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def send(participant: SinkParticipant, txn: str, start: int, data: bytes) -> bool:
    participant.append([start], [data]) if data else None
    vote = participant.phase1(txn, [(1, start, start + len(data))])
    participant.phase2(txn, vote)
    return vote


def test_an_epoch_that_is_repeated_at_the_same_positions_counts_once(place: Place) -> None:
    participant = place.open()
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    assert send(participant, "2:c_id=1", 5, b"one\n")
    participant = place.open()
    assert participant.committed_end == 9
    assert send(participant, "3:c_id=1", 5, b"one\n")
    assert send(participant, "4:c_id=2", 9, b"two\n")
    assert place.shown() == b"zero\none\ntwo\n"
    assert committed_ranges(place.directory / "app.txnlog") == [(0, 13)]


def test_an_epoch_may_be_repeated_in_the_same_session_and_continue_after_the_old_end(place: Place) -> None:
    participant = place.open()
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    participant.append([0], [b"zero\n"])
    participant.append([5], [b"more\n"])
    assert participant.phase1("2:c_id=0", [(1, 0, 10)])
    participant.phase2("2:c_id=0", True)
    assert place.shown() == b"zero\nmore\n"
    assert participant.committed_end == 10


def test_other_bytes_at_the_same_position_are_reported_as_nondeterminism(place: Place) -> None:
    participant = place.open()
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    with pytest.raises(StorageError, match="not deterministic"):
        participant.append([0], [b"ZERO\n"])
    assert place.shown() == b"zero\n"


def test_an_abort_of_a_repeated_epoch_keeps_the_committed_output(place: Place) -> None:
    participant = place.open()
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    participant.append([0], [b"zero\nmore\n"])
    assert participant.phase1("2:c_id=1", [(1, 0, 10)])
    participant.phase2("2:c_id=1", False)
    assert place.shown() == b"zero\n"
    assert (place.directory / "app.data").read_bytes() == b"zero\n"
    assert send(participant, "3:c_id=1", 5, b"one\n")
    assert place.shown() == b"zero\none\n"


def test_an_undecided_repeated_epoch_survives_a_death_of_the_sink(place: Place) -> None:
    participant = place.open()
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    participant.append([0], [b"zero\n"])
    assert participant.phase1("2:c_id=0", [(1, 0, 5)])
    participant = place.open()
    assert participant.uncommitted == ("2:c_id=0",)
    participant.phase2("2:c_id=0", True)
    assert place.shown() == b"zero\n"
    assert participant.committed_end == 5


def test_a_gap_is_still_an_abort_and_going_back_within_a_transaction_still_an_error(place: Place) -> None:
    participant = place.open()
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    assert not send(participant, "2:c_id=1", 7, b"gap\n")
    participant = place.open()
    participant.append([5], [b"one\n"])
    with pytest.raises(RemoteProtocolError):
        participant.append([0], [b"zero\n"])


def test_an_output_that_is_not_idempotent_refuses_repeated_positions(place: Place) -> None:
    participant = place.open("other")
    assert send(participant, "1:c_id=0", 0, b"zero\n")
    with pytest.raises(RemoteProtocolError):
        participant.append([0], [b"zero\n"])
