"""The gateways of a pipeline: their names and addresses. The leader keeps them in one small file.

The one rule: a gateway is in this file before it is told that it belongs to the pipeline, so that a restarted leader
knows for whom to wait. A name belongs to one directory for ever, because its sequence numbers are in every offset.
Before it `gateway/leader`; after it the driver, which gets the list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from procession.errors import ConfigError, RemoteProtocolError, StorageError
from procession.format_number import check_format
from procession.storage.durable import storage_error, write_durably

FILE_NAME = "gateways.json"
FORMAT = 2
"""A file of format 1 has no number: it is the members alone."""
NAME_CHARS_MAX = 64


class Standing(StrEnum):
    """The relation of a gateway to the pipeline."""

    HERE = "here"
    LEAVING = "leaving"
    """Accepts nothing new, and leaves when all its records are committed."""
    LEFT = "left"
    """May come back with the same directory."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    identity: str
    """Identity of its directory."""
    listen: str
    control: str
    directory: str
    """Directory of its log."""
    flight: str = ""
    """Arrow Flight address of its log, for machines without that directory. Empty: none."""
    standing: Standing = Standing.HERE
    machine: str = ""
    """Machine whose executors read its files. Empty: the machine of its directory."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> Member:
        """Raises RemoteProtocolError if a field is missing or is not text."""
        words = {name: told.get(name) for name in ("name", "identity", "listen", "control", "directory", "flight")}
        texts = {name: word for name, word in words.items() if isinstance(word, str)}
        if len(texts) < len(words):
            raise RemoteProtocolError("a gateway must say its name, identity, listen, control, directory and flight")
        try:
            standing = Standing(told.get("standing", Standing.HERE))
            return cls(**texts, standing=standing, machine=str(told.get("machine", "")))
        except ValueError:
            raise RemoteProtocolError("a gateway is here, leaving or left") from None


class Members:
    """The gateways by name. Changes are on disk when the call returns."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._all = self._load()
        if self._all:
            # Whoever wrote it may have failed to sync it; it is relied on from here on.
            self._write(written(self._all))

    def __getitem__(self, name: str) -> Member:
        return self._all[name]

    def __contains__(self, name: str) -> bool:
        return name in self._all

    def knows(self, identity: str) -> bool:
        return any(one.identity == identity for one in self._all.values())

    @property
    def present(self) -> dict[str, Member]:
        """Those that have not left."""
        return {name: one for name, one in sorted(self._all.items()) if one.standing is not Standing.LEFT}

    @property
    def left(self) -> list[str]:
        return sorted(name for name, one in self._all.items() if one.standing is Standing.LEFT)

    def join(self, told: Member) -> Member:
        """Take a gateway in, or take it in again where it is now; without a name it gets the next one. Raises
        ConfigError if its name is another's."""
        known = next((one for one in self._all.values() if one.identity == told.identity), None)
        if known is not None and told.name not in ("", known.name):
            raise ConfigError(
                f"The directory of gateway {told.name!r} is that of {known.name!r}.",
                next_step=f"Start it without a name, or as {known.name!r}.",
            )
        name = known.name if known is not None else told.name or self._next_name()
        if known is None and name in self._all:
            raise ConfigError(
                f"There is a gateway {name!r} already, with another directory.",
                next_step="Start it with the directory that it had, or under another name.",
            )
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > NAME_CHARS_MAX:
            raise ConfigError(
                f"{name[:NAME_CHARS_MAX]!r} is no name for a gateway.", next_step="Use letters, digits, - and _."
            )
        standing = known.standing if known is not None and known.standing is Standing.LEAVING else Standing.HERE
        return self._keep(replace(told, name=name, standing=standing))

    def stand(self, name: str, standing: Standing) -> None:
        self._keep(replace(self._all[name], standing=standing))

    def _next_name(self) -> str:
        return next(name for number in range(1, len(self._all) + 2) if (name := f"gateway-{number}") not in self._all)

    def _keep(self, member: Member) -> Member:
        if self._all.get(member.name) != member:
            kept = {**self._all, member.name: member}
            self._write(written(kept))
            self._all = kept
        return member

    def _load(self) -> dict[str, Member]:
        return _read(self._path)

    def _write(self, document: bytes) -> None:
        """Durable when this returns."""
        write_durably(self._path, document)


def written(members: Mapping[str, Member]) -> bytes:
    told = {name: one.as_dict() for name, one in sorted(members.items())}
    return json.dumps({"format": FORMAT, "gateways": told}, indent=1).encode()


def members_of(document: bytes) -> dict[str, Member]:
    told = json.loads(document)
    if isinstance(number := told.get("format"), int):  # in format 1 it could only be a gateway of this name
        check_format(Path(FILE_NAME), number, FORMAT)
        told = told["gateways"]
    return {str(name): Member.from_dict(one) for name, one in told.items()}


def others_than(name: str, members: Mapping[str, Member]) -> list[str]:
    """Addresses to which this gateway may redirect a producer."""
    return [one.listen for one in members.values() if one.name != name and one.standing is Standing.HERE]


def _read(path: Path) -> dict[str, Member]:
    try:
        return members_of(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise storage_error(path, "read", error) from error
    except (ValueError, AttributeError, TypeError, KeyError, RemoteProtocolError) as error:
        raise StorageError(
            f"{path}, which names the gateways of the pipeline, cannot be read: {error!r}.",
            next_step="Restore the file from a copy; without it the leader cannot know for whom to wait.",
            path=str(path),
        ) from error
