"""Compatibility: checks whether a changed program can continue with the states in a checkpoint.

Invariant: states are identified by the name of their stage, its kind, its key and its inputs. A program whose states
differ from those in the checkpoint is refused before the checkpoint is claimed or changed; the error names the stage
and a next step. Stages without state, and the functions that change states, may change freely. A stage without a name
is identified by its functions, not by its position. Takes the last round record; used by the driver. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from procession.errors import PlanError
from procession.operators.aggregates import Aggregate
from procession.operators.inlining import LinesOf
from procession.planner.fingerprints import fingerprint, is_known_same, is_same, no_lines
from procession.planner.graph import Kind
from procession.planner.keys import RecordKey
from procession.planner.plan import Plan
from procession.planner.strategies import is_whole

START_OVER = "start over with another --dir (and an empty output)"
DROP = "drop its states with `procession upgrade`"

OF_ALL = {Kind.WINDOW_BY_KEY: Kind.WINDOW, Kind.AGGREGATE_BY_KEY: Kind.AGGREGATE}
"""The kind of the same stage without a key, for each kind with a key."""


def keyed_stages(plan: Plan) -> dict[int, tuple[str, str]]:
    """Return the chains that begin with a stage with state: its name, and its kind and the layout of its states."""
    return {
        chain.number: (node.name, f"{node.kind.value}{operator.state.layout}")
        for chain in plan.chains
        if chain.root is not None and (operator := (node := plan.node(chain.root)).operator) is not None
    }


def check_tasks(plan: Plan, saved: Mapping[str, int]) -> None:
    """Raise PlanError if a stage whose tasks have their own states has another number of tasks than in the checkpoint,
    because each task holds a part of the pending results."""
    for chain in plan.chains:
        node = None if chain.root is None else plan.node(chain.root)
        if node is None or not is_whole(node) or saved.get(node.name, 0) in (0, chain.tasks):
            continue
        raise PlanError(
            f"stage {node.name!r} had parallelism {saved[node.name]} when the checkpoint was made, and has"
            f" {chain.tasks} now: its states are not redistributed at a start",
            next_step=f"change it with `procession upgrade`, or give it parallelism={saved[node.name]}, or"
            f" {START_OVER}",
            stage=node.name,
        )


def identities(plan: Plan, lines_of: LinesOf = no_lines) -> dict[str, dict[str, str]]:
    """Return the identity of each stage with state, in addition to its name. `key` and `step` are fingerprints of the
    functions of its key and of its step. `form` is the structure of its aggregate's states. `inputs` are the stages and
    sources before it. `named` tells whether the user gave the name."""
    inputs = _inputs(plan)
    roots = [(chain.root, plan.node(chain.root)) for chain in plan.chains if chain.root is not None]
    return {
        node.name: {
            "key": _fingerprint(operator.state.rank or node.key, lines_of),
            "step": _fingerprint(operator.state.function, lines_of),
            "form": _form(operator.state.function),
            "inputs": ", ".join(sorted(inputs[index])),
            "named": "yes" if node.is_named else "no",
        }
        for index, node in roots
        if (operator := node.operator) is not None
    }


def _form(function: Any) -> str:
    """Return the structure of an aggregate's states. Empty: the stage has no aggregate, or its form is unknown."""
    aggregate = getattr(function, "__self__", function)  # of a rolling stage it is the method `step` of its aggregate
    return aggregate.form if isinstance(aggregate, Aggregate) else ""


def _fingerprint(function: Any, lines_of: LinesOf) -> str:
    return "" if function is None else fingerprint(function, lines_of)


def _inputs(plan: Plan) -> list[set[str]]:
    """Return, for each node, the nearest stages with state before it, and the sources that reach it without passing
    one."""
    found: list[set[str]] = []
    for node in plan.graph.nodes:  # parents come before their children
        inputs: set[str] = set()
        for index in node.parents:
            parent = plan.node(index)
            inputs |= {parent.name} if parent.operator is not None or not parent.parents else found[index]
        found.append(inputs)
    return found


@dataclass(frozen=True)
class StageIdentity:
    """The knowledge of a checkpoint or a program about a stage with state."""

    kind: str
    identity: Mapping[str, str] = field(default_factory=dict)

    def has_same(self, what: str, other: StageIdentity) -> bool:
        """Whether this fingerprint may be the same: no known parts differ."""
        return is_same(self.identity.get(what, ""), other.identity.get(what, ""))

    def is_like(self, other: StageIdentity) -> bool:
        """Whether this may be the same stage, apart from its name."""
        fingerprints = [(self.identity.get(what, ""), other.identity.get(what, "")) for what in ("key", "step")]
        return self.kind == other.kind and all(
            is_known_same(new, old) or not (new or old) for new, old in fingerprints if self.identity
        )

    @property
    def is_unnamed(self) -> bool:
        return self.identity.get("named") == "no"


def check_continued(
    plan: Plan, saved: Mapping[str, StageIdentity], changed: Collection[str] = (), lines_of: LinesOf = no_lines
) -> None:
    """Raise PlanError unless the plan has exactly these stages with state. Those in `changed` may have another key or
    other inputs than in the checkpoint."""
    known = identities(plan, lines_of)
    planned = {name: StageIdentity(kind, known[name]) for name, kind in keyed_stages(plan).values()}
    for name in changed:
        if name not in planned:
            raise PlanError(
                f"changed_stages names {name!r}, which is not a stage with state",
                next_step=f"name a stage with state: {', '.join(planned) or 'there is none'}",
                stage=name,
            )
    check_key_by(plan, saved, planned)
    _check_places(saved, planned)
    _check_names(saved, planned)
    for name, stage in planned.items():
        check_stage(name, saved[name], stage, is_changed=name in changed)


def check_key_by(plan: Plan, saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> None:
    """Raise PlanError for a window or aggregate that was over all records, and now uses the key of a `key_by`."""
    for node in plan.graph.nodes:
        if node.operator is None or not isinstance(node.key, RecordKey) or node.kind not in OF_ALL:
            continue
        # The default name contains the kind, which differs with a key.
        name = node.name if node.is_named else node.name.replace("-by-key", "")
        shape = planned[node.name].kind.removeprefix(node.kind.value)
        if name in saved and saved[name].kind == OF_ALL[node.kind].value + shape:
            raise PlanError(
                f"stage {name!r} was over all records when the checkpoint was made, and uses the key of the key_by"
                " before it now: its states have another form",
                next_step=f"to continue, write the key_by after it or on another branch; or {DROP}, or {START_OVER}",
                stage=name,
            )


def _check_places(saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> None:
    """Raise PlanError if a stage without a name has another position, because such stages are named by their
    position."""
    found = _found_again(saved, planned)
    moved = moved_stages(saved, planned)
    # If a stage is new, a name would not help: the checkpoint has no states of it.
    added = [name for name in planned if name not in found.values() and (planned[name].is_unnamed or name not in saved)]
    if moved and len(added) == len(planned) - len(saved) > 0:
        raise _has_no_states(added[0])
    check_moved(moved)
    check_edited(saved, planned)


def check_edited(saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> None:
    """Raise PlanError if two stages without a name have both changed, and could be confused."""
    edited = [
        name
        for name, stage in planned.items()
        if name in saved and stage.is_unnamed and saved[name].is_unnamed and not stage.has_same("step", saved[name])
    ]
    for name, other in combinations(edited, 2):
        if planned[name].kind == planned[other].kind and planned[name].has_same("key", planned[other]):
            raise PlanError(
                f"the functions of stages {name!r} and {other!r}, which have no names and the same key, have both"
                " changed: it is not known which states belong to which stage",
                next_step=f"give the stage that was {name!r} when the checkpoint was made name={name!r}, and the one"
                f" that was {other!r} name={other!r}",
                stage=name,
            )


def moved_stages(saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> dict[str, str]:
    """Return the stages without a name that have another position, and so another name, than in the checkpoint."""
    return {name: new for name, new in _found_again(saved, planned).items() if name != new}


def check_moved(moved: Mapping[str, str]) -> None:
    """Raise PlanError if a stage without a name has another position."""
    if moved:
        pairs = " and ".join(f"{name!r} is {new!r} now" for name, new in moved.items())
        raise PlanError(
            f"stages with state but without a name have other positions than in the checkpoint: {pairs}",
            next_step="; ".join(f"give {new!r} name={name!r}" for name, new in moved.items())
            + "; a stage with a name keeps its states at any position",
            stage=next(iter(moved.values())),
        )


def _found_again(saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> dict[str, str]:
    """Return, for each stage without a name in the checkpoint, its name in the program, found by its functions. Stages
    with the same functions are distinguished by their inputs, then by their order."""
    found: dict[str, str] = {}
    for stage in (stage for stage in saved.values() if stage.is_unnamed):
        old = [name for name, other in saved.items() if other.is_unnamed and stage.is_like(other)]
        new = [name for name, other in planned.items() if other.is_unnamed and stage.is_like(other)]
        if len(old) == len(new):
            fed = [
                sorted(names, key=lambda name: of[name].identity["inputs"])
                for names, of in ((old, saved), (new, planned))
            ]
            are_fed_alike = all(
                saved[was].identity["inputs"] == planned[now].identity["inputs"] for was, now in zip(*fed, strict=True)
            )
            found |= zip(*(fed if are_fed_alike else (old, new)), strict=True)
    return found


def _check_names(saved: Mapping[str, StageIdentity], planned: Mapping[str, StageIdentity]) -> None:
    lost = [name for name in saved if name not in planned]
    new = [name for name in planned if name not in saved]
    if lost and new:
        old = lost[0]
        alike = [
            name for name in new if planned[name].kind == saved[old].kind and planned[name].has_same("key", saved[old])
        ]
        others = ", ".join(map(repr, alike or new))
        step = (
            f"if it is the same stage, give it name={old!r}"
            if len(alike or new) == 1
            else f"if one of {others} is the same stage, give it name={old!r}; with another one, the states would go to"
            " the wrong stage"
        )
        raise PlanError(
            f"the checkpoint has states of stage {old!r}, and the program has {others} instead",
            next_step=f"{step}; otherwise rename or drop its states with `procession upgrade`, or {START_OVER}",
            stage=(alike or new)[0],
        )
    if lost:
        raise PlanError(
            f"the checkpoint has states of stage {lost[0]!r}, which the program no longer has",
            next_step=f"put the stage back, or {DROP}, or {START_OVER}",
            stage=lost[0],
        )
    if new:
        raise _has_no_states(new[0])


def _has_no_states(name: str) -> PlanError:
    return PlanError(
        f"stage {name!r} has state, and the checkpoint has no states of it",
        next_step="remove the stage, or use `procession upgrade`, which lets it begin with the next record, or"
        f" {START_OVER}, so that it gets all records",
        stage=name,
    )


def check_stage(name: str, saved: StageIdentity, stage: StageIdentity, *, is_changed: bool) -> None:
    if stage.kind != saved.kind:
        raise PlanError(
            f"stage {name!r} was a {saved.kind} when the checkpoint was made, and is a {stage.kind} now: its states"
            " have another form",
            next_step=f"make it a {saved.kind} again, or migrate or {DROP}, or {START_OVER}",
            stage=name,
        )
    if is_changed:
        return
    accept = f"or, if its states are still right, continue with --changed-stages {name}; or {START_OVER}"
    if not stage.has_same("key", saved):
        raise PlanError(
            f"stage {name!r} has another function for its key than when the checkpoint was made: its states are stored"
            " by the keys of the earlier function",
            next_step=f"restore that function; {accept}",
            stage=name,
        )
    before, now = saved.identity.get("form", ""), stage.identity.get("form", "")
    if before and now and before != now:
        raise PlanError(
            f"stage {name!r} had the aggregate {before!r} when the checkpoint was made, and has {now!r} now: what it"
            " holds was made by the earlier one",
            next_step=f"restore that aggregate; {accept}",
            stage=name,
        )
    before, now = saved.identity.get("inputs", ""), stage.identity["inputs"]
    if before and before != now:
        raise PlanError(
            f"stage {name!r} had its input from {before} when the checkpoint was made, and has it from {now} now",
            next_step=f"restore its input; {accept}",
            stage=name,
        )
