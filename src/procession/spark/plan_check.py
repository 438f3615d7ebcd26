"""Compares the physical plan that Spark runs with the plan of the pipeline.

Invariant: an exchange that is not in the pipeline's plan is refused before an epoch's output leaves the driver.
Otherwise several unsorted paths would be merged as one path, and the order would break without an error.
`spark/query` and `spark/sql` check the physical plan of every job before they run it for the first time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from procession.errors import PlanError
from procession.planner.plan import Plan
from procession.spark.manifest_routing import slots

# The operators of our jobs. Any other operator could move rows between partitions.
KNOWN = frozenset({"MapInArrow", "Exchange", "Project", "MicroBatchScan", "Scan"})
ADAPTIVE = frozenset({"AdaptiveSparkPlan", "AQEShuffleRead"})
OPERATOR = re.compile(r"((?:[: ]  )*(?:[:+]- )?)(?:\*\(\d+\) )?([A-Z]\w*)(.*)")
BY_SLOT = re.compile(r" shufflepartitionidpassthrough\(direct_shuffle_partition_id\(at#\d+\), (\d+)\), REPARTITION_BY")
TO_ONE = re.compile(r" SinglePartition, REPARTITION_BY")

# Operators that combine several rows. Their result would depend on where an epoch ends, which the output must not.
OF_MANY = re.compile(r"Aggregate|Window|Limit|TakeOrdered|Groups|Sample")
MOVING = re.compile(r"Exchange|Coalesce|AQEShuffleRead")

LEFT_ALONE = "do not change Spark's settings: no conf.set in the app, nothing in spark-defaults.conf"


@dataclass(eq=False)
class PhysicalOperator:
    """An operator of a physical plan, as Spark prints it, with its inputs as children."""

    name: str
    text: str
    children: list[PhysicalOperator] = field(default_factory=list)

    @property
    def tasks(self) -> int | None:
        """The number of tasks of an exchange by slot; None for another operator."""
        if self.name != "Exchange":
            return None
        found = BY_SLOT.match(self.text)
        return int(found[1]) if found else 1 if TO_ONE.match(self.text) else None

    def runs(self, function: str) -> bool:
        """Return whether this operator runs one of our functions in Spark's workers."""
        return self.name == "MapInArrow" and self.text.startswith(f" {function}(")

    def walk(self) -> Iterator[PhysicalOperator]:
        yield self
        for child in self.children:
            yield from child.walk()

    def above(self, function: str) -> list[PhysicalOperator]:
        """Return this operator and all below it that read, directly or indirectly, the function's output."""
        if self.runs(function):
            return []
        found = [operator for child in self.children for operator in child.above(function)]
        return [self, *found] if self.reads(function) else []

    def reads(self, function: str) -> bool:
        return any(operator.runs(function) for operator in self.walk())

    def __str__(self) -> str:
        return f"{self.name}{self.text}"


def parse_plan(executed: str) -> PhysicalOperator | None:
    """Parse the text that Spark prints for a physical plan. Return None if it is not one.

    A line that is not an operator continues the previous line, because a string in a user's expression may contain
    newlines."""
    ancestors: list[tuple[int, PhysicalOperator]] = []
    latest: PhysicalOperator | None = None
    for line in filter(str.strip, executed.split("\n")):
        found = OPERATOR.fullmatch(line)
        if found is None or (ancestors and not found[1]):
            if latest is None:
                return None
            latest.text += f"\n{line}"
            continue
        indent, latest = len(found[1]), PhysicalOperator(found[2], found[3])
        while ancestors and ancestors[-1][0] >= indent:
            ancestors.pop()
        if ancestors:
            ancestors[-1][1].children.append(latest)
        ancestors.append((indent, latest))
    return ancestors[0][1] if ancestors else None


def check_paths(plan: Plan, executed: str, levels: Sequence[int]) -> None:
    """Raise PlanError unless the physical plan of our job has exactly the exchanges of these levels."""
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
            f"Spark runs exchanges into {exchanges[::-1]} tasks, but the plan of pipeline {plan.graph.name!r} has"
            f" exchanges into {expected}",
            next_step=f"{LEFT_ALONE}; `procession explain` shows the plan",
        )


def check_sql(plan: Plan, stage: str, executed: str, *, tasks: int, reader: str, writer: str) -> None:
    """Raise PlanError unless a transform is between two of our exchanges and processes each row separately.

    The function `reader` passes the stage's records to Spark SQL, and `writer` takes the result. Each follows an
    exchange into `tasks` tasks. Between them Spark may move rows, because they are sorted afterwards; with `strict`
    Spark must not move rows."""
    root = parse_plan(executed)
    if root is None:
        _refuse(plan, executed.strip(), stage)
    if any(operator.name in ADAPTIVE for operator in root.walk()):
        raise _adaptive(f"transform {stage!r}")
    readers = [operator for operator in root.walk() if operator.runs(reader)]
    if not readers:
        raise PlanError(
            f"transform {stage!r} returns rows that do not come from its records: they have no position in the order",
            next_step="start from the DataFrame that the function gets; join others to it, or merge a second source",
            stage=stage,
        )
    if not (root.runs(writer) and len(root.children) == 1 and root.children[0].tasks == tasks):
        _refuse(plan, str(root), stage)
    for operator in readers:
        (below,) = operator.children
        if below.name != "ReusedExchange" and below.tasks != tasks:
            _refuse(plan, str(below), stage)
    for operator in root.children[0].above(reader)[1:]:
        if OF_MANY.search(operator.name) or _joins_records(operator, reader):
            raise _of_many(stage, operator)
        if plan.graph.is_strict and MOVING.search(operator.name):
            raise _strict(stage, operator)


def _joins_records(operator: PhysicalOperator, reader: str) -> bool:
    is_join = "Join" in operator.name or operator.name == "CartesianProduct"
    return is_join and sum(child.reads(reader) for child in operator.children) > 1


def _refuse(plan: Plan, operator: str, stage: str | None = None) -> NoReturn:
    edges = ", ".join(
        f"{plan.node(edge.before).name} → {plan.node(edge.after).name}" for edge in plan.edges if edge.is_exchange
    )
    where = f" for transform {stage!r}" if stage else ""
    raise PlanError(
        f"Spark would run `{operator}`{where}, which is not in the plan of pipeline {plan.graph.name!r}; its exchanges"
        f" are {edges or 'none'}, and this operator could break the order",
        next_step=f"{LEFT_ALONE}; `procession explain` shows the plan",
        **({"stage": stage} if stage else {}),
    )


def _adaptive(stage: str) -> PlanError:
    return PlanError(
        f"Spark would change its plan for {stage} at run time (AdaptiveSparkPlan), and could add exchanges that are not"
        " in the plan and break the order",
        next_step=f"set spark.sql.adaptive.enabled to false again; or {LEFT_ALONE}",
    )


def _of_many(stage: str, operator: PhysicalOperator) -> PlanError:
    return PlanError(
        f"transform {stage!r} combines several records (`{operator.name}`), but it sees only the records of one epoch:"
        " the output would depend on where epochs end, and differ from that of a sequential run",
        next_step="process each row separately there, and join records only to tables; or use a stage of the pipeline"
        " instead of Spark SQL",
        stage=stage,
    )


def _strict(stage: str, operator: PhysicalOperator) -> PlanError:
    return PlanError(
        f"transform {stage!r} lets Spark repartition its records (`{operator}`), which changes their order, and with"
        " strict=True the order is not restored",
        next_step="remove repartition, orderBy and joins that shuffle from the function; or remove strict=True, and"
        " the rows are sorted after it",
        stage=stage,
    )
