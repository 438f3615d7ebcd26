"""docs/how-to/wallaroo.md with a source client and a sink that share no code with ours.

They have the properties that the page lists: a version without a `v`, a newline in each payload, an EOS that costs no
credit; and a sink that sends 0 in its NOTIFY_ACK, answers no PHASE2 and fails on WORKERS_LEFT.
"""

from __future__ import annotations

import re
import signal
import socket
import struct
import threading
from pathlib import Path

from tests.walk.cluster import wait_for
from tests.walk.commands import run, running

LINES = [f"line {number}\n".encode() for number in range(2000)]

APP = """
from procession import Pipeline

pipeline = Pipeline("passthrough")
lines = pipeline.source("lines")
lines.sink("output", to="file:output", framing="raw")
lines.sink("theirs", to="127.0.0.1:{port}", framing="raw")
"""


def text(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


class Peer:
    """One end of a connection: frames with a length of four bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    def send(self, body: bytes) -> None:
        self._connection.sendall(struct.pack(">I", len(body)) + body)

    def receive(self) -> bytes:
        (length,) = struct.unpack(">I", self._file.read(4))
        return self._file.read(length)

    def send_2pc(self, body: bytes) -> None:
        self.send(b"\x05" + bytes(26) + body)


def send_all(address: tuple[str, int], cookie: bytes, lines: list[bytes]) -> None:
    """Send lines as one stream, within the granted credits, and wait until the last one is acknowledged."""
    with socket.create_connection(address, timeout=120) as connection:
        peer = Peer(connection)
        peer.send(b"\x00" + text(b"0.0.1") + text(cookie) + text(b"celsius") + text(b"instance"))
        kind, window = struct.unpack(">BI", peer.receive())
        assert (kind, window) == (1, 500), "the window that the page says to set"
        peer.send(b"\x03" + struct.pack(">Q", 7) + text(b"s") + struct.pack(">Q", 0))
        window -= 1
        waiting = list(enumerate(lines, 1))
        is_open, last = False, -1
        while last != len(lines):
            while is_open and waiting and window:
                number, line = waiting.pop(0)
                peer.send(b"\x05" + struct.pack(">QQqH", 7, number, 0, 0) + line)
                window -= 1
                if not waiting:
                    peer.send(b"\x08" + struct.pack(">Q", 7))
            frame = peer.receive()
            if frame[0] == 4:
                assert frame[1] == 1, "the stream is ours"
                is_open = True
            elif frame[0] == 6:
                more, count = struct.unpack(">II", frame[1:9])
                window += more
                for place in range(count):
                    _, last = struct.unpack_from(">QQ", frame, 9 + 16 * place)
            else:
                raise AssertionError(frame)


class Sink:
    """A sink that stores committed output. It is a thread, which stores any unexpected error in `error`."""

    def __init__(self, cookie: bytes) -> None:
        self.committed = b""
        self.hellos: list[bytes] = []
        self.error: BaseException | None = None
        self._cookie = cookie
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._session(Peer(connection))
                except (struct.error, OSError):
                    pass  # closed
                except BaseException as error:
                    self.error = error

    def close(self) -> None:
        self._listener.close()

    def _session(self, peer: Peer) -> None:
        draft = b""
        while True:
            frame = peer.receive()
            if frame[0] == 0:
                self.hellos.append(frame)
                assert text(self._cookie) in frame
                peer.send(b"\x01" + struct.pack(">I", 500))
            elif frame[0] == 3:
                peer.send(b"\x04\x01" + frame[1:9] + bytes(8))
            elif frame[0] == 5 and frame[1:9] == bytes(8):
                draft = self._two_phase(peer, frame[27:], draft)
            else:
                assert frame[0] == 5
                draft += frame[27:]

    def _two_phase(self, peer: Peer, message: bytes, draft: bytes) -> bytes:
        assert message[0] in (201, 203, 205), "no other message is known to it"
        if message[0] == 201:
            peer.send_2pc(b"\xca" + message[1:9] + bytes(4))
            return draft
        (length,) = struct.unpack(">H", message[1:3])
        txn = message[3 : 3 + length]
        if message[0] == 203:
            peer.send_2pc(b"\xcc" + text(txn) + b"\x01")
            return draft
        self.committed += draft if message[3 + length] else b""
        return b""


def test_existing_programs_work_with_the_settings_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "cookie").write_text("Dragons-Love-Tacos")
    (tmp_path / "sink-cookie").write_text("Tacos-Love-Dragons")
    sink = Sink(b"Tacos-Love-Dragons")
    (tmp_path / "app.py").write_text(APP.format(port=sink.port))
    arguments = ["run", "app.py", "--listen", "127.0.0.1:0", "--credits-max", "500"]
    cookies = ["--cookie-file", "cookie", "--sink-cookie-file", "sink-cookie"]
    with running(*arguments, *cookies, cwd=tmp_path) as pipeline:
        wait_for(lambda: "ready: " in pipeline.said, "the pipeline", lambda: pipeline.said)
        found = re.search(r"send to ([\d.]+):(\d+)", pipeline.said)
        assert found is not None
        send_all((found[1], int(found[2])), b"Dragons-Love-Tacos", LINES)
        wait_for(lambda: len(sink.committed) == len(b"".join(LINES)), "phase 2", lambda: pipeline.said)
        pipeline.process.send_signal(signal.SIGTERM)
        pipeline.wait()
    sink.close()
    assert sink.error is None
    assert sink.committed == b"".join(LINES)
    assert sink.hellos[0].startswith(b"\x00" + text(b"v0.0.1"))
    assert sink.hellos[0].endswith(text(b"passthrough-theirs-0"))
    assert run("cat", "output", cwd=tmp_path).stdout.encode() == b"".join(LINES)
