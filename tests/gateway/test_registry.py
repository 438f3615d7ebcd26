"""The registry of streams: seen and committed positions, the holder of a stream, and when a stream is removed."""

from __future__ import annotations

import pytest

from procession.errors import RemoteProtocolError
from procession.gateway.gateway_limits import Limits
from procession.gateway.log_rows import LogTail
from procession.gateway.registry import LISTED_BYTES, STREAM_NAME_CHARS_MAX, RegisteredStream, Registry
from procession.gateway.retired_streams import RetiredStreams
from procession.gateway.snapshot import Position
from procession.wire.messages import NOTHING_COMMITTED, UNNUMBERED


def registry(positions: dict[int, Position] | None = None, **seen: int) -> Registry:
    return Registry(positions or {}, LogTail(seen={int(name[1:]): at for name, at in seen.items()}))


def at(committed: int, name: str = "") -> Position:
    return Position(name, committed)


def test_records_in_the_log_are_seen_and_only_positions_of_the_snapshot_are_committed() -> None:
    streams = registry({1: at(5, "a")}, s1=9, s2=3)
    assert (streams[1].committed, streams[1].seen, streams[1].name) == (5, 9, "a")
    assert (streams[2].committed, streams[2].seen) == (None, 3)
    assert streams[2].point_of_reference == NOTHING_COMMITTED
    assert len(streams) == 2
    assert 3 not in streams


def test_a_stream_with_its_end_in_the_log_cannot_be_opened() -> None:
    streams = Registry({}, LogTail(seen={1: 4}, eos_sequences={1: 7}))
    assert (streams[1].state, streams[1].is_free) == ("ending", False)


def test_a_producer_without_ids_continues_after_the_seen_position_and_others_after_the_committed_one() -> None:
    stream = RegisteredStream(1, committed=5, seen=9)
    assert (stream.reference_for(UNNUMBERED), stream.reference_for(0)) == (9, 5)
    assert RegisteredStream(1).reference_for(UNNUMBERED) == NOTHING_COMMITTED


def test_ids_up_to_what_was_seen_at_the_opening_are_duplicates_and_later_ones_must_rise() -> None:
    stream = RegisteredStream(1, committed=5, seen=9)
    stream.open(1, "a")
    assert [stream.is_fresh(message_id) for message_id in (0, 9, 10)] == [False, False, True]
    stream.seen = 20
    with pytest.raises(RemoteProtocolError, match="goes back on stream 1"):
        stream.is_fresh(15)
    stream.commit(15)
    assert not stream.is_fresh(15), "committed records are dropped without an error"
    with pytest.raises(RemoteProtocolError, match="is reserved"):
        stream.is_fresh(NOTHING_COMMITTED)


def test_a_committed_position_never_decreases_and_counts_as_seen() -> None:
    stream = RegisteredStream(1)
    assert stream.commit(4)
    assert (stream.committed, stream.seen) == (4, 4)
    assert not stream.commit(4)
    assert not stream.commit(3)
    assert stream.committed == 4


def test_the_name_that_a_session_gives_is_used_and_truncated() -> None:
    stream = RegisteredStream(1)
    stream.call("elsewhere")
    stream.call("later")
    assert stream.name == "elsewhere"
    stream.open(1, "x" * (STREAM_NAME_CHARS_MAX + 1))
    assert stream.name == "x" * STREAM_NAME_CHARS_MAX


def test_a_stream_that_is_opened_again_has_no_end() -> None:
    stream = RegisteredStream(1, eos_sequence=4)
    stream.open(1, "")
    assert stream.state == "open"


def test_another_gateway_names_a_stream_unless_it_is_retired() -> None:
    retired = RetiredStreams(Limits())
    streams = Registry({}, LogTail(), retired)
    streams.call(1, "a")
    assert streams[1].name == "a"
    retired.retired(retired.retiring({2: 7}, now=0.0))
    streams.call(2, "b")
    assert 2 not in streams
    assert streams.committed(2) == 7
    assert streams.get_or_add(2).seen == 7, "it continues from there when it returns"


def test_a_session_that_ends_releases_its_streams_and_forgets_empty_ones() -> None:
    streams = registry(s1=3)
    for stream_id, session in ((1, 1), (2, 1), (3, 2)):
        streams.get_or_add(stream_id).open(session, "")
    assert streams.leave(1) == [1, 2]
    assert streams[1].is_free
    assert 2 not in streams
    assert streams[3].session == 2


def test_the_positions_of_a_snapshot_include_the_changes_and_never_decrease() -> None:
    streams = registry({1: at(5, "a"), 2: at(6)}, s3=1)
    assert streams.positions({1: 7, 2: 4, 9: 0}) == {1: at(7, "a"), 2: at(6), 9: at(0)}


def test_the_list_of_streams_is_bounded_and_has_only_committed_ones() -> None:
    streams = registry({1: at(5, "ab"), 2: at(6)}, s3=1)
    assert streams.listed(10**6) == ((1, "ab", 5), (2, "", 6))
    assert streams.listed(2 * LISTED_BYTES + 2) == ((1, "ab", 5), (2, "", 6))
    assert streams.listed(2 * LISTED_BYTES + 1) == ((1, "ab", 5),)
    assert streams.listed(0) == ()


def test_a_commit_is_sent_to_the_sessions_of_streams_with_new_positions() -> None:
    streams = registry({1: at(5)}, s1=9, s2=9, s3=9)
    for stream_id, session in ((1, 1), (2, 1), (3, 2)):
        streams[stream_id].open(session, "")
    assert streams.commit(0, {1: at(7), 3: at(9), 8: at(2)}) == {1: [(1, 7)], 2: [(3, 9)]}
    assert streams[8].committed == 2
    assert streams.idle(0.0, 0, nobody) == {8: 2}, "no session has the stream, and all its records are committed"
    assert streams.commit(0, {1: at(7)}) == {}


def test_an_end_is_released_by_the_commit_that_covers_it() -> None:
    streams = registry({1: at(5)})
    streams[1].open(1, "")
    streams[1].eos_sequence = 10
    assert streams.commit(10, {}) == {}
    assert streams[1].state == "ending"
    assert streams.commit(11, {}) == {1: [(1, 5)]}
    assert streams[1].state == "closed"


def test_the_end_of_an_empty_stream_is_reported_without_a_position_and_leaves_nothing() -> None:
    streams = registry()
    streams.get_or_add(1).open(1, "")
    streams[1].eos_sequence = 0
    assert streams.commit(1, {}) == {1: []}
    assert 1 not in streams


def nobody(_: int) -> bool:
    return False


def test_streams_are_idle_when_all_is_committed_and_no_session_has_them_and_the_longest_idle_go_first() -> None:
    streams = registry({1: at(5), 2: at(6), 3: at(7), 4: at(8)}, s2=9)
    streams[3].open(1, "")
    assert streams.idle(-1.0, 10, nobody) == {1: 5, 4: 8}
    streams.leave(1, now=20.0)
    assert streams.idle(0.0, 0, nobody) == {1: 5, 4: 8}, "the third is idle since later"
    assert streams.idle(20.0, 0, nobody) == {1: 5, 4: 8, 3: 7}
    assert streams.idle(-1.0, 1, nobody) == {1: 5}
    assert streams.idle(20.0, 0, lambda stream_id: stream_id == 1) == {4: 8, 3: 7}


def test_a_stream_that_returned_before_it_was_retired_stays() -> None:
    streams = registry({1: at(5), 2: at(6)})
    streams[2].open(1, "")
    streams.retire({1: 5, 2: 6, 9: 1})
    assert 1 not in streams
    assert 2 in streams
    assert streams.idle(0.0, 10, nobody) == {}
