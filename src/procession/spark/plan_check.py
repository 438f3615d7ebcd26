"""The plan check: compares what Spark really runs with the plan.

The one rule: an exchange that the plan does not know is refused before anything of an epoch leaves the driver. Paths
that are not counted would be merged as if they were one, and the order would break without a word. Before it
`spark/query` and `spark/sql`, which ask it about the physical plan of every job before they start it for the first
time; after it nothing, or a `PlanError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from procession.errors import PlanError
from procession.planner.plan import Plan
from procession.spark.manifest_routing import slots

# What a job of ours consists of; whatever else Spark may put in could move rows between partitions.
KNOWN = frozenset({"MapInArrow", "Exchange", "Project", "MicroBatchScan", "Scan"})
ADAPTIVE = frozenset({"AdaptiveSparkPlan", "AQEShuffleRead"})
OPERATOR = re.compile(r"((?:[: ]  )*(?:[:+]- )?)(?:\*\(\d+\) )?([A-Z]\w*)(.*)")
BY_SLOT = re.compile(r" shufflepartitionidpassthrough\(direct_shuffle_partition_id\(at#\d+\), (\d+)\), REPARTITION_BY")
TO_ONE = re.compile(r" SinglePartition, REPARTITION_BY")

# What makes one row of many: its answer depends on where an epoch is cut, and that must not be seen.
OF_MANY = re.compile(r"Aggregate|Window|Limit|TakeOrdered|Groups|Sample")
MOVING = re.compile(r"Exchange|Coalesce|AQEShuffleRead")

LEFT_ALONE = "leave Spark's settings as they are: no conf.set in the app, none in spark-defaults.conf"


@dataclass(eq=False)
class Operator:
    """An operator of a physical plan, as Spark prints it, over those that it reads."""

    name: str
    text: str
    children: list[Operator] = field(default_factory=list)

    @property
    def tasks(self) -> int | None:
        """Of an exchange by slot: into how many tasks."""
        if self.name != "Exchange":
            return None
        found = BY_SLOT.match(self.text)
        return int(found[1]) if found else 1 if TO_ONE.match(self.text) else None

    def runs(self, function: str) -> bool:
        """Whether it is one of our functions in Spark's workers."""
        return self.name == "MapInArrow" and self.text.startswith(f" {function}(")

    def walk(self) -> Iterator[Operator]:
        yield self
        for child in self.children:
            yield from child.walk()

    def above(self, function: str) -> list[Operator]:
        """This one and all below it that read, over whatever else, what the function gives; not the function."""
        if self.runs(function):
            return []
        found = [operator for child in self.children for operator in child.above(function)]
        return [self, *found] if self.reads(function) else []

    def reads(self, function: str) -> bool:
        return any(operator.runs(function) for operator in self.walk())

    def __str__(self) -> str:
        return f"{self.name}{self.text}"


def parse_plan(executed: str) -> Operator | None:
    """A physical plan, from the text that Spark prints; None if it does not look like one. A line that is none of an
    operator goes on with the one before: a text in a user's expression may hold newlines."""
    open_ones: list[tuple[int, Operator]] = []
    latest: Operator | None = None
    for line in filter(str.strip, executed.split("\n")):
        found = OPERATOR.fullmatch(line)
        if found is None or (open_ones and not found[1]):
            if latest is None:
                return None
            latest.text += f"\n{line}"
            continue
        indent, latest = len(found[1]), Operator(found[2], found[3])
        while open_ones and open_ones[-1][0] >= indent:
            open_ones.pop()
        if open_ones:
            open_ones[-1][1].children.append(latest)
        open_ones.append((indent, latest))
    return open_ones[0][1] if open_ones else None


def check_paths(plan: Plan, executed: str, levels: Sequence[int]) -> None:
    """Raise PlanError unless the physical plan of a job of ours has exactly the exchanges of these levels."""
    root = parse_plan(executed)
    if root is None:
        _refuse(plan, executed.strip())
    exchanges = []
    for operator in root.walk():
        if operator.name in ADAPTIVE:
            raise _adaptive(f"pipeline {plan.graph.name!r}")
        if operator.name not in KNOWN or len(operator.children) > 1 or "\n" in operator.text:
            _refuse(plan, str(operator))
        if operator.name == "Exchange":
            if operator.tasks is None:
                _refuse(plan, str(operator))
            exchanges.append(operator.tasks)
    expected = [len(slots(plan, level)) for level in levels]
    if exchanges[::-1] != expected:
        raise PlanError(
            f"Spark runs exchanges into {exchanges[::-1]} tasks, the plan of pipeline {plan.graph.name!r} has them into"
            f" {expected}",
            next_step=f"{LEFT_ALONE}; `procession explain` shows the plan",
        )


def check_sql(plan: Plan, stage: str, executed: str, *, tasks: int, inlet: str, outlet: str) -> None:
    """Raise PlanError unless a transform stands between two exchanges of ours, and treats each row on its own.

    `inlet` gives its records to Spark SQL, and `outlet` takes what comes back, each behind an exchange into so many
    tasks. In between Spark may move rows as it likes, because they are sorted afterwards; with `strict` it may not."""
    root = parse_plan(executed)
    if root is None:
        _refuse(plan, executed.strip(), stage)
    if any(operator.name in ADAPTIVE for operator in root.walk()):
        raise _adaptive(f"transform {stage!r}")
    inlets = [operator for operator in root.walk() if operator.runs(inlet)]
    if not inlets:
        raise PlanError(
            f"transform {stage!r} gives back rows that were not made of its records: nothing says where they belong",
            next_step="begin with the DataFrame that it is given; join others to it, or merge a second source",
            stage=stage,
        )
    if not (root.runs(outlet) and len(root.children) == 1 and root.children[0].tasks == tasks):
        _refuse(plan, str(root), stage)
    for operator in inlets:
        (below,) = operator.children
        if below.name != "ReusedExchange" and below.tasks != tasks:
            _refuse(plan, str(below), stage)
    for operator in root.children[0].above(inlet)[1:]:
        if OF_MANY.search(operator.name) or _joins_records(operator, inlet):
            raise _of_many(stage, operator)
        if plan.graph.is_strict and MOVING.search(operator.name):
            raise _strict(stage, operator)


def _joins_records(operator: Operator, inlet: str) -> bool:
    is_join = "Join" in operator.name or operator.name == "CartesianProduct"
    return is_join and sum(child.reads(inlet) for child in operator.children) > 1


def _refuse(plan: Plan, operator: str, stage: str | None = None) -> NoReturn:
    edges = ", ".join(
        f"{plan.node(edge.before).name} → {plan.node(edge.after).name}" for edge in plan.edges if edge.is_exchange
    )
    where = f" for transform {stage!r}" if stage else ""
    raise PlanError(
        f"Spark would run `{operator}`{where}, which pipeline {plan.graph.name!r} does not know; its exchanges are"
        f" {edges or 'none'}, and the order could break at this one",
        next_step=f"{LEFT_ALONE}; `procession explain` shows the plan",
        **({"stage": stage} if stage else {}),
    )


def _adaptive(who: str) -> PlanError:
    return PlanError(
        f"Spark would change its plan for {who} while it runs (AdaptiveSparkPlan), and could put in exchanges that"
        " nobody has counted: the order could break there",
        next_step=f"set spark.sql.adaptive.enabled to false again; or {LEFT_ALONE}",
    )


def _of_many(stage: str, operator: Operator) -> PlanError:
    return PlanError(
        f"transform {stage!r} makes one answer of many records (`{operator.name}`), but it sees those of one epoch"
        " only: where an epoch happens to be cut would be seen in the output, which must be that of a sequential run",
        next_step="treat each row on its own there, and join records to tables only; or do it with a stage of the"
        " pipeline instead of Spark SQL",
        stage=stage,
    )


def _strict(stage: str, operator: Operator) -> PlanError:
    return PlanError(
        f"transform {stage!r} lets Spark deal its records out anew (`{operator}`), where they would overtake one"
        " another, and with strict=True an order that is broken is not restored",
        next_step="take repartition, orderBy and joins that shuffle out of the function; or leave strict=True away, and"
        " the rows are sorted behind it",
        stage=stage,
    )
