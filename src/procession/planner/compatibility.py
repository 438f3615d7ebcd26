"""Whether a changed program can continue with the states in a checkpoint.

The one rule: states are identified by the name of their stage, its kind, its key and what feeds it. A program whose
states differ from those in the checkpoint is refused, by stage name and with a next step, before anything changes: not
even the checkpoint is claimed. Stages without state, and what a stage does with its state, may change freely. A stage
without a name is identified by what it does, not by its place. Takes the last round record; used by the driver. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from procession.errors import PlanError
from procession.operators.inlining import LinesOf
from procession.planner.fingerprints import fingerprint, is_known_same, is_same, no_lines
from procession.planner.graph import Kind, Node
from procession.planner.keyed_spec import RecordKey
from procession.planner.plan import Plan
from procession.planner.strategies import is_firing

BEGIN_ANEW = "begin anew with another --dir (and an empty output)"

OF_ALL = {Kind.WINDOW_BY_KEY: Kind.WINDOW, Kind.AGGREGATE_BY_KEY: Kind.AGGREGATE}
"""What a stage is without a key."""


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


def identities(plan: Plan, lines_of: LinesOf = no_lines) -> dict[str, dict[str, str]]:
    """What each stage that keeps states is known by, beside its name: `key` and `step` are fingerprints of what its
    records are told apart by and of what it does, `inputs` what feeds it, `named` whether the user gave the name."""
    inputs = _inputs(plan)
    roots = [(chain.root, plan.node(chain.root)) for chain in plan.chains if chain.root is not None]
    return {
        node.name: {
            "key": _fingerprint(_key_of(node), lines_of),
            "step": _fingerprint(_step_of(node), lines_of),
            "inputs": ", ".join(sorted(inputs[index])),
            "named": "yes" if node.is_named else "no",
        }
        for index, node in roots
        if node.stateful is not None
    }


def _fingerprint(function: Any, lines_of: LinesOf) -> str:
    return "" if function is None else fingerprint(function, lines_of)


def _key_of(node: Node) -> Any:
    """What the states of a stage are filed by: the function of the key, or of a sort's rank."""
    assert node.stateful is not None
    return node.key if node.stateful.sorting is None else node.stateful.sorting.by


def _step_of(node: Node) -> Any:
    stateful = node.stateful
    assert stateful is not None
    timed = (getattr(stateful.windowing, name, None) for name in ("aggregate", "join"))
    found = [stateful.step, *timed, stateful.totals and stateful.totals.aggregate]
    return next((one for one in found if one is not None), None)


def _inputs(plan: Plan) -> list[set[str]]:
    """Of each node, the nearest stages before it that keep states, and the sources that come to it past them."""
    found: list[set[str]] = []
    for node in plan.graph.nodes:  # parents stand before their children, so each is looked at once
        inputs: set[str] = set()
        for index in node.parents:
            parent = plan.node(index)
            inputs |= {parent.name} if parent.stateful is not None or not parent.parents else found[index]
        found.append(inputs)
    return found


@dataclass(frozen=True)
class Kept:
    """What a checkpoint, or a program, knows of a stage that keeps states."""

    kind: str
    identity: Mapping[str, str] = field(default_factory=dict)

    def has_same(self, what: str, other: Kept) -> bool:
        """Whether nothing speaks against it that this fingerprint is the same of both."""
        return is_same(self.identity.get(what, ""), other.identity.get(what, ""))

    def is_like(self, other: Kept) -> bool:
        """Whether this is the same stage, by all that is known of it but its name."""
        fingerprints = [(self.identity.get(what, ""), other.identity.get(what, "")) for what in ("key", "step")]
        return self.kind == other.kind and all(
            is_known_same(one, two) or not (one or two) for one, two in fingerprints if self.identity
        )

    @property
    def is_unnamed(self) -> bool:
        return self.identity.get("named") == "no"


def check_continued(
    plan: Plan, kept: Mapping[str, Kept], changed: Collection[str] = (), lines_of: LinesOf = no_lines
) -> None:
    """Raise PlanError unless the plan keeps states for exactly these stages. Those in `changed` may have another key or
    other inputs than they had."""
    known = identities(plan, lines_of)
    wanted = {name: Kept(kind, known[name]) for name, kind in keyed_stages(plan).values()}
    for name in changed:
        if name not in wanted:
            raise PlanError(
                f"changed_stages names {name!r}, which is no stage that keeps states",
                next_step=f"name one of those that do: {', '.join(wanted) or 'there is none'}",
                stage=name,
            )
    _check_key_by(plan, kept, wanted)
    _check_places(kept, wanted)
    _check_names(kept, wanted)
    for name, stage in wanted.items():
        _check_stage(name, kept[name], stage, is_changed=name in changed)


def _check_key_by(plan: Plan, kept: Mapping[str, Kept], wanted: Mapping[str, Kept]) -> None:
    """Find windows and aggregates that were of all records, and take the key of a `key_by` before them now."""
    for node in plan.graph.nodes:
        if node.stateful is None or not isinstance(node.key, RecordKey) or node.kind not in OF_ALL:
            continue
        # One without a name is called by its kind, which is another with a key.
        name = node.name if node.is_named else node.name.replace("-by-key", "")
        shape = wanted[node.name].kind.removeprefix(node.kind.value)
        if name in kept and kept[name].kind == OF_ALL[node.kind].value + shape:
            raise PlanError(
                f"stage {name!r} was of all records when the checkpoint was made, and takes the key of the key_by"
                " before it now: its states are of another sort",
                next_step=f"write the key_by behind it, or on another branch, to go on; or {BEGIN_ANEW}",
                stage=name,
            )


def _check_places(kept: Mapping[str, Kept], wanted: Mapping[str, Kept]) -> None:
    """Stages that the user has not named are called by their place: find those that stand at another place now."""
    moved = {name: new for name, new in _found_again(kept, wanted).items() if name != new}
    if moved:
        pairs = " and ".join(f"those of {name!r} are of what is {new!r} now" for name, new in moved.items())
        raise PlanError(
            f"stages that keep states and have no name stand at other places than in the checkpoint: {pairs}",
            next_step="; ".join(f"give {new!r} name={name!r}" for name, new in moved.items())
            + "; a named stage keeps its states wherever it stands",
            stage=next(iter(moved.values())),
        )
    edited = [
        name
        for name, stage in wanted.items()
        if name in kept and stage.is_unnamed and kept[name].is_unnamed and not stage.has_same("step", kept[name])
    ]
    for name, other in combinations(edited, 2):
        if wanted[name].kind == wanted[other].kind and wanted[name].has_same("key", wanted[other]):
            raise PlanError(
                f"the functions of stages {name!r} and {other!r}, which have no names and the same key, were both"
                " changed: which of them has which states cannot be told",
                next_step=f"give the stage that was {name!r} when the checkpoint was made name={name!r}, and the one"
                f" that was {other!r} name={other!r}",
                stage=name,
            )


def _found_again(kept: Mapping[str, Kept], wanted: Mapping[str, Kept]) -> dict[str, str]:
    """Of the stages without names, which one in the program each of the checkpoint's is, by what they do. Stages that
    do the same are told apart by what feeds them, then by their order."""
    found: dict[str, str] = {}
    for stage in (stage for stage in kept.values() if stage.is_unnamed):
        old = [name for name, one in kept.items() if one.is_unnamed and stage.is_like(one)]
        new = [name for name, one in wanted.items() if one.is_unnamed and stage.is_like(one)]
        if len(old) == len(new):
            fed = [
                sorted(names, key=lambda name: of[name].identity["inputs"])
                for names, of in ((old, kept), (new, wanted))
            ]
            are_fed_alike = all(
                kept[one].identity["inputs"] == wanted[two].identity["inputs"] for one, two in zip(*fed, strict=True)
            )
            found |= zip(*(fed if are_fed_alike else (old, new)), strict=True)
    return found


def _check_names(kept: Mapping[str, Kept], wanted: Mapping[str, Kept]) -> None:
    lost = [name for name in kept if name not in wanted]
    new = [name for name in wanted if name not in kept]
    if lost and new:
        old = lost[0]
        alike = [one for one in new if wanted[one].kind == kept[old].kind and wanted[one].has_same("key", kept[old])]
        others = ", ".join(map(repr, alike or new))
        step = (
            f"if it is the same stage, give it name={old!r}"
            if len(alike or new) == 1
            else f"if it is one of {others}, give that one name={old!r}; the one that did what {old!r} did, else states"
            " go to the wrong stage"
        )
        raise PlanError(
            f"the checkpoint has states of stage {old!r}, and the program keeps them for {others} instead",
            next_step=f"{step}; otherwise {BEGIN_ANEW}",
            stage=(alike or new)[0],
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


def _check_stage(name: str, kept: Kept, stage: Kept, *, is_changed: bool) -> None:
    if stage.kind != kept.kind:
        raise PlanError(
            f"stage {name!r} was a {kept.kind} when the checkpoint was made, and is a {stage.kind} now: its states are"
            " of another sort",
            next_step=f"make it a {kept.kind} again, or {BEGIN_ANEW}",
            stage=name,
        )
    if is_changed:
        return
    accept = f"or, if its states are right as they are, go on with --changed-stages {name}; or {BEGIN_ANEW}"
    if not stage.has_same("key", kept):
        raise PlanError(
            f"stage {name!r} has another function for its key than when the checkpoint was made: its states are filed"
            " by the keys of the one before",
            next_step=f"put that function back; {accept}",
            stage=name,
        )
    before, now = kept.identity.get("inputs", ""), stage.identity["inputs"]
    if before and before != now:
        raise PlanError(
            f"stage {name!r} was fed by {before} when the checkpoint was made, and is fed by {now} now",
            next_step=f"feed it as before; {accept}",
            stage=name,
        )
