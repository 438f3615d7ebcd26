"""Frames as JSON objects and as lines: the object is lossless, and the line has no secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from procession.errors import LocalProtocolError
from procession.wire import two_phase_commit, v3
from procession.wire.capture import encoded
from procession.wire.messages import Hello, Message, TwoPhase
from tests.wire.test_capture import decoded, there_and_back
from tests.wire.test_draft import VECTORS as DRAFT_VECTORS
from tests.wire.test_v3 import TACOS, VECTORS, two_phase

EVERYTHING = b"".join(VECTORS.values())
DRAFT = b"".join(DRAFT_VECTORS.values())


@given(two_phase)
def test_a_two_phase_commit_message_is_shown_decoded_and_comes_back(message: TwoPhase) -> None:
    data = v3.encode(two_phase_commit.wrap(message))
    (captured,) = decoded(data)
    document = captured.as_document()
    assert "payload" not in document
    assert "payload_hex" not in document
    assert document["two_phase"].keys() - {"message"} == set(message.__slots__)
    assert there_and_back(data) == data


def test_a_message_of_stream_0_that_is_not_two_phase_commit_stays_a_message() -> None:
    data = v3.encode(Message(0, 3, 0, b"", b"\xc9 or so"))
    assert decoded(data)[0].as_document()["payload_hex"] == b"\xc9 or so".hex()
    assert there_and_back(data) == data


def test_a_log_line_shows_no_cookie_and_truncates_long_values() -> None:
    (captured,) = decoded(v3.encode(Hello("0.0.1", TACOS, "p" * 500, "i")))
    assert "Tacos" not in captured.as_line()
    assert len(captured.as_line()) < 200
    assert captured.as_document()["cookie"] == TACOS.decode()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "a frame must be an object"),
        ({}, "there is no frame null"),
        ({"frame": "HALLO"}, 'there is no frame "HALLO"; there are HELLO'),
        ({"frame": "OK"}, "credits of OK is missing"),
        ({"frame": "OK", "credits": "9"}, "credits of OK must be a whole number"),
        ({"frame": "OK", "credits": True}, "credits of OK must be a whole number"),
        ({"frame": "OK", "credits": 2**32}, "does not fit"),
        ({"frame": "OK", "credits": 1, "debits": 2}, 'OK has no field "debits"'),
        ({"frame": "ERROR", "reason": 1}, "reason of ERROR must be a text"),
        ({"frame": "ERROR", "reason": "\ud800"}, "must be a text that UTF-8 can encode"),
        ({"frame": "ACK", "credits": 1, "positions": [[1]]}, "positions of ACK must be a list of lists of 2 values"),
        ({"frame": "ACK", "credits": 1, "positions": 1}, "positions of ACK must be a list"),
        ({"frame": "NOTIFY_ACK", "success": 1}, "success of NOTIFY_ACK must be true or false"),
        ({"frame": "RESTART", "address": None, "data_hex": "zz"}, "data_hex must be a frame in hex"),
        ({"frame": "RESTART", "address": None, "protocol": "v4"}, "there is no protocol"),
        ({"frame": "RESTART", "address": None, "direction": "up"}, "direction must be"),
        ({"frame": "MESSAGE", "two_phase": {"message": "PHASE3"}}, "there is no two-phase-commit message"),
        ({"frame": "MESSAGE", "two_phase": 3}, "two_phase must be an object"),
        ({"frame": "EOS_MESSAGE", "protocol": "draft"}, 'there is no frame "EOS_MESSAGE"'),
        ({"frame": "DEBUG", "protocol": "draft", "fault": "FIRE"}, "fault of DEBUG must be one of STUTTER, "),
        ({"frame": "OK", "protocol": "draft", "credits": 1, "streams": [[1, 2, 3]]}, "streams of OK must be a text"),
        ({"frame": "HELLO", "version": "1", "cookie_hex": "0"}, "cookie of HELLO must be hex digits"),
    ],
)
def test_an_object_that_is_not_a_frame_is_our_error_and_names_the_field(document: Any, reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=reason):
        encoded(document)
