"""Decides which process sends the output of each sink, and so which runs the driver fetches.

Invariant: emitters send to all sinks with several connections, or to none. With host services the driver does not fetch
the runs of these sinks. The driver itself sends to sinks with one connection, which includes that of the dead letters.
Used by `driver/driver`.
"""

from __future__ import annotations

import uuid

from procession.commit.checkpoint import Checkpoint
from procession.commit.emitter_channel import EmitterChannel, ListeningEmitter, StartedEmitter
from procession.commit.emitter_client import EmitterClient, emitter_links
from procession.commit.emitter_frames import RUNS_IDENTITY, DriverGreeting, RunPlace
from procession.commit.epoch_link import LinkMaker, direct_links
from procession.driver.driver_config import DriverConfig
from procession.planner.graph import Graph
from procession.storage.durable import storage_error
from procession.storage.epoch_runs import EpochRuns
from procession.storage.host_runs import HostRuns
from procession.storage.run_store import RunStore


def epoch_runs(graph: Graph, config: DriverConfig, store: RunStore, hosts: HostRuns | None) -> EpochRuns:
    """Return the runs of this driver's epochs. Those that emitters send stay on the executors' machines."""
    has_emitters = bool(config.emitters or config.emitters_at)
    left = {end.sink.id for end in graph.participants if end.bucket is not None} if has_emitters else set()
    return EpochRuns(store, hosts, left)


def link_maker(config: DriverConfig, checkpoint: Checkpoint, runs: EpochRuns, hosts: HostRuns | None) -> LinkMaker:
    """Return the maker of connections to sinks. Call it in the event loop, after a check of the fence."""
    channels: list[EmitterChannel] = [StartedEmitter() for _ in range(config.emitters)]
    place = RunPlace(str(runs.store.directory), hosts=hosts)
    if config.emitters_at:
        greeting = DriverGreeting(checkpoint.id, checkpoint.fence, bytes(config.control_cookie))
        channels = [ListeningEmitter(address, greeting, config.tls) for address in config.emitters_at]
        place = place if hosts is not None else _identified(runs.store)
    if not channels:
        return direct_links(runs)
    return emitter_links([EmitterClient(channel, place) for channel in channels], runs)


def _identified(store: RunStore) -> RunPlace:
    """Return the place of a directory that emitters share with the driver."""
    identity, path = uuid.uuid4().hex, store.directory / RUNS_IDENTITY
    try:
        store.directory.mkdir(parents=True, exist_ok=True)
        path.write_text(identity)
    except OSError as error:
        raise storage_error(path, "write", error) from error
    return RunPlace(str(store.directory), identity)
