"""Determines the options of a driver's connections to its sinks, and the maximum size of an epoch.

Invariant: only a sink's connector (`planner/connector`) interprets the sink's URL. Used by the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from procession.commit.sink_link import SinkOptions
from procession.errors import ConfigError
from procession.planner.graph import BINARY, Graph, SinkConnection, SinkFraming
from procession.planner.plan import Plan
from procession.planner.rules import make_plan
from procession.wire.lane_blocks import LaneIdentity

if TYPE_CHECKING:
    from procession.driver.driver_config import DriverConfig


def epoch_limits(graph: Graph, config: DriverConfig) -> tuple[int, int]:
    """Return the maximum records and bytes of an epoch: the configured ones, or less if a sink cannot commit so much
    in time."""
    limits = [sink.sink_traits.limits(sink.url) for sink in graph.sinks]
    records = (limit.records_max for limit in limits if limit.records_max is not None)
    sizes = (limit.bytes_max for limit in limits if limit.bytes_max is not None)
    return min([config.epoch_records_max, *records]), min([config.epoch_bytes_max, *sizes])


def sink_options(graph: Graph, config: DriverConfig) -> list[SinkOptions]:
    """Return the connection options of each sink: file sinks use the given address, others the one in the app."""
    options, plan = [], make_plan(graph)
    for connection in graph.participants:
        sink = connection.sink
        traits = sink.sink_traits
        named = config.sinks.get(connection.name) or config.sinks.get(sink.name)
        address = named or ("" if traits.is_started else sink.url.place)
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(
                f"sink {sink.name!r} has no address", next_step=f"start it and pass --sink {sink.name}=HOST:PORT"
            )
        options.append(
            SinkOptions(
                name=connection.name,
                sink=sink.id,
                bucket=connection.bucket,
                lane=_lane(plan, connection),
                host=host,
                port=int(port),
                program=graph.name,
                instance=connection.instance,
                cookie=config.file_sink_cookie if traits.is_started else config.sink_cookie,
                tls=config.tls,
                # Without two-phase commit only the sink knows its end position.
                is_authoritative=traits.is_authoritative or not graph.policy.is_strict,
                pack_bytes_max=traits.message_bytes_max,
                is_in_blocks=sink.is_in_blocks,
                answer_timeout_s=config.answer_timeout_s,
                refusals_max=config.sink_refusals_max,
                knows_workers_left=traits.knows_workers_left or sink.knows_workers_left,
            )
        )
    return options


def _lane(plan: Plan, connection: SinkConnection) -> LaneIdentity | None:
    """Return the lane of a connection, without its group. None if the sink does not write lanes."""
    graph, sink = plan.graph, connection.sink
    if not sink.lanes:
        return None
    return LaneIdentity(
        group="",
        pipeline=graph.name,
        sink=sink.name,
        covers=(connection.bucket or 0,),
        lanes=sink.lanes,
        order=graph.order_at(sink).value,
        framing=(SinkFraming.RAW if sink.codec in BINARY else SinkFraming.LINES).value,
        paths=plan.paths_to(graph.nodes.index(sink)),
    )
