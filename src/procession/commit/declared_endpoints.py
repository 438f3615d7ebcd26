"""The sources, sinks and codecs that a program declares, compared with those that its checkpoint was made with. Pure.

Invariant: each error names one source or sink, and how to continue with the checkpoint. Used by `commit/checkpoint` and
by an upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from procession.errors import PlanError
from procession.planner.graph import SinkCodec

UNTOLD = "bytes"
"""The codec of a sink if neither the checkpoint nor the program names one."""
WRITTEN_ALIKE = frozenset({"bytes", "text"})


def check_codecs(root: Path, known: Mapping[str, str], codecs: Mapping[str, SinkCodec]) -> None:
    """Raise PlanError if a sink without a declared codec would change its codec. In checkpoints from before sinks
    inherited the codec of their source, such a sink has no codec: it wrote bytes."""
    for sink, codec in codecs.items():
        before = known.get(sink, UNTOLD)
        if codec.is_inherited and before != codec.name and not {before, codec.name} <= WRITTEN_ALIKE:
            raise PlanError(
                f"sink {sink!r} names no codec and would write {codec.name}, the codec of its source; the checkpoint"
                f" in {root} was made when it wrote {before}",
                next_step=f'write sink(…, codec="{before}") to go on as before, or codec="{codec.name}" to change it',
                stage=sink,
            )


def other_endpoints(root: Path, name: str, known: Mapping[str, str], declared: Mapping[str, str]) -> PlanError:
    """Return the error for a program whose sources or sinks differ by name from those of the checkpoint."""
    lost = [endpoint for endpoint in known if declared.get(endpoint) != known[endpoint]]
    new = [endpoint for endpoint in declared if endpoint not in known]
    names = {endpoint: endpoint.partition(" ")[2] for endpoint in (*known, *declared)}
    gone, added = next(iter(lost), ""), next(iter(new), "")
    instead = next((endpoint for endpoint in new if gone and endpoint.partition(" ")[0] == gone.partition(" ")[0]), "")
    if gone in declared:
        what = f"{names[gone]!r} is a {declared[gone]}, and was a {known[gone]}"
        step = f"make it a {known[gone]} again"
    elif instead:
        what = f"{known[gone]} {names[gone]!r} is gone, and {declared[instead]} {names[instead]!r} is new"
        step = f"if they are the same, name it {names[gone]!r}"
    elif gone:
        what, step = f"{known[gone]} {names[gone]!r} is gone", "put it back"
    elif known and added:
        what, step = f"{declared[added]} {names[added]!r} is new", "remove it"
    else:
        what, step = "its guarantee, or the set of its idempotent sinks, has changed", "declare it as before"
    changed = {*lost, *new}
    if changed and all(endpoint.startswith("sink ") for endpoint in changed) and not changed & {*known} & {*declared}:
        step += ", or " + ("start the earlier program and " if lost else "")
        step += "change the sinks with `procession upgrade`"
    return PlanError(
        f"the sources or sinks of pipeline {name!r} are not those that the checkpoint in {root} was made with: {what}",
        next_step=f"{step}, or start over with another --dir (and an empty output); stages between source and sink that"
        " keep no states may change freely",
        stage=names.get(gone or added, ""),
    )
