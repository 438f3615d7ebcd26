"""What each Python process of Procession does before its other imports, so that they take less time.

Invariant: it changes how long imports take, never results. A start has eight Python processes on a few cores, and most
of their processor time is imports. Garbage collection finds nothing while modules are loaded. structlog imports rich if
it is installed, for tracebacks that Procession's log lines do not have. Called by the command, Spark's workers and the
resident worker.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from procession.pandas_loading import defer_pandas

RICH = "rich"
NEW_OBJECTS_MAX = 20_000
"""Number of new objects after which Python looks for garbage; its default of 700 takes a tenth of the time of an
import."""


def prepare_imports() -> None:
    """Prepare this process for its imports."""
    gc.set_threshold(NEW_OBJECTS_MAX, *gc.get_threshold()[1:])
    defer_pandas()
    _load_structlog()


def _load_structlog() -> None:
    """Import structlog without rich. Does nothing if either is loaded already."""
    if RICH in sys.modules or "structlog" in sys.modules:
        return
    hidden: Any = None
    sys.modules[RICH] = hidden
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules[RICH]
