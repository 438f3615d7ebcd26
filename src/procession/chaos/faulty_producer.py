"""Runs a faulty producer, which replays records that it must not replay, and opens streams that others hold.

Invariant: in the end the producer has sent every line of its file, so that the output can be verified. It uses
`wire.connection`, so its frames follow the protocol's lifecycle, and only their content is wrong. As in the file
source, the id of a line is its position, and acknowledgements are logged (`--acks`). It exits with status 0 when all
is committed, and with 4 if the gateway allowed a forbidden request.

    zero, middle    sessions that begin at the first record, or in the middle, regardless of what is committed
    duplicates      replays records of an earlier session, twice
    back            an id that decreases within a session; the gateway ends the session fight           a stream that
    another session holds reopen          a stream that ends and is opened again, several times
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from procession.address import Address, parse_address
from procession.connectors.file_source import stream_id_of
from procession.sdk.ack_log import AckLog
from procession.storage.secret import PRIVATE_UMASK
from procession.wire.connection import Connection, Event, Violation
from procession.wire.lifecycle import ConnectionSide, Role
from procession.wire.messages import NOTHING_COMMITTED, Ack, Eos, Error, Frame, Hello, Notify, NotifyAck, Ok, Restart
from procession.wire.v3 import SOURCE_VERSION

READ_BYTES = 64 * 1024
PIECE_RECORDS_MAX = 200
ANSWER_TIMEOUT_S = 10.0
PAUSE_S = 0.3
REPETITIONS = 3
"""Number of times that the producer misbehaves. A session that is lost earlier does not count."""
WENT_BACK_MAX, UNANSWERED_MAX = 12, 6
"""Maximum number of sessions with a decreasing id, and the number of those sessions without an error of the gateway
that proves a bug. A session that is lost for another reason proves nothing."""
WENT_BACK = "goes back"
PRODUCER_FAULTS = ("zero", "middle", "duplicates", "back", "fight", "reopen")
STATUS_BROKEN = 4


class SessionLost(Exception):
    """The session is over."""


class GatewayMisbehaved(Exception):
    """The gateway broke a rule."""


class FaultySession:
    """One connection. The code numbers lines; `ids` are their message ids. Calls `observe` with committed ids."""

    def __init__(
        self,
        address: Address,
        name: str,
        ids: Sequence[int],
        on_committed: Callable[[int], object],
        cookie: bytes = b"",
    ) -> None:
        self.committed: int | None = None
        self._ids = ids
        self._on_committed = on_committed
        self._connection = Connection(ConnectionSide.INITIATOR, Role.SOURCE)
        self._answers: list[NotifyAck] = []
        self._is_accepted = False
        self._socket = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
        self._send(Hello(SOURCE_VERSION, cookie, "rogue", name))
        self._until(lambda: self._is_accepted)

    def close(self) -> None:
        self._socket.close()

    def open(self, stream_id: int, name: str) -> bool:
        """Request the stream. Return whether it was granted."""
        self._wait_for_credit()
        self._send(Notify(stream_id, name, 0))
        self._until(lambda: bool(self._answers))
        answer = self._answers.pop()
        if answer.success and answer.point_of_reference != NOTHING_COMMITTED:
            self._take_committed(answer.point_of_reference)
        return answer.success

    def send(self, stream_id: int, lines: Sequence[bytes], start: int, end: int) -> None:
        while start < end:
            self._wait_for_credit()
            count = min(end - start, self._connection.credit.available, PIECE_RECORDS_MAX)
            data = self._connection.send_messages(
                stream_id,
                self._ids[start : start + count],
                [0] * count,
                None,
                pa.array(lines[start : start + count], pa.binary()),
            )
            self._socket.sendall(memoryview(data))
            start += count

    def end(self, stream_id: int) -> None:
        self._wait_for_credit()
        self._send(Eos(stream_id))

    def until_committed(self, last: int) -> None:
        """Wait without a limit until `last` is committed, or the session is lost."""
        self._until(lambda: self.committed is not None and self.committed >= last, is_patient=True)

    def is_alive(self) -> bool:
        """Return whether the peer still seems to be connected."""
        try:
            self._receive(0.2)
        except TimeoutError:
            return True
        except (SessionLost, OSError):
            return False
        return True

    def _wait_for_credit(self) -> None:
        self._until(lambda: self._connection.credit.available > 0, is_patient=True)

    def _send(self, frame: Frame) -> None:
        self._socket.sendall(self._connection.send(frame))

    def _until(self, holds: Callable[[], bool], *, is_patient: bool = False) -> None:
        while not holds():
            try:
                self._receive(ANSWER_TIMEOUT_S)
            except TimeoutError:
                if not is_patient:
                    raise SessionLost("no answer") from None

    def _receive(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(READ_BYTES)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        if not data:
            raise SessionLost("closed")
        for event in self._connection.receive(data):
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case Ok():
                self._is_accepted = True
            case NotifyAck():
                self._answers.append(event)
            case Ack(_, positions):
                for _, message_id in positions:
                    self._take_committed(message_id)
            case Error(reason) | Violation(reason):
                raise SessionLost(reason)
            case Restart():
                raise SessionLost("restart")

    def _take_committed(self, message_id: int) -> None:
        self._on_committed(message_id)
        line = bisect_right(self._ids, message_id) - 1
        self.committed = line if self.committed is None else max(self.committed, line)


class FaultyProducer:
    """The producer. Each method runs one or two sessions and returns whether it misbehaved; `finish` sends the rest
    correctly."""

    def __init__(self, address: Address, path: Path, acks: AckLog | None = None, cookie: bytes = b"") -> None:
        self._address = address
        self._cookie = cookie
        self._acks = acks
        self._path = path
        self._stream = stream_id_of(path)
        self._lines = path.read_bytes().splitlines()
        self._ids = [0, *accumulate(len(line) + 1 for line in self._lines[:-1])]
        self._half = len(self._lines) // 2
        self._went_back = self._unanswered = 0
        self._is_rejected = False

    def run(self, fault: str) -> None:
        repetitions = 0
        while repetitions < REPETITIONS or (
            fault == "back" and not self._is_rejected and self._went_back < WENT_BACK_MAX
        ):
            with suppress(SessionLost, OSError):
                repetitions += getattr(self, f"_{fault}")()
            time.sleep(PAUSE_S)
        if not self._is_rejected and self._unanswered >= UNANSWERED_MAX:
            raise GatewayMisbehaved(
                f"in {self._unanswered} sessions an id decreased, and the gateway never reported it"
            )
        self.finish(len(self._lines))

    def finish(self, end: int) -> None:
        """Send all uncommitted lines up to `end`, end the stream and wait for the commit. Repeat until this
        succeeds."""
        while True:
            try:
                with self._session() as session:
                    if session.open(self._stream, self._path.name):
                        after = -1 if session.committed is None else session.committed
                        session.send(self._stream, self._lines, after + 1, end)
                        session.end(self._stream)
                        session.until_committed(end - 1)
                        return
            except (SessionLost, OSError):
                pass
            time.sleep(PAUSE_S)

    @contextmanager
    def _session(self) -> Iterator[FaultySession]:
        session = FaultySession(self._address, self._path.name, self._ids, self._acknowledged, self._cookie)
        try:
            yield session
        finally:
            session.close()

    def _acknowledged(self, message_id: int) -> None:
        if self._acks is not None:
            self._acks.record(self._stream, message_id, time.time())

    def _again_from(self, start: int, end: int) -> bool:
        with self._session() as session:
            if not session.open(self._stream, self._path.name):
                return False
            session.send(self._stream, self._lines, start, end)
            return session.is_alive()

    def _zero(self) -> bool:
        return self._again_from(0, self._half) and self._again_from(0, self._half + self._half // 2)

    def _middle(self) -> bool:
        with self._session() as session:
            if not session.open(self._stream, self._path.name):
                return False
            session.send(self._stream, self._lines, (session.committed or 0) // 2, self._half)
            session.until_committed(self._half - 1)
        return self._again_from(self._half // 2, self._half + self._half // 2)

    def _duplicates(self) -> bool:
        if not self._again_from(0, self._half):
            return False
        with self._session() as session:
            if not session.open(self._stream, self._path.name):
                return False
            for _ in range(2):
                session.send(self._stream, self._lines, 0, self._half // 2)
            return session.is_alive()

    def _back(self) -> bool:
        """Send new records, then repeat the last one. If that record is already committed, the repetition is a plain
        duplicate, and a kill makes the session inconclusive. But in one of the sessions the gateway must report that
        the id decreases."""
        goal = min(len(self._lines), len(self._lines) * (self._went_back + 1) // (WENT_BACK_MAX + 2))
        with self._session() as session:
            if not session.open(self._stream, self._path.name):
                return False
            self._went_back += 1
            session.send(self._stream, self._lines, 0, goal)
            session.send(self._stream, self._lines, goal - 1, goal)
            try:
                session.until_committed(goal - 1)
            except SessionLost as lost:
                self._is_rejected |= WENT_BACK in str(lost)
                return WENT_BACK in str(lost)
            self._unanswered += 1
            return True

    def _fight(self) -> bool:
        with self._session() as holder:
            if not holder.open(self._stream, self._path.name):
                return False
            holder.send(self._stream, self._lines, 0, self._half // 2)
            with self._session() as other:
                is_shared = other.open(self._stream, self._path.name)
                if is_shared and holder.is_alive():
                    raise GatewayMisbehaved("two sessions hold the same stream")
            return not is_shared

    def _reopen(self) -> bool:
        for part in range(1, 4):
            self.finish(len(self._lines) * part // 4)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="procession.chaos.faulty_producer", description="A faulty producer.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--to", required=True)
    parser.add_argument("--fault", choices=PRODUCER_FAULTS, required=True)
    parser.add_argument("--acks", type=Path, help="log acknowledgements to this file")
    parser.add_argument("--cookie-file", type=Path, help="file with the secret of the gateway")
    given = parser.parse_args()
    os.umask(PRIVATE_UMASK)
    cookie = given.cookie_file.read_bytes().strip() if given.cookie_file else b""
    acks = AckLog(given.acks) if given.acks else None
    try:
        FaultyProducer(parse_address(given.to), given.path, acks, cookie).run(given.fault)
    except GatewayMisbehaved as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(STATUS_BROKEN)


if __name__ == "__main__":
    main()
