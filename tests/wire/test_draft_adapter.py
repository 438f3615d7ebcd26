"""A source of version 3 that uses the draft: the adapter adds nothing that the gateway did not send."""

from __future__ import annotations

import pytest

from procession.wire.draft_adapter import DraftAdapter, VersionAdapter
from procession.wire.draft_messages import AnyFrame, DraftMessage, DraftOk
from procession.wire.messages import NOTHING_COMMITTED, Eos, Hello, Message, NotifyAck

HELLO = Hello("v", b"cookie", "program", "instance")
MESSAGE = Message(7, 3, 5, b"key", b"payload")


def test_a_notify_is_answered_at_once_with_the_positions_of_ok_and_acks() -> None:
    adapter = DraftAdapter()
    adapter.ok_received(DraftOk(10, ((7, "seven", 4),)))
    adapter.notified(7)
    adapter.notified(8)
    assert list(adapter.answers()) == [NotifyAck(True, 7, 4), NotifyAck(True, 8, NOTHING_COMMITTED)]
    assert list(adapter.answers()) == [], "each NOTIFY is answered once"
    adapter.committed([(7, 6)])
    adapter.notified(7)
    assert list(adapter.answers()) == [NotifyAck(True, 7, 6)]


@pytest.mark.parametrize(
    ("frame", "translated"),
    [
        (MESSAGE, DraftMessage(7, 3, b"payload", 5, b"key")),
        (Message(7, 3, 0, b"", b"payload"), DraftMessage(7, 3, b"payload", None, None)),
        (Eos(7, 9), DraftMessage(7, 9, None, is_last=True)),
        (Eos(7, None), DraftMessage(7, 0, None, is_last=True, is_unstable=True)),
        (HELLO, HELLO),
    ],
)
def test_frames_are_translated_into_those_of_the_draft(frame: AnyFrame, translated: AnyFrame) -> None:
    assert DraftAdapter().translated(frame) == translated


def test_the_end_of_an_ephemeral_stream_has_no_id_until_it_is_opened_again() -> None:
    adapter = DraftAdapter()
    adapter.sent_without_ids(7)
    assert adapter.translated(Eos(7, 9)) == DraftMessage(7, None, None, is_last=True)
    adapter.notified(7)
    assert adapter.translated(Eos(7, 9)) == DraftMessage(7, 9, None, is_last=True)


def test_version_3_needs_no_translation() -> None:
    adapter = VersionAdapter()
    adapter.notified(7)
    assert list(adapter.answers()) == []
    assert adapter.translated(MESSAGE) is MESSAGE
