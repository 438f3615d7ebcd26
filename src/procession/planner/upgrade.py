"""An upgrade: decides which states and sinks of a pipeline are kept, renamed, migrated, dropped or new. Pure.

Invariant: every stage with state, in the checkpoint or in the new program, has exactly one outcome, or the program is
refused with an error that names the stage and a next step. No state is dropped or reset unless the program declares it:
a removed stage must be in `drop` or `rename`. `planner/compatibility` decides which stages may continue without a
declaration. `commit/checkpoint_change` writes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from procession.errors import PlanError
from procession.operators.expiry import ExpiringState
from procession.operators.inlining import LinesOf
from procession.operators.keyed import KeyedOperator
from procession.planner.compatibility import (
    StageIdentity,
    check_edited,
    check_key_by,
    check_moved,
    check_stage,
    check_tasks,
    identities,
    keyed_stages,
    moved_stages,
)
from procession.planner.fingerprints import no_lines
from procession.planner.graph import FRAMED, Graph, Kind, Node
from procession.planner.plan import Plan
from procession.planner.strategies import Routing, is_whole, routing_of

STEP_KINDS = frozenset({Kind.MAP_STATEFUL, Kind.FILTER_STATEFUL, Kind.FLAT_MAP_STATEFUL, Kind.REDUCE})
"""Kinds of stages whose state of a key is a value of the user's function."""


@dataclass(frozen=True)
class Upgrade:
    """Declares how the states of the running program become those of this program. Define it at module level of the
    app. Only `procession upgrade` reads it, and applies it once.

    Args:
        rename: Maps the old name of a stage to its new name.
        drop: Stages of the running program whose states are deleted. If the program still has a stage of this name, it
            begins without states.
        migrate: For a stage of this program, a function from the old state of a key to its new state. It is called once
            for each key, during the upgrade. If it returns None, the key is removed.
        changed: Stages that keep their states although their key, their input or their aggregate has changed.

    >>> from procession import Upgrade
    >>> upgrade = Upgrade(rename={"count": "totals"}, migrate={"totals": lambda count: {"count": count, "sum": 0}})
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    drop: Collection[str] = ()
    migrate: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    changed: Collection[str] = ()


class StateOutcome(StrEnum):
    """The outcomes for the states of a stage."""

    KEPT = "kept"
    RENAMED = "renamed"
    MIGRATED = "migrated"
    DROPPED = "dropped"
    NEW = "new"


@dataclass(frozen=True)
class StageOutcome:
    """The outcome of one stage. `stage` is its name in the new program, or the old name if it is dropped."""

    stage: str
    outcome: StateOutcome
    before: str = ""
    """The stage's name in the checkpoint. Empty: the stage is new."""
    tasks_before: int = 0
    tasks: int = 0
    is_rewritten: bool = False
    """Whether the states are written again for another number of tasks, because some belong to a task, not to a key."""

    @property
    def sentence(self) -> str:
        """The outcome as a sentence for the user."""
        renamed = f", was {self.before!r}" if self.before not in ("", self.stage) else ""
        tasks = f", {self.tasks_before} tasks become {self.tasks}" if 0 < self.tasks_before != self.tasks > 0 else ""
        return f"stage {self.stage!r}: {self.outcome.value}{renamed}{tasks}"


@dataclass(frozen=True)
class SinkChanges:
    """The sinks that the new program adds and removes."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def stage_outcomes(
    plan: Plan,
    saved: Mapping[str, StageIdentity],
    tasks: Mapping[str, int],
    upgrade: Upgrade,
    lines_of: LinesOf = no_lines,
) -> list[StageOutcome]:
    """Return the outcome of each stage. `saved` are the stages of the checkpoint, `tasks` their numbers of tasks.
    Raises PlanError if a stage can neither continue nor was named in the upgrade."""
    known = identities(plan, lines_of)
    planned = {name: StageIdentity(kind, known[name]) for name, kind in keyed_stages(plan).values()}
    _check_names(upgrade, saved, planned)
    remaining = {upgrade.rename.get(name, name): name for name in saved if name not in upgrade.drop}
    after = {name: _renamed(saved[old], upgrade.rename) for name, old in remaining.items()}
    check_key_by(plan, after, planned)
    check_moved(moved_stages(after, planned))
    check_edited(after, planned)
    if lost := [name for name in after if name not in planned]:
        raise PlanError(
            f"the running program has a stage {lost[0]!r} with states, and the new one does not",
            next_step=f"say Upgrade(drop=[{lost[0]!r}]) to delete its states, or Upgrade(rename={{{lost[0]!r}: …}})",
            stage=lost[0],
        )
    for name, stage in after.items():
        if name in upgrade.migrate:
            _check_migrated(plan, name, stage, planned[name])
    before = {name: tasks.get(old, 0) for name, old in remaining.items()}
    try:
        for name, stage in after.items():
            compared = replace(stage, kind=planned[name].kind) if name in upgrade.migrate else stage
            check_stage(name, compared, planned[name], is_changed=name in upgrade.changed)
        rewritten = rewritten_stages(plan, before)
        check_tasks(plan, {name: count for name, count in before.items() if name not in rewritten})
    except PlanError as error:
        step = error.next_step.partition(", or ")[0].partition("; or")[0]
        if "--changed-stages" in error.next_step:
            step += f", or keep its states if they are still right: Upgrade(changed=[{error.fields.get('stage')!r}])"
        step += f", or begin it without states: Upgrade(drop=[{error.fields.get('stage')!r}])"
        raise PlanError(error.sentence, next_step=step, **error.fields) from error
    now = {plan.node(chain.root).name: chain.tasks for chain in plan.chains if chain.root is not None}
    found = [
        StageOutcome(name, StateOutcome.DROPPED, name, tasks.get(name, 0)) for name in saved if name in upgrade.drop
    ]
    for name in planned:
        old = remaining.get(name, "")
        outcome = StateOutcome.NEW if not old else StateOutcome.KEPT if old == name else StateOutcome.RENAMED
        outcome = StateOutcome.MIGRATED if old and name in upgrade.migrate else outcome
        found.append(StageOutcome(name, outcome, old, before.get(name, 0), now[name], name in rewritten))
    return found


def rewritten_stages(plan: Plan, before: Mapping[str, int]) -> set[str]:
    """Return the stages of windows, timers, joins and the like that had another number of tasks before."""
    roots = ((plan.node(chain.root), chain.tasks) for chain in plan.chains if chain.root is not None)
    return {
        node.name
        for node, tasks in roots
        if is_whole(node) and routing_of(node) in (Routing.BY_KEY, Routing.TO_ALL)
        if before.get(node.name, 0) not in (0, tasks)
    }


def _check_names(upgrade: Upgrade, saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> None:
    stages, program = ", ".join(saved) or "there is none", ", ".join(planned) or "there is none"
    for old, new in upgrade.rename.items():
        if old not in saved:
            raise _unknown("rename", old, "the running program", stages)
        if new not in planned:
            raise _unknown("rename", new, "the new program", program)
        if old in upgrade.drop:
            raise PlanError(f"Upgrade drops and renames stage {old!r}", next_step="do one of them", stage=old)
        if new in saved and new not in upgrade.drop and new not in upgrade.rename:
            raise PlanError(
                f"Upgrade renames {old!r} to {new!r}, and the running program has a stage {new!r}, too",
                next_step=f"rename or drop {new!r} as well",
                stage=new,
            )
    if len(set(upgrade.rename.values())) < len(upgrade.rename):
        raise PlanError("Upgrade gives two stages the same new name", next_step="give each a different name")
    for name in upgrade.drop:
        if name not in saved:
            raise _unknown("drop", name, "the running program", stages)
    for what, names in (("migrate", upgrade.migrate), ("changed", upgrade.changed)):
        for name in names:
            if name not in planned:
                raise _unknown(what, name, "the new program", program)


def _unknown(what: str, name: str, program: str, stages: str) -> PlanError:
    return PlanError(
        f"Upgrade({what}=…) names {name!r}, which is not a stage with state of {program}",
        next_step=f"name one of its stages with state: {stages}",
        stage=name,
    )


def _renamed(stage: StageIdentity, names: Mapping[str, str]) -> StageIdentity:
    """Return a stage of the checkpoint as if its inputs had their new names."""
    inputs = stage.identity.get("inputs", "")
    renamed = ", ".join(sorted(names.get(name, name) for name in inputs.split(", "))) if inputs else ""
    return replace(stage, identity={**stage.identity, "inputs": renamed}) if inputs else stage


def _check_migrated(plan: Plan, name: str, before: StageIdentity, now: StageIdentity) -> None:
    node = next(node for node in plan.graph.nodes if node.name == name and node.operator is not None)
    (kind, _, layout), (kind_now, _, layout_now) = before.kind.partition(" "), now.kind.partition(" ")
    is_process, was_process = kind_now == Kind.PROCESS.value, kind == Kind.PROCESS.value
    is_users = is_process or (isinstance(node.operator, KeyedOperator | ExpiringState) and node.kind in STEP_KINDS)
    was_users = was_process or kind in {step.value for step in STEP_KINDS}
    if not (is_users and was_users):
        raise PlanError(
            f"the states of stage {name!r} cannot be migrated: a {(now if was_users else before).kind} stage stores its"
            " own structures, not values of a function",
            next_step=f"say Upgrade(drop=[{name!r}]) to begin it without states",
            stage=name,
        )
    if layout != layout_now or is_process != was_process:
        kept = f"make it a {kind} again" if is_process != was_process else "keep its ttl_s"
        kept = "keep its step_s and its clock" if is_process and was_process else kept
        raise PlanError(
            f"the states of stage {name!r} cannot be migrated: it was a {before.kind}, and is a {now.kind} now",
            next_step=f"{kept}, or say Upgrade(drop=[{name!r}]) to begin it without states",
            stage=name,
        )


def sink_changes(graph: Graph, fingerprint: str, endpoints: Mapping[str, str]) -> SinkChanges:
    """Return the sinks that this program adds to and removes from those of a checkpoint with this fingerprint and these
    endpoints. Raises PlanError if sources, or a sink that stays, have changed."""
    given = graph.endpoints()
    for name, what in endpoints.items():
        kind, _, short = name.partition(" ")
        if kind == "source" and given.get(name) != what:
            raise PlanError(
                f"source {short!r} is gone or changed: an upgrade keeps the sources of a pipeline",
                next_step="keep its sources as they are, or start over with another --dir (and an empty output)",
                stage=short,
            )
        if kind == "sink" and name in given and given[name] != what:
            raise PlanError(
                f"sink {short!r} was a {what}, and is a {given[name]} now",
                next_step=f"make it a {what} again, or give the changed sink another name",
                stage=short,
            )
        if kind == "sink" and name not in given and what not in {f"sink of {text}" for text in FRAMED.values()}:
            raise PlanError(
                f"sink {short!r} has several connections, and cannot be removed by an upgrade",
                next_step="keep it, or start over with another --dir (and an empty output)",
                stage=short,
            )
    if new := [name for name in given if name.startswith("source ") and name not in endpoints]:
        raise PlanError(
            f"{new[0]} is new: an upgrade keeps the sources of a pipeline",
            next_step="remove it, or start over with another --dir (and an empty output)",
            stage=new[0].partition(" ")[2],
        )
    sinks = [name.partition(" ")[2] for name in given if name.startswith("sink ")]
    before = {name.partition(" ")[2]: what for name, what in endpoints.items() if name.startswith("sink ")}
    changes = SinkChanges(
        tuple(name for name in sinks if name not in before), tuple(name for name in before if name not in sinks)
    )
    framings = {f"sink of {text}": framing for framing, text in FRAMED.items()}
    gone = tuple(Node(Kind.SINK, name, (0,), framing=framings[before[name]]) for name in changes.removed)
    stay = tuple(node for node in graph.nodes if node.kind is not Kind.SINK or node.name not in changes.added)
    if replace(graph, nodes=(*stay, *gone)).fingerprint() != fingerprint:
        raise PlanError(
            "the pipeline's guarantee, its idempotent sinks or its event-time order have changed",
            next_step="declare them as before, or start over with another --dir (and an empty output)",
        )
    return changes
