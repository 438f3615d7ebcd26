"""The standard output as sink: what is committed is printed, for a person or for the next program of a pipe.

The one rule: only what is committed is printed, in its order, and what is known to be printed is not printed again. A
pipe does not tell how much of it was read, nor whether a write that a crash cut short took place. So it is written in
pieces that a pipe takes whole or not at all, and before each is noted that it comes: if we die just there, that one
piece is in doubt. It is printed again, or is left out, as was asked for. What was printed and is still in the pipe when
its reader dies is lost to that reader.
Before it on the walk: sdk/participant. After it: the standard output; DIR/<instance>.printed says how far it is.
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
from procession.connectors.pending_file import Pending
from procession.errors import StorageError
from procession.format_number import check_format
from procession.sdk.output import Output
from procession.sdk.sink_directory import LISTEN, run_sink
from procession.sdk.transaction_log import Transaction
from procession.storage.durable import storage_error
from procession.tls import ServerTls

PIECE_BYTES_MAX = select.PIPE_BUF
"""What a pipe takes whole or not at all."""
JSON_DATA_BYTES_MAX = PIECE_BYTES_MAX // 2
"""So much output stands in one line of JSON: as base64, and with all else, it is still one piece."""

NOTE_FORMAT = 2
"""Of the note that says how far an output was printed: it begins with this number. Format 1 has none."""
_NOTE = re.compile(rb"(?:(\d{1,19}) )?(\d{20}) (\d{20})\n")

MAYBE_PRINTED = "it may have been printed before the crash"

log = structlog.get_logger()


class InDoubt(enum.StrEnum):
    """What to do with a piece of which nobody knows whether it was printed before a crash."""

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
        """For a piece: then `write` does not block, and a sink that stops need not wait for a reader."""
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
        """How many bytes were taken: all, if it is a pipe."""
        try:
            return os.write(self._descriptor, piece)
        except BlockingIOError:
            return 0
        except BrokenPipeError as error:
            raise StorageError(
                "Nobody reads what this sink prints any more.",
                next_step="Start it again with a reader; it goes on after what was printed.",
            ) from error
        except OSError as error:
            raise storage_error(Path("standard output"), "write to", error) from error


class Printed(NamedTuple):
    """Bytes before `end` are printed; those up to `upto` may be."""

    end: int = 0
    upto: int = 0


class StdoutOutput(Output):
    """One instance's output. With `is_json` each piece is an object that says where it belongs."""

    def __init__(
        self, base: Path, stdout: Stdout, *, is_json: bool = False, in_doubt: InDoubt = InDoubt.REPEAT
    ) -> None:
        self._instance = base.name
        self._stdout = stdout
        self._is_json = is_json
        self._in_doubt = in_doubt
        self._pending = Pending(base.with_name(f"{base.name}.pending"))
        self._path = base.with_name(f"{base.name}.printed")
        try:
            self._note = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise storage_error(self._path, "open", error) from error
        self._printed = self._read_note()
        self._is_shown = False
        """What is in the file is printed."""

    def recover(self, committed_end: int, prepared: Transaction | None) -> None:
        self._is_shown = False
        if prepared is None:
            # What is committed was printed before the log said so. (The note is not synced: the disk may be behind.)
            self._printed = Printed(committed_end, committed_end)
            self._pending.drop()
        elif not self._pending.keep(prepared):
            raise StorageError(
                f"{self._pending.path} is gone, but it was promised.",
                next_step="Restore the file from a copy; it has lost output that was voted for.",
                path=str(self._pending.path),
            )

    def append(self, position: int, payloads: Sequence[bytes]) -> None:
        if self._is_shown:
            # Not earlier: until the log knows that it is committed we may be asked for it again.
            self._pending.drop()
            self._is_shown = False
        self._pending.append(position, payloads)

    def prepare(self, transaction: Transaction) -> None:
        if transaction.start < transaction.end:
            self._pending.sync()

    async def commit(self, transaction: Transaction) -> None:
        # Not two transactions at a time: another instance's output must not come between the lines of this one.
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
            said = {"instance": self._instance, "start": start, "end": self._printed.upto}
            if self._in_doubt is InDoubt.SKIP:
                log.warning("sink.output_skipped", **said, detail=MAYBE_PRINTED)
                start = self._printed.upto
            else:
                log.warning("sink.output_repeated", **said, detail=MAYBE_PRINTED)
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
                    self._write_note(Printed(start, start))  # nothing is in doubt while we wait
                await self._stdout.room()
            self._write_note(Printed(start, start + len(piece)))
            faults.point("sink:before-print")
            rest = rest[self._print_some(start, rest) :]
            faults.point("sink:after-print")

    def _print_some(self, start: int, line: bytes) -> int:
        try:
            return self._stdout.write(line)
        except StorageError:
            self._write_note(Printed(start, start))  # a pipe that refuses takes nothing
            raise

    def _write_note(self, printed: Printed) -> None:
        """Not synced: it is for a process that is killed. If the machine goes, so does the reader of the pipe."""
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
    """The same bytes in pieces of at most `size`, cut after a newline where there is one."""
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
    """An object with the bytes [start, end) of an instance's output, as text if they are UTF-8, and as base64 if not
    (or if as text they would be too long for one piece)."""
    said = {"instance": instance, "start": start, "end": start + len(data)}
    try:
        line = json.dumps(said | {"text": data.decode()}, ensure_ascii=False).encode()
        if len(line) < PIECE_BYTES_MAX:
            return line + b"\n"
    except UnicodeDecodeError:
        pass
    return json.dumps(said | {"base64": base64.b64encode(data).decode()}).encode() + b"\n"


def run_stdout_sink(
    directory: Path,
    listen: str = LISTEN,
    *,
    is_json: bool = False,
    in_doubt: InDoubt = InDoubt.REPEAT,
    cookie: bytes | None = None,
    tls: ServerTls | None = None,
) -> None:
    """Serve the sink until a signal stops it; raises the StorageError that stopped it otherwise."""
    stdout = Stdout(sys.stdout.fileno())

    def open_output(instance: str) -> StdoutOutput:
        return StdoutOutput(directory / instance, stdout, is_json=is_json, in_doubt=in_doubt)

    run_sink(open_output, directory, listen, cookie=cookie, tls=tls)
