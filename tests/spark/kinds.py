"""A pipeline with every kind of stage that keeps states, each with its own sink, and with fault points where a process
can be killed.

Invariant: it uses nothing of the tests, so that its text is an app, too.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, Field

from procession import (
    Aggregate,
    Context,
    Pipeline,
    ProcessContext,
    Stage,
    aggregates,
    json_of,
    patterns,
    tables,
    windows,
)


@dataclass(frozen=True)
class FailingAt:
    """Sleep for some records, so that other tasks overtake the task that has them.

    If there is a kill order for this place and record, remove it and kill the process that it names, or the own worker.
    """

    place: str
    orders: Path | None = None

    def __call__(self, value: bytes) -> bytes:
        number = int(value[:5])
        if number % 97 == 0:
            time.sleep(0.02)
        if self.orders is not None:
            order = order_to_kill(self.orders, self.place, number)
            if order.exists():
                victim = order.read_text()
                order.unlink()
                os.kill(int(victim or os.getpid()), signal.SIGKILL)
        return value


def order_to_kill(orders: Path, place: str, number: int) -> Path:
    return orders / f"kill-{place}-{number:05d}"


def key(value: bytes) -> bytes:
    return b"k%d" % (int(value[:5]) * int(value[:5]) % 97)


def numbered(state: int, value: bytes) -> tuple[int, bytes]:
    return state + 1, value + b"#%d" % state


def is_odd_one(state: tuple[int, bytes], value: bytes) -> tuple[tuple[int, bytes], bool]:
    return (state[0] + 1, value), state[0] % 2 == 1


def batches_of_five(state: list[bytes], value: bytes) -> tuple[list[bytes] | None, list[bytes]]:
    """Change the state in place, and remove the key after five records."""
    state.append(value)
    return (None, [b"+".join(state), b"--"]) if len(state) == 5 else (state, [])


def is_not_the_eleventh(state: dict[str, int], value: bytes) -> tuple[dict[str, int], bytes]:
    """Raises for every eleventh record, with the state half changed."""
    state["count"] += 1
    if state["count"] == 11:
        raise ValueError("eleven")
    return state, b"%d" % state["count"]


def not_commutative(whole: bytes, value: bytes) -> bytes:
    return (whole + value[-2:])[-12:]


NOT_COMMUTATIVE = Aggregate(bytes, not_commutative)


def when(value: bytes) -> int:
    """Return one second for each record. Some are late, and there is a gap in the middle."""
    number = int(value[:5])
    return number - (number * 7919 % 83 if number % 10 == 3 else 0) + (3_000 if number > 2_000 else 0)


def gone(whose: bytes, state: Any) -> bytes:
    return f"{whose!r} had {state!r}".encode()


def last_digit(result: dict[str, Any]) -> str:
    return str(result["key"].decode())[-1]


def end_of(result: dict[str, Any]) -> float:
    return float(result["end"])


TYPED = ("typed", "fields")
"""The typed sources: one with a class, one with a schema."""

TYPED_INPUTS = 8
"""The number of inputs that each typed source may have."""

NAMES = [{"last": f"{number * 3 % 100:02d}", "name": f"n{number}"} for number in range(40)]


VERSIONS = [
    {"last": f"{number * 3 % 100:02d}", "name": f"v{number}", "from": number * 211 % 4_000} for number in range(80)
]


def valid_from(row: dict[str, Any]) -> int:
    return int(row["from"])


def last_of(row: dict[str, Any]) -> bytes:
    return str(row["last"]).encode()


def last_two(value: bytes) -> bytes:
    return value[3:5]


def first_two(value: bytes) -> bytes:
    return value[1:3]


def named(value: bytes, row: dict[str, Any] | None) -> bytes:
    return value + (b"?" if row is None else str(row["name"]).encode())


def named_twice(value: bytes, row: dict[str, Any], other: dict[str, Any]) -> bytes:
    return b"%s %s %s" % (value, str(row["name"]).encode(), str(other["name"]).encode())


def together(value: bytes, *others: bytes) -> bytes:
    return b"+".join([value, *others])


def is_seventh(value: bytes) -> bool:
    return int(value) % 7 == 0


def ending(value: bytes) -> str:
    """Return the name of an output; for some records one that does not exist."""
    return "none" if value[-2:] == b"77" else "low" if value[-1:] < b"5" else "high"


def is_after(value: bytes, matched: dict[str, list[bytes]]) -> bool:
    """Raises for some records."""
    if value[-2:] == b"29":
        raise ValueError("29")
    return value[-1:] > matched["first"][0][-1:]


def is_odd(value: bytes) -> bool:
    return int(value) % 2 == 1


def latest_ten(state: list[bytes], value: bytes) -> list[bytes]:
    """Change the state in place."""
    state.append(value[-2:])
    del state[:-10]
    return state


def with_latest(state: list[bytes], value: bytes) -> bytes:
    """Change the argument, and raise for some."""
    state.reverse()
    if value[-2:] == b"13":
        raise ValueError("thirteen")
    return value + b" " + b",".join(state)


def side_by_side_of(latest: bytes | None, value: bytes) -> bytes:
    return side_by_side(value, latest)


def expected_soon(state: int, value: bytes, context: ProcessContext) -> tuple[int, list[bytes]]:
    """Wait for the next record of the key, for varying times."""
    context.cancel_timer(state)
    until = when(value) + int(value[-2:]) % 60
    context.timer_at(until)
    if value[-2:] == b"41":
        raise ValueError("with a timer set")
    return until, [value] if value[-1:] == b"0" else []


def overdue_at(state: int, context: ProcessContext) -> tuple[int | None, list[bytes]]:
    """Yield two results for each timer."""
    if state == context.time:
        context.timer_at(context.time + 7)
        return state, [b"%s is overdue at %d" % (context.key, context.time)]
    return None, [b"%s is still overdue at %d" % (context.key, context.time), b"--"]


def seen(state: int, value: bytes, context: ProcessContext) -> tuple[int, list[bytes]]:
    """Set a timer by the clock for each record, and cancel earlier ones for some."""
    if value[-1:] == b"5":
        context.cancel_timers()
    context.timer_after_s(int(value[-2:]) % 40 + 1)
    if value[-2:] == b"43":
        raise ValueError("with a timer set")
    return state + 1, [b"%s at %d" % (value, context.time)] if value[-1:] == b"0" else []


def rung(state: int, context: ProcessContext) -> tuple[int | None, list[bytes]]:
    """Set a next timer for some, and remove the key for others."""
    context.counter("rung")
    rang = b"%s rang at %d after %d" % (context.key, context.time, state)
    if state % 3 == 0:
        context.timer_after_s(9)
        return state + 1, [rang]
    return None, [rang, b"--"]


@dataclass(frozen=True)
class Sale:
    """A record with an amount and a time."""

    shop: int
    day: datetime
    amount: Decimal


def sale(value: bytes) -> Sale:
    number = int(value[:5])
    day = datetime(2026, 3, 28, tzinfo=UTC) + timedelta(days=number // 600)
    return Sale(number % 7, day, Decimal(number * 7919 % 100_000).scaleb(-4))


def shop_and_day(sale: Sale) -> tuple[int, datetime, Decimal]:
    """Return a key of several parts."""
    return sale.shop, sale.day, sale.amount.quantize(Decimal(1)) % 2


def amount_of(sale: Sale) -> Decimal:
    return sale.amount


def running(state: dict[str, Any], sale: Sale) -> tuple[dict[str, Any], Sale]:
    """Keep a state with amounts, times and an object of a class."""
    state["sum"] += sale.amount
    state["latest"] = sale
    return state, Sale(sale.shop, max(sale.day, state["first"]), state["sum"])


def no_sales() -> dict[str, Any]:
    return {"sum": Decimal("0.00"), "first": datetime(2026, 3, 29, 12, tzinfo=UTC), "latest": None}


def is_dear(sale: Sale, context: Context) -> bool:
    """Count the records that pass."""
    context.counter("dear", int(sale.amount > 5))
    return sale.amount > 5


class Place(BaseModel):
    """A model in a field of a record."""

    city: str
    floor: int = Field(ge=0)


@dataclass(frozen=True)
class Order:
    """A record of a typed source."""

    number: str
    shop: int
    at: datetime
    amount: Decimal
    place: Place


ORDER_FIELDS = pa.schema(
    [
        pa.field("number", pa.string(), nullable=False),
        ("shop", pa.int8()),
        ("at", pa.timestamp("ms", tz="UTC")),
        ("amount", pa.decimal128(7, 4)),
    ]
)
"""The schema of an order. Some orders are valid only for the class or only for the schema."""


def order_payload(number: int) -> bytes:
    """Return an order. Some have an invalid time, amount, shop or place."""
    at = datetime(2026, 3, 28, tzinfo=UTC) + timedelta(minutes=number * 7919 % 1_000, milliseconds=number % 3)
    amount = "much" if number % 19 == 4 else str(Decimal(number * 7919 % 10_000_000).scaleb(-4))
    shop = number % 7 + (300 if number % 23 == 5 else 0)
    order = {"number": f"{number:05d}", "shop": shop, "at": at.isoformat() if number % 17 else 0, "amount": amount}
    return json.dumps({**order, "place": {"city": f"c{number % 3}", "floor": number % 13 - 1}}).encode()


def failing_order(value: Any, failing_at: FailingAt) -> Any:
    failing_at((value["number"] if isinstance(value, dict) else value.number).encode())
    return value


def is_cancelled(order: Any) -> bool:
    return order_number(order) % 3 == 1


def order_number(order: Any) -> int:
    return int(order["number"] if isinstance(order, dict) else order.number)


def order_shop(order: Any) -> tuple[int | None, bool]:
    shop = order["shop"] if isinstance(order, dict) else order.shop
    return shop, order_number(order) % 2 == 0


def order_id(order: Any) -> int:
    """Return the id of an order. A cancellation names the order two or four before it, and some orders replace
    another."""
    number = order_number(order)
    return number - 2 if is_cancelled(order) else number // 2 * 2


def order_amount(order: Any) -> Decimal:
    return Decimal(order["amount"] if isinstance(order, dict) else order.amount)


def is_thirteenth(value: bytes) -> bool:
    return int(value) % 13 == 0


def before_thirteen(value: bytes) -> int:
    """Return the record that a retraction removes."""
    number = int(value)
    return number - 3 if is_thirteenth(value) else number


def first_two_as_key(value: bytes) -> bytes:
    return b"k%d" % int(value[1:3])


def side_by_side(left: bytes, right: bytes | None) -> bytes:
    return left + b"|" + (right or b"-")


def last_digit_of(value: bytes) -> int:
    return int(value[-1:])


def in_spring(value: bytes) -> int:
    """Return times around the night in which clocks in Berlin are put forward, days apart."""
    return 1_774_600_000 + when(value) * 2_003


def shown(value: Any) -> bytes:
    return repr(value).encode()


def numbered_multiples(stage: Stage, every: int) -> Stage:
    """A piece with its own state."""
    some = stage.filter(lambda value: int(value) % every == 0, name="multiples")
    return some.map_stateful(numbered, key=key, initial=0, name="numbers")


def every_kind(orders: Path | None = None, parallelism: int = 4) -> Pipeline:
    """Build the pipeline. With a directory of kill orders, stages check it before the exchanges, in tasks that read the
    log, or after an exchange, in tasks with states."""
    pipeline = Pipeline("keyed", parallelism=parallelism, dead_letter="file:dead", types=[Sale])
    source = pipeline.source(ends=True).map(FailingAt("before", orders))
    counted = source.map_stateful(numbered, key=key, initial=0)
    counted.map(FailingAt("behind", orders)).sink("mapped", to="file:out")
    source.filter_stateful(is_odd_one, key=key, initial=(0, b""), parallelism=3).sink("filtered", to="file:out")
    source.flat_map_stateful(batches_of_five, key=key, initial=list).sink("many", to="file:out")
    source.map_stateful(is_not_the_eleventh, key=key, initial={"count": 0}).sink("picky", to="file:out")
    source.reduce(not_commutative, key=key, parallelism=2).sink("reduced", to="file:out")
    source.rolling(aggregates.top(3, by=key), key=key).map(shown).sink("rolling", to="file:out")
    source.distinct(key).sink("distinct", to="file:out")
    minutes = source.window(windows.tumbling(60), aggregates.count(), key=key, time=when, late="fire", parallelism=3)
    minutes.map(shown).sink("minutes", to="file:out")
    hops = source.window(windows.sliding(90, every_s=30), aggregates.collect(), time=when, late="oldest")
    hops.map(shown).sink("hops", to="file:out")
    visits = source.window(windows.session(20), aggregates.mean(int), key=key, time=when, lateness_s=5, early_records=2)
    visits.map(shown).sink("visits", to="file:out")
    threes = source.window(windows.counting(3), aggregates.max_by(), key=key).map(shown)
    threes.sink("threes", to="file:out")
    # By the calendar, over a change of clocks, with the aggregates that hold sketches; and results that are corrected.
    spread = aggregates.all_of(
        mean=aggregates.weighted_mean(int, last_digit_of),
        at=aggregates.quantiles(0.1, 0.5, of=int),
        endings=aggregates.distinct(last_two),
        about=aggregates.approximate_distinct(first_two, bits=4),
    )
    local = source.window(windows.calendar("day", tz="Europe/Berlin"), spread, key=last_digit_of, time=in_spring)
    local.map(shown).sink("local-days", to="file:out")
    corrected = source.window(
        windows.sliding(40, every_s=20), aggregates.collect(), key=key, time=when, late="update", updates_s=70
    )
    corrected.map(shown).sink("corrected", to="file:out")
    # The same without a key, and a sliding one with one.
    days = source.window(windows.tumbling(60), NOT_COMMUTATIVE, time=when, late="fire")
    pauses = source.window(windows.session(3), aggregates.count(), time=when, early_records=5)
    tens = source.window(windows.counting(10), aggregates.collect(), early_records=4)
    slides = source.window(windows.sliding(80, every_s=40), aggregates.top(2), key=key, time=when, late="drop")
    days.merge(pauses, tens, slides).map(shown).sink("alone", to="file:out")
    source.aggregate(NOT_COMMUTATIVE).map(shown).sink("total", to="file:out")
    totals = source.aggregate(NOT_COMMUTATIVE, key=key, parallelism=3)
    # The ends of chains in a row come one after the other.
    totals.merge(totals.aggregate(aggregates.collect())).map(shown).sink("totals", to="file:out")
    lasting = source.map_stateful(numbered, key=key, initial=0, ttl_s=40, time=when, on_evict=gone)
    lasting.sink("lasting", to="file:out")
    often = source.flat_map_stateful(batches_of_five, key=key, initial=list, ttl_s=25, time=when, on_evict=gone)
    often.merge(source.distinct(key, ttl_s=30, time=when)).sink("often", to="file:out")
    backwards = source.flat_map(lambda value: [value, value[::-1]]).sort(last_two, reverse=True)
    backwards.merge(source.sort(key)).sink("sorted", to="file:out")
    # Windows of windows: of what came out above, by the ends of those.
    nested = minutes.window(windows.tumbling(600), aggregates.count(), key=last_digit, time=end_of)
    source.merge(nested.map(shown)).sink("nested", to="file:out")
    # hash joins: the stream narrow, in order, with one side and with two
    names = tables.of_rows(NAMES, by=last_of)
    joined = source.hash_join(names, key=last_two, join=named).rebalance(parallelism=3)
    joined.inner_hash_join(names, key=first_two, join=named_twice, and_side=names, and_key=last_two).sink(
        "joined", to="file:out"
    )
    # Two streams: what went another way, in other tasks, with the source; and the source with itself
    few = source.filter(is_seventh).rebalance(parallelism=3).map(bytes.lower)
    pairs = source.join(few, within_s=40, join=side_by_side, key=key, time=when, lateness_s=5, outer=True)
    pairs.sink("paired", to="file:out")
    source.join(source, within_s=8, join=side_by_side, left_key=key, right_key=first_two_as_key, time=when).sink(
        "paired-inner", to="file:out"
    )
    # Patterns: one that a record completes, one that time does
    rising = patterns.begin("first", is_seventh, at_most=2).then("next", is_after).next("last", is_odd)
    source.match(rising, within_s=500, key=key, time=when, skip="none").map(shown).sink("rising", to="file:out")
    lonely = patterns.begin("first", is_seventh).without(is_odd)
    source.match(lonely, within_s=30, key=key, time=when, lateness_s=3).map(shown).sink("lonely", to="file:out")
    # Timers, some of them for times that have passed
    overdue = source.process(expected_soon, on_timer=overdue_at, key=key, initial=0, time=when, lateness_s=2, step_s=5)
    overdue.sink("overdue", to="file:out")
    # The latest record of a second stream in every task, and the version that was valid
    sevenths = source.filter(is_seventh).rebalance(parallelism=2)
    source.with_broadcast(sevenths, update=latest_ten, initial=list, apply=with_latest).sink("ruled", to="file:out")
    source.with_broadcast(sevenths, apply=side_by_side_of, parallelism=3).sink("latest", to="file:out")
    valid = source.as_of(few, join=side_by_side, key=first_two_as_key, time=when, valid_from=when, versions_max=3)
    valid.sink("versions", to="file:out")
    # The version of a table that was valid, and combinations of three
    source.as_of(
        tables.of_rows(VERSIONS, by=last_of), join=named, key=last_two, time=when, valid_from=valid_from
    ).rebalance(parallelism=3).sink("table-versions", to="file:out")
    source.filter(is_odd).join_all(few, sevenths, within_s=8, join=together, key=is_odd, time=when).sink(
        "joined-all", to="file:out"
    )
    # Timers by a clock: its ticks are records, here of the same stream. What does not end keeps it from ending.
    ticks = source.filter(is_seventh).map(int).merge(pipeline.source("no-ticks", streams=["no ticks"]))
    source.process(seen, on_timer=rung, key=key, initial=0, clock=ticks).sink("clocked", to="file:out")
    # Objects with amounts and times, by a key of several parts, in states, exchanges and windows
    sales = source.map(sale).map_stateful(running, key=shop_and_day, initial=no_sales, parallelism=3)
    dear = sales.filter(is_dear).rebalance(parallelism=2)
    fives = dear.window(windows.counting(5), aggregates.max_by(amount_of), key=shop_and_day)
    dear.map(shown).merge(fives.map(shown)).sink("sales", to="file:out")
    # Records that are retracted: in windows that close, in some that are corrected, and in a running aggregate
    left = aggregates.retracting(aggregates.collect(), id_of=before_thirteen, is_retraction=is_thirteenth)
    standing = source.window(
        windows.tumbling(50), left, key=last_digit_of, time=when, late="update", updates_s=70, parallelism=3
    )
    standing.merge(source.rolling(left, key=last_two)).map(shown).sink("taken-back", to="file:out")
    # Sources whose records are objects of a class, or dicts with the fields of a schema
    for name, codec, schema in zip(TYPED, (json_of(Order), "json"), (None, ORDER_FIELDS), strict=True):
        streams = [f"{name}-{turn}" for turn in range(TYPED_INPUTS)]
        typed = pipeline.source(name, codec=codec, schema=schema, streams=streams)  # type: ignore[arg-type]
        entered = typed.map(partial(failing_order, failing_at=FailingAt(name, orders)))
        kept = aggregates.retracting(aggregates.top(2, by=order_amount), id_of=order_id, is_retraction=is_cancelled)
        tops = entered.rolling(kept, key=order_shop, parallelism=3).rebalance(parallelism=2)
        tops.merge(entered).map(shown).sink(f"{name}-tops", to="file:out", codec="bytes")
    # Side outputs that go different ways and meet again
    few_first, others = source.split(is_seventh)
    endings = others.split(ending, "low", "high", value=bytes.upper, name="endings")
    endings[0].rebalance(parallelism=3).merge(few_first, endings[1]).sink("split", to="file:out")
    # A piece that is used twice, with a setting
    every = pipeline.setting("every", int, default=4)
    fourths = source.apply(numbered_multiples, every, name="every")
    fourths.merge(source.apply(numbered_multiples, every + 1, name="and-one")).sink("pieces", to="file:out")
    # A keyed stage behind a keyed stage, by another key, and merged with the records that bypass it.
    twice = counted.map_stateful(numbered, key=lambda value: value[-1:], initial=0, parallelism=3)
    source.merge(twice).sink("merged", to="file:out")
    return pipeline
