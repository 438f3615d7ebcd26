"""Runs a gateway's decisions about sessions of the draft without a socket or a disk, for tests."""

from __future__ import annotations

from procession.gateway.gateway_events import Action, FrameReceived, SessionOpened
from procession.storage.segment import (
    KIND_EPHEMERAL,
    KIND_RECORD,
    KIND_UNSTABLE,
    REFERENCE_KINDS,
)
from procession.wire.draft_messages import (
    DraftMessage,
    DraftMessages,
    Extension,
)
from procession.wire.messages import Hello, Notify
from tests.gateway.gateway_rig import GatewayRig, reasons, sent

A, B, C = 1, 2, 3
ALL = frozenset(Extension)


class DraftGatewayRig(GatewayRig):
    def hello(self, session: int, version: str = "draft") -> list[object]:  # type: ignore[override]
        self.do(SessionOpened(session))
        return list(sent(self.do(FrameReceived(session, Hello(version, b"", "p", "i"))), session))

    def open(self, session: int, *stream_ids: int, version: str = "draft") -> None:  # type: ignore[override]
        self.hello(session, version)
        for stream_id in stream_ids:
            assert reasons(self.do(FrameReceived(session, Notify(stream_id, "s", 0)))) == []

    def take(self, session: int, *messages: DraftMessage) -> list[Action]:
        return self.do(FrameReceived(session, DraftMessages(messages)))

    def commit_to(self, epoch: int, end: int | None = None) -> list[Action]:
        """Commit the rows below `end`, with the positions that a driver would send."""
        end = len(self.rows) if end is None else end
        references = {row["stream_id"]: row["message_id"] for row in self.rows[:end] if row["kind"] in REFERENCE_KINDS}
        return self.commit(epoch, end, **{f"s{stream_id}": at for stream_id, at in references.items()})  # type: ignore[arg-type]

    @property
    def written(self) -> list[tuple[object, object, object]]:
        return [(row["kind"], row["message_id"], row["payload"]) for row in self.rows]

    @property
    def payloads(self) -> list[object]:
        return [row["payload"] for row in self.rows if row["kind"] in (KIND_RECORD, KIND_UNSTABLE, KIND_EPHEMERAL)]


def stable(message_id: int, payload: bytes | None = b"x", stream_id: int = 7, *, is_last: bool = False) -> DraftMessage:
    return DraftMessage(stream_id, message_id, payload, is_last=is_last)


def unstable(message_id: int, payload: bytes | None = b"u", stream_id: int = 7) -> DraftMessage:
    return DraftMessage(stream_id, message_id, payload, is_unstable=True)


def ephemeral(payload: bytes | None = b"e", stream_id: int = 9, *, is_last: bool = False) -> DraftMessage:
    return DraftMessage(stream_id, None, payload, is_last=is_last)
