"""The interface that the author of a sink implements: an Output, which receives bytes and makes them visible.

Invariant: each method may be called again after a crash during or after it, and must then have the same effect.
`sdk/participant` calls the methods in the right order, from one thread at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from procession.sdk.transaction_log import Transaction

Done = Awaitable[None] | None
"""The result of an Output's method: None, or an awaitable if the method is a coroutine."""


class Output(Protocol):
    """One output of a sink. Positions count payload bytes from the first one ever received.

    Methods may be plain functions or coroutines. Plain functions run in a thread, so they may block. Coroutines run on
    the sink's event loop, and are cancelled when the sink stops. Two methods never run at the same time.

    Raise an exception if the output cannot be kept (a `StorageError` has a sentence for the operator). The sink then
    stops. The driver asks again when the sink runs again.

    Example:
        >>> class Lines(Output):
        ...     def __init__(self):
        ...         self.draft, self.visible = [], []
        ...
        ...     def recover(self, committed_end, prepared):
        ...         self.draft.clear()
        ...
        ...     def append(self, position, payloads):
        ...         self.draft += payloads
        ...
        ...     def prepare(self, transaction):
        ...         print("safe:", self.draft)
        ...
        ...     def commit(self, transaction):
        ...         self.visible += self.draft
        ...         self.draft.clear()
        ...
        ...     def abort(self, transaction):
        ...         self.draft.clear()
        >>> Lines().visible
        []
    """

    @abstractmethod
    def recover(self, committed_end: int, prepared: Transaction | None) -> Done:
        """Begin a session: drop all bytes that are neither committed nor prepared.

        Args:
            committed_end: Bytes below this position are visible, or must become visible now.
            prepared: A transaction that waits for its `commit` or `abort`. Keep its bytes; raise if some are missing.
        """
        raise NotImplementedError

    @abstractmethod
    def append(self, position: int, payloads: Sequence[bytes]) -> Done:
        """Store these payloads, the first of them at `position`. Their bytes need not be durable, and must not be
        visible."""
        raise NotImplementedError

    @abstractmethod
    def prepare(self, transaction: Transaction) -> Done:
        """Make the bytes of the transaction durable. From now on only `abort` may drop them."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, transaction: Transaction) -> Done:
        """Make the bytes of the transaction visible, permanently."""
        raise NotImplementedError

    @abstractmethod
    def abort(self, transaction: Transaction) -> Done:
        """Drop the bytes of the transaction. Other bytes will arrive at the same positions."""
        raise NotImplementedError

    def close(self) -> Done:
        """Release all resources. Called when the sink stops."""
        return None


OpenOutput = Callable[[str], Output]
"""Opens the Output of an instance. The argument is the instance's name, which is valid as a file name."""

Wait = Callable[[Awaitable[None]], None]
"""Waits for a coroutine of an Output. Called only where blocking delays nothing else."""


def refuse_to_wait(_: Awaitable[None]) -> None:
    """Raise an error, for callers without an event loop: tests and the simulator."""
    raise TypeError("an Output with coroutines needs a SinkServer to run them")
