"""The stateful stages in the plan and in the round record, and whether a new program may continue with them.

Invariant: the plan has the current identity of each stage, the round record the committed one. They are
compared before the checkpoint is claimed. Used by the driver and `commit/performer`.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection

from procession.commit.round_record import RoundRecord
from procession.planner.compatibility import StageIdentity, check_continued, check_tasks, identities, keyed_stages
from procession.planner.plan import Plan
from procession.storage.state_version import StateVersion


def keyed_versions(plan: Plan) -> dict[int, tuple[str, StateVersion]]:
    """Return for each chain that begins with a stateful stage the stage's name and a version without files."""
    known = identities(plan, linecache.getlines)
    return {
        chain: (name, StateVersion(kind=kind, identity=known[name]))
        for chain, (name, kind) in keyed_stages(plan).items()
    }


def check_last(plan: Plan, last: RoundRecord, changed: Collection[str] = ()) -> None:
    """Raise an error unless this plan can continue from this epoch with its committed states.

    `changed` names the stages whose key or input may differ."""
    for name, version in last.states.items():
        version.check_format(name)
    kept = {name: StageIdentity(version.kind, version.identity) for name, version in last.states.items()}
    check_continued(plan, kept, changed, linecache.getlines)
    check_tasks(plan, {name: len(version.tasks) for name, version in last.states.items()})
