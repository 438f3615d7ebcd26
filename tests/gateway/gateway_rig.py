"""Runs a gateway's decisions without a socket or a disk, for tests: events in, actions out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st

from procession.gateway import recovery
from procession.gateway.gateway_events import (
    Action,
    AppendRows,
    CloseSession,
    EpochCommitted,
    Event,
    FrameReceived,
    RowsAppended,
    SendFrame,
    SessionOpened,
    SnapshotWritten,
    WriteSnapshot,
)
from procession.gateway.gateway_limits import Limits
from procession.gateway.gateway_options import GatewayConfig
from procession.gateway.snapshot import Snapshot
from procession.gateway.state import GatewayState
from procession.storage.segment import INGRESS_SCHEMA, KIND_RECORD
from procession.wire.messages import (
    Frame,
    Hello,
    Messages,
    Notify,
    NotifyAck,
)

A, B = 1, 2
HELLO = Hello("0.0.1", b"", "program", "instance")
STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 6)),
    st.tuples(st.just("drop"), st.just(0)),
    st.tuples(st.just("kill"), st.just(0)),
    st.tuples(st.just("commit"), st.integers(0, 10)),
)
"""What happens to a producer, and a number for it."""


class GatewayRig:
    """A gateway's state with a log in memory, which appends at once and takes every snapshot."""

    def __init__(self, limits: Limits | None = None, *, appends: bool = True) -> None:
        self.limits = limits or Limits(credits_max=100)
        self.state = GatewayState(self.limits)
        self.appends = appends
        self.rows: list[dict[str, object]] = []
        self.retired = b""

    def restart(self) -> None:
        """Kill the gateway and start it from the snapshot and the log."""
        snapshot = self.state.snapshot
        tail = (
            [pa.RecordBatch.from_pylist(self.rows[snapshot.end_sequence :], schema=INGRESS_SCHEMA)] if self.rows else []
        )
        self.state = GatewayState(self.limits, snapshot, tail, len(self.rows), lag_bytes=0, retired=self.retired)

    def do(self, event: Event) -> list[Action]:
        done: list[Action] = []
        for action in self.state.handle(event):
            done.append(action)
            if isinstance(action, AppendRows):
                assert action.first_sequence == len(self.rows)
                self.rows += action.batch.to_pylist()
                if self.appends:
                    done += self.do(RowsAppended(len(self.rows)))
            elif isinstance(action, WriteSnapshot):
                if action.retiring is not None:
                    self.retired = self.retired[: action.retiring.position] + action.retiring.data
                done += self.do(SnapshotWritten(action.snapshot, action.retiring))
        self.check()
        return done

    def check(self) -> None:
        for stream in self.state.registry:
            assert stream.committed is None or (stream.seen is not None and stream.committed <= stream.seen)
        assert self.state.next_sequence == len(self.rows)
        assert self.state.snapshot.end_sequence <= self.state.next_sequence

    def hello(self, session: int) -> list[Frame]:
        self.do(SessionOpened(session))
        return sent(self.do(FrameReceived(session, HELLO)), session)

    def notify(self, session: int, stream_id: int, point: int = 0) -> NotifyAck:
        frames = sent(self.do(FrameReceived(session, Notify(stream_id, f"stream {stream_id}", point))), session)
        answer = frames[0]
        assert isinstance(answer, NotifyAck)
        return answer

    def open(self, session: int, stream_id: int) -> None:
        self.hello(session)
        assert self.notify(session, stream_id).success

    def message(self, session: int, stream_id: int, *message_ids: int) -> list[Action]:
        return self.do(FrameReceived(session, messages(stream_id, *message_ids)))

    def commit(self, epoch: int, end: int | None = None, fence: int = 1, **positions: int) -> list[Action]:
        named = {int(name[1:]): message_id for name, message_id in positions.items()}
        return self.do(EpochCommitted(fence, epoch, len(self.rows) if end is None else end, named))

    @property
    def ids(self) -> list[object]:
        return [row["message_id"] for row in self.rows if row["kind"] == KIND_RECORD]


def messages(stream_id: int, *message_ids: int) -> Messages:
    count = len(message_ids)
    payloads = [b"%d" % message_id for message_id in message_ids]
    return Messages.of([stream_id] * count, list(message_ids), [0] * count, [b""] * count, payloads)


def sent(actions: list[Action], session: int) -> list[Frame]:
    return [action.frame for action in actions if isinstance(action, SendFrame) and action.session == session]


def reasons(actions: list[Action]) -> list[str | None]:
    return [action.reason for action in actions if isinstance(action, CloseSession)]


def recovered(directory: Path) -> tuple[Snapshot, bytes]:
    """Return the snapshot and the retired streams with which a gateway starts in this directory."""
    found = recovery.recover(GatewayConfig(directory))
    recovery.renew(directory, found)
    return found.snapshot, found.retired
