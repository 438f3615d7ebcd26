"""Abandoned gateways: gateways that are lost for good. Pure.

Invariant: an abandoned gateway has the last fence that was claimed at that time. Every driver with a higher fence knows
of it: it never reads from the gateway again, and its copy of the checkpoint begins with no undecided epoch that has
records of the gateway. A driver with a lower or the same fence may still commit such records, until a later driver has
claimed. So what is committed of the gateway's log is fixed by the first claim afterwards, and a later claim decides the
same. A gateway that was abandoned never comes back.

`commit/log_locations` stores them, `commit/checkpoint` voids the undecided epoch, `driver/abandonment` informs the
leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from procession.errors import StorageError
from procession.format_number import check_format
from procession.storage.log_ranges import NOTHING, LogOffset

FORMAT = 1
SUFFIX = ".abandoned"


@dataclass(frozen=True, slots=True)
class AbandonedGateway:
    name: str
    identity: str
    """Identity of its directory. Empty: unknown, because no driver has read from it."""
    fence: int
    """The fence of the last driver that may commit records of the gateway."""

    def as_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes, path: Path) -> AbandonedGateway:
        """Parse a file. Raises StorageError if it is damaged or has a newer format."""
        try:
            document = json.loads(data)
            check_format(path, document.pop("format"), FORMAT)
            return cls(**document)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise StorageError(
                f"{path} is damaged: {error}", next_step="restore the checkpoint directory from a copy"
            ) from error


Abandoned = Mapping[str, AbandonedGateway]
"""Abandoned gateways by name."""


class Named(Protocol):
    """A gateway, by its name and the identity of its directory."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> str: ...


def abandoned_before(abandoned: Abandoned, fence: int) -> Abandoned:
    """Return the gateways that the driver with this fence treats as abandoned. The result never changes."""
    return {name: gateway for name, gateway in abandoned.items() if gateway.fence < fence}


def is_abandoned(gateway: Named, abandoned: Abandoned) -> bool:
    """Whether this gateway, or another one with its name or in its directory, was abandoned."""
    return gateway.name in abandoned or any(
        other.identity == gateway.identity for other in abandoned.values() if other.identity
    )


def are_voided(starts: Mapping[str, LogOffset], ends: Mapping[str, LogOffset], abandoned: Iterable[str]) -> bool:
    """Whether the undecided epoch between these offsets has records of an abandoned gateway."""
    return any(ends.get(name, NOTHING).sequence > starts.get(name, NOTHING).sequence for name in abandoned)
