"""Which stages still hold results back when a run is stopped: open windows, aggregates, sorts.

Invariant: it reads the states of the last committed epoch and changes nothing. Reads the checkpoint's last round
record; used by the summary of `procession run`.
"""

from __future__ import annotations

from pathlib import Path

from procession.commit.round_record import RoundRecord
from procession.planner.graph import Graph
from procession.storage.state_store import TaskStates
from procession.storage.state_version import (
    Files,
    StateCodec,
)

HELD = (b"k", b"r")
"""Prefixes of the state names that hold results back: those of a key or window, and those of a sort's run."""

CODEC = StateCodec(lambda _: b"", lambda _: None)


def held_back(graph: Graph, last: RoundRecord | None, states: Path) -> list[str]:
    """Describe what is still held back after this epoch. `states` is the directory of the pipeline's states."""
    waiting = {node.name: node.operator.state.held for node in graph.nodes if node.operator is not None}
    versions = {} if last is None else last.states
    return [
        f"{held} {name!r}"
        for name, held in waiting.items()
        if held and name in versions and any(_holds(states, files) for files in versions[name].tasks)
    ]


def _holds(directory: Path, files: Files) -> bool:
    return any(name.startswith(HELD) for names in TaskStates(directory, files, CODEC).all_keys() for name in names)
