"""Creates hosts for a test cluster on one machine: network namespaces, each with a directory that others cannot read.

Invariant: the machine's own network does not change. The link of each host ends in a bridge in a separate namespace,
so several clusters can use the same private addresses. Every name begins with the prefix of the cluster.
`remove_hosts` deletes everything with this prefix; it works after a kill at any step, and can be repeated. Root only;
uses the programs of iproute2 and util-linux. Used by `cluster/namespace_cluster`.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from procession.errors import ConfigError, UsageError

NETWORK = "10.77.0"
"""The first three numbers of the addresses. They exist only inside the namespaces."""
OPERATOR = f"{NETWORK}.254"
"""The address of the bridge, for commands that inspect all hosts."""
HOSTS_MAX = 64
NAMESPACES = Path("/run/netns")
SWITCH = "switch"
STAGING = "/media"
"""Directory where an entering command mounts the paths that it needs while it hides other directories. Only this
command sees these mounts."""
NAME = re.compile(r"[a-z0-9]{1,24}")

CGROUPS = Path("/sys/fs/cgroup")
KILL_TIMEOUT_S = 10.0
KILL_POLL_S = 0.02
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class NamespaceHost:
    """One host: its name, its address, and its directory, which only processes on this host can see."""

    cluster: str
    number: int
    root: Path
    """The directory with the directories of all hosts."""

    @property
    def name(self) -> str:
        return f"host-{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def directory(self) -> Path:
        return self.root / self.name

    @property
    def namespace(self) -> str:
        return f"{prefix(self.cluster)}{self.name}"

    @property
    def port(self) -> str:
        """The host's port of the bridge."""
        return f"port-{self.number}"


def prefix(cluster: str) -> str:
    """Return the prefix of all names that belong to this cluster."""
    return f"procession-{cluster}-"


def check_possible(cluster: str) -> None:
    """Raise an error if hosts cannot be created here."""
    if not NAME.fullmatch(cluster):
        raise UsageError(
            f"{cluster!r} is not a name for a cluster.", next_step="Use up to 24 lower-case letters and digits."
        )
    if os.geteuid() != 0:
        raise ConfigError("Hosts are network namespaces, and only root can make them.", next_step="Run this as root.")
    for program, package in (("ip", "iproute2"), ("nsenter", "util-linux"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            raise ConfigError(
                f"The program `{program}` is missing.", next_step=f"Install it: apt-get install {package}."
            )


def make_hosts(cluster: str, count: int, root: Path, memory_bytes: int) -> list[NamespaceHost]:
    """Create the hosts 1 to `count`, joined by a bridge. Existing hosts are kept."""
    check_possible(cluster)
    hosts = [NamespaceHost(cluster, number, root) for number in range(1, count + 1)]
    switch = f"{prefix(cluster)}{SWITCH}"
    if not (NAMESPACES / switch).exists():
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "address", "add", f"{OPERATOR}/24", "dev", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        _ip("-n", switch, "link", "set", "lo", "up")
    for host in hosts:
        for directory in (host.directory, host.directory / "tmp"):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (NAMESPACES / host.namespace).exists():
            continue
        _ip("netns", "add", host.namespace)
        ends = ("type", "veth", "peer", "name", host.port, "netns", switch)
        _ip("link", "add", "name", "eth0", "netns", host.namespace, *ends)
        _ip("-n", switch, "link", "set", host.port, "master", "bridge", "up")
        _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", host.namespace, "link", "set", "eth0", "up")
        _ip("-n", host.namespace, "link", "set", "lo", "up")
        _make_group(host, memory_bytes)
    return hosts


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}.",
            next_step="Run it where network namespaces can be made: as root, outside of restricted containers.",
        )
    return done.stdout


def entered(host: NamespaceHost, argv: Sequence[str], visible: Sequence[Path] = ()) -> tuple[str, ...]:
    """Return the command that runs `argv` on this host, in the same process.

    The command has its own temporary directory, and sees only its own host's directory. The `visible` paths and the
    installation stay visible even if they are in the machine's temporary directory."""
    kept = [host.directory, *_in_tmp([Path(sys.prefix), Path(sys.base_prefix), _sources(), *visible])]
    group = _group(host)
    lines = ["set -e"]
    lines += [f"echo $$ > {shlex.quote(str(group / 'cgroup.procs'))}"] if group is not None and group.exists() else []
    lines += [f"mount -t tmpfs none {STAGING}"]
    for number, path in enumerate(kept):
        lines += [f"mkdir {STAGING}/{number}", f"mount --bind {shlex.quote(str(path))} {STAGING}/{number}"]
    root = shlex.quote(str(host.root))
    lines += [f"mount --bind {STAGING}/0/tmp /tmp", f"mkdir -p {root}", f"mount -t tmpfs none {root}"]
    for number, path in enumerate(kept):
        at = shlex.quote(str(path))
        lines += [f"mkdir -p {at}", f"mount --bind {STAGING}/{number} {at}"]
    lines += [f"umount --recursive --lazy {STAGING}", 'exec "$@"']
    network = ("nsenter", f"--net={NAMESPACES / host.namespace}", "--")
    mounts = ("unshare", "--mount", "--propagation", "private", "--")
    return (*network, *mounts, "/bin/sh", "-c", "\n".join(lines), host.name, *argv)


def _sources() -> Path:
    return Path(__file__).resolve().parents[2]


def _in_tmp(paths: Sequence[Path]) -> list[Path]:
    """Return the paths that a host's temporary directory would hide, without paths inside other such paths."""
    hidden = sorted({path.resolve() for path in paths if path.resolve().is_relative_to("/tmp")})
    return [path for path in hidden if not any(path != other and path.is_relative_to(other) for other in hidden)]


def join_network(cluster: str) -> None:
    """Connect this process, and the processes that it starts, to the network of the hosts only. Must be called before
    there are other threads, because each thread has its own network namespace."""
    with open(NAMESPACES / f"{prefix(cluster)}{SWITCH}", "rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise ConfigError(
                f"The network of cluster {cluster!r} cannot be joined: {os.strerror(ctypes.get_errno())}.",
                next_step="Run this as root.",
            )


def set_link(host: NamespaceHost, *, is_up: bool) -> None:
    """Connect the host's link, or cut it: packets are dropped silently."""
    _ip("-n", f"{prefix(host.cluster)}{SWITCH}", "link", "set", host.port, "up" if is_up else "down")


def is_linked(host: NamespaceHost) -> bool:
    """Return whether the host exists and its link is connected."""
    if not (NAMESPACES / host.namespace).exists():
        return False
    return "LOWER_UP" in _ip("-n", host.namespace, "-brief", "link", "show", "eth0")


def processes_of(namespace: str) -> list[int]:
    """Return the processes in a network namespace."""
    return [int(pid) for pid in _ip("netns", "pids", namespace).split()]


def kill_host(namespace: str) -> None:
    """SIGKILL all processes of a host until there are none."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    own_pid = os.getpid()
    while living := [pid for pid in processes_of(namespace) if pid != own_pid]:
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ConfigError(
                f"Processes on {namespace} do not end: {', '.join(map(str, living))}.",
                next_step="See in /proc/PID/stack what they wait for, then run `procession cluster down` again.",
            )
        time.sleep(KILL_POLL_S)


def remove_hosts(cluster: str) -> int:
    """Remove the hosts of this cluster with their processes and links. Return the number of namespaces removed."""
    check_possible(cluster)
    # The bridge is removed last. The hosts' links end with the hosts, and without a bridge no process can reach a
    # host.
    names = sorted(namespaces(cluster), key=lambda name: name.endswith(SWITCH))
    for name in names:
        if not name.endswith(SWITCH):  # commands that inspect the hosts also run there, and end without being killed
            kill_host(name)
        _ip("netns", "delete", name)
    for group in _groups(cluster):
        _remove_group(group)
    return len(names)


def namespaces(cluster: str) -> Iterator[str]:
    """Yield the names of the namespaces of this cluster."""
    with suppress(FileNotFoundError):
        yield from (path.name for path in NAMESPACES.iterdir() if path.name.startswith(prefix(cluster)))


# --- memory


def is_memory_bounded() -> bool:
    """Return whether the memory of hosts can be limited here."""
    return _group_root() is not None


def _group_root() -> Path | None:
    """Return the directory for process groups with a memory limit. None if cgroups cannot be written."""
    for root, controllers in ((CGROUPS, CGROUPS / "cgroup.subtree_control"), (CGROUPS / "memory", None)):
        if not os.access(root, os.W_OK):
            continue
        if controllers is None or (controllers.exists() and "memory" in controllers.read_text().split()):
            return root
    return None


def _group(host: NamespaceHost) -> Path | None:
    root = _group_root()
    return None if root is None else root / host.namespace


def _make_group(host: NamespaceHost, memory_bytes: int) -> None:
    group = _group(host)
    if group is None:
        return
    try:
        group.mkdir(exist_ok=True)
        limit = next(path for name in ("memory.max", "memory.limit_in_bytes") if (path := group / name).exists())
        limit.write_text(str(memory_bytes))
    except (OSError, StopIteration):  # not a real cgroup file system: the caller reports that there is no limit
        with suppress(OSError):
            group.rmdir()


def _groups(cluster: str) -> list[Path]:
    root = _group_root()
    return [] if root is None else sorted(root.glob(f"{prefix(cluster)}*"))


def _remove_group(group: Path) -> None:
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(KILL_POLL_S)  # a killed process leaves its group a little later
