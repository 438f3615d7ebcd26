"""The options of commands whose directory is kept on replicas, and the command `procession restore`.

As in `cli/main`, they only parse and print; `sos/replicated_host` and `sos/directory_restore` do the work.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from procession.cli.command_options import with_groups
from procession.log_format import note

if TYPE_CHECKING:
    from procession.runtime.host import Host
    from procession.sos.replicated_volume import ReplicaOptions

SCHEME = "sos://"


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
        from procession.address import parse_addresses
        from procession.errors import UsageError
        from procession.sos.replicated_volume import ReplicaOptions
        from procession.supervisor.cookies import read_cookie
        from procession.tls import client_tls

        if self.replica_cookie_file is None:
            raise UsageError(
                "Replicas need a secret.",
                next_step="Give the file with it: --replica-cookie-file. All replicas have the same.",
            )
        found = tuple(parse_addresses(addresses))
        options = ReplicaOptions(
            found,
            self.replica_quorum or len(found) // 2 + 1,
            read_cookie(self.replica_cookie_file),
            client_tls(self.replica_tls_ca, None, None),
        )
        options.check()
        return options


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

    def driver_host(self, directory: Path, *, is_spare: bool) -> AbstractContextManager[Host]:
        """The same for a driver: of the pipeline's directory, its checkpoint, its states and its table copies."""
        from procession.errors import UsageError
        from procession.runtime.host import HOST

        if (options := self._load()) is None:
            return nullcontext(HOST)
        if is_spare:
            raise UsageError(
                "A spare driver cannot use replicas.", next_step="Leave --spare out: a driver is started again."
            )
        from procession.sos.adopted_folder import AdoptedFolder
        from procession.sos.replicated_host import replicated_host

        # Tasks write states, and the source's process writes where logs are, before the driver syncs what names them.
        adopted = {
            "rounds": (AdoptedFolder("state"), AdoptedFolder("sides")),
            "offsets": (AdoptedFolder("checkpoint/gateways", is_rewritten=True),),
        }
        place, only = self.place(directory), ("checkpoint", "state", "sides")
        return replicated_host(place, self.replica_volume, options, only=only, adopted=adopted)

    def _load(self) -> ReplicaOptions | None:
        from procession.errors import UsageError

        if self.replicas is None:
            return None
        if not self.replica_volume:
            raise UsageError("--replicas needs --replica-volume.", next_step="Give the directory a name there.")
        return self.access.load(self.replicas)


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

    from procession.errors import UsageError
    from procession.sos.directory_restore import restore_directory
    from procession.storage.secret import make_pipeline_private

    addresses, _, volume = source.removeprefix(SCHEME).partition("/")
    if not source.startswith(SCHEME) or not volume:
        raise UsageError(
            f"{source!r} names no volume.", next_step="Write it as sos://HOST:PORT,HOST:PORT,HOST:PORT/NAME."
        )
    place = directory.resolve()
    make_pipeline_private(place)
    found = asyncio.run(restore_directory(volume, access.load(addresses), place, say=note))
    print(f"restored {found.files} files, {found.size_bytes} bytes, in {found.path}")
