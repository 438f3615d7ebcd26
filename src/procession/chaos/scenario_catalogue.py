"""The catalogue of scenarios. Pure.

The one rule: what a scenario is about is said in its prose, in the words of someone to whom it has happened; its lines
are only the means. Before it nothing; after it `scenario.schedule`.
"""

from __future__ import annotations

from procession.chaos.crash_scenarios import CRASHES
from procession.chaos.fault_scenarios import MISHAPS
from procession.chaos.scenario import Scenario

CATALOGUE: tuple[Scenario, ...] = (*CRASHES, *MISHAPS)
BY_NAME = {scenario.name: scenario for scenario in CATALOGUE}
