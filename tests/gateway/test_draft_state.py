"""What the gateway decides about sessions of the draft: groups, boundaries, ephemeral messages, counts and faults."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procession.gateway.config import Limits
from procession.gateway.events import Action, Appended, Close, Received, Send, SessionClosed, SessionOpened, Ticked
from procession.gateway.groups import HELD_BYTES, MARKS_MAX, Group
from procession.gateway.rows import whole_groups
from procession.storage.segment import (
    INGRESS_SCHEMA,
    KIND_BOUNDARY,
    KIND_EOS,
    KIND_EPHEMERAL,
    KIND_RECORD,
    KIND_UNSTABLE,
    REFERENCE_KINDS,
)
from procession.wire import draft
from procession.wire.draft_messages import (
    AckCounts,
    Debug,
    DraftMessage,
    DraftMessages,
    DraftOk,
    Extension,
    Fault,
)
from procession.wire.messages import NOTHING_COMMITTED, Ack, Hello, Notify, Restart
from tests.gateway.test_gateway_state import Bench, reasons, sent

A, B, C = 1, 2, 3
ALL = frozenset(Extension)


class DraftBench(Bench):
    def hello(self, session: int, version: str = "draft") -> list[object]:  # type: ignore[override]
        self.do(SessionOpened(session))
        return list(sent(self.do(Received(session, Hello(version, b"", "p", "i"))), session))

    def open(self, session: int, *stream_ids: int, version: str = "draft") -> None:  # type: ignore[override]
        self.hello(session, version)
        for stream_id in stream_ids:
            assert reasons(self.do(Received(session, Notify(stream_id, "s", 0)))) == []

    def take(self, session: int, *messages: DraftMessage) -> list[Action]:
        return self.do(Received(session, DraftMessages(messages)))

    def commit_to(self, epoch: int, end: int | None = None) -> list[Action]:
        """Commit what a chain would say of the rows below `end`."""
        end = len(self.rows) if end is None else end
        references = {row["stream_id"]: row["message_id"] for row in self.rows[:end] if row["kind"] in REFERENCE_KINDS}
        return self.commit(epoch, end, **{f"s{stream_id}": at for stream_id, at in references.items()})  # type: ignore[arg-type]

    @property
    def written(self) -> list[tuple[object, object, object]]:
        return [(row["kind"], row["message_id"], row["payload"]) for row in self.rows]

    @property
    def payloads(self) -> list[object]:
        return [row["payload"] for row in self.rows if row["kind"] in (KIND_RECORD, KIND_UNSTABLE, KIND_EPHEMERAL)]


@pytest.fixture
def bench() -> DraftBench:
    return DraftBench()


def stable(message_id: int, payload: bytes | None = b"x", stream_id: int = 7, *, is_last: bool = False) -> DraftMessage:
    return DraftMessage(stream_id, message_id, payload, is_last=is_last)


def unstable(message_id: int, payload: bytes | None = b"u", stream_id: int = 7) -> DraftMessage:
    return DraftMessage(stream_id, message_id, payload, is_unstable=True)


def ephemeral(payload: bytes | None = b"e", stream_id: int = 9, *, is_last: bool = False) -> DraftMessage:
    return DraftMessage(stream_id, None, payload, is_last=is_last)


# Handshake


def test_ok_lists_the_streams_that_have_something_committed(bench: DraftBench) -> None:
    assert bench.hello(A) == [DraftOk(100)]
    bench.do(Received(A, Notify(7, "seven", 0)))
    bench.do(Received(A, Notify(8, "eight", 0)))
    bench.take(A, stable(1), stable(2), stable(1, stream_id=8))
    bench.commit_to(0, 2)
    assert bench.hello(B) == [DraftOk(100, ((7, "seven", 2),))]
    bench.restart()
    assert bench.hello(C) == [DraftOk(100, ((7, "seven", 2),))]


def test_a_list_that_is_too_long_is_cut_and_a_stream_that_is_not_listed_is_not_doubled() -> None:
    bench = DraftBench(Limits(listed_bytes_max=19 * 3))
    bench.open(A, 1, 2, 3, 4)
    bench.take(A, *(stable(5, stream_id=stream_id) for stream_id in (1, 2, 3, 4)))
    bench.commit_to(0)
    (ok,) = bench.hello(B)
    assert isinstance(ok, DraftOk)
    assert [stream_id for stream_id, _, _ in ok.streams] == [1, 2, 3]
    bench.do(SessionClosed(A))
    bench.do(Received(B, Notify(4, "s", 0)))
    bench.take(B, stable(5, stream_id=4), stable(6, stream_id=4))
    assert len(bench.rows) == 5


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("draft+counts", "the draft's extension 'counts' is not allowed here"),
        ("draft+debug", "the draft's extension 'debug' is not allowed here"),
    ],
)
def test_what_goes_beyond_the_draft_is_refused_unless_it_is_allowed(version: str, reason: str) -> None:
    bench = DraftBench()
    bench.do(SessionOpened(A))
    assert bench.do(Received(A, Hello(version, b"", "p", "i"))) == [Close(A, reason)]
    bench = DraftBench(Limits(extensions=draft.VERSIONS[version]))
    assert bench.hello(A, version) == [DraftOk(Limits().credits_max)]


def test_a_cookie_is_asked_for_in_the_draft_too() -> None:
    bench = DraftBench(Limits(cookie=b"sesame"))
    bench.do(SessionOpened(A))
    assert bench.do(Received(A, Hello("draft", b"", "p", "i"))) == [Close(A, "a cookie is needed here")]


# Who holds a stream


def test_a_notify_is_not_answered_and_its_credit_comes_back(bench: DraftBench) -> None:
    bench.hello(A)
    assert bench.do(Received(A, Notify(7, "s", 0))) == []
    assert bench.do(Ticked()) == [Send(A, Ack(1, ()))]


def test_a_notify_for_a_stream_of_another_session_ends_the_session_that_asked(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.hello(B)
    assert reasons(bench.do(Received(B, Notify(7, "s", 0)))) == [f"{draft.IN_USE}: 7"]
    assert bench.state.registry[7].session == A
    bench.do(SessionClosed(A))
    bench.open(C, 7)


def test_whoever_ended_a_stream_may_open_it_again_at_once_and_others_when_the_end_is_committed(
    bench: DraftBench,
) -> None:
    bench.open(A, 7)
    bench.take(A, stable(1), stable(2, is_last=True))
    assert [row["kind"] for row in bench.rows] == [KIND_RECORD, KIND_RECORD, KIND_EOS]
    bench.hello(B)
    assert reasons(bench.do(Received(B, Notify(7, "s", 0))))
    assert bench.do(Received(A, Notify(7, "s", 0))) == []
    bench.take(A, stable(3))
    bench.commit_to(0, 3)
    assert bench.state.registry[7].session == A, "the commit of its former end does not take it away"
    bench.take(A, stable(4, None, is_last=True))
    bench.commit_to(1)
    bench.open(C, 7)


def test_the_last_ack_comes_with_a_commit_that_covers_the_end(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, stable(1), DraftMessage(7, 0, None, is_last=True, is_unstable=True))
    assert bench.written == [(KIND_RECORD, 1, b"x"), (KIND_EOS, 1, b"")]
    assert sent(bench.commit_to(0, 1), A) == [Ack(3, ((7, 1),))]
    assert sent(bench.commit_to(1, 2), A) == [Ack(0, ((7, 1),))]
    assert bench.state.registry[7].is_free


def test_the_end_of_an_empty_stream_leaves_nothing_behind(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, DraftMessage(7, 0, None, is_last=True, is_unstable=True))
    assert bench.written == [(KIND_EOS, NOTHING_COMMITTED, b"")]
    assert sent(bench.commit_to(0), A) == [Ack(2, ())]
    assert 7 not in bench.state.registry


# Boundaries


def test_a_boundary_is_a_point_of_reference_without_a_record(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, stable(1), stable(5, None))
    assert bench.written == [(KIND_RECORD, 1, b"x"), (KIND_BOUNDARY, 5, b"")]
    assert bench.state.records_in == 1
    assert sent(bench.commit_to(0), A) == [Ack(3, ((7, 5),))]
    assert reasons(bench.take(A, stable(5), stable(6))) == []
    assert bench.payloads == [b"x", b"x"], "5 is committed, so it is dropped"


def test_a_boundary_at_the_last_message_is_the_same_place_and_one_before_it_goes_back(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, stable(3), stable(3, None), stable(3, None, is_last=True))
    assert bench.written == [(KIND_RECORD, 3, b"x"), (KIND_EOS, 3, b"")]
    bench.do(Received(A, Notify(7, "s", 0)))
    bench.take(A, stable(4))
    assert reasons(bench.take(A, stable(3, None), stable(5))) == [], "below what was there when it was opened again"
    bench.do(SessionClosed(A))
    bench.open(B, 8)
    bench.take(B, stable(3, stream_id=8))
    assert reasons(bench.take(B, stable(2, None, stream_id=8))) == ["message id goes back on stream 8"]


def test_a_boundary_at_an_earlier_place_closes_no_group(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, stable(5), unstable(6))
    assert reasons(bench.take(A, stable(5, None))) == ["message id goes back on stream 7"]


def test_a_boundary_that_is_no_point_of_reference_changes_nothing(bench: DraftBench) -> None:
    bench.open(A, 7)
    assert bench.take(A, unstable(1, None)) == []
    assert bench.rows == []


# Groups


def test_unstable_messages_wait_for_the_stable_one_that_closes_their_group(bench: DraftBench) -> None:
    bench.open(A, 7, 8)
    bench.take(A, stable(1), unstable(900, b"a"), unstable(3, b"b"))
    bench.take(A, stable(1, b"other", stream_id=8))
    assert bench.payloads == [b"x", b"other"]
    bench.take(A, stable(10, b"c"))
    assert bench.written[2:] == [(KIND_UNSTABLE, 900, b"a"), (KIND_UNSTABLE, 3, b"b"), (KIND_RECORD, 10, b"c")]
    bench.take(A, unstable(0, b"d"), stable(11, None))
    assert bench.written[5:] == [(KIND_UNSTABLE, 0, b"d"), (KIND_BOUNDARY, 11, b"")]
    assert bench.state.records_in == 6


@pytest.mark.parametrize("is_killed", [False, True], ids=["dropped", "killed"])
@pytest.mark.parametrize("committed", range(8))
def test_a_group_that_is_sent_again_under_other_ids_is_neither_doubled_nor_lost(
    bench: DraftBench, committed: int, is_killed: bool
) -> None:
    """Whatever is committed when the session is lost, in the middle of a group too."""

    def groups(first_unstable: int) -> list[DraftMessage]:
        ids = iter(range(first_unstable, first_unstable + 9))
        return [
            stable(1, b"1"),
            *(unstable(next(ids), payload) for payload in (b"2", b"3")),
            stable(10, b"4"),
            *(unstable(next(ids), payload) for payload in (b"5", b"6")),
            stable(20, None),
        ]

    bench.open(A, 7)
    bench.take(A, *groups(100))
    assert len(bench.rows) == 7
    bench.take(A, unstable(777, b"7"))
    bench.commit_to(0, committed)
    if is_killed:
        bench.restart()
    else:
        bench.do(SessionClosed(A))
    (ok,) = bench.hello(B)
    assert isinstance(ok, DraftOk)
    told = ok.streams[0][2] if ok.streams else -1
    assert told == {0: -1, 1: 1, 2: 1, 3: 1, 4: 10, 5: 10, 6: 10, 7: 20}[committed]
    bench.do(Received(B, Notify(7, "s", 0)))
    again = groups(200)
    after = next((at + 1 for at, message in enumerate(again) if message.message_id == told), 0)
    bench.take(B, *again[after:], unstable(888, b"7"), stable(30, b"8"))
    assert bench.payloads == [b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"8"]


def test_what_a_lost_session_held_is_gone_and_comes_again(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, unstable(1, b"a"))
    bench.do(SessionClosed(A))
    assert 7 not in bench.state.registry
    bench.open(B, 7)
    bench.take(B, unstable(5, b"a"), stable(6, b"b"))
    assert bench.payloads == [b"a", b"b"]


def test_a_stream_may_not_end_in_an_open_group(bench: DraftBench) -> None:
    bench.open(A, 7)
    last = DraftMessage(7, 5, b"x", is_last=True, is_unstable=True)
    reason = "stream 7 ends without a stable point of reference"
    assert reasons(bench.take(A, last)) == [reason]
    bench.open(B, 7)
    bench.take(B, unstable(1))
    assert reasons(bench.take(B, DraftMessage(7, 5, None, is_last=True, is_unstable=True))) == [reason]
    assert bench.rows == []


def test_credits_for_what_is_held_come_back_so_that_a_group_may_be_longer_than_the_window() -> None:
    bench = DraftBench(Limits(credits_max=4))
    bench.open(A, 7)
    given = 3
    for number in range(50):
        assert given > 0
        given -= 1
        frames = sent(bench.take(A, unstable(number)), A)
        given += sum(frame.credits for frame in frames if isinstance(frame, Ack))
    bench.take(A, stable(99))
    assert len(bench.rows) == 51


def test_a_session_holds_no_more_than_its_limit_and_what_is_let_go_counts_no_more() -> None:
    bench = DraftBench(Limits(held_bytes_max=3 * (HELD_BYTES + 10)))
    bench.open(A, 7, 8)
    for _ in range(3):
        bench.take(A, *(unstable(n, b"0123456789") for n in range(3)))
        bench.take(A, stable(1 + len(bench.rows)))
        assert bench.state.sessions[A].groups is not None
        assert bench.state.sessions[A].groups.held_bytes == 0
    bench.take(A, unstable(1, b"0123456789"), unstable(2, b"0123456789", stream_id=8))
    refusal = bench.take(A, unstable(3, b"0123456789"), unstable(4, b""))
    assert reasons(refusal) == [f"more than {3 * (HELD_BYTES + 10)} bytes without a stable point of reference"]


def test_messages_before_one_that_is_an_error_count(bench: DraftBench) -> None:
    bench.open(A, 7)
    actions = bench.take(A, stable(1), stable(2), stable(2), stable(3))
    assert reasons(actions) == ["message id goes back on stream 7"]
    assert bench.ids == [1, 2]
    bench.open(B, 7)
    bench.take(B, stable(1), stable(2), stable(3))
    assert bench.ids == [1, 2, 3]


def test_an_event_time_that_the_log_cannot_keep_is_refused(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, DraftMessage(7, 1, b"x", event_time=2**63 - 1, key=b"k"))
    assert (bench.rows[0]["event_time"], bench.rows[0]["key"]) == (2**63 - 1, b"k")
    assert reasons(bench.take(A, DraftMessage(7, 2, b"x", event_time=2**63))) == [f"event time {2**63} is over 2^63-1"]


# Ephemeral messages


def test_ephemeral_messages_are_records_that_are_counted_apart_and_never_acknowledged(bench: DraftBench) -> None:
    bench.open(A, 9)
    bench.take(A, ephemeral(b"a"), ephemeral(b"a"))
    assert bench.written == [(KIND_EPHEMERAL, 0, b"a"), (KIND_EPHEMERAL, 1, b"a")]
    assert (bench.state.records_in, bench.state.ephemeral_in, bench.state.duplicates) == (0, 2, 0)
    assert sent(bench.commit_to(0), A) == []
    bench.do(SessionClosed(A))
    assert 9 not in bench.state.registry
    bench.open(B, 9)
    bench.take(B, ephemeral(b"a"))
    assert len(bench.payloads) == 3, "nobody can tell whether it is the same"


def test_an_ephemeral_stream_ends_and_is_released_by_the_commit(bench: DraftBench) -> None:
    bench.open(A, 9)
    bench.take(A, ephemeral(b"a"), ephemeral(None, is_last=True))
    assert [row["kind"] for row in bench.rows] == [KIND_EPHEMERAL, KIND_EOS]
    bench.restart()
    bench.hello(B)
    assert reasons(bench.do(Received(B, Notify(9, "s", 0))))
    bench.commit_to(0)
    bench.open(C, 9)
    bench.take(C, stable(1, stream_id=9))


@pytest.mark.parametrize(
    "mixed",
    [
        (ephemeral(stream_id=7), stable(1)),
        (stable(1), ephemeral(stream_id=7)),
        (unstable(1), ephemeral(stream_id=7)),
        (stable(1, None), ephemeral(None, stream_id=7, is_last=True)),
    ],
    ids=["then stable", "after stable", "after unstable", "end after a boundary"],
)
def test_a_stream_does_not_mix_ephemeral_messages_with_others(
    bench: DraftBench, mixed: tuple[DraftMessage, DraftMessage]
) -> None:
    bench.open(A, 7)
    assert reasons(bench.take(A, *mixed)) == ["ephemeral and other messages on stream 7"]


# Counts


def counted(actions: list[Action], session: int) -> list[tuple[int, int, int]]:
    frames = [action.frame for action in actions if isinstance(action, Send) and action.session == session]
    return [triple for frame in frames if isinstance(frame, AckCounts) for triple in frame.positions]


def test_an_ack_with_counts_tells_how_many_messages_are_settled_in_the_order_they_were_sent() -> None:
    bench = DraftBench(Limits(credits_max=1000, extensions=ALL))
    bench.open(A, 7, 8, version="draft+counts")
    bench.take(A, stable(5), unstable(1), unstable(2), stable(9), unstable(3, None), stable(20, None), unstable(4))
    bench.take(A, stable(1, stream_id=8))
    assert counted(bench.commit_to(0, 1), A) == [(7, 5, 1)]
    assert counted(bench.commit_to(1, 3), A) == [], "in the middle of a group nothing new is settled"
    assert counted(bench.commit_to(2, 4), A) == [(7, 9, 5)], (
        "the mark that marks nothing is settled with what it follows"
    )
    assert counted(bench.commit_to(3), A) == [(7, 20, 6), (8, 1, 1)]
    bench.take(A, stable(21, is_last=True))
    assert counted(bench.commit_to(4), A) == [(7, 21, 8)]


def test_counts_begin_anew_with_a_session_and_what_was_committed_before_is_settled_at_once() -> None:
    bench = DraftBench(Limits(credits_max=1000, extensions=ALL))
    bench.open(A, 7, version="draft+counts")
    bench.take(A, stable(1), unstable(5), stable(2), stable(3))
    bench.commit_to(0, 3)
    bench.do(SessionClosed(A))
    bench.open(B, 7, version="draft+counts")
    bench.take(B, stable(1), unstable(6), stable(2), stable(3), stable(4))
    assert counted(bench.do(Ticked()), B) == [(7, 2, 3)]
    assert counted(bench.do(Ticked()), B) == []
    assert counted(bench.commit_to(1), B) == [(7, 4, 5)]


def test_places_to_count_by_are_bounded_and_a_count_never_runs_ahead() -> None:
    group = Group()
    for number in range(3 * MARKS_MAX):
        group.frames, group.reference = number + 1, number
        group.mark()
        assert len(group.marks) <= MARKS_MAX
    for number in range(3 * MARKS_MAX):
        group.settle(number)
        assert group.settled <= number + 1
    assert group.settled == 3 * MARKS_MAX


# Faults


@pytest.fixture
def faulty() -> DraftBench:
    bench = DraftBench(Limits(credits_max=100, extensions=ALL))
    bench.open(A, 7, version="draft+debug")
    bench.open(B, 8)
    bench.do(Ticked())
    return bench


def test_a_session_that_stutters_gets_no_ack_and_then_all_that_was_held_back(faulty: DraftBench) -> None:
    faulty.do(Received(A, Debug(Fault.STUTTER, 2)))
    faulty.take(A, stable(1), stable(2))
    assert sent(faulty.commit_to(0, 1), A) == []
    assert faulty.do(Ticked()) == [Send(B, Ack(0, ()))]
    assert sent(faulty.do(Ticked()), A) == [], "the second one"
    assert sent(faulty.do(Ticked()), A) == [Ack(3, ((7, 1),))]


def test_a_session_may_ask_for_time_to_pass_and_only_its_own_does(faulty: DraftBench) -> None:
    assert faulty.do(Received(A, Debug(Fault.TICK, 3))) == [
        Send(A, Ack(1, ())),
        Send(A, Ack(0, ())),
        Send(A, Ack(0, ())),
    ]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault.RESTART, [Send(A, Restart()), Close(A, None)]),
        (Fault.CLOSE, [Close(A, None)]),
        (Fault.ERROR, [Close(A, "an error was asked for")]),
    ],
)
def test_a_session_may_ask_for_its_own_end(faulty: DraftBench, fault: Fault, expected: list[Action]) -> None:
    assert faulty.do(Received(A, Debug(fault))) == expected
    assert set(faulty.state.sessions) == {B}
    assert 7 not in faulty.state.registry


# Epochs and groups


def test_an_epoch_ends_before_a_group_that_it_would_cut_or_behind_it_if_that_is_all() -> None:
    kinds = [KIND_RECORD, KIND_UNSTABLE, KIND_UNSTABLE, KIND_RECORD, KIND_UNSTABLE, KIND_BOUNDARY, KIND_EPHEMERAL]
    blank = dict.fromkeys(INGRESS_SCHEMA.names, 0) | {"key": b"", "payload": b""}
    rows = [blank | {"kind": kind} for kind in kinds]

    def ends(start: int, end: int, piece: int) -> int:
        def batches(first: int, last: int) -> list[pa.RecordBatch]:
            cuts = range(first, last, piece)
            return [pa.RecordBatch.from_pylist(rows[at : min(at + piece, last)], schema=INGRESS_SCHEMA) for at in cuts]

        return whole_groups(start, end, batches(start, end), batches(end, len(rows)))

    for piece in (1, 2, 100):
        assert [ends(0, end, piece) for end in range(1, 8)] == [1, 1, 1, 4, 4, 6, 7]
        assert [ends(1, end, piece) for end in range(2, 8)] == [4, 4, 4, 4, 6, 7]
        assert [ends(4, end, piece) for end in range(5, 8)] == [6, 6, 7]


def test_a_restarted_gateway_knows_where_groups_are(bench: DraftBench) -> None:
    bench.open(A, 7)
    bench.take(A, stable(1))
    assert bench.state.groups_end == 0
    bench.take(A, unstable(1), stable(2))
    bench.take(A, stable(3))
    assert bench.state.groups_end == 3
    bench.restart()
    assert bench.state.groups_end == 3


# The whole, against a slow and obvious reference

step = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 6)),
    st.tuples(st.just("drop"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("commit"), st.integers(0, 10)),
)


@given(st.lists(st.sampled_from("usb"), min_size=1, max_size=30), st.lists(step, max_size=40))
def test_whatever_drops_dies_or_commits_every_record_is_in_the_log_once_and_in_order(
    shape: list[str], steps: list[tuple[str, int]]
) -> None:
    """A stream of unstable (u), stable (s) and boundary (b) messages; unstable ids are others in each session."""
    bench, session, epoch, position = DraftBench(Limits(credits_max=10_000)), 1, 0, 0

    def message(number: int) -> DraftMessage:
        if shape[number] == "u":
            return unstable(session * 1000 + number, b"%d" % number)
        return stable(number, None if shape[number] == "b" else b"%d" % number)

    bench.open(session, 7)
    for what, number in steps:
        if what == "send":
            end = min(len(shape), position + number)
            bench.take(session, *(message(at) for at in range(position, end)))
            position = end
        elif what == "commit":
            bench.commit_to(epoch, min(len(bench.rows), bench.state.snapshot.end_sequence + number))
            epoch += 1
        else:
            if what == "kill":
                bench.restart()
            else:
                bench.do(SessionClosed(session))
            session += 1
            (ok,) = bench.hello(session)
            assert isinstance(ok, DraftOk)
            bench.do(Received(session, Notify(7, "s", 0)))
            position = ok.streams[0][2] + 1 if ok.streams else 0
    expected = [b"%d" % number for number, kind in enumerate(shape) if kind != "b"]
    assert bench.payloads == expected[: len(bench.payloads)]
    closed = max((at for at in range(position) if shape[at] != "u"), default=-1)
    assert len(bench.payloads) >= sum(kind != "b" for kind in shape[: closed + 1])


def test_nothing_of_the_draft_is_appended_twice_when_the_log_is_slow() -> None:
    bench = DraftBench(Limits(credits_max=100), appends=False)
    bench.open(A, 7)
    assert sent(bench.take(A, *(stable(number) for number in range(60))), A) == []
    assert sent(bench.do(Appended(60)), A) == [Ack(61, ())]
