"""The commands `procession cluster …`: a Spark cluster on network namespaces of this machine.

As in `cli/main`, they only parse and print; `cluster/namespace_cluster` does the work.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from procession.exit_status import Status
from procession.log_format import note

if TYPE_CHECKING:
    from procession.cluster.namespace_cluster import NamespaceCluster

cluster_app = typer.Typer(
    help="A Spark cluster on this machine, whose hosts share only a network. Root only.", no_args_is_help=True
)

Name = Annotated[str, typer.Option(help="Name of the cluster: lower-case letters and digits.")]
HostName = Annotated[str, typer.Argument(metavar="HOST", help="A host, such as host-2.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]

NAME = "cluster"
HOSTS = 4


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options of commands that run on this machine, or on the hosts of a cluster."""

    is_on_cluster: Annotated[
        bool,
        typer.Option(
            "--cluster",
            help="Run on the hosts of `procession cluster up`. If there is no cluster, create one for this command.",
        ),
    ] = False
    cluster_name: Annotated[str, typer.Option(help="With --cluster: the cluster's name.")] = NAME

    @contextmanager
    def joined(self, say: Callable[[str], None]) -> Iterator[NamespaceCluster | None]:
        """Join the cluster's network and yield the cluster; None without --cluster. If there is no cluster, create
        it, and remove it afterwards."""
        if not self.is_on_cluster:
            yield None
            return
        from procession.cluster.namespace_cluster import NamespaceCluster, is_up
        from procession.cluster.namespace_cluster import find as find_cluster
        from procession.cluster.namespace_hosts import join_network

        if is_up(self.cluster_name):
            join_network(self.cluster_name)
            yield find_cluster(self.cluster_name)
            return
        cluster = NamespaceCluster(self.cluster_name, HOSTS)
        try:
            say(f"creating {HOSTS} hosts from network namespaces (keep them with `procession cluster up`)")
            cluster.up(say)
            join_network(cluster.name)
            yield cluster
        finally:
            cluster.down()


@cluster_app.command()
def up(
    hosts: Annotated[
        int, typer.Option(help="Number of hosts: the first for master and driver, the last for gateways and sinks.")
    ] = HOSTS,
    cores: Annotated[int, typer.Option(min=1, help="Tasks that a worker runs at the same time.")] = 1,
    memory_mb: Annotated[int, typer.Option(min=1024, help="Limit of a host's memory, in megabytes.")] = 3072,
    has_replicas: Annotated[
        bool,
        typer.Option("--replicas", help="Also store the directories of drivers on other hosts (see `cluster driver`)."),
    ] = False,
    name: Name = NAME,
    as_json: Json = False,
) -> None:
    """Create hosts from network namespaces, and start Spark's master, workers and host services on them.

    Repeat the command to restart programs that have died."""
    from procession.cluster.namespace_cluster import NamespaceCluster, check_size

    check_size(hosts, has_replicas=has_replicas)
    cluster = NamespaceCluster(name, hosts, cores, memory_mb, has_replicas=has_replicas).up(note)
    _print(cluster, as_json=as_json)
    if not as_json:
        chosen = "" if name == NAME else f" --cluster-name {name}"
        print(f"Spark's master is {cluster.master}. Try it: procession demo --cluster{chosen}")


@cluster_app.command()
def status(name: Name = NAME, as_json: Json = False) -> None:
    """Show the hosts and their programs. Exits with status 1 if a program does not run."""
    from procession.cluster.namespace_cluster import find

    cluster = find(name)
    if not _print(cluster, as_json=as_json):
        raise typer.Exit(Status.UNCLEAN)


@cluster_app.command()
def down(name: Name = NAME) -> None:
    """Remove the hosts with all their processes and directories. Can be repeated."""
    from procession.cluster.namespace_cluster import remove

    was_there = remove(name)
    print(f"cluster {name} is removed" if was_there else f"there is no cluster {name}; nothing to remove")


@cluster_app.command()
def link(
    host: HostName,
    state: Annotated[Literal["up", "down"], typer.Argument(help="down: lose all packets of this host.")],
    name: Name = NAME,
) -> None:
    """Cut the network of a host, or connect it again."""
    from procession.cluster.namespace_cluster import find
    from procession.cluster.namespace_hosts import set_link

    set_link(find(name).host(host), is_up=state == "up")


@cluster_app.command()
def driver(host: HostName, name: Name = NAME) -> None:
    """Move Spark's master and the drivers to another host after their host is lost. Stop `run` first.

    A pipeline with replicas (`cluster up --replicas`) continues there with the command that is printed."""
    from procession.cluster.namespace_cluster import find
    from procession.deployment.pipeline_replicas import SCHEME

    cluster = find(name)
    moved = cluster.move_driver(cluster.host(host))
    print(f"Spark's master is {moved.master}.")
    if moved.has_replicas:
        chosen = "" if name == NAME else f" --cluster-name {name}"
        restoring = f"--restore-from {SCHEME}{moved.replica_addresses}/PIPELINE"
        print(f"Continue a pipeline: procession run APP --cluster{chosen} {restoring}")


@cluster_app.command("exec")
def execute(
    host: HostName,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command to run, after --.")],
    name: Name = NAME,
) -> None:
    """Run a command on a host. It can use only the host's network and the host's directory."""
    from procession.cluster.namespace_cluster import find
    from procession.cluster.namespace_hosts import entered

    cluster = find(name)
    chosen = cluster.host(host)
    argv = entered(chosen, command, (Path.cwd(),))
    os.execvpe(argv[0], argv, {**os.environ, **cluster.spark_env(chosen)})


def _print(cluster: NamespaceCluster, *, as_json: bool) -> bool:
    """Print the hosts. Return whether all are connected and all their programs run."""
    rows = cluster.status()
    is_whole = all(row["is_linked"] and all(row["services"].values()) for row in rows)
    if as_json:
        print(json.dumps({"cluster": cluster.name, "master": cluster.master, "is_whole": is_whole, "hosts": rows}))
        return is_whole
    for row in rows:
        running = ", ".join(f"{name} {'down' if pid is None else pid}" for name, pid in row["services"].items())
        linked = "" if row["is_linked"] else " (cut off)"
        print(f"{row['host']}  {row['address']}{linked}  {running or '-'}  {row['directory']}")
    return is_whole
