"""A supervisor for tests that starts no process."""

from __future__ import annotations

from procession.supervisor.part import Part


class Started:
    """A supervisor that starts nothing and records what it is told to start."""

    def __init__(self) -> None:
        self.command_lines: dict[str, str] = {}

    def start(self, part: Part) -> None:
        self.command_lines[part.name] = " ".join(part.argv)

    def start_early(self, part: Part) -> None:
        """Record a part that waits for its turn."""
        self.start(part)

    def replace(self, name: str, part: Part) -> None:
        """Record that the early part takes its turn."""
        assert name == part.name
        self.start(part)

    def has(self, name: str) -> bool:
        return name in self.command_lines

    @property
    def names(self) -> list[str]:
        return list(self.command_lines)

    def wait_ready(self, *_: str) -> bool:
        return True
