"""The forms of `to=` of a sink, and what follows from each: one table, read by the planner, supervisor and driver.

A new kind of sink that a pipeline starts by itself is one more entry here and one command of `procession sink`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SinkScheme:
    """One form of target, and what the pipeline may rely on in such a sink."""

    form: str
    """As a user writes it."""
    pattern: re.Pattern[str]
    """Matches a target of this form; its first group is the directory or the address."""
    command: str = ""
    """The command of `procession sink` that the supervisor starts; empty: the user starts the sink."""
    is_authoritative: bool = False
    """Its own log decides where its output ends."""
    pack_bytes_max: int = 0
    """Messages hold many records, up to this many bytes: the sink writes what it gets. 0: a message for each record."""
    knows_workers_left: bool = False
    """Takes WORKERS_LEFT even if the app does not say so."""

    @property
    def is_started(self) -> bool:
        """Whether the sink is started with the pipeline, which then tells the driver its address and secret."""
        return bool(self.command)

    def place(self, target: str) -> str:
        """The directory or address in a target of this form."""
        found = self.pattern.fullmatch(target)
        assert found, target
        return found[1]


FILE = SinkScheme(
    'to="file:DIR"',
    re.compile(r"file:(.+)"),
    "file",
    is_authoritative=True,
    pack_bytes_max=64 * 1024,
    knows_workers_left=True,
)
ADDRESS = SinkScheme('to="HOST:PORT"', re.compile(r"([^:\s]+:[0-9]{1,5})"))

SINK_SCHEMES = (FILE, ADDRESS)


def sink_scheme(target: str) -> SinkScheme | None:
    """The form of a target; None if it has none of them."""
    return next((scheme for scheme in SINK_SCHEMES if scheme.pattern.fullmatch(target)), None)
