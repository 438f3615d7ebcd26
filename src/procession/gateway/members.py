"""The gateways of a pipeline: their names and addresses. The leader keeps them in one small file. Pure.

Invariant: a gateway is in this file before it learns that it belongs to the pipeline, so a restarted leader knows which
gateways to wait for. A name belongs to one directory forever, because its sequence numbers are in every offset.
`gateway/gateway_directory` writes the file; the driver gets the list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from procession.errors import ConfigError, RemoteProtocolError, StorageError
from procession.format_number import check_format

FORMAT = 3
"""Format number. A file of format 1 has no number and contains only the members. Before format 3, no gateway is
abandoned."""
NAME_CHARS_MAX = 64


class MemberStatus(StrEnum):
    """The relation of a gateway to the pipeline."""

    HERE = "here"
    LEAVING = "leaving"
    """The gateway accepts no new streams, and leaves when all its records are committed."""
    LEFT = "left"
    """The gateway has left, and may come back with the same directory."""
    ABANDONED = "abandoned"
    """The gateway is lost for good. Its name and its directory are refused forever."""


GONE = (MemberStatus.LEFT, MemberStatus.ABANDONED)


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    identity: str
    """Identity of the gateway's directory."""
    listen: str
    control: str
    directory: str
    """Directory of the gateway's log."""
    flight: str = ""
    """Arrow Flight address of the log, for machines without that directory. Empty: none."""
    standing: MemberStatus = MemberStatus.HERE
    machine: str = ""
    """Machine whose executors read the log's files. Empty: the machine of the directory."""

    def as_dict(self) -> dict[str, Any]:
        # The fields are texts, so `asdict` and its deep copies are not needed.
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Member:
        """Create a member from its fields. Raises RemoteProtocolError if a field is missing or is not text."""
        given = {name: fields.get(name) for name in ("name", "identity", "listen", "control", "directory", "flight")}
        texts = {name: word for name, word in given.items() if isinstance(word, str)}
        if len(texts) < len(given):
            raise RemoteProtocolError("a gateway must give its name, identity, listen, control, directory and flight")
        try:
            standing = MemberStatus(fields.get("standing", MemberStatus.HERE))
            return cls(**texts, standing=standing, machine=str(fields.get("machine", "")))
        except ValueError:
            raise RemoteProtocolError("the standing of a gateway must be here, leaving or left") from None


class MemberStore(Protocol):
    """Stores the members."""

    path: Path

    def load(self) -> bytes | None:
        """Read the last saved document. None: no document was saved yet."""

    def save(self, document: bytes) -> None:
        """Save the document. It is durable when this returns."""


class Members:
    """The gateways by name. Changes are on disk when a call returns."""

    def __init__(self, store: MemberStore) -> None:
        self._store = store
        document = store.load()
        self._all = {} if document is None else members_of(document, store.path)
        self._by_identity = {member.identity: name for name, member in self._all.items()}
        if self._all:
            # An earlier process may have written the file without a sync, so it is written again before it is used.
            store.save(written(self._all))

    def __getitem__(self, name: str) -> Member:
        return self._all[name]

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def knows(self, identity: str) -> bool:
        return identity in self._by_identity

    @property
    def present(self) -> dict[str, Member]:
        """The gateways that have not left and were not abandoned."""
        return {name: member for name, member in sorted(self._all.items()) if member.standing not in GONE}

    @property
    def left(self) -> list[str]:
        """Names of the gateways that have left or were abandoned."""
        return sorted(name for name, member in self._all.items() if member.standing in GONE)

    def join(self, joining: Member) -> Member:
        """Add a gateway, or update the address of a known gateway. A gateway without a name gets the next name. Raises
        ConfigError if another gateway has the name, or if the gateway was abandoned."""
        known = self._all.get(self._by_identity.get(joining.identity, ""))
        if (found := known or self._all.get(joining.name)) is not None and found.standing is MemberStatus.ABANDONED:
            raise ConfigError(
                f"Gateway {found.name!r} was abandoned: its streams continue at other gateways.",
                next_step="Delete its directory. To replace it, join a gateway with a new directory and a new name.",
            )
        if known is not None and joining.name not in ("", known.name):
            raise ConfigError(
                f"The directory of gateway {joining.name!r} belongs to {known.name!r}.",
                next_step=f"Start it without a name, or as {known.name!r}.",
            )
        name = known.name if known is not None else joining.name or self._next_name()
        if known is None and name in self._all:
            raise ConfigError(
                f"There is already a gateway {name!r} with another directory.",
                next_step="Start the gateway with its earlier directory, or with another name.",
            )
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > NAME_CHARS_MAX:
            raise ConfigError(
                f"{name[:NAME_CHARS_MAX]!r} is not a valid name for a gateway.",
                next_step="Use letters, digits, - and _.",
            )
        standing = known.standing if known is not None and known.standing is MemberStatus.LEAVING else MemberStatus.HERE
        return self._keep(replace(joining, name=name, standing=standing))

    def stand(self, name: str, standing: MemberStatus) -> None:
        assert self._all[name].standing is not MemberStatus.ABANDONED, "an abandoned gateway never comes back"
        self._keep(replace(self._all[name], standing=standing))

    def abandon(self, name: str, identity: str) -> str:
        """Refuse a gateway from now on, even if it is not known yet. Returns the name under which it is known."""
        name = self._by_identity.get(identity, name)
        known = self._all.get(name) or Member(name, identity, "", "", "")
        return self._keep(replace(known, standing=MemberStatus.ABANDONED)).name

    def _next_name(self) -> str:
        return next(name for number in range(1, len(self._all) + 2) if (name := f"gateway-{number}") not in self._all)

    def _keep(self, member: Member) -> Member:
        if self._all.get(member.name) != member:
            kept = {**self._all, member.name: member}
            self._store.save(written(kept))
            self._all = kept
            self._by_identity[member.identity] = member.name
        return member


def written(members: Mapping[str, Member]) -> bytes:
    gateways = {name: member.as_dict() for name, member in sorted(members.items())}
    return json.dumps({"format": FORMAT, "gateways": gateways}).encode()  # an indent would take ten times as long


def members_of(document: bytes, path: Path) -> dict[str, Member]:
    """Parse the bytes of the file `path`. Raises StorageError if they are damaged, or of a newer format."""
    try:
        gateways = json.loads(document)
        if isinstance(
            number := gateways.get("format"), int
        ):  # with format 1, "gateways" can only be the name of a gateway
            check_format(path, number, FORMAT)
            gateways = gateways["gateways"]
        return {str(name): Member.from_dict(member) for name, member in gateways.items()}
    except (ValueError, AttributeError, TypeError, KeyError, RemoteProtocolError) as error:
        raise StorageError(
            f"{path}, which names the gateways of the pipeline, cannot be read: {error!r}.",
            next_step="Restore the file from a copy; without it the leader cannot know which gateways to wait for.",
            path=str(path),
        ) from error


def others_than(name: str, members: Mapping[str, Member]) -> list[str]:
    """Return the addresses to which this gateway may redirect a producer."""
    return [
        member.listen for member in members.values() if member.name != name and member.standing is MemberStatus.HERE
    ]
