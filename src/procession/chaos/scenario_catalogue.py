"""The catalogue of scenarios. Pure.

The `description` of a scenario says what happens; its step patterns say how.
"""

from __future__ import annotations

from procession.chaos.crash_scenarios import CRASHES
from procession.chaos.fault_scenarios import FAULT_SCENARIOS
from procession.chaos.scenario import STANDARD, ClusterParts, Scenario
from procession.chaos.system_scenarios import SYSTEMS

CATALOGUE: tuple[Scenario, ...] = (*CRASHES, *FAULT_SCENARIOS, *SYSTEMS)
BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}


def cluster_of(name: str) -> ClusterParts:
    """The cluster that a scenario runs on. A schedule that somebody wrote by hand has names of its own."""
    return BY_NAME[name].cluster if name in BY_NAME else STANDARD
