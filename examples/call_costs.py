"""Calls as typed records: each line of JSON becomes a `Call`, or a dead letter that says which field is wrong. Out come
the costs of each caller by zone and day so far, exact to the last digit:
{"caller": "+4930", "at": "2026-03-01T10:00:00+01:00", "zone": "EU", "seconds": 90, "price": "0.095"}."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum

from procession import Pipeline, json_of


class Zone(Enum):
    HOME = "HOME"
    EU = "EU"
    WORLD = "WORLD"


@dataclass(frozen=True)
class Call:
    caller: str
    at: datetime
    zone: Zone
    seconds: int
    price: Decimal
    """For a minute."""

    @property
    def day(self) -> date:
        return self.at.astimezone(UTC).date()

    @property
    def cost(self) -> Decimal:
        return self.price * -(-self.seconds // 60)


@dataclass(frozen=True)
class Cost:
    caller: str
    zone: Zone
    day: date
    cost: Decimal


def add(so_far: Decimal, call: Call) -> tuple[Decimal, Cost]:
    total = so_far + call.cost
    return total, Cost(call.caller, call.zone, call.day, total)


pipeline = Pipeline("call-costs", parallelism=2, dead_letter="file:output")
calls = pipeline.source("calls", codec=json_of(Call))
costs = calls.map_stateful(add, key=lambda call: (call.caller, call.zone, call.day), initial=Decimal(0), name="costs")
costs.sink("costs", to="file:output")
