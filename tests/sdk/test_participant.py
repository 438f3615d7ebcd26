"""The participant without sockets: every order of a worker's messages, compared with a plain model of the guarantee."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procession.errors import RemoteProtocolError
from procession.sdk import output
from procession.sdk.doubles import MemoryOutput
from procession.sdk.participant import SinkParticipant
from procession.sdk.transaction_log import TransactionLog, committed_ranges
from tests.slow_cases import slow


def test_the_example_of_an_output_is_one() -> None:
    results = doctest.testmod(output)
    assert results.attempted
    assert not results.failed


class Life:
    """One output over several runs. `restart` keeps only the disk."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "out.txnlog"
        self.output = MemoryOutput()
        self.txnlog = TransactionLog(self.path)
        self.participant = self.restart()

    def restart(self) -> SinkParticipant:
        self.txnlog.close()
        self.txnlog = TransactionLog(self.path)
        self.txnlog.open()
        self.participant = SinkParticipant(self.output, self.txnlog)
        self.participant.begin()
        return self.participant


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    life = Life(tmp_path)
    yield life
    life.txnlog.close()


def where(start: int, end: int) -> list[tuple[int, int, int]]:
    return [(1, start, end)]


def test_a_round_makes_its_bytes_visible_at_its_commit_only(life: Life) -> None:
    participant = life.participant
    participant.append([0, 3], [b"abc", b"de"])
    assert participant.phase1("t1", where(0, 5))
    assert (life.output.visible, participant.committed_end, participant.uncommitted) == (b"", 0, ("t1",))
    participant.phase2("t1", commit=True)
    assert (life.output.visible, participant.committed_end, participant.uncommitted) == (b"abcde", 5, ())
    participant.append([5], [b"f"])
    assert participant.phase1("t2", where(5, 6))
    participant.phase2("t2", commit=False)
    assert (life.output.visible, bytes(life.output.data)) == (b"abcde", b"abcde")
    participant.append([5], [b"g"])
    assert participant.phase1("t3", where(5, 6))
    participant.phase2("t3", commit=True)
    assert life.output.visible == b"abcdeg"


def test_an_epoch_without_output_has_a_round_too(life: Life) -> None:
    assert life.participant.phase1("t1", where(0, 0))
    life.participant.phase2("t1", commit=True)
    assert life.participant.phase1("t2", [])
    life.participant.phase2("t2", commit=True)
    assert life.participant.committed_end == 0


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [(1, 0, 4)],
        [(1, 0, 6)],
        [(1, 1, 5)],
        [(2, 0, 5)],
        [(1, 0, 5), (1, 0, 5)],
        [(1, 5, 5)],
    ],
)
def test_a_range_that_differs_from_the_received_data_is_voted_abort(
    life: Life, ranges: list[tuple[int, int, int]]
) -> None:
    life.participant.append([0], [b"abcde"])
    assert not life.participant.phase1("t1", ranges)
    assert life.participant.uncommitted == ()
    with pytest.raises(RemoteProtocolError):
        life.participant.phase2("t1", commit=True)


def test_a_gap_is_voted_abort_and_later_messages_are_dropped(life: Life) -> None:
    participant = life.participant
    participant.append([0, 4], [b"abc", b"e"])
    participant.append([3], [b"d"])
    participant.append([5], [b"f"])
    assert bytes(life.output.data) == b"abc"
    assert not participant.phase1("t1", where(0, 6))
    participant.phase2("t1", commit=False)
    participant.append([0], [b"abcdef"])
    assert participant.phase1("t2", where(0, 6))


def test_an_id_below_the_position_is_the_workers_error(life: Life) -> None:
    life.participant.append([0], [b"abc"])
    with pytest.raises(RemoteProtocolError, match="message id 2 is below the position 3"):
        life.participant.append([2], [b"x"])
    with pytest.raises(RemoteProtocolError, match="message id 3 is below the position 4"):
        life.participant.append([3, 3], [b"d", b"e"])


def test_after_a_restart_prepared_data_is_kept_and_other_data_is_dropped(life: Life) -> None:
    life.participant.append([0], [b"abc"])
    life.participant.phase1("t1", where(0, 3))
    life.output.data += b"torn"
    participant = life.restart()
    assert (bytes(life.output.data), participant.committed_end, participant.uncommitted) == (b"abc", 0, ("t1",))
    with pytest.raises(RemoteProtocolError, match="settling"):
        participant.append([3], [b"d"])
    participant = life.restart()
    participant.phase2("t1", commit=True)
    assert (life.output.visible, participant.uncommitted) == (b"abc", ())
    participant.append([3], [b"d"])
    participant = life.restart()
    assert bytes(life.output.data) == b"abc", "unprepared data is dropped at HELLO"
    with pytest.raises(RemoteProtocolError, match="not open here"):
        participant.phase2("t1", commit=True)


def test_a_transaction_that_was_voted_abort_is_never_committed_or_listed(life: Life) -> None:
    life.participant.append([5], [b"abc"])
    assert not life.participant.phase1("t1", where(0, 8))
    participant = life.restart()
    assert participant.uncommitted == ()
    with pytest.raises(RemoteProtocolError, match="not open here"):
        participant.phase2("t1", commit=True)


def test_an_abort_of_a_transaction_that_is_not_open_changes_nothing(life: Life) -> None:
    life.participant.append([0], [b"abc"])
    life.participant.phase2("never heard of", commit=False)
    assert life.participant.phase1("t1", where(0, 3))
    life.participant.phase2("never heard of", commit=False)
    life.participant.phase2("t1", commit=True)
    assert life.output.visible == b"abc"


class Model:
    """The state that the worker expects."""

    def __init__(self) -> None:
        self.sent = b""
        self.committed = b""
        self.prepared: dict[str, bytes] = {}
        self.txn_count = 0


def say_data(life: Life, model: Model) -> None:
    payload = b"<%d>" % len(model.sent)
    life.participant.append([len(model.committed) + len(model.sent)], [payload])
    model.sent += payload


def say_gap(life: Life, model: Model) -> None:
    life.participant.append([len(model.committed) + len(model.sent) + 1], [b"gap"])


def say_phase1(life: Life, model: Model) -> None:
    model.txn_count += 1
    txn_id = f"t{model.txn_count}"
    start = len(model.committed)
    if life.participant.phase1(txn_id, where(start, start + len(model.sent))):
        model.prepared[txn_id] = model.sent


def say_commit(life: Life, model: Model) -> None:
    txn_id = f"t{model.txn_count}"
    life.participant.phase2(txn_id, commit=True)
    model.committed += model.prepared.pop(txn_id)
    model.sent = b""


def say_abort(life: Life, model: Model) -> None:
    txn_id = f"t{model.txn_count}"
    life.participant.phase2(txn_id, commit=False)
    if model.prepared.pop(txn_id, None) is not None or life.participant.committed_end == len(life.output.data):
        model.sent = b""


def say_restart(life: Life, model: Model) -> None:
    life.restart()
    model.sent = b"".join(model.prepared.values())


Word = Callable[[Life, Model], None]
WORDS: list[Word] = [say_data, say_gap, say_phase1, say_commit, say_abort, say_restart]


def run_script(directory: Path, script: Sequence[Word]) -> None:
    life, model = Life(directory), Model()
    for word in script:
        try:
            word(life, model)
        except RemoteProtocolError:
            # The session is over; the worker returns, settles and continues.
            say_restart(life, model)
        names = " ".join(of.__name__ for of in script)
        assert life.output.visible == model.committed, names
        assert life.participant.committed_end == len(model.committed), names
        assert set(life.participant.uncommitted) == set(model.prepared), names
        assert committed_ranges(life.path) == ([(0, len(model.committed))] if model.committed else []), names
    life.txnlog.close()


@pytest.mark.parametrize("length", [3, slow(4)])
def test_in_every_short_order_of_messages_the_output_is_that_of_the_committed_rounds(
    tmp_path: Path, length: int
) -> None:
    for number, script in enumerate(itertools.product(WORDS, repeat=length)):
        directory = tmp_path / str(number)
        directory.mkdir()
        run_script(directory, script)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(WORDS), min_size=5, max_size=20))
def test_in_long_orders_of_messages_the_output_is_that_of_the_committed_rounds(
    tmp_path_factory: pytest.TempPathFactory, script: list[Word]
) -> None:
    run_script(tmp_path_factory.mktemp("participant"), script)
