"""Maps the directories of a pipeline to volumes on replicas, and builds the options with which processes reach them.

Invariant: each directory has its own volume, NAME-driver, NAME-gateway, NAME-sink-SINK, so that the parts of a
pipeline can continue on other machines alone or together. A pipeline is started only if enough replicas answer; the
error names those that do not. `sos/replicated_host` uses the options, `sos/directory_restore` restores a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from procession.address import Address, parse_addresses
from procession.deployment.cookies import read_cookie
from procession.deployment.settings import Settings
from procession.errors import ConfigError, ProcessionError, UsageError
from procession.sos.directory_restore import restore_directory
from procession.sos.replicated_files import MARKER
from procession.sos.replicated_volume import ReplicaOptions
from procession.sos.sos_client import SosClient
from procession.sos.volume_rules import NAME
from procession.storage.secret import make_pipeline_private
from procession.tls import client_tls

SCHEME = "sos://"
ANSWER_S = 5.0
"""Seconds to wait for the answer of a replica before the start."""


def load_replicas(
    addresses: str, quorum: int | None, cookie_file: Path | None, tls_ca: Path | None = None
) -> ReplicaOptions:
    """Return the replicas at these addresses. Raises ConfigError if their number or quorum is unsafe, or if there is
    no secret."""
    if cookie_file is None:
        raise UsageError(
            "Replicas need a secret.",
            next_step="Give the file with it: --replica-cookie-file. All replicas have the same.",
        )
    found = tuple(parse_addresses(addresses))
    options = ReplicaOptions(
        found, quorum or len(found) // 2 + 1, read_cookie(cookie_file), client_tls(tls_ca, None, None)
    )
    options.check()
    return options


def replica_options(settings: Settings) -> ReplicaOptions:
    """Return the replicas of these settings."""
    named = settings.replicas or ""
    addresses = named if isinstance(named, str) else ",".join(named)
    return load_replicas(addresses, settings.replica_quorum, settings.replica_cookie_file, settings.replica_tls_ca)


def parse_volume(text: str) -> tuple[str, str]:
    """Return the addresses and the name of sos://HOST:PORT,…/NAME."""
    addresses, _, name = text.removeprefix(SCHEME).partition("/")
    if not text.startswith(SCHEME) or not name:
        raise UsageError(
            f"{text!r} names no volume.", next_step="Write it as sos://HOST:PORT,HOST:PORT,HOST:PORT/NAME."
        )
    return addresses, name


def check_place(*, has_replicas: bool) -> None:
    """Raise UsageError if replicas are requested on a cluster without replicas."""
    if not has_replicas:
        raise UsageError(
            "The cluster has no replicas.", next_step="Make it with them: procession cluster up --replicas."
        )


def check_unreplicated(directory: Path) -> None:
    """Raise UsageError if the pipeline in this directory has replicas: a gateway that joins would have none."""
    if (directory / MARKER).exists():
        raise UsageError(
            "This pipeline has replicas, and a gateway that joins it would have none.",
            next_step="Start the pipeline again with more --gateways.",
        )


@dataclass(frozen=True)
class PipelineReplicas:
    """The replicas of a pipeline, if there are any."""

    settings: Settings
    pipeline: str

    def volume(self, part: str) -> str:
        name = f"{self.settings.replica_volume or self.pipeline}-{part}"
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot name a volume of replicas.",
                next_step="Give the pipeline a short name of letters and digits there: --replica-volume.",
            )
        return name

    def arguments(self, part: str) -> list[str]:
        """Return the options of the process whose directory has this volume."""
        settings = self.settings
        if not settings.replicas:
            return []
        addresses = ",".join(map(str, replica_options(settings).addresses))
        argv = ["--replicas", addresses, "--replica-volume", self.volume(part)]
        argv += ["--replica-quorum", str(settings.replica_quorum)] if settings.replica_quorum else []
        argv += ["--replica-cookie-file", str((settings.replica_cookie_file or Path()).resolve())]
        return argv + (["--replica-tls-ca", str(settings.replica_tls_ca.resolve())] if settings.replica_tls_ca else [])

    def check_reachable(self, directories: Mapping[str, Path], say: Callable[[str], None]) -> None:
        """Raise ConfigError if too few replicas answer, or a name cannot be used. A new volume needs all replicas."""
        if not self.settings.replicas:
            return
        for part in directories:
            self.volume(part)
        options = replica_options(self.settings)
        missing = asyncio.run(_unreachable(options))
        if not missing:
            return
        named = "; ".join(f"{address} ({reason})" for address, reason in missing.items())
        is_new = not all((directory / MARKER).exists() for directory in directories.values())
        if is_new or len(options.addresses) - len(missing) < options.write_quorum:
            all_of_them = "All replicas must answer when a directory is sent to them for the first time"
            needed = all_of_them if is_new else f"{options.write_quorum} replicas must answer"
            raise ConfigError(
                f"{needed}; missing: {named}.", next_step="Start them, or correct --replicas, and start again."
            )
        say(f"replicas that do not answer: {named}; the others are enough")

    def restore(self, directories: Mapping[str, Path], say: Callable[[str], None]) -> None:
        """Restore missing directories. Processes that wrote them before can no longer write to the replicas."""
        options = replica_options(self.settings)
        for part, directory in directories.items():
            if (directory / MARKER).exists():
                continue  # restored earlier, or never lost: the replicas check whether it is the newest copy
            make_pipeline_private(directory)
            found = asyncio.run(restore_directory(self.volume(part), options, directory, say=say))
            say(f"restored {self.volume(part)}: {found.files} files, {found.size_bytes} bytes, in {found.path}")


async def _unreachable(options: ReplicaOptions) -> dict[Address, str]:
    """Return the replicas that do not answer, each with the reason."""

    async def ask(address: Address) -> str:
        try:
            async with asyncio.timeout(ANSWER_S):
                client = await SosClient.open(address, options.cookie, options.tls)
        except TimeoutError:
            return "no answer"
        except ProcessionError as error:
            return error.sentence
        client.close()
        return ""

    reasons = await asyncio.gather(*map(ask, options.addresses))
    return {address: reason for address, reason in zip(options.addresses, reasons, strict=True) if reason}
