"""Credits: how many frames a connector may still send.

The one rule: what is spent was granted before, but for one frame of drift per end of stream. Knows no frames;
`connection` spends and grants on both ends of a session.
"""

from __future__ import annotations

from procession.errors import RemoteProtocolError


class CreditWindow:
    """The balance of one session. Both ends keep one; they agree up to what is under way, and the drift."""

    def __init__(self) -> None:
        self.available = 0
        self.drift = 0

    @property
    def affordable(self) -> int:
        """How many frames may come before the peer has overspent."""
        return self.available + self.drift

    def grant(self, count: int) -> None:
        self.available += count

    def spend(self, count: int = 1) -> None:
        """Pay for frames, all or none. Below the drift it is the peer's error."""
        if count > self.affordable:
            raise RemoteProtocolError("credits overspent")
        self.available -= count

    def tolerate(self) -> None:
        """A stream ended: existing peers do not charge themselves for EOS, so they run one more ahead of us."""
        self.drift += 1
