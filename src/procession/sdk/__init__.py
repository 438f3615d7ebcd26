"""The SDK: for people who write connectors. A source feeds a gateway, a sink takes part in its rounds.

The one rule: what is named here is the public surface, and is found where it lives only when it is asked for, because
commands that need little of it start often. `docs/connectors.md` shows a source and a sink.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from procession.sdk.batch import Batch, Forgetful, Source, Stream
    from procession.sdk.gather import GatherLimits
    from procession.sdk.home import Home, run_sink
    from procession.sdk.options import SourceOptions
    from procession.sdk.output import Output
    from procession.sdk.payloads import Payloads
    from procession.sdk.program import run_source
    from procession.sdk.report import Report
    from procession.sdk.sender import Sender, send
    from procession.sdk.sink import SinkServer
    from procession.sdk.source import SourceClient
    from procession.sdk.txnlog import Transaction

__all__ = [
    "Batch",
    "Forgetful",
    "GatherLimits",
    "Home",
    "Output",
    "Payloads",
    "Report",
    "Sender",
    "SinkServer",
    "Source",
    "SourceClient",
    "SourceOptions",
    "Stream",
    "Transaction",
    "run_sink",
    "run_source",
    "send",
]

_HOMES = {
    "Batch": "batch",
    "Forgetful": "batch",
    "GatherLimits": "gather",
    "Home": "home",
    "Output": "output",
    "Payloads": "payloads",
    "Report": "report",
    "Sender": "sender",
    "SinkServer": "sink",
    "Source": "batch",
    "SourceClient": "source",
    "SourceOptions": "options",
    "Stream": "batch",
    "Transaction": "txnlog",
    "run_sink": "home",
    "run_source": "program",
    "send": "sender",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"procession.sdk has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"procession.sdk.{_HOMES[name]}"), name)
