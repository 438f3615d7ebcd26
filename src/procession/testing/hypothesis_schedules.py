"""Hypothesis strategies for tests of pipelines.

Invariant: everything that a strategy draws is a schedule that must not change the output. Imports hypothesis, which
only tests need.
"""

from __future__ import annotations

from procession.errors import ConfigError
from procession.testing.schedules import Schedule

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ConfigError(
        "procession.testing.hypothesis_schedules needs hypothesis.", next_step="Install it: pip install hypothesis"
    ) from error


def schedules(
    *, epochs_max: int = 8, epoch_records_max: int = 10, parallelism_max: int = 4
) -> st.SearchStrategy[Schedule]:
    """Return a strategy for schedules of a run: the sizes of epochs, the number of tasks, and the epochs that are lost
    and run again.

    Args:
        epochs_max: Maximum number of epochs with drawn sizes. One more epoch has the remaining records.
        epoch_records_max: Maximum number of records in such an epoch.
        parallelism_max: Maximum number of tasks of each stage.

    >>> from hypothesis import given
    >>> from procession.testing.hypothesis_schedules import schedules
    >>> @given(schedules())
    ... def test_cuts_do_not_matter(schedule): ...
    """
    sizes = st.integers(min_value=0, max_value=epoch_records_max)
    cuts = st.lists(sizes, max_size=epochs_max).map(tuple)
    crashes = st.sets(st.integers(min_value=0, max_value=epochs_max), max_size=epochs_max)
    return st.builds(
        Schedule,
        epochs=st.one_of(st.none(), st.integers(min_value=1, max_value=epoch_records_max), cuts),
        parallelism=st.integers(min_value=1, max_value=parallelism_max),
        crashes=crashes.map(lambda numbers: tuple(sorted(numbers))),
    )
