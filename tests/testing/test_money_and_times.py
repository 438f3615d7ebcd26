"""Amounts, times and keys of several parts are exact, with their zones, through typed records, keys, states, exchanges,
windows and sinks, as in a plain program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from procession import Pipeline, ProcessContext, aggregates, json_of, windows
from procession.operators.value_codec import ValueCodec
from procession.testing import Schedule, run
from procession.testing.hypothesis_schedules import schedules

ZONES = st.sampled_from([UTC, ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ZoneInfo("America/New_York")])
AMOUNTS = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=4)
# Around the night in which European clocks change to summer time.
TIMES = st.datetimes(datetime(2026, 3, 28), datetime(2026, 3, 30), timezones=ZONES)  # noqa: DTZ001
# As JSON has them: with an offset, without the name of the zone.
SENT_TIMES = TIMES.map(lambda time: datetime.fromisoformat(time.isoformat()))
DAY_S = 86_400


@dataclass(frozen=True)
class Sale:
    shop: str
    at: datetime
    amount: Decimal


SALES = st.lists(st.builds(Sale, st.sampled_from(["a", "ä", ""]), SENT_TIMES, AMOUNTS), max_size=12)


def sent(sale: Sale) -> dict[str, str]:
    return {"shop": sale.shop, "at": sale.at.isoformat(), "amount": str(sale.amount)}


def key_of(sale: Sale) -> tuple[str, date, Decimal]:
    """Return a key of three types."""
    return sale.shop, sale.at.astimezone(UTC).date(), abs(sale.amount).quantize(Decimal(1)) % 2


def with_sum(state: dict[str, Any], sale: Sale) -> tuple[dict[str, Any], tuple[Sale, Decimal, datetime]]:
    state = {"sum": state["sum"] + sale.amount, "latest": max(state["latest"], sale.at)}
    return state, (sale, state["sum"], state["latest"])


def waiting(state: Any, sale: Sale, context: ProcessContext) -> tuple[Sale, list[Any]]:
    context.cancel_timers()
    context.timer_at(sale.at + timedelta(days=9))
    return sale, []


def over(state: Sale, context: ProcessContext) -> tuple[None, list[Any]]:
    return None, [(*context.key, state)]


FIRST = {"sum": Decimal(0), "latest": datetime(1, 1, 2, tzinfo=UTC)}


def app() -> Pipeline:
    pipeline = Pipeline("sales", parallelism=3)
    sales = pipeline.source("sales", codec=json_of(Sale))
    summed = sales.map_stateful(with_sum, key=key_of, initial=FIRST).rebalance()
    summed.sink("json", to="file:out", codec="json")
    summed.sink("msgpack", to="file:out", codec="msgpack")
    largest = aggregates.all_of(
        sum=aggregates.sum_of(lambda sale: sale.amount), largest=aggregates.max_by(lambda sale: (sale.amount, sale.at))
    )
    sales.window(windows.tumbling(DAY_S), largest, key=key_of, time=lambda sale: sale.at, lateness_s=4 * DAY_S).sink(
        "days", to="file:out"
    )
    sales.process(waiting, on_timer=over, key=key_of, time=lambda sale: sale.at).sink("timers", to="file:out")
    return pipeline


def sums(sales: list[Sale]) -> Iterator[list[Any]]:
    states: dict[Any, dict[str, Any]] = {}
    for sale in sales:
        states[key_of(sale)], (_, total, latest) = with_sum(states.get(key_of(sale), FIRST), sale)
        yield [sent(sale), str(total), latest.isoformat()]


@given(sales=SALES, schedule=schedules(epochs_max=4, parallelism_max=3))
@settings(deadline=None, max_examples=30)
def test_amounts_times_and_keys_of_several_parts_are_what_a_plain_program_has(
    sales: list[Sale], schedule: Schedule
) -> None:
    found = schedule.run(app(), {"sales": [sent(sale) for sale in sales]})
    assert found["json"] == list(sums(sales))
    assert found["msgpack"] == found["json"]
    for day in found["days"]:
        own = [sale for sale in sales if [str(part) for part in key_of(sale)] == [str(part) for part in day["key"]]]
        assert Decimal(day["value"]["sum"]) == sum(sale.amount for sale in own)
        largest = max(own, key=lambda sale: (sale.amount, sale.at))
        assert Decimal(day["value"]["largest"]["amount"]) == largest.amount
        assert datetime.fromisoformat(day["value"]["largest"]["at"]) == largest.at
    last = {key_of(sale): sent(sale) for sale in sales}
    assert {tuple(timer[:3]): timer[3] for timer in found["timers"]} == {
        (shop, day.isoformat(), str(parity)): sale for (shop, day, parity), sale in last.items()
    }


@given(st.recursive(st.one_of(AMOUNTS, TIMES, st.dates(), st.timedeltas()), lambda inner: st.lists(inner).map(tuple)))
@settings(deadline=None)
def test_what_an_exchange_and_a_state_keep_is_the_same_to_the_digit_and_the_zone(value: Any) -> None:
    codec = ValueCodec()
    assert repr(codec.decoded_value(codec.packed(value))) == repr(value)


def test_msgpack_sinks_write_the_forms_of_json() -> None:
    pipeline = Pipeline("forms")
    sales = pipeline.source("sales", codec=json_of(Sale))
    sales.map(lambda sale: {"sale": sale, "raw": b"\xff"}).sink("out", to="file:out", codec="msgpack")
    sale = Sale("a", datetime(2026, 3, 29, 3, tzinfo=ZoneInfo("Europe/Berlin")), Decimal("1.50"))
    written = run(pipeline, {"sales": [sent(sale)]}).bytes["out"]
    forms = {"shop": "a", "at": "2026-03-29T03:00:00+02:00", "amount": "1.50"}
    assert msgpack.unpackb(written) == {"sale": forms, "raw": b"\xff"}
