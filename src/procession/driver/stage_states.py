"""Stage states: what the round record says about the stages that keep states, and what a new program must agree with.

The one rule: the plan says what each stage is, the record has what each stage was; the check is made before anything is
claimed. Before it the plan and the last round record; after it the conductor, which writes the next one.
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
