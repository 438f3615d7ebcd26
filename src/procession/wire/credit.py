"""Credits: how many frames a connector may still send.

Invariant: a connector spends only granted credits, except one frame of drift per end of stream. `connection` grants
and spends at both ends of a session.
"""

from __future__ import annotations

from procession.errors import RemoteProtocolError


class CreditWindow:
    """The balance of one session. Both ends keep one; they differ only by frames in flight and the drift."""

    def __init__(self) -> None:
        self.available = 0
        self.drift = 0

    @property
    def affordable(self) -> int:
        """How many frames the peer may send before it overspends."""
        return self.available + self.drift

    def grant(self, count: int) -> None:
        self.available += count

    def spend(self, count: int = 1) -> None:
        """Spend credits for frames, all or none. Overspending beyond the drift is the peer's error."""
        if count > self.affordable:
            raise RemoteProtocolError("credits overspent")
        self.available -= count

    def tolerate(self) -> None:
        """Allow one more frame of drift at the end of a stream, because existing peers do not charge for EOS."""
        self.drift += 1
