"""The messages of the draft: flags follow from fields, and extensions from frames."""

from __future__ import annotations

import pytest

from procession.wire.draft_messages import (
    NEEDS,
    AckCounts,
    Debug,
    DebugFault,
    DraftMessage,
    DraftMessages,
    Extension,
    Flag,
)
from procession.wire.messages import Ack

PLAIN = DraftMessage(1, 2, b"payload")


@pytest.mark.parametrize(
    ("message", "flags"),
    [
        (PLAIN, Flag(0)),
        (DraftMessage(1, None, b""), Flag.EPHEMERAL),
        (DraftMessage(1, 2, None), Flag.BOUNDARY),
        (DraftMessage(1, 2, b"", is_last=True), Flag.EOS),
        (DraftMessage(1, 2, b"", is_unstable=True), Flag.UNSTABLE_REFERENCE),
        (DraftMessage(1, 2, b"", event_time=0), Flag.EVENT_TIME),
        (DraftMessage(1, 2, b"", key=b""), Flag.KEY),
        (DraftMessage(1, None, None, 0, b"", True, True), Flag(63)),
    ],
)
def test_each_flag_follows_from_its_field_even_if_the_field_is_empty_or_zero(
    message: DraftMessage, flags: Flag
) -> None:
    assert message.flags == flags


def test_the_bits_of_the_flags_are_those_of_the_protocol_text() -> None:
    assert [flag.value for flag in Flag] == [1, 2, 4, 8, 16, 32]


def test_messages_are_counted() -> None:
    assert len(DraftMessages((PLAIN, PLAIN))) == 2


def test_only_the_frames_of_our_extensions_need_one() -> None:
    assert {AckCounts: Extension.COUNTS, Debug: Extension.DEBUG} == NEEDS
    assert Ack not in NEEDS


def test_a_fault_happens_once_if_its_frame_does_not_say_how_often() -> None:
    assert Debug(DebugFault.TICK).count == 1
