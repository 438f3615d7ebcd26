"""A supervisor for tests that starts no process."""

from __future__ import annotations

from procession.supervisor.part import Part


class Started:
    """Stands in for the supervisor: it only writes down who was to be started."""

    def __init__(self) -> None:
        self.command_lines: dict[str, str] = {}

    def start(self, part: Part) -> None:
        self.command_lines[part.name] = " ".join(part.argv)

    def wait_ready(self, *_: str) -> bool:
        return True
