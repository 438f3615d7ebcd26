"""The delivery guarantee of a pipeline: the promise for its output, and the steps that weaker levels omit.

Invariant: a level is a row of POLICIES and nothing else; code that depends on the level reads the policy.
`docs/explanation/guarantees.md` shows the same table, generated from here. Pure. A user names a level in
`api/pipeline`. `commit/one_phase`, which commits with the weaker levels, and `commit/performer` read the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Guarantee(StrEnum):
    """The guarantee of a pipeline if any of its processes dies."""

    EFFECTIVELY_ONCE = "effectively-once"
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    NONE = "none"


class Emits(StrEnum):
    """When the output of an epoch is sent to the sinks."""

    BEFORE_COMMIT = "before the epoch is committed"
    AFTER_COMMIT = "after the epoch is committed"


class Shows(StrEnum):
    """When a sink makes the output visible."""

    DECIDED = "when `commits/N` exists and `rounds/N` names it"
    VOTED = "as soon as it is on the sink's disk"


class Waits(StrEnum):
    """The event that the commit of an epoch waits for."""

    VOTES = "until every sink has it on disk"
    NOTHING = "for no sink"


class Acknowledges(StrEnum):
    """When the records of producers are acknowledged."""

    COMMITTED = "when the epoch is committed"
    BEGUN = "when the epoch begins"


@dataclass(frozen=True, slots=True)
class Policy:
    """How one level is carried out."""

    emits: Emits
    shows: Shows
    waits: Waits
    acknowledges: Acknowledges
    is_sent_again: bool
    """Whether output is sent again to a sink whose connection was lost."""
    is_synced: bool
    """Whether `offsets/N` is on disk before any output of the epoch is sent."""

    @property
    def is_strict(self) -> bool:
        """Whether no step is omitted."""
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

# The names of the policy's fields in the table.
ROWS = {
    "emits": "output is sent",
    "shows": "output becomes visible",
    "waits": "the commit waits",
    "acknowledges": "records are acknowledged",
    "is_sent_again": "sent again after a sink's crash",
    "is_synced": "`offsets/N` is synced before output is sent",
}
MAY = {
    Guarantee.EFFECTIVELY_ONCE: "nothing",
    Guarantee.AT_LEAST_ONCE: "duplicate the output of an epoch",
    Guarantee.AT_MOST_ONCE: "lose the output of an acknowledged epoch",
    Guarantee.NONE: "duplicate or lose the output of an epoch",
}


def table() -> list[list[str]]:
    """Return the levels as columns: a heading, a row for each field, and the possible effects of a crash."""

    def word(value: object) -> str:
        return ("yes" if value else "no") if isinstance(value, bool) else str(value)

    rows = [[title, *(word(getattr(POLICIES[level], field)) for level in Guarantee)] for field, title in ROWS.items()]
    return [["", *Guarantee], *rows, ["what a crash may do", *(MAY[level] for level in Guarantee)]]
