"""Compares the stateful stages of the plan with those of the round record: whether a new program may continue with
their states, and which stages still hold back results when a run is stopped.

Invariant: the plan has the current identity of each stage, the round record the committed one. They are compared before
the checkpoint is claimed. Reads the states of the last committed epoch and changes nothing. Used by the driver and by
the summary of `procession run`.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection
from pathlib import Path

from procession.commit.round_record import RoundRecord
from procession.planner.compatibility import StageIdentity, check_continued, check_tasks, identities, keyed_stages
from procession.planner.graph import Graph
from procession.planner.plan import Plan
from procession.storage.state_store import TaskStates
from procession.storage.state_version import (
    Files,
    StateCodec,
    StateVersion,
)


def keyed_versions(plan: Plan) -> dict[int, tuple[str, StateVersion]]:
    """Return the stage name and a version without files for each chain that begins with a stateful stage."""
    known = identities(plan, linecache.getlines)
    return {
        chain: (name, StateVersion(kind=kind, identity=known[name]))
        for chain, (name, kind) in keyed_stages(plan).items()
    }


def check_last(plan: Plan, last: RoundRecord, changed: Collection[str] = ()) -> None:
    """Raise an error if this plan cannot continue from this epoch with the committed states.

    `changed` names the stages whose key or input may differ."""
    for name, version in last.states.items():
        version.check_format(name)
    kept = {name: StageIdentity(version.kind, version.identity) for name, version in last.states.items()}
    check_continued(plan, kept, changed, linecache.getlines)
    check_tasks(plan, {name: len(version.tasks) for name, version in last.states.items()})


HELD = (b"k", b"r")
"""Name prefixes of states that hold back results: states of a key or window, and states of a sort's run."""

CODEC = StateCodec(lambda _: b"", lambda _: None)


def held_back(graph: Graph, last: RoundRecord | None, states: Path) -> list[str]:
    """Describe the results that are still held back after this epoch. `states` is the directory of the pipeline's
    states."""
    waiting = {node.name: node.operator.state.held for node in graph.nodes if node.operator is not None}
    versions = {} if last is None else last.states
    return [
        f"{held} {name!r}"
        for name, held in waiting.items()
        if held and name in versions and any(_holds(states, files) for files in versions[name].tasks)
    ]


def _holds(directory: Path, files: Files) -> bool:
    return any(name.startswith(HELD) for names in TaskStates(directory, files, CODEC).all_keys() for name in names)
