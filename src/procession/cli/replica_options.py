"""Defines the options of commands whose directory is replicated, and the command `procession restore`.

As in `cli/main`, they only parse and print; `sos/replicated_host` and `sos/directory_restore` do the work.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
    """Options for access to replicas."""

    replica_quorum: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="more than half",
            help="Number of replicas that must sync data before it is acknowledged.",
        ),
    ] = None
    replica_cookie_file: Annotated[
        Path | None, typer.Option(help="File with the secret of the replicas (`secrets/sos` of their directory).")
    ] = None
    replica_tls_ca: Annotated[
        Path | None, typer.Option(help="Use TLS to the replicas, and trust this authority (PEM).")
    ] = None

    def load(self, addresses: str) -> ReplicaOptions:
        from procession.deployment.pipeline_replicas import load_replicas

        return load_replicas(addresses, self.replica_quorum, self.replica_cookie_file, self.replica_tls_ca)


@dataclass(frozen=True, kw_only=True)
class ReplicationOptions:
    """Options of a process whose directory is replicated."""

    replicas: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,…",
            show_default="none",
            help="Also store the directory on these replicas (`procession sos`). Data is acknowledged only after they"
            " have it.",
        ),
    ] = None
    replica_volume: Annotated[
        str, typer.Option(metavar="NAME", help="With --replicas: name of this directory there. No other may use it.")
    ] = ""
    restore: Annotated[
        bool,
        typer.Option(
            "--restore",
            help="With --replicas: if the directory is missing, first restore it from them. The process that wrote it"
            " before can no longer write to them. A volume that the replicas do not have is created.",
        ),
    ] = False
    access: ReplicaAccess

    def place(self, directory: Path) -> Path:
        """Return the directory, without symbolic links if it is replicated, because its files are identified by their
        paths."""
        return directory if self.replicas is None else directory.resolve()

    def host(self, directory: Path) -> AbstractContextManager[Host]:
        """Return the host of the process: this machine, with or without replicas."""
        return self._opened(directory)

    def driver_host(self, directory: Path) -> AbstractContextManager[Host]:
        """Return the host of a driver. Replicated are the checkpoint, the states and the table copies in the
        pipeline's directory."""
        only, adopted = driver_changes()
        return self._opened(directory, only, adopted)

    @contextmanager
    def _opened(
        self,
        directory: Path,
        only: Collection[str] = (),
        adopted: Mapping[str, tuple[ForeignChanges, ...]] | None = None,
    ) -> Iterator[Host]:
        from procession.runtime.host import HOST

        if (options := self._load()) is None:
            yield HOST
            return
        from procession.sos.replicated_host import replicated_host

        place = self.place(directory)
        if self.restore:
            self._restore(options, place)
        with replicated_host(place, self.replica_volume, options, only=only, adopted=adopted) as host:
            yield host

    def _restore(self, options: ReplicaOptions, place: Path) -> None:
        import asyncio

        from procession.sos.directory_restore import restore_missing
        from procession.storage.secret import make_pipeline_private

        make_pipeline_private(place)
        found = asyncio.run(restore_missing(self.replica_volume, options, place, say=note))
        if found is not None:
            note(f"restored {found.files} files, {found.size_bytes} bytes, in {found.path}")

    def _load(self) -> ReplicaOptions | None:
        from procession.errors import UsageError

        if self.replicas is None:
            if self.restore:
                raise UsageError("--restore needs --replicas.", next_step="Name the replicas that have the directory.")
            return None
        if not self.replica_volume:
            raise UsageError("--replicas needs --replica-volume.", next_step="Give the directory a name there.")
        return self.access.load(self.replicas)


def driver_changes() -> tuple[Collection[str], Mapping[str, tuple[ForeignChanges, ...]]]:
    """Return the replicated parts of a pipeline's directory, and the parts that other processes than the driver
    change. Tasks write states and Spark's helper process writes log locations, each before the driver syncs the file
    that names them. Spark removes its old files."""
    from procession.sos.adopted_folder import AdoptedFolder, PrunedFolder
    from procession.storage.driver_claim import CHECKPOINT

    return (CHECKPOINT, "state", "sides"), {
        "rounds": (AdoptedFolder("state"), AdoptedFolder("sides")),
        "offsets": (AdoptedFolder(f"{CHECKPOINT}/gateways", is_rewritten=True), PrunedFolder()),
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
    """Restore a directory from its replicas. After that, the process that wrote it can no longer write to the
    replicas."""
    import asyncio

    from procession.deployment.pipeline_replicas import parse_volume
    from procession.sos.directory_restore import restore_directory
    from procession.storage.secret import make_pipeline_private

    addresses, volume = parse_volume(source)
    place = directory.resolve()
    make_pipeline_private(place)
    found = asyncio.run(restore_directory(volume, access.load(addresses), place, say=note))
    print(f"restored {found.files} files, {found.size_bytes} bytes, in {found.path}")
