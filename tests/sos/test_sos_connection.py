"""A connection to the object service, without sockets: its states, credits, and errors that end it."""

from __future__ import annotations

import itertools

import pytest

from procession.errors import LocalProtocolError
from procession.sos import sos_frames as sf
from procession.sos.sos_connection import SosConnection, SosViolation
from procession.sos.sos_lifecycle import SOS, SosState
from procession.sos.volume_rules import RefusalCode
from procession.wire.frame_codec import u32
from procession.wire.lifecycle import ConnectionSide

CLIENT, SERVER = ConnectionSide.INITIATOR, ConnectionSide.ACCEPTOR
HELLO = sf.SosHello(sf.VERSION, b"secret", "test")


def ends(granted: int = 2) -> tuple[SosConnection, SosConnection]:
    client, server = SosConnection(CLIENT), SosConnection(SERVER)
    server.receive(client.send(HELLO))
    client.receive(server.send(sf.SosWelcome(sf.VERSION, granted)))
    return client, server


EXAMPLES: dict[type, sf.SosFrame] = {
    sf.SosError: sf.SosError("no"),
    sf.SosHello: HELLO,
    sf.SosWelcome: sf.SosWelcome(1, 1),
    sf.FormatVolume: sf.FormatVolume(1, "v"),
    sf.NamesReply: sf.NamesReply(1, ()),
    sf.VolumeReply: sf.VolumeReply(1, None),
}


@pytest.mark.parametrize(("state", "side", "kind"), list(itertools.product(SosState, ConnectionSide, EXAMPLES)))
def test_a_step_that_the_table_does_not_have_changes_nothing(state: SosState, side: ConnectionSide, kind: type) -> None:
    ours, theirs = SosConnection(side), SosConnection(side.other)
    for end in (ours, theirs):
        end.state, end.credits = state, 9
        if kind is sf.VolumeReply:
            end.waiting[1] = sf.VolumeReply
        if kind is sf.NamesReply:
            end.waiting[1] = sf.NamesReply
    value = EXAMPLES[kind]
    following = SOS[state][side].get(kind)  # type: ignore[arg-type]
    if following is None:
        with pytest.raises(LocalProtocolError):
            ours.send(value)
        assert ours.state is state
        events = theirs.receive(sf.encode(value))
        assert events == [] if state is SosState.ERROR else isinstance(events[-1], SosViolation)
    else:
        assert theirs.receive(ours.send(value)) == [value]
        assert ours.state is theirs.state is following


def test_credits_bound_the_requests_without_reply_on_both_sides() -> None:
    client, server = ends(granted=2)
    for number in (1, 2):
        assert server.receive(client.send(sf.ListVolumes(number, ""))) == [sf.ListVolumes(number, "")]
    with pytest.raises(LocalProtocolError, match="credits"):
        client.send(sf.ListVolumes(3, ""))
    client.receive(server.send(sf.NamesReply(2, ())))
    assert client.free_credits == server.free_credits == 1
    data = client.send(sf.ListVolumes(3, ""))
    assert server.receive(data + sf.encode(sf.ListVolumes(4, "")))[-1] == SosViolation("credits overspent")
    assert server.is_over
    assert server.receive(sf.encode(HELLO)) == []


def test_a_number_is_not_used_twice_at_a_time() -> None:
    client, server = ends()
    server.receive(client.send(sf.ListVolumes(1, "")))
    with pytest.raises(LocalProtocolError):
        client.send(sf.ListVolumes(1, ""))
    assert isinstance(server.receive(sf.encode(sf.ListVolumes(1, "")))[-1], SosViolation)


@pytest.mark.parametrize("reply", [sf.NamesReply(9, ()), sf.VolumeReply(1, None), sf.ProgressReply(1, 1, 1, 1, 1)])
def test_a_reply_that_fits_no_request_is_an_error(reply: sf.SosReply) -> None:
    client, server = ends()
    server.receive(client.send(sf.ListVolumes(1, "")))
    with pytest.raises(LocalProtocolError):
        server.send(reply)
    assert isinstance(client.receive(sf.encode(reply))[-1], SosViolation)


def test_any_request_may_be_refused() -> None:
    client, server = ends()
    refusal = sf.RefusedReply(1, RefusalCode.MISSING, 0, "no")
    server.receive(client.send(sf.ReadChunks(1, "v", 1, 0, 1)))
    assert client.receive(server.send(refusal)) == [refusal]


def test_before_hello_a_peer_makes_us_buffer_little() -> None:
    server = SosConnection(SERVER)
    assert isinstance(server.receive(u32(sf.HELLO_BYTES_MAX + 1))[-1], SosViolation)
    _, server = ends()
    assert server.receive(u32(sf.FRAME_BYTES_MAX)) == []
    assert isinstance(SosConnection(SERVER, 10).receive(u32(sf.FRAME_BYTES_MAX + 1))[-1], SosViolation)


def test_bytes_may_come_in_any_pieces() -> None:
    client, server = ends()
    data = client.send(sf.AppendChunk(1, "v", 1, 1, 0, 5, True, b"x" * 50)) + client.send(sf.ListVolumes(2, ""))
    events = [event for byte in data for event in server.receive(bytes([byte]))]
    assert [type(event) for event in events] == [sf.AppendChunk, sf.ListVolumes]


def test_error_can_be_sent_in_every_state() -> None:
    for state in SosState:
        end = SosConnection(SERVER)
        end.state = state
        assert sf.decode(end.error_frame("é" * 2000)[4:]) == sf.SosError("é" * 512)
        assert end.is_over
