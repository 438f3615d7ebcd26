"""The options of commands whose directory is kept on replicas, and the command `procession restore`.

As in `cli/main`, they only parse and print; `sos/replicated_host` and `sos/directory_restore` do the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.cli.command_options import with_groups
from procession.log_format import note

if TYPE_CHECKING:
    from procession.runtime.host import Host
    from procession.sos.adopted_folder import ForeignChanges
    from procession.sos.replicated_volume import ReplicaOptions


@dataclass(frozen=True, kw_only=True)
class ReplicaAccess:
    """How replicas are reached."""

    replica_quorum: Annotated[
        int | None,
        typer.Option(min=1, show_default="more than half", help="Replicas that must have synced what is acknowledged."),
    ] = None
    replica_cookie_file: Annotated[
        Path | None, typer.Option(help="File with the secret of the replicas (`secrets/sos` of their directory).")
    ] = None
    replica_tls_ca: Annotated[
        Path | None, typer.Option(help="Use TLS to the replicas, and trust this authority (PEM).")
    ] = None

    def load(self, addresses: str) -> ReplicaOptions:
        from procession.supervisor.pipeline_replicas import load_replicas

        return load_replicas(addresses, self.replica_quorum, self.replica_cookie_file, self.replica_tls_ca)


@dataclass(frozen=True, kw_only=True)
class ReplicationOptions:
    """Options of a process whose directory is replicated."""

    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,…",
            show_default="none",
            help="Keep the directory on these replicas (`procession sos`), too. Nothing is acknowledged before they"
            " have it.",
        ),
    ] = None
    replica_volume: Annotated[
        str, typer.Option(metavar="NAME", help="With --replicas: name of this directory there. No other may use it.")
    ] = ""
    access: ReplicaAccess

    def place(self, directory: Path) -> Path:
        """The directory, without symbolic links if it is replicated: files are found in it by their paths."""
        return directory if self.replicas is None else directory.resolve()

    def host(self, directory: Path) -> AbstractContextManager[Host]:
        """The host that the process runs on: this machine, with or without replicas."""
        from procession.runtime.host import HOST

        if (options := self._load()) is None:
            return nullcontext(HOST)
        from procession.sos.replicated_host import replicated_host

        return replicated_host(self.place(directory), self.replica_volume, options)

    def driver_host(self, directory: Path) -> AbstractContextManager[Host]:
        """The same for a driver: of the pipeline's directory, its checkpoint, its states and its table copies."""
        from procession.runtime.host import HOST

        if (options := self._load()) is None:
            return nullcontext(HOST)
        from procession.sos.replicated_host import replicated_host

        only, adopted = driver_changes()
        return replicated_host(self.place(directory), self.replica_volume, options, only=only, adopted=adopted)

    def _load(self) -> ReplicaOptions | None:
        from procession.errors import UsageError

        if self.replicas is None:
            return None
        if not self.replica_volume:
            raise UsageError("--replicas needs --replica-volume.", next_step="Give the directory a name there.")
        return self.access.load(self.replicas)


def driver_changes() -> tuple[Collection[str], Mapping[str, tuple[ForeignChanges, ...]]]:
    """What is replicated of a pipeline's directory, and what other processes than the driver change there: tasks write
    states, and the source's process writes where logs are, before the driver syncs what names them. Spark removes its
    old files."""
    from procession.sos.adopted_folder import AdoptedFolder, PrunedFolder

    return ("checkpoint", "state", "sides"), {
        "rounds": (AdoptedFolder("state"), AdoptedFolder("sides")),
        "offsets": (AdoptedFolder("checkpoint/gateways", is_rewritten=True), PrunedFolder()),
        "commits": (PrunedFolder(),),
    }


@with_groups
def restore(
    source: Annotated[
        str, typer.Option("--from", metavar="sos://HOST:PORT,…/NAME", help="The replicas, and the name of the volume.")
    ],
    directory: Annotated[Path, typer.Option("--dir", help="An empty directory.")],
    *,
    access: ReplicaAccess,
) -> None:
    """Restore a directory from its replicas. The process that wrote it can write nothing more after that."""
    import asyncio

    from procession.sos.directory_restore import restore_directory
    from procession.storage.secret import make_pipeline_private
    from procession.supervisor.pipeline_replicas import parse_volume

    addresses, volume = parse_volume(source)
    place = directory.resolve()
    make_pipeline_private(place)
    found = asyncio.run(restore_directory(volume, access.load(addresses), place, say=note))
    print(f"restored {found.files} files, {found.size_bytes} bytes, in {found.path}")
