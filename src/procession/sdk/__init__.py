"""The SDK for connectors. A source sends records to a gateway; a sink takes part in the commit.

Invariant: the names in `__all__` are the public API. A name is imported only when it is used, so programs that need few
of them start fast. `docs/how-to/connectors.md` shows a source and a sink.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from procession.sdk.batching import GatherLimits
    from procession.sdk.connector_program import run_source
    from procession.sdk.event_time_field import EventTimeField
    from procession.sdk.event_time_merge import MergedByEventTime, merged_by_event_time
    from procession.sdk.merged_records import Merged, MergedRecord, merged
    from procession.sdk.output import Output
    from procession.sdk.payloads import Payloads
    from procession.sdk.sender import Sender, send
    from procession.sdk.sink_directory import SinkDirectory, run_sink
    from procession.sdk.sink_server import SinkServer
    from procession.sdk.source_client import SourceClient
    from procession.sdk.source_options import SourceOptions
    from procession.sdk.source_records import Batch, Forgetful, Source, Stream
    from procession.sdk.source_report import Report
    from procession.sdk.transaction_log import Transaction

__all__ = [
    "Batch",
    "EventTimeField",
    "Forgetful",
    "GatherLimits",
    "Merged",
    "MergedByEventTime",
    "MergedRecord",
    "Output",
    "Payloads",
    "Report",
    "Sender",
    "SinkDirectory",
    "SinkServer",
    "Source",
    "SourceClient",
    "SourceOptions",
    "Stream",
    "Transaction",
    "merged",
    "merged_by_event_time",
    "run_sink",
    "run_source",
    "send",
]

_MODULES = {
    "Batch": "source_records",
    "EventTimeField": "event_time_field",
    "Forgetful": "source_records",
    "GatherLimits": "batching",
    "Merged": "merged_records",
    "MergedByEventTime": "event_time_merge",
    "MergedRecord": "merged_records",
    "SinkDirectory": "sink_directory",
    "Output": "output",
    "Payloads": "payloads",
    "Report": "source_report",
    "Sender": "sender",
    "SinkServer": "sink_server",
    "Source": "source_records",
    "SourceClient": "source_client",
    "SourceOptions": "source_options",
    "Stream": "source_records",
    "Transaction": "transaction_log",
    "merged": "merged_records",
    "merged_by_event_time": "event_time_merge",
    "run_sink": "sink_directory",
    "run_source": "connector_program",
    "send": "sender",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"procession.sdk has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"procession.sdk.{_MODULES[name]}"), name)
