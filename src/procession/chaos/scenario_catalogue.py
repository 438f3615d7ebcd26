"""Lists all chaos scenarios. Pure.

The `description` of a scenario is for users; its step patterns define the faults.
"""

from __future__ import annotations

from procession.chaos.crash_scenarios import CRASHES
from procession.chaos.fault_scenarios import FAULT_SCENARIOS
from procession.chaos.machine_scenarios import LOST_MACHINES
from procession.chaos.scenario import STANDARD, ClusterParts, Scenario
from procession.chaos.system_scenarios import SYSTEMS

CATALOGUE: tuple[Scenario, ...] = (*CRASHES, *FAULT_SCENARIOS, *LOST_MACHINES, *SYSTEMS)
BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}


def cluster_of(name: str) -> ClusterParts:
    """Return the cluster of a scenario; for an unknown name in a handwritten schedule, the standard cluster."""
    return BY_NAME[name].cluster if name in BY_NAME else STANDARD
