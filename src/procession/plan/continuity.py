"""Continuity: whether a program can go on with the states that a checkpoint holds.

The one rule: states are known by the name of their stage and by what it is; a program that keeps others than the
checkpoint has is refused, by name and with the way out, before it changes anything: not even the checkpoint is claimed.
Stages without states may change freely. Before it the last round record; after it the driver, which runs the plan.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from procession.errors import PlanError
from procession.plan.blueprint import Plan
from procession.plan.graph import Node
from procession.plan.strategies import is_firing

BEGIN_ANEW = "begin anew with another --dir (and an empty output)"


def keyed_stages(plan: Plan) -> dict[int, tuple[str, str]]:
    """The chains that begin with a keyed stage, with its name and what it is."""
    return {
        chain.number: (node.name, _what(node))
        for chain in plan.chains
        if chain.root is not None and (node := plan.node(chain.root)).stateful is not None
    }


def _what(node: Node) -> str:
    """What the states of a stage are made for: its kind and, where times are in them, what they are cut by; of a sort,
    the direction that its runs are sorted in."""
    assert node.stateful is not None
    if node.stateful.windowing is not None:
        return f"{node.kind.value} of {node.stateful.windowing.shape}"
    is_reversed = node.stateful.sorting is not None and node.stateful.sorting.is_reversed
    return f"{node.kind.value} in reverse" if is_reversed else node.kind.value


def check_tasks(plan: Plan, kept: Mapping[str, int]) -> None:
    """Raise PlanError if a stage that a watermark or an end moves is to run with another number of tasks than these:
    each has a part of what waits for it."""
    for chain in plan.chains:
        node = None if chain.root is None else plan.node(chain.root)
        if node is None or not is_firing(node) or kept.get(node.name, 0) in (0, chain.tasks):
            continue
        raise PlanError(
            f"stage {node.name!r} ran with parallelism {kept[node.name]} when the checkpoint was made, and is to run"
            f" with {chain.tasks}: what is open in it cannot be dealt out anew",
            next_step=f"give it parallelism={kept[node.name]}, or {BEGIN_ANEW}",
            stage=node.name,
        )


def check_continued(plan: Plan, kept: Mapping[str, str]) -> None:
    """Raise PlanError unless the plan keeps states for exactly these stages, given as name and what they are."""
    wanted = dict(keyed_stages(plan).values())
    lost = [name for name in kept if name not in wanted]
    new = [name for name in wanted if name not in kept]
    if lost and new:
        raise PlanError(
            f"the checkpoint has states of stage {lost[0]!r}, and the program keeps them for {new[0]!r} instead",
            next_step=f"if it is the same stage, give it name={lost[0]!r}; otherwise {BEGIN_ANEW}",
            stage=new[0],
        )
    if lost:
        raise PlanError(
            f"the checkpoint has states of stage {lost[0]!r}, which the program has no more",
            next_step=f"put the stage back, or {BEGIN_ANEW}",
            stage=lost[0],
        )
    if new:
        raise PlanError(
            f"stage {new[0]!r} keeps states, and the checkpoint, which is further on, has none of it",
            next_step=f"leave the stage out, or {BEGIN_ANEW}, so that it sees all records",
            stage=new[0],
        )
    for name, kind in wanted.items():
        if kind != kept[name]:
            raise PlanError(
                f"stage {name!r} was a {kept[name]} when the checkpoint was made, and is a {kind} now: its states are"
                " of another sort",
                next_step=f"make it a {kept[name]} again, or {BEGIN_ANEW}",
                stage=name,
            )
