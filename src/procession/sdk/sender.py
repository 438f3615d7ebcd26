"""A sender: a source for scripts. It sends written records again until they are committed.

Invariant: `write` blocks while too many bytes are uncommitted, and `close` returns when all records are committed.
After a permanent error, the next call raises it. The sender runs `sdk/push_source` on an event loop in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from procession.errors import ConfigError, RecordError
from procession.sdk.backlog import Buffer, Spool
from procession.sdk.batching import StreamBatcher
from procession.sdk.push_source import BYTES_MAX, PushStream
from procession.sdk.source_client import SourceClient
from procession.sdk.source_options import SourceOptions
from procession.sdk.source_records import PAYLOAD_BYTES_MAX, Stream
from procession.wire.frame_codec import SHORT_BYTES_MAX

Result = TypeVar("Result")


def send(
    to: str = "127.0.0.1:7100",
    *,
    stream: str,
    spool: str | Path | None = None,
    has_ids: bool = False,
    bytes_max: int = BYTES_MAX,
    cookie: bytes = b"",
    options: SourceOptions | None = None,
) -> Sender:
    """Open a sender for one stream. At the end of its `with` block, it waits until all records are committed.

    Without `spool` and `has_ids`, records are in memory until they are committed, and are lost if this process dies
    first. Either option prevents that.

    Args:
        to: Address of the gateway, HOST:PORT.
        stream: Name of the stream.
        spool: A directory that keeps records until they are committed. The next run sends the records that are left
            there.
        has_ids: Each record has a message id that is the same in every run and always increases. A restarted program
            continues after `committed`.
        bytes_max: Maximum uncommitted bytes. `write` blocks above it.
        cookie: The secret for producers.
        options: All other options. Its cookie replaces `cookie`.

    Raises:
        ConfigError: Both `spool` and `has_ids` are given.

    Example:
        ```python
        with send(stream="orders") as out:
            out.write(b"one apple", key=b"apples")
        ```
    """
    if spool and has_ids:
        raise ConfigError("A spool numbers the records itself.", next_step="Leave out has_ids or the spool.")
    if options is None:
        options = SourceOptions("procession.sdk.send", stream, cookie)
    backlog = Spool(Path(spool)) if spool else Buffer(has_ids=has_ids)
    return Sender(to, PushStream(Stream.named(stream), backlog, bytes_max=bytes_max), options, has_ids=has_ids)


class Sender:
    """Sends records; returned by `send`. Threads may share a sender. The records of one thread keep their order."""

    def __init__(self, to: str, push_stream: PushStream, options: SourceOptions, *, has_ids: bool = False) -> None:
        self._push_stream = push_stream
        self._client = SourceClient(push_stream, to, options)
        self._delay_s = options.gather.delay_s
        self._has_ids = has_ids
        self._lock = threading.Lock()
        """Guards the batcher and the attributes below it."""
        self._gather = StreamBatcher(push_stream.stream, None, options.gather)
        self._last = -1
        self._is_timed = self._is_closed = False
        self._passing = asyncio.Lock()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"send {push_stream.stream.name}", daemon=True
        )
        self._thread.start()
        self._sending = asyncio.run_coroutine_threadsafe(self._send(), self._loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    @property
    def committed(self) -> int | None:
        """The last committed message id, or None. Blocks until a gateway has answered."""
        return self._do(self._push_stream.committed())

    def write(
        self, payload: bytes | str, *, key: bytes | str = b"", event_time: int = 0, message_id: int | None = None
    ) -> None:
        """Send one record. Blocks while `bytes_max` bytes are not committed.

        Args:
            payload: The record. A `str` is sent as UTF-8.
            key: The record's key.
            event_time: Nanoseconds since 1970, or 0.
            message_id: With `has_ids`: the record's id, which is larger than the previous id.

        Raises:
            RecordError: The record cannot be sent.
            ConfigError: The sender is closed.
        """
        data, name = _as_bytes(payload, "payload", PAYLOAD_BYTES_MAX), _as_bytes(key, "key", SHORT_BYTES_MAX)
        if not isinstance(event_time, int):
            raise _record_error(f"an event time of {event_time!r}", "Give nanoseconds since 1970, as a whole number.")
        self._check_open()
        with self._lock:
            self._gather.add((self._number(message_id), event_time, name, data))
            is_due, is_first, self._is_timed = self._gather.is_due, not self._is_timed, True
        if is_due:
            self._do(self._pass_on())
        elif is_first:
            self._loop.call_soon_threadsafe(self._loop.call_later, self._delay_s, self._pass_on_later)

    def flush(self) -> None:
        """Pass all written records on. If there is a spool, they are on disk when this returns."""
        self._do(self._pass_on())
        self._do(self._push_stream.flush())

    def wait(self) -> None:
        """Block until all records are committed."""
        self._do(self._pass_on())
        self._do(self._push_stream.settled())

    def close(self) -> None:
        """Block until all records are committed, then end the stream. The stream may be opened again later."""
        if self._is_closed:
            return
        try:
            self._do(self._pass_on())
            self._loop.call_soon_threadsafe(self._push_stream.end)
            self._sending.result()
        finally:
            self.abort()

    def abort(self) -> None:
        """Stop at once. Records in a spool stay there."""
        if self._is_closed:
            return
        self._is_closed = True
        self._sending.cancel()
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _number(self, message_id: int | None) -> int:
        if (message_id is not None) is not self._has_ids:
            raise _record_error(
                "a message id" if message_id is not None else "a record without a message id",
                "Open the sender with has_ids=True and give every record an id, or give no ids.",
            )
        number = self._last + 1 if message_id is None else message_id
        if not self._last < number < 2**64 - 1:
            raise _record_error(f"message id {number} after {self._last}", "Give increasing ids below 2^64-1.")
        self._last = number
        return number

    # On the loop

    async def _send(self) -> None:
        try:
            await self._client.run()
        except BaseException as error:
            self._push_stream.fail(error)
            raise

    async def _pass_on(self) -> None:
        """Put the collected records into the stream, in the order in which they were written."""
        async with self._passing:
            while True:
                with self._lock:
                    batch = self._gather.take()
                    self._is_timed = self._is_timed and batch is not None
                if batch is None:
                    return
                await self._push_stream.put(batch)

    def _pass_on_later(self) -> None:
        self._timed = self._loop.create_task(self._pass_on_quietly())

    async def _pass_on_quietly(self) -> None:
        with contextlib.suppress(Exception):  # the stream keeps the error and raises it at the next write
            await self._pass_on()

    async def _end(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.wrap_future(self._sending)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        await self._loop.shutdown_default_executor()
        self._push_stream.close()

    # From other threads

    def _do(self, what: Coroutine[Any, Any, Result]) -> Result:
        try:
            self._check_open()
        except BaseException:
            what.close()
            raise
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConfigError("The sender is closed.", next_step="Write inside the with block.")
        if self._sending.done():
            self._sending.result()  # it ends before `close` only with an error


def _as_bytes(value: bytes | str, what: str, bytes_max: int) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    if not isinstance(data, bytes | bytearray | memoryview):
        raise _record_error(f"a {what} of type {type(value).__name__}", "Give bytes or str.")
    if len(data) > bytes_max:
        raise _record_error(f"a {what} of {len(data)} bytes", f"Give {bytes_max} bytes at most.")
    return bytes(data)


def _record_error(what: str, next_step: str) -> RecordError:
    return RecordError(f"The sender was given {what}.", next_step=next_step)
