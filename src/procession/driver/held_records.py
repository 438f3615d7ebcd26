"""Which stages still hold results back when a run is stopped: open windows, aggregates, sorts.

The one rule: it reads the states of the last committed epoch and changes nothing. Reads the checkpoint's last round
record; used by the summary of `procession run`.
"""

from __future__ import annotations

from pathlib import Path

from procession.commit.round_record import Round
from procession.planner.graph import Graph
from procession.planner.keyed_spec import Gives
from procession.storage.state_store import Codec, Files, States

HELD = (b"k", b"r")
"""What the names of states begin with that hold something back: of a key or window, and of a run of a sort."""

CODEC = Codec(lambda _: b"", lambda _: None)

WORDS = {
    Gives.WINDOWS: "the open windows of",
    Gives.TOTALS: "the totals of",
    Gives.SORTED: "the records of the sort",
}


def held_back(graph: Graph, last: Round | None, states: Path) -> list[str]:
    """What is still held back after this epoch, in words; `states` is the directory of the pipeline's states."""
    waiting = {node.name: node.stateful.gives for node in graph.nodes if node.stateful and node.stateful.gives in WORDS}
    versions = {} if last is None else last.states
    return [
        f"{WORDS[gives]} {name!r}"
        for name, gives in waiting.items()
        if name in versions and any(_holds(states, files) for files in versions[name].tasks)
    ]


def _holds(directory: Path, files: Files) -> bool:
    return any(name.startswith(HELD) for names in States(directory, files, CODEC).all_keys() for name in names)
