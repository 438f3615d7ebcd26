"""Paths: what Spark really runs, held against the plan.

The one rule: an exchange that the plan does not know is refused before anything of an epoch leaves the driver. Paths
that are not counted would be merged as if they were one, and the order would break without a word. Before it
`spark/query`, which asks it about the first epoch; after it nothing, or a `PlanError`.
"""

from __future__ import annotations

import re

from procession.errors import PlanError
from procession.plan.blueprint import Plan
from procession.spark.parcels import slots

# What a plan of ours consists of; whatever else Spark may put in could move rows between partitions.
KNOWN = frozenset({"MapInArrow", "Exchange", "Project", "MicroBatchScan"})
OPERATOR = re.compile(r"^[\s:+*()\d-]*([A-Z]\w*)(.*)$")
BY_SLOT = re.compile(r"direct_shuffle_partition_id\(at#\d+\), (\d+)\)")


def check_paths(plan: Plan, executed: str, levels: int) -> None:
    """Raise PlanError unless the physical plan, as Spark prints it, has exactly the exchanges of the first levels."""
    exchanges = []
    for line in filter(None, executed.splitlines()):
        found = OPERATOR.match(line)
        name = found[1] if found else line.strip()
        if name not in KNOWN:
            raise _unknown(plan, line)
        if name == "Exchange":
            parted = BY_SLOT.search(line)
            if parted is None:
                raise _unknown(plan, line)
            exchanges.append(int(parted[1]))
    expected = [len(slots(plan, level)) for level in range(1, levels)]
    if exchanges[::-1] != expected:
        raise PlanError(
            f"Spark runs exchanges into {exchanges[::-1]} tasks, the plan of pipeline {plan.graph.name!r} has them into"
            f" {expected}",
            next_step="run it with Spark's own settings left as they are; `procession explain` shows the plan",
        )


def _unknown(plan: Plan, line: str) -> PlanError:
    edges = ", ".join(
        f"{plan.node(edge.before).name} → {plan.node(edge.after).name}" for edge in plan.edges if edge.is_exchange
    )
    return PlanError(
        f"Spark would run `{line.strip()}`, which pipeline {plan.graph.name!r} does not know; its exchanges are"
        f" {edges or 'none'}, and the order could break at this one",
        next_step="run it with Spark's own settings left as they are; `procession explain` shows the plan",
    )
