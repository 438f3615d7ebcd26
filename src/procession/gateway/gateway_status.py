"""The status of a gateway as plain values, for operators and tests.

Invariant: computing the status changes nothing. `control` returns it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from procession.wire import columns

if TYPE_CHECKING:
    from procession.gateway.performer import GatewayPerformer

STATUS_STREAMS_MAX = 1000
"""Maximum number of streams that a status names. Further streams are only counted."""


def status_of(gateway: GatewayPerformer) -> dict[str, Any]:
    """Return the status of a gateway for operators and tests, as plain values."""
    state = gateway.state
    streams = [
        {
            "id": stream.stream_id,
            "name": stream.name,
            "state": stream.state,
            "committed": stream.committed,
            "seen": stream.seen,
        }
        for stream in itertools.islice(state.registry, STATUS_STREAMS_MAX)
    ]
    return {
        "next_sequence": state.next_sequence,
        "start_sequence": gateway.offered.start_sequence,
        "durable_end": gateway.offered.durable_end,
        "committed_end": state.snapshot.end_sequence,
        "epoch": state.snapshot.epoch,
        "fence": state.snapshot.fence,
        "records_in": state.records_in,
        "ephemeral_in": state.ephemeral_in,
        "duplicates": state.duplicates,
        "is_settled": state.is_settled,
        "sessions": len(state.sessions),
        "streams": streams,
        "streams_total": len(state.registry),
        "streams_retired": len(state.retired),
        "streams_forgotten": state.retired.forgotten,
        "lag_bytes": state.flow.lag.bytes,
        **state.flow.status(),
        **(gateway.ordering.status() if gateway.ordering is not None else {}),
        "fetched_rows": gateway.fetched_rows(),
        "is_columnar": columns.is_ready(),
        "credits_owed": sum(session.owed for session in state.sessions.values()),
        "held_bytes": sum(session.groups.held_bytes for session in state.sessions.values() if session.groups),
    }
