"""A faulty producer: sends again what it was told not to, and opens streams that others hold.

The one rule: in the end it has sent its file, every line of it, so that the output can be held against it; only its
manners on the way are bad. It speaks the protocol through `wire.connection`, so what it does is allowed by the tables
and wrong only in meaning. As with the file source the id of a line is its position, and what it is told is noted down
(`--acks`). Status 0 when all is committed, 4 when the gateway let it do what it must not.

    zero, middle    sessions that begin at the first record, or half way, whatever the gateway says is committed
    duplicates      what was sent in an earlier session, twice
    back            an id that goes back within a session; the gateway ends it
    fight           a stream that another session holds
    reopen          the stream ends and is opened again, several times
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
from procession.wire.lifecycle import Role, Side
from procession.wire.messages import NOTHING_COMMITTED, Ack, Eos, Error, Frame, Hello, Notify, NotifyAck, Ok, Restart
from procession.wire.v3 import SOURCE_VERSION

READ_BYTES = 64 * 1024
PIECE_RECORDS_MAX = 200
ANSWER_TIMEOUT_S = 10.0
PAUSE_S = 0.3
DEEDS = 3
"""So often it does what it must not; a session that is lost before is no deed, and is tried again."""
WENT_BACK_MAX, UNANSWERED_MAX = 12, 6
"""In how many sessions it goes back until it is told so; and how many of them, gone through to the end, prove that it
is never told. One that is lost for another reason proves nothing."""
WENT_BACK = "goes back"
MANNERS = ("zero", "middle", "duplicates", "back", "fight", "reopen")
STATUS_BROKEN = 4


class Lost(Exception):
    """The session is over."""


class Broken(Exception):
    """The gateway did what it must not do."""


class ProducerSession:
    """One connection. Lines go by their numbers here, and by their `ids` to the gateway; `hear` is told what is
    committed."""

    def __init__(
        self, address: Address, name: str, ids: Sequence[int], hear: Callable[[int], object], cookie: bytes = b""
    ) -> None:
        self.committed: int | None = None
        self._ids = ids
        self._hear_committed = hear
        self._connection = Connection(Side.INITIATOR, Role.SOURCE)
        self._answers: list[NotifyAck] = []
        self._is_welcome = False
        self._socket = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
        self._say(Hello(SOURCE_VERSION, cookie, "rogue", name))
        self._until(lambda: self._is_welcome)

    def close(self) -> None:
        self._socket.close()

    def open(self, stream_id: int, name: str) -> bool:
        """Ask for the stream; whether we got it."""
        self._wait_for_credit()
        self._say(Notify(stream_id, name, 0))
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
        self._say(Eos(stream_id))

    def until_committed(self, last: int) -> None:
        """However long it takes; a session that is lost ends it."""
        self._until(lambda: self.committed is not None and self.committed >= last, is_patient=True)

    def is_alive(self) -> bool:
        """Whether the other side is still there, as far as can be told."""
        try:
            self._hear(0.2)
        except TimeoutError:
            return True
        except (Lost, OSError):
            return False
        return True

    def _wait_for_credit(self) -> None:
        self._until(lambda: self._connection.credit.available > 0, is_patient=True)

    def _say(self, frame: Frame) -> None:
        self._socket.sendall(self._connection.send(frame))

    def _until(self, holds: Callable[[], bool], *, is_patient: bool = False) -> None:
        while not holds():
            try:
                self._hear(ANSWER_TIMEOUT_S)
            except TimeoutError:
                if not is_patient:
                    raise Lost("no answer") from None

    def _hear(self, timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        data = self._socket.recv(READ_BYTES)
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        if not data:
            raise Lost("closed")
        for event in self._connection.receive(data):
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case Ok():
                self._is_welcome = True
            case NotifyAck():
                self._answers.append(event)
            case Ack(_, positions):
                for _, message_id in positions:
                    self._take_committed(message_id)
            case Error(reason) | Violation(reason):
                raise Lost(reason)
            case Restart():
                raise Lost("restart")

    def _take_committed(self, message_id: int) -> None:
        self._hear_committed(message_id)
        line = bisect_right(self._ids, message_id) - 1
        self.committed = line if self.committed is None else max(self.committed, line)


class FaultyProducer:
    """The producer. Each method is a session or two, and says whether the deed was done; `finish` is the decent end of
    all of them."""

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
        self._is_told = False

    def run(self, manners: str) -> None:
        deeds = 0
        while deeds < DEEDS or (manners == "back" and not self._is_told and self._went_back < WENT_BACK_MAX):
            with suppress(Lost, OSError):
                deeds += getattr(self, f"_{manners}")()
            time.sleep(PAUSE_S)
        if not self._is_told and self._unanswered >= UNANSWERED_MAX:
            raise Broken(f"in {self._unanswered} sessions an id went back, and the gateway never said so")
        self.finish(len(self._lines))

    def finish(self, end: int) -> None:
        """Send all up to `end` that is not committed, end the stream, and wait; as often as it takes."""
        while True:
            try:
                with self._session() as session:
                    if session.open(self._stream, self._path.name):
                        after = -1 if session.committed is None else session.committed
                        session.send(self._stream, self._lines, after + 1, end)
                        session.end(self._stream)
                        session.until_committed(end - 1)
                        return
            except (Lost, OSError):
                pass
            time.sleep(PAUSE_S)

    @contextmanager
    def _session(self) -> Iterator[ProducerSession]:
        session = ProducerSession(self._address, self._path.name, self._ids, self._heard, self._cookie)
        try:
            yield session
        finally:
            session.close()

    def _heard(self, message_id: int) -> None:
        if self._acks is not None:
            self._acks.heard(self._stream, message_id, time.time())

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
        """Some that are new every time, and the last of them again. If that was committed meanwhile it is a duplicate
        like others, and if somebody was killed nothing can be said; but in the end it must be called what it is."""
        goal = min(len(self._lines), len(self._lines) * (self._went_back + 1) // (WENT_BACK_MAX + 2))
        with self._session() as session:
            if not session.open(self._stream, self._path.name):
                return False
            self._went_back += 1
            session.send(self._stream, self._lines, 0, goal)
            session.send(self._stream, self._lines, goal - 1, goal)
            try:
                session.until_committed(goal - 1)
            except Lost as lost:
                self._is_told |= WENT_BACK in str(lost)
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
                    raise Broken("two sessions hold the same stream")
            return not is_shared

    def _reopen(self) -> bool:
        for part in range(1, 4):
            self.finish(len(self._lines) * part // 4)
        return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="procession.chaos.faulty_producer", description="A producer of bad manners.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--to", required=True)
    parser.add_argument("--manners", choices=MANNERS, required=True)
    parser.add_argument("--acks", type=Path, help="note down here what is told to be committed")
    parser.add_argument("--cookie-file", type=Path, help="the secret that the gateway wants to see")
    given = parser.parse_args()
    os.umask(PRIVATE_UMASK)
    cookie = given.cookie_file.read_bytes().strip() if given.cookie_file else b""
    acks = AckLog(given.acks) if given.acks else None
    try:
        FaultyProducer(parse_address(given.to), given.path, acks, cookie).run(given.manners)
    except Broken as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(STATUS_BROKEN)


if __name__ == "__main__":
    main()
