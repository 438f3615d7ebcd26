"""Runs two versions of a pipeline one after the other: the second begins with the states of the first.

Invariant: the code of `procession upgrade` compares, renames, migrates and drops the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from procession.api.pipeline import Pipeline
from procession.driver.changed_states import changed_states
from procession.driver.stage_states import keyed_versions
from procession.errors import UsageError
from procession.planner.upgrade import Upgrade
from procession.testing.arrivals import Inputs
from procession.testing.in_process import STATES, HostedPlan, Outputs, Prepared, scratch_directory


def run_upgrade(
    before: Pipeline,
    inputs: Inputs,
    after: Pipeline,
    more_inputs: Inputs,
    *,
    upgrade: Upgrade | None = None,
    epochs: int | Sequence[int] | None = None,
    ends: bool = True,
) -> tuple[Outputs, Outputs]:
    """Run a pipeline on these records, upgrade it, and run the new pipeline on more records, without Spark.

    Args:
        before: The pipeline before the upgrade.
        inputs: Its records, as in `run`. Their streams do not end.
        after: The pipeline after the upgrade.
        more_inputs: The records that come after the upgrade.
        upgrade: How states are renamed, dropped and migrated.
        epochs: The sizes of epochs of both inputs, as in `run`.
        ends: Whether the streams end after the last record.

    Returns:
        The outputs of the old and of the new pipeline.

    Raises:
        PlanError: The new pipeline cannot continue with the states, or a function of `migrate` raised.
        UsageError: A pipeline is in event-time order.

    >>> from procession import Pipeline, Upgrade
    >>> from procession.testing import run_upgrade
    >>> def counts(step, initial):
    ...     pipeline = Pipeline("words")
    ...     words = pipeline.source("words", codec="text")
    ...     counted = words.map_stateful(step, key=str, initial=initial, name="count")
    ...     counted.sink("out", to="file:out", codec="json")
    ...     return pipeline
    >>> old = counts(lambda count, word: (count + 1, [word, count + 1]), 0)
    >>> new = counts(lambda state, word: ({"n": state["n"] + 1}, [word, state["n"] + 1]), {"n": 0})
    >>> upgrade = Upgrade(migrate={"count": lambda count: {"n": count}})
    >>> run_upgrade(old, {"words": ["a", "a"]}, new, {"words": ["a"]}, upgrade=upgrade)
    ({'out': [['a', 1], ['a', 2]]}, {'out': [['a', 3]]})
    """
    first = Prepared.of(before, inputs, None, ends=False)
    second = Prepared.of(after, more_inputs, None, ends=ends)
    if first.plan.graph.event_time is not None or second.plan.graph.event_time is not None:
        raise UsageError(
            "A pipeline in event-time order cannot be upgraded in a test: its log holds records back.",
            next_step='Test it without order_by="event_time".',
        )
    rows = pa.concat_batches([first.rows, second.rows])
    with scratch_directory(rows.nbytes) as directory:
        hosted = HostedPlan(first.plan, rows, directory)
        first.run(hosted, epochs)
        last = hosted.last
        assert last is not None
        known = dict(keyed_versions(first.plan).values())
        states = {name: replace(version, identity=known[name].identity) for name, version in last.states.items()}
        fence = last.fence + 1
        states = changed_states(
            second.plan, replace(last, states=states), upgrade or Upgrade(), directory / STATES, fence
        )
        begins = replace(last, epoch=0, fence=fence, states=states, counters={})
        continued = HostedPlan(second.plan, rows, directory, begins=begins)
        second.run(continued, epochs, first=first.rows.num_rows)
    return hosted.outputs(), continued.outputs()
