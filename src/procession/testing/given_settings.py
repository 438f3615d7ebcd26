"""Settings of an app that a test gives.

Invariant: they count for pipelines that are declared inside the block, and for no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from procession.api.app_settings import PROVIDED, Provided, variable_of


@contextmanager
def with_settings(**values: Any) -> Iterator[None]:
    """Gives values for `pipeline.setting` to the pipelines that are declared inside the block.

    >>> from procession import Pipeline
    >>> from procession.testing import with_settings
    >>> with with_settings(threshold=5):
    ...     Pipeline("alerts").setting("threshold", float)
    5.0
    """
    given = {variable_of(name): Provided(value, "with_settings") for name, value in values.items()}
    token = PROVIDED.set({**PROVIDED.get(), **given})
    try:
        yield
    finally:
        PROVIDED.reset(token)
