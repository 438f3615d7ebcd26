"""What a sink's author writes: an Output, the medium that bytes go to and become visible in.

The one rule: every method may be called again after a crash in or after it, and must then come to the same. Before it
on the walk: sdk/participant, which calls in the right order and from one thread at a time. After it: the medium,
whatever it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from procession.sdk.transaction_log import Transaction

Done = Awaitable[None] | None
"""What a method of an Output gives back: nothing, or, where it is a coroutine, what to wait for."""


class Output(Protocol):
    """One output of a sink. Positions count payload bytes over its life: byte 0 is the first that ever came.

    Methods may be plain or coroutines. Plain ones run in a thread, so they may wait for a disk or a server; coroutines
    run on the sink's loop, and are cancelled when the sink stops. No two of them run at the same time.

    Raise when a promise cannot be kept (a StorageError has a sentence for the operator): the sink stops, and the worker
    asks again when it is back.

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
        """A new session: drop every byte that is neither committed nor prepared.

        Bytes below `committed_end` are visible, or are made so. Those of `prepared`, if there is one, wait for its
        `commit` or `abort`: keep them; raise if they are not all there.
        """
        raise NotImplementedError

    @abstractmethod
    def append(self, position: int, payloads: Sequence[bytes]) -> Done:
        """Keep these bytes, the first of them at `position`. They need not be durable, and must not be visible."""
        raise NotImplementedError

    @abstractmethod
    def prepare(self, transaction: Transaction) -> Done:
        """Make the transaction's bytes durable: from here on only `abort` may lose them."""
        raise NotImplementedError

    @abstractmethod
    def commit(self, transaction: Transaction) -> Done:
        """Make the transaction's bytes visible, for good."""
        raise NotImplementedError

    @abstractmethod
    def abort(self, transaction: Transaction) -> Done:
        """Drop the transaction's bytes. Others will come at the same positions."""
        raise NotImplementedError

    def close(self) -> Done:
        """The sink stops: let go of everything."""
        return None


OpenOutput = Callable[[str], Output]
"""Makes the Output of an instance, a worker's part of a pipeline's output, by its name. The name can name a file."""

Wait = Callable[[Awaitable[None]], None]
"""Waits for a coroutine of an Output; called where waiting holds up nobody else."""


def refuse_to_wait(_: Awaitable[None]) -> None:
    """For who has no loop: tests and the simulator."""
    raise TypeError("an Output with coroutines needs a SinkServer to run them")
