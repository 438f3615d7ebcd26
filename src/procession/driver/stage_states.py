"""What the round record says about stages with state, and what a new program must agree with.

The one rule: the plan says what each stage is, the round record says what each stage was. They are compared before the
checkpoint is claimed. Uses the plan and the last round record; used by the driver and `commit/performer`.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection

from procession.commit.round_record import Round
from procession.planner.compatibility import Kept, check_continued, check_tasks, identities, keyed_stages
from procession.planner.plan import Plan
from procession.storage.state_store import Version


def keyed_versions(plan: Plan) -> dict[int, tuple[str, Version]]:
    """The chains that begin with a stage that keeps states: its name, and a version of them without files."""
    known = identities(plan, linecache.getlines)
    return {
        chain: (name, Version(kind=kind, identity=known[name])) for chain, (name, kind) in keyed_stages(plan).items()
    }


def check_last(plan: Plan, last: Round, changed: Collection[str] = ()) -> None:
    """Raise an error unless this plan can go on from this epoch, with the states that it has committed. `changed`:
    stages that may have another key or another input than they had."""
    for name, version in last.states.items():
        version.check_format(name)
    kept = {name: Kept(version.kind, version.identity) for name, version in last.states.items()}
    check_continued(plan, kept, changed, linecache.getlines)
    check_tasks(plan, {name: len(version.tasks) for name, version in last.states.items()})
