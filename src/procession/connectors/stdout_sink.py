"""The stdout sink: prints committed output, for a user or for the next program of a pipe.

Invariant: only committed output is printed, in order, and output that is known to be printed is not repeated. A pipe
does not report how much was read, nor whether a write that a crash interrupted took place. So output is written in
pieces that a pipe takes completely or not at all, and DIR/<instance>.printed announces each piece before it is written.
After a crash only that piece is in doubt; it is repeated or skipped, as configured. Output that is in the pipe when its
reader dies is lost to that reader.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import json
import os
import re
import select
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from procession import faults
from procession.connectors.pending_file import PendingFile
from procession.errors import StorageError
from procession.format_number import check_format
from procession.sdk.output import Output
from procession.sdk.sink_directory import LISTEN, run_sink
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import storage_error
from procession.tls import ServerTls

PIECE_BYTES_MAX = select.PIPE_BUF
"""Size up to which a write to a pipe is atomic."""
JSON_DATA_BYTES_MAX = PIECE_BYTES_MAX // 2
"""Maximum output bytes per line of JSON. As base64, with the other fields, they still fit into one piece."""

NOTE_FORMAT = 2
"""Format of the note with the print position. The note begins with this number; in format 1 it has none."""
_NOTE = re.compile(rb"(?:(\d{1,19}) )?(\d{20}) (\d{20})\n")

MAYBE_PRINTED = "it may have been printed before the crash"

log = structlog.get_logger()


class InDoubt(enum.StrEnum):
    """Whether to repeat or skip a piece that may or may not have been printed before a crash."""

    REPEAT = "repeat"
    SKIP = "skip"


class Stdout:
    """A descriptor that several outputs print to, one transaction at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self.turn = asyncio.Lock()

    @property
    def has_room(self) -> bool:
        """Whether a piece can be written without blocking, so that stopping does not wait for a reader."""
        return bool(self._poll.poll(0))

    async def room(self) -> None:
        loop = asyncio.get_running_loop()
        has_room = asyncio.Event()
        loop.add_writer(self._descriptor, has_room.set)
        try:
            await has_room.wait()
        finally:
            loop.remove_writer(self._descriptor)

    def write(self, piece: bytes) -> int:
        """Write a piece. Return the number of bytes written; a pipe accepts all of them."""
        try:
            return os.write(self._descriptor, piece)
        except BlockingIOError:
            return 0
        except BrokenPipeError as error:
            raise StorageError(
                "The reader of this sink's output has gone.",
                next_step="Start the sink again with a reader; it continues after the printed output.",
            ) from error
        except OSError as error:
            raise storage_error(Path("standard output"), "write to", error) from error


class Printed(NamedTuple):
    """Bytes before `end` are printed; bytes up to `upto` may be printed."""

    end: int = 0
    upto: int = 0


class StdoutOutput(Output):
    """One instance's output. With `is_json` each piece is a JSON object with its position."""

    def __init__(
        self, base: Path, stdout: Stdout, *, is_json: bool = False, in_doubt: InDoubt = InDoubt.REPEAT
    ) -> None:
        self._instance = base.name
        self._stdout = stdout
        self._is_json = is_json
        self._in_doubt = in_doubt
        self._pending = PendingFile(base.with_name(f"{base.name}.pending"))
        self._path = base.with_name(f"{base.name}.printed")
        try:
            self._note = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(self._path, "open", error) from error
        self._printed = self._read_note()
        self._is_shown = False
        """Whether the bytes in the pending file are printed."""

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._is_shown = False
        if prepared is None:
            # Committed output was printed before the log entry. (The note may be older, because it is not synced.)
            self._printed = Printed(committed_end, committed_end)
            self._pending.drop()
        elif not self._pending.keep(prepared):
            raise StorageError(
                f"{self._pending.path} is missing, although its output was voted for.",
                next_step="Restore the file from a backup; it has lost output that was voted for.",
                path=str(self._pending.path),
            )

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        if self._is_shown:
            # Not earlier: until the log has the commit, the driver may repeat it.
            self._pending.drop()
            self._is_shown = False
        self._pending.append(position, payloads)

    def prepare(self, transaction: Transaction) -> None:
        if transaction.start < transaction.end:
            self._pending.sync()

    async def commit(self, transaction: Transaction) -> None:
        # One transaction at a time, so that the lines of two instances do not mix.
        async with self._stdout.turn:
            await self._print(transaction)

    def abort(self, transaction: Transaction) -> None:
        self._pending.drop()

    def close(self) -> None:
        self._pending.close()
        os.close(self._note)

    async def _print(self, transaction: Transaction) -> None:
        start = max(transaction.start, min(self._printed.end, transaction.end))
        if start < self._printed.upto <= transaction.end:
            fields = {"instance": self._instance, "start": start, "end": self._printed.upto}
            if self._in_doubt is InDoubt.SKIP:
                log.warning("sink.output_skipped", **fields, detail=MAYBE_PRINTED)
                start = self._printed.upto
            else:
                log.warning("sink.output_repeated", **fields, detail=MAYBE_PRINTED)
        size = JSON_DATA_BYTES_MAX if self._is_json else PIECE_BYTES_MAX
        for piece in pieces(self._pending.read(start, transaction.end), size):
            await self._print_piece(start, piece)
            start += len(piece)
        self._write_note(Printed(start, start))
        self._is_shown = True

    async def _print_piece(self, start: int, piece: bytes) -> None:
        line = rest = json_line(self._instance, start, piece) if self._is_json else piece
        while rest:
            if not self._stdout.has_room:
                if rest is line:
                    self._write_note(Printed(start, start))  # no piece is in doubt while the sink waits
                await self._stdout.room()
            self._write_note(Printed(start, start + len(piece)))
            faults.point("sink:before-print")
            rest = rest[self._print_some(start, rest) :]
            faults.point("sink:after-print")

    def _print_some(self, start: int, line: bytes) -> int:
        try:
            return self._stdout.write(line)
        except StorageError:
            self._write_note(Printed(start, start))  # a failed write printed nothing
            raise

    def _write_note(self, printed: Printed) -> None:
        """Write the note, without fsync: it protects against a killed process. A machine crash ends the reader too."""
        self._printed = printed
        try:
            os.pwrite(self._note, b"%d %020d %020d\n" % (NOTE_FORMAT, *printed), 0)
        except OSError as error:
            raise storage_error(self._path, "write", error) from error

    def _read_note(self) -> Printed:
        try:
            found = _NOTE.fullmatch(os.pread(self._note, 100, 0))
        except OSError as error:
            raise storage_error(self._path, "read", error) from error
        if not found:
            return Printed()
        check_format(self._path, int(found[1] or 1), NOTE_FORMAT)
        return Printed(int(found[2]), int(found[3]))


def pieces(data: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Split the bytes into pieces of at most `size`, after a newline where there is one."""
    rest = b""
    for more in data:
        rest += more
        start = 0
        while len(rest) - start > size:
            cut = rest.rfind(b"\n", start, start + size) + 1 or start + size
            yield rest[start:cut]
            start = cut
        rest = rest[start:]
    if rest:
        yield rest


def json_line(instance: str, start: int, data: bytes) -> bytes:
    """Return a JSON object with bytes of an instance's output: as text, or as base64 if they are not UTF-8 or too long
    for one piece as text."""
    fields = {"instance": instance, "start": start, "end": start + len(data)}
    try:
        line = json.dumps(fields | {"text": data.decode()}, ensure_ascii=False).encode()
        if len(line) < PIECE_BYTES_MAX:
            return line + b"\n"
    except UnicodeDecodeError:
        pass
    return json.dumps(fields | {"base64": base64.b64encode(data).decode()}).encode() + b"\n"


def run_stdout_sink(
    directory: Path,
    listen: str = LISTEN,
    *,
    is_json: bool = False,
    in_doubt: InDoubt = InDoubt.REPEAT,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
) -> None:
    """Serve the sink until a signal stops it. Raises the StorageError that stops it otherwise."""
    stdout = Stdout(sys.stdout.fileno())

    def open_output(instance: str) -> StdoutOutput:
        return StdoutOutput(directory / instance, stdout, is_json=is_json, in_doubt=in_doubt)

    run_sink(open_output, directory, listen, cookie=cookie, tls=tls)
