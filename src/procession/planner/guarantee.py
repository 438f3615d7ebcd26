"""The delivery guarantee of a pipeline: what its output is promised, and what a weaker level switches off.

The one rule: a level is a row of POLICIES and nothing else; whoever must act differently asks the policy.
`docs/explanation/guarantees.md` shows the same table, generated from here. Pure. Before it `api/pipeline`, where a user
names a level; after it `commit/one_phase`, which commits with the weaker levels, and `commit/performer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Guarantee(StrEnum):
    """What a pipeline promises, whatever is killed on the way."""

    EFFECTIVELY_ONCE = "effectively-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    NONE = "none"


class Emits(StrEnum):
    """When an epoch's output is sent to the sinks."""

    BEFORE_COMMIT = "before the epoch is committed"
    AFTER_COMMIT = "after the epoch is committed"


class Shows(StrEnum):
    """When a sink is told to make it visible."""

    DECIDED = "when `commits/N` exists and `rounds/N` names it"
    VOTED = "as soon as it has it safe"


class Waits(StrEnum):
    """What the epoch's commit waits for."""

    VOTES = "until every sink has it safe"
    NOTHING = "for nothing"


class Acknowledges(StrEnum):
    """When producers are told that their records are safe."""

    COMMITTED = "when the epoch is committed"
    BEGUN = "when the epoch is begun"


@dataclass(frozen=True, slots=True)
class Policy:
    """One level, as it is carried out."""

    emits: Emits
    shows: Shows
    waits: Waits
    acknowledges: Acknowledges
    is_sent_again: bool
    """Whether what was on its way to a sink that went is sent again."""
    is_synced: bool
    """Whether `offsets/N` is on disk before anything of the epoch is sent."""

    @property
    def is_strict(self) -> bool:
        """Nothing is switched off."""
        return self == POLICIES[Guarantee.EFFECTIVELY_ONCE]


POLICIES: dict[Guarantee, Policy] = {
    Guarantee.EFFECTIVELY_ONCE: Policy(
        Emits.BEFORE_COMMIT, Shows.DECIDED, Waits.VOTES, Acknowledges.COMMITTED, is_sent_again=True, is_synced=True
    ),
    Guarantee.AT_LEAST_ONCE: Policy(
        Emits.BEFORE_COMMIT, Shows.VOTED, Waits.VOTES, Acknowledges.COMMITTED, is_sent_again=True, is_synced=True
    ),
    Guarantee.AT_MOST_ONCE: Policy(
        Emits.AFTER_COMMIT, Shows.VOTED, Waits.NOTHING, Acknowledges.COMMITTED, is_sent_again=False, is_synced=True
    ),
    Guarantee.NONE: Policy(
        Emits.BEFORE_COMMIT, Shows.VOTED, Waits.NOTHING, Acknowledges.BEGUN, is_sent_again=False, is_synced=False
    ),
}

# What each field of a policy is called in the table.
ROWS = {
    "emits": "output is sent",
    "shows": "a sink shows it",
    "waits": "the commit waits",
    "acknowledges": "producers are told",
    "is_sent_again": "sent again to a sink that went",
    "is_synced": "the epoch's range is synced first",
}
MAY = {
    Guarantee.EFFECTIVELY_ONCE: "nothing",
    Guarantee.AT_LEAST_ONCE: "an epoch may come out twice",
    Guarantee.AT_MOST_ONCE: "an epoch may be lost, though acknowledged",
    Guarantee.NONE: "either",
}


def table() -> list[list[str]]:
    """The levels side by side: a heading, a row for each field, and what a crash may do."""

    def word(value: object) -> str:
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    rows = [[title, *(word(getattr(POLICIES[level], field)) for level in Guarantee)] for field, title in ROWS.items()]
    return [["", *Guarantee], *rows, ["what a crash may do", *(MAY[level] for level in Guarantee)]]
