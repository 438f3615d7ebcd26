"""The catalogue of scenarios. Pure.

The `prose` of a scenario says what happens; its step patterns say how.
"""

from __future__ import annotations

from procession.chaos.crash_scenarios import CRASHES
from procession.chaos.fault_scenarios import MISHAPS
from procession.chaos.scenario import Scenario

CATALOGUE: tuple[Scenario, ...] = (*CRASHES, *MISHAPS)
BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}
