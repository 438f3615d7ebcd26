"""The examples, compared with plain sequential Python programs.

Each example runs in this process with several epoch sizes and numbers of tasks, and for real with gateway, Spark and
file sink: some in every test run, all in `make test-all`. Invariant: of a real run only the output that the sink's
transaction log lists as committed is compared.
"""

from __future__ import annotations

import base64
import json
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from procession import Pipeline
from procession.sdk.transaction_log import committed_ranges
from procession.testing import run

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LINES_MAX = 60
WITH_SERVERS = {
    "kafka_trade_surveillance": "tests/walk/test_kafka_example.py",
    "postgres_changes_to_delta": "tests/walk/test_postgres_example.py",
    "turnover_table": "tests/walk/test_upserts.py",
}
"""Examples that need other systems -> the tests that run them."""
WITH_SEVERAL_INPUTS = dict.fromkeys(
    ("market_surveillance", "telecom_rating", "clickstream"), "tests/test_whole_pipelines.py"
)
"""Examples with several inputs or outputs -> the tests that run them."""
WITH_A_CLOCK = {"silent_devices": "tests/walk/test_clock_timers.py"}
WITH_LANES = {"exchange_tape": "tests/walk/test_exchange_tape.py"}
ELSEWHERE = WITH_LANES | WITH_SERVERS | WITH_SEVERAL_INPUTS | WITH_A_CLOCK
RUN_TIMEOUT_S = 240

NUMBERS = [str(number) for number in range(-50, 450)]
TEXT = [f"line {number} of {'many ' * (number % 7)}words,  with   gaps" for number in range(500)] + [
    "",
    "ünïcödé wörds",
]


def doubled(lines: Iterable[str]) -> list[str]:
    return [f"{line}:{2 * int(line)}" for line in lines]


def counted(lines: Iterable[str]) -> list[str]:
    return [str(len(line.split())) for line in lines]


def long_words(lines: Iterable[str]) -> list[str]:
    return [word.upper() for line in lines for word in line.split() if len(word) > 4]


REQUESTS = [json.dumps({"host": f"h{number % 7}", "bytes": number * 37 % 2000}) for number in range(500)]


def with_owners(lines: Iterable[str]) -> list[str]:
    results = [json.loads(line) for line in lines]
    results = [{**one, "owner": one["host"].upper()} if one["bytes"] > 1000 else one for one in results]
    return [json.dumps(result, separators=(",", ":")) for result in results]


MOVES = [
    f"account{number * number % 11} {('deposit', 'withdraw', 'deposit', 'scale')[number % 4]} {number % 13 / 8}"
    for number in range(500)
]


def balances(lines: Iterable[str]) -> list[str]:
    held: dict[str, float] = {}
    results = []
    for line in lines:
        account, what, amount = line.split()
        balance, change = held.get(account, 0.0), float(amount)
        changed = {"deposit": balance + change, "withdraw": max(0.0, balance - change), "scale": balance * change}
        held[account] = changed[what]
        results.append(f"{account} {held[account]:.2f}")
    return results


def _event(number: int) -> dict[str, object]:
    chance = random.Random(number)
    kind = chance.choice(["trade", "trade", "cancel", "cancel", "cancel"])
    trade = {"trader": chance.choice("AB"), "side": chance.choice(["buy", "sell"]), "price": chance.choice([10, 11])}
    return {"id": number, "kind": kind, "symbol": chance.choice(["X", "Y", "Z"]), "quantity": 5, **trade}


EVENTS = [json.dumps(_event(number)) for number in range(500)]


def alerts(lines: Iterable[str]) -> list[str]:
    events = [json.loads(line) for line in lines]
    results = []
    for place, event in enumerate(events):
        if event["kind"] != "trade":
            continue
        other = "sell" if event["side"] == "buy" else "buy"
        before = [one for one in events[:place] if one["symbol"] == event["symbol"]]
        trades = [one for one in before if one["kind"] == "trade"]
        named = {"id": event["id"], "symbol": event["symbol"], "trader": event["trader"]}
        if any(
            (trade["trader"], trade["side"], trade["price"]) == (event["trader"], other, event["price"])
            for trade in trades[-20:]
        ):
            results.append({"alert": "wash trade", **named})
        # Orders cancelled on the other side since this trader's last trade on this side.
        own = [one for one in before if one["trader"] == event["trader"]]
        last = max(
            (i for i, one in enumerate(own) if (one["kind"], one["side"]) == ("trade", event["side"])), default=-1
        )
        if sum((one["kind"], one["side"]) == ("cancel", other) for one in own[last + 1 :]) >= 3:
            results.append({"alert": "layering", **named})
    return [json.dumps(result, separators=(",", ":")) for result in results]


CLICKS = [
    json.dumps(
        {
            "user": f"u{(number // 12 + number % 3) % 7}",
            "at": number * 3 - (number % 5 == 3) * 4,
            "page": f"/{number % 9}",
        }
    )
    for number in range(500)
]


def visits(lines: Iterable[str]) -> list[str]:
    """Compute the sessions: each is emitted when a click of any user is 35 seconds after its last one, in steps of an
    eighth of 30 s, or at the end of the file."""
    opened: dict[str, list[dict[str, object]]] = {}
    results: list[dict[str, object]] = []
    watermark = float("-inf")
    for click in [*map(json.loads, lines), None]:
        watermark = float("inf") if click is None else max(watermark, (click["at"] - 5) // 3.75 * 3.75)
        ended = [(max(visit["at"] for visit in seen) + 30, user) for user, seen in opened.items()]  # type: ignore[type-var, operator]
        for end, user in sorted(one for one in ended if one[0] <= watermark):
            seen = opened.pop(user)
            first = min(seen, key=lambda one: one["at"])  # type: ignore[arg-type, return-value]
            value = {"clicks": len(seen), "first": first}
            one = {"key": user, "start": first["at"], "end": end, "count": len(seen), "value": value, "fired": "end"}
            results.append(one)
        if click is not None:
            opened.setdefault(click["user"], []).append(click)
    return [json.dumps(result, separators=(",", ":")) for result in results]


ORDERS = [
    json.dumps({"id": number, "item": ("apple", "pear", "plum", "fig")[number * 7 % 4], "count": number % 5})
    for number in range(500)
]


def priced(lines: Iterable[str]) -> list[str]:
    cents = {"apple": 40, "pear": 55, "plum": 20}
    results = [json.loads(line) for line in lines]
    results = [{**one, "cents": cents[one["item"]] * one["count"] if one["item"] in cents else None} for one in results]
    return [json.dumps(result, separators=(",", ":")) for result in results]


def _paid(number: int) -> dict[str, object]:
    """Return one order per second. Most are paid some time later, a few before the order or much too late."""
    if number % 2:
        wait = (number * 37 % 90) - 5
        return {"kind": "payment", "order": number // 2 - wait % 40, "at": number + wait % 7 - 3, "cents": number % 50}
    return {"kind": "order", "order": number // 2, "at": number, "cents": number * 11 % 70}


EVENTS_PAID = [json.dumps(_paid(number)) for number in range(500)]


def settled(lines: Iterable[str]) -> list[str]:
    """Compute the joined payments: an event waits until any event is 65 seconds later, in steps of an eighth of 60
    s."""
    waiting: list[dict[str, object]] = []
    paid: set[int] = set()
    results: list[dict[str, object]] = []
    watermark = float("-inf")
    for event in map(json.loads, lines):
        watermark = max(watermark, (event["at"] - 5) // 7.5 * 7.5)
        gone = [one for one in waiting if one["at"] + 60 < watermark]  # type: ignore[operator]
        waiting = [one for one in waiting if one not in gone]
        unpaid = [one for one in gone if one["kind"] == "order" and one["order"] not in paid]
        unpaid.sort(key=lambda one: (one["at"], str(one["order"])))
        results += [{"order": one["order"], "paid": False} for one in unpaid]
        for one in waiting:
            apart = abs(one["at"] - event["at"])  # type: ignore[operator]
            if one["order"] == event["order"] and one["kind"] != event["kind"] and apart <= 60:
                order, payment = (one, event) if event["kind"] == "payment" else (event, one)
                owed, after = order["cents"] - payment["cents"], payment["at"] - order["at"]
                paid.add(order["order"])
                results.append({"order": order["order"], "paid": True, "owed": owed, "after_s": after})
        waiting.append(event)
    unpaid = [one for one in waiting if one["kind"] == "order" and one["order"] not in paid]
    unpaid.sort(key=lambda one: (one["at"], str(one["order"])))
    results += [{"order": one["order"], "paid": False} for one in unpaid]
    return [json.dumps(result, separators=(",", ":")) for result in results]


SALES = [
    json.dumps({"shop": f"s{number * number % 7}", "item": f"i{number}", "cents": number * 13 % 40})
    for number in range(500)
]


def day(lines: Iterable[str]) -> list[str]:
    sales = [json.loads(line) for line in lines]
    results = sorted(sales, key=lambda sale: -sale["cents"])
    for shop in sorted({sale["shop"] for sale in sales}):
        own = [sale for sale in sales if sale["shop"] == shop]
        value = {"cents": sum(sale["cents"] for sale in own), "last_item": own[-1]["item"]}
        results.append({"key": shop, "count": len(own), "value": value})
    return [json.dumps(result, separators=(",", ":")) for result in results]


ORDER_EVENTS = [
    json.dumps({"order": order, "kind": kind, "at": at})
    for at, order, kind in sorted(
        (9 * order + later, order, kind)
        for order in range(120)
        for kind, later in (("ordered", 0), (("paid", "cancelled", "seen")[order % 3], order * 31 % 170))
    )
]


def overdue(lines: Iterable[str]) -> list[str]:
    """Compute the overdue orders: before each event, alarms of all open orders whose time has come are emitted."""
    due: dict[int, int] = {}
    results: list[dict[str, object]] = []

    def tell(now: float) -> None:
        alarms = [(since + more, order, since) for order, since in due.items() for more in (0, 60)]
        for at, order, since in sorted(alarm for alarm in alarms if alarm[:2] not in rung and alarm[0] <= now):
            rung.add((at, order))
            results.append({"order": order, "overdue_since": since, "is_last": at > since})

    rung: set[tuple[int, int]] = set()
    for event in map(json.loads, lines):
        tell(event["at"])
        due = {order: since for order, since in due.items() if since + 60 > event["at"]}
        if event["kind"] == "ordered":
            due[event["order"]] = event["at"] + 60
        elif event["kind"] != "seen":
            due.pop(event["order"], None)
    waiting = sorted(
        (min(a for a in (since, since + 60) if (a, order) not in rung), order) for order, since in due.items()
    )
    results += [{"order": order, "overdue_since": due[order], "is_last": at > due[order]} for at, order in waiting]
    return [json.dumps(result, separators=(",", ":")) for result in results]


LIMITED = [
    json.dumps(
        {"kind": "limit", "item": f"i{number % 4}", "count": number * 7 % 40}
        if number % 9 == 4
        else {"kind": "order", "id": number, "item": f"i{number % 5}", "count": number * 13 % 50}
    )
    for number in range(500)
]


def above_limits(lines: Iterable[str]) -> list[str]:
    limits: dict[str, int] = {}
    results = []
    for event in map(json.loads, lines):
        if event["kind"] == "limit":
            limits[event["item"]] = event["count"]
        elif event["item"] in limits and event["count"] > limits[event["item"]]:
            results.append({"id": event["id"], "limit": limits[event["item"]], "is_above": True})
    return [json.dumps(result, separators=(",", ":")) for result in results]


CALLS = [
    json.dumps(
        {"kind": "price", "tariff": f"t{number % 3}", "from": number + number * 17 % 90 - 20, "cents": number % 23}
        if number % 8 == 3
        else {"kind": "call", "id": number, "tariff": f"t{number % 4}", "at": number, "seconds": number * 31 % 400}
    )
    for number in range(500)
]


def bills(lines: Iterable[str]) -> list[str]:
    prices: list[dict[str, int]] = []
    results = []
    for event in map(json.loads, lines):
        if event["kind"] == "price":
            prices.append(event)
            continue
        valid = [one for one in prices if one["tariff"] == event["tariff"] and one["from"] <= event["at"]]
        # If two prices start at the same time, the later record counts.
        price = max(enumerate(valid), key=lambda one: (one[1]["from"], one[0]), default=(0, None))[1]
        minutes = (event["seconds"] + 59) // 60
        results.append({"id": event["id"], "cents": None if price is None else minutes * price["cents"]})
    return [json.dumps(result, separators=(",", ":")) for result in results]


PHONE_CALLS = [
    json.dumps(
        {
            "caller": f"+4930{number % 7}",
            "at": f"2026-03-{1 + number // 40:02}T{number % 24:02}:30:00{('+01:00', 'Z', '-05:00')[number % 3]}",
            "zone": ("HOME", "EU", "WORLD", "MOON")[number % 4 if number % 13 else 3],
            "seconds": number * 37 % 900 if number % 17 else "long",
            "price": f"0.{number * 61 % 1000:04}",
        }
    )
    for number in range(500)
]


def call_costs(lines: Iterable[str]) -> list[str]:
    """Compute the costs: whole minutes, by caller, zone and day in UTC. Calls from unknown zones, and too long ones,
    are invalid."""
    costs: dict[tuple[str, str, str], int] = {}
    results = []
    for call in map(json.loads, lines):
        if call["zone"] != "MOON" and call["seconds"] != "long":
            day = datetime.fromisoformat(call["at"]).astimezone(ZoneInfo("UTC")).date().isoformat()
            whole = int(call["price"].removeprefix("0.")) * ((call["seconds"] + 59) // 60)
            key = call["caller"], call["zone"], day
            costs[key] = costs.get(key, 0) + whole
            cost = f"{costs[key] // 10_000}.{costs[key] % 10_000:04}"
            results.append({"caller": call["caller"], "zone": call["zone"], "day": day, "cost": cost})
    return [json.dumps(result, separators=(",", ":")) for result in results]


def _quote(number: int) -> dict[str, object]:
    chance = random.Random(number)
    kind = chance.choice(["place", "place", "trade", "cancel", "cancel"])
    return {
        "trader": chance.choice("ABC"),
        "kind": kind,
        "side": chance.choice(["buy", "buy", "sell"]),
        "at": number,
        "count": chance.choice([100, 500, 500]),
    }


QUOTES = [json.dumps(_quote(number)) for number in range(500)]


def spoofed(lines: Iterable[str]) -> list[str]:
    """Compute the alerts: after each large order, find the next events that the pattern needs; the earliest match
    counts."""
    events = [json.loads(line) for line in lines]
    results, free_from = [], dict.fromkeys("ABC", 0)
    for last, event in enumerate(events):
        own = [(at, one) for at, one in enumerate(events[: last + 1]) if one["trader"] == event["trader"]]
        for first, begun in [(at, one) for at, one in own if at >= free_from[event["trader"]]]:
            if begun["kind"] != "place" or begun["count"] < 400 or event["at"] - begun["at"] > 60:
                continue
            needed = ["place"] * 3 + ["trade"] + ["cancel"] * 3
            taken = []
            for at, one in own:
                step = needed[len(taken)] if at >= first and len(taken) < len(needed) else None
                is_same_side = one["side"] == begun["side"]
                if step == one["kind"] and (
                    (step == "place" and one["count"] >= 400)
                    or (step == "trade" and not is_same_side)
                    or (step == "cancel" and is_same_side)
                ):
                    taken.append((at, one))
            if len(taken) == len(needed) and taken[-1][0] == last:
                named = {"trader": event["trader"], "from": begun["at"], "to": event["at"], "side": taken[3][1]["side"]}
                results.append(named)
                free_from[event["trader"]] = last + 1
                break
    return [json.dumps(result, separators=(",", ":")) for result in results]


def _click(number: int) -> dict[str, object]:
    chance = random.Random(number)
    kind = chance.choice(["cart", "cart", "checkout", "paid", "emptied", "seen"])
    return {"user": f"u{chance.randrange(40)}", "kind": kind, "at": 20 * number}


SHOP_CLICKS = [json.dumps(_click(number)) for number in range(500)]


def reminders(lines: Iterable[str]) -> list[str]:
    """Compute the reminders: a cart is reported ten minutes later, in steps of an eighth, by the first click after
    that, or at the end. Then the user's other carts are forgotten."""
    clicks = [json.loads(line) for line in lines]
    carts: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for click in [*clicks, {"kind": "end", "user": "", "at": 10**9}]:
        watermark = click["at"] // 75 * 75
        over = [one for one in carts if one["cart_at"] + 600 < watermark]  # type: ignore[operator]
        for one in sorted(over, key=lambda one: (one["cart_at"], one["user"])):
            if one in carts and one["checkout_at"] is not None:
                results.append(one)
                carts = [other for other in carts if other["user"] != one["user"]]
        carts = [cart for cart in carts if cart not in over]
        for one in [one for one in carts if one["user"] == click["user"] and click["at"] - one["cart_at"] <= 600]:
            if click["kind"] == ("emptied" if one["checkout_at"] is None else "paid"):
                carts.remove(one)
            elif click["kind"] == "checkout" and one["checkout_at"] is None:
                one["checkout_at"] = click["at"]
        if click["kind"] == "cart":
            carts.append({"user": click["user"], "cart_at": click["at"], "checkout_at": None})
    return [json.dumps(result, separators=(",", ":")) for result in results]


SALES_OF_MONTHS = [
    json.dumps(
        {
            "shop": f"s{number % 3}",
            "customer": f"c{number * number % 41}",
            "cents": number * 13 % 977,
            "at": 1_772_000_000 + number * 30_011 - (number % 7 == 3) * 9_000,
        }
    )
    for number in range(500)
]


def turnover(lines: Iterable[str]) -> list[str]:
    """Compute the turnover: a month is emitted by the first sale that is later, in steps of a quarter of an hour, shop
    by shop. Late sales are dropped."""
    held: dict[tuple[int, int, str], list[dict[str, int]]] = {}
    results: list[dict[str, object]] = []
    zone, watermark = ZoneInfo("Europe/Berlin"), 0

    def month_of(at: int) -> tuple[int, int]:
        day = datetime.fromtimestamp(at, zone)
        first = datetime(day.year, day.month, 1, tzinfo=zone)
        later = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=zone)
        return int(later.timestamp()), int(first.timestamp())

    for sale in [*map(json.loads, lines), None]:
        watermark = 2**40 if sale is None else max(watermark, sale["at"] // 900 * 900)
        for end, start, shop in sorted(window for window in held if window[0] <= watermark):
            sales = held.pop((end, start, shop))
            cents = sorted(one["cents"] for one in sales)
            quantiles = [cents[-(-len(cents) * share // 100) - 1] for share in (50, 95)]
            value = {"cents": sum(cents), "customers": len({one["customer"] for one in sales}), "sale": quantiles}
            results.append({"shop": shop, "from": start, "hours": (end - start) // 3600, **value})
        if sale is not None and month_of(sale["at"])[0] > watermark:
            held.setdefault((*month_of(sale["at"]), sale["shop"]), []).append(sale)
    return [json.dumps(result, separators=(",", ":")) for result in results]


READINGS = [
    json.dumps({"sensor": f"s{number % 5}", "celsius": number * 37 % 130 - 20})
    if number % 11
    else f"sensor s{number % 5} is offline"
    for number in range(500)
]


LATE_SALES = [
    json.dumps(
        {
            "shop": f"s{number % 3}",
            "cents": number * 13 % 977,
            "at": number * 400 - (7_300 if number % 5 == 2 else 200_000 if number % 31 == 30 else 0),
        }
    )
    for number in range(500)
]


def corrected(lines: Iterable[str]) -> list[str]:
    """Compute the corrections, from all sales of each shop and hour in one dictionary and the hours already emitted."""
    cents: dict[tuple[int, str], int] = {}
    emitted: set[tuple[int, str]] = set()
    totals: dict[str, int] = {}
    results: list[dict[str, object]] = []

    def emit(hour: int, shop: str, why: str, before: int | None) -> None:
        emitted.add((hour, shop))
        results.append({"shop": shop, "hour": 3600 * hour, "cents": cents[hour, shop], "why": why})
        for change in (None if before is None else -before, cents[hour, shop]):
            if change is not None:
                totals[shop] = totals.get(shop, 0) + change
                results.append({"shop": shop, "total": totals[shop]})

    now = 0
    for sale in [*map(json.loads, lines), {"at": 2**40}]:
        now = max(now, sale["at"] // 3600)
        for hour, shop in sorted(place for place in cents if place[0] < now and place not in emitted):
            emit(hour, shop, "end", None)
        if "shop" not in sale:
            break
        place = sale["at"] // 3600, sale["shop"]
        if place[0] + 1 > now or place[0] + 25 > now:
            before = cents.get(place) if place in emitted else None
            cents[place] = cents.get(place, 0) + sale["cents"]
            if place[0] + 1 <= now:
                emit(*place, "update", before)
    return [json.dumps(result, separators=(",", ":")) for result in results]


SENSOR_VALUES = [
    json.dumps({"sensor": f"s{number % 3}", "value": (number * number * 7) % 150}) for number in range(500)
]


def value_alerts(lines: Iterable[str]) -> list[str]:
    results, rows = [], {}
    for reading in map(json.loads, lines):
        rows[reading["sensor"]] = rows.get(reading["sensor"], 0) + 1 if reading["value"] > 80 else 0
        far = ("far", reading["sensor"])
        rows[far] = rows.get(far, 0) + 1 if reading["value"] > 120 else 0
        if rows[reading["sensor"]] >= 2:
            results.append({**reading, "limit": 80, "rows": rows[reading["sensor"]]})
        if rows[far]:
            results.append({**reading, "limit": 120.0, "rows": rows[far]})
    return [json.dumps(result, separators=(",", ":")) for result in results]


def hot_readings(lines: Iterable[str]) -> list[str]:
    results = [json.loads(line) for line in lines if line.startswith("{")]
    return [json.dumps(result, separators=(",", ":")) for result in results if result["celsius"] > 80]


MEASURED = [
    json.dumps(
        {
            "sensor": f"s{number % 3}" if number % 11 else None,
            "celsius": str((number * 7919 % 5000) / 50),
            "at": f"2026-03-01T10:{number % 60:02d}:00.5+01:00" if number % 13 else "today",
            "color": "red",
        }
    )
    for number in range(500)
]


def largest(lines: Iterable[str]) -> list[str]:
    results, best = [], {}
    for reading in map(json.loads, lines):
        if reading["sensor"] is None or reading["at"] == "today":
            continue
        celsius, at = Decimal(reading["celsius"]), datetime.fromisoformat(reading["at"]).astimezone(UTC)
        found = {"sensor": reading["sensor"], "celsius": f"{celsius:.2f}", "at": at.isoformat(), "place": None}
        if reading["sensor"] not in best or celsius > best[reading["sensor"]][0]:
            best[reading["sensor"]] = (celsius, found)
        results.append(best[reading["sensor"]][1])
    return [json.dumps(result, separators=(",", ":")) for result in results]


TELEPHONED = [
    json.dumps(
        {"caller": f"c{number % 5}" if number % 9 else "test", "seconds": number * 7 % 200, "cents": number % 13}
        | ({"seconds": "long"} if number % 17 == 3 else {})
    )
    for number in range(500)
]


def long_calls(lines: Iterable[str]) -> list[str]:
    results = [
        {"caller": call["caller"], "cents_a_minute": call["cents"] * 60 / call["seconds"]}
        for call in map(json.loads, lines)
        if call["seconds"] != "long" and call["seconds"] > 60 and call["caller"] != "test"
    ]
    return [json.dumps(result, separators=(",", ":")) for result in results]


def _trade(number: int) -> dict[str, object]:
    """Return one trade every seven seconds. Each eighth record cancels a trade of the last three minutes."""
    chance = random.Random(number)
    if number % 8 == 7:
        older = chance.choice([before for before in range(max(0, number - 24), number) if before % 8 != 7])
        cancelled = _trade(older)
        return {"id": older, "symbol": cancelled["symbol"], "at": cancelled["at"], "is_cancelled": True}
    return {"id": number, "symbol": chance.choice("XY"), "at": number * 7, "count": chance.randrange(9)}


TRADES = [json.dumps(_trade(number)) for number in range(500)]


def largest_trades(lines: Iterable[str]) -> list[str]:
    """Compute the largest trades, from all valid trades in one dictionary. A minute is emitted by the first record
    after it."""
    counting: dict[tuple[int, str], dict[int, int]] = {}
    emitted: dict[tuple[int, str], list[int]] = {}
    results: list[dict[str, object]] = []

    def emit(minute: int, symbol: str) -> None:
        counts = counting[minute, symbol]
        best = sorted(counts, key=lambda trade: -counts[trade])[:3]
        row = {"symbol": symbol, "minute": minute * 60, "largest": best, "replaces": emitted.get((minute, symbol))}
        results.append(row)
        emitted[minute, symbol] = best

    now = 0
    for trade in [*map(json.loads, lines), {"at": 2**40}]:
        now = max(now, trade["at"] // 60)
        for minute, symbol in sorted(place for place in counting if place[0] < now and place not in emitted):
            emit(minute, symbol)
        if "symbol" not in trade:
            break
        place = trade["at"] // 60, trade["symbol"]
        counts = counting.setdefault(place, {})
        if trade.get("is_cancelled"):
            counts.pop(trade["id"], None)
        else:
            counts[trade["id"]] = trade["count"]
        if place[0] < now:
            emit(*place)
    return [json.dumps(result, separators=(",", ":")) for result in results]


SHIPPING = [
    json.dumps({"kind": kind, "order": order, "at": at})
    for at, order, kind in sorted(
        (600 * order + later, order, kind)
        for order in range(170)
        for kind, later in (
            ("order", 0),
            ("payment", order * 7919 % 90_000),
            ("parcel", order * 104_729 % 90_000),
        )
        if order % 9 or kind != "payment"
    )
]


def shipped_orders(lines: Iterable[str]) -> list[str]:
    """Compute the shipped orders: each is emitted at the last of its three records, if all are within a day."""
    seen: dict[int, dict[str, int]] = {}
    results: list[dict[str, object]] = []
    for event in map(json.loads, lines):
        times = seen.setdefault(event["order"], {})
        times[event["kind"]] = event["at"]
        if len(times) == 3 and max(times.values()) - times["order"] <= 86_400:
            seconds, is_prepaid = times["parcel"] - times["order"], times["payment"] <= times["parcel"]
            results.append({"order": event["order"], "seconds": seconds, "is_prepaid": is_prepaid})
    return [json.dumps(result, separators=(",", ":")) for result in results]


# The example, the sink's output file, its input, and the output of a sequential program.
CASES: dict[str, tuple[str, list[str], Callable[[Iterable[str]], list[str]]]] = {
    "passthrough": ("passthrough-output-0", TEXT, list),
    "doubler": ("doubler-output-0", NUMBERS, doubled),
    "words_per_line": ("words-per-line-output-0", TEXT, counted),
    "long_words": ("long-words-words-0", TEXT, long_words),
    "running_balances": ("running-balances-balances-0", MOVES, balances),
    "trade_surveillance": ("trade-surveillance-alerts-0", EVENTS, alerts),
    "visits": ("visits-visits-0", CLICKS, visits),
    "enrichment": ("enrichment-priced-0", ORDERS, priced),
    "payments": ("payments-settled-0", EVENTS_PAID, settled),
    "sales_day": ("sales-day-told-0", SALES, day),
    "overdue_orders": ("overdue-orders-alerts-0", ORDER_EVENTS, overdue),
    "changing_limits": ("changing-limits-alerts-0", LIMITED, above_limits),
    "call_costs": ("call-costs-costs-0", PHONE_CALLS, call_costs),
    "call_rating": ("call-rating-bills-0", CALLS, bills),
    "spoofing": ("spoofing-alerts-0", QUOTES, spoofed),
    "abandoned_carts": ("abandoned-carts-reminders-0", SHOP_CLICKS, reminders),
    "monthly_turnover": ("monthly-turnover-months-0", SALES_OF_MONTHS, turnover),
    "corrected_turnover": ("corrected-turnover-turnover-0", LATE_SALES, corrected),
    "value_alerts": ("value-alerts-alerts-0", SENSOR_VALUES, value_alerts),
    "readings": ("readings-hot-0", READINGS, hot_readings),
    "long_calls": ("long-calls-prices-0", TELEPHONED, long_calls),
    "readings_by_schema": ("readings-by-schema-largest-0", MEASURED, largest),
    "busy_hosts": ("busy-hosts-all-0", REQUESTS, with_owners),
    "cancelled_trades": ("cancelled-trades-largest-0", TRADES, largest_trades),
    "shipped_orders": ("shipped-orders-shipped-0", SHIPPING, shipped_orders),
}


FOR_REAL = ("running_balances", "sales_day")
"""Examples that run for real in every test run, beside `long_words`: one keeps states, one waits for the end."""


def run_example(name: str, given: bytes, cwd: Path) -> None:
    (cwd / "input.txt").write_bytes(given)
    arguments = [
        "run",
        str(EXAMPLES / f"{name}.py"),
        "--input",
        "input.txt",
        "--dir",
        "state",
        "--listen",
        "127.0.0.1:0",
    ]
    # Small epochs, so that the output comes from several of them.
    arguments += ["--epoch-records-max", "200", "--json"]
    command = [sys.executable, "-m", "procession", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_done"]


def committed(path: Path) -> bytes:
    data = path.with_suffix(".data").read_bytes()
    return b"".join(data[start:end] for start, end in committed_ranges(path.with_suffix(".txnlog")))


def test_there_is_a_case_for_every_example() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted([*CASES, *ELSEWHERE])
    assert all((EXAMPLES.parent / test).is_file() for test in ELSEWHERE.values())


@pytest.mark.parametrize("name", [*CASES, *ELSEWHERE])
def test_an_example_is_short(name: str) -> None:
    assert (EXAMPLES / f"{name}.py").read_text().count("\n") <= LINES_MAX


@pytest.mark.parametrize("name", CASES)
def test_an_example_writes_the_output_of_a_sequential_program(name: str) -> None:
    output, lines, reference = CASES[name]
    pipeline: Pipeline = runpy.run_path(str(EXAMPLES / f"{name}.py"))["pipeline"]
    (source,) = (source.name for source in pipeline.graph().sources)
    sink = output.removeprefix(f"{pipeline.name}-").removesuffix("-0")
    expected = reference(lines)
    for epochs, tasks in ((None, 1), (200, 2), (61, 5)):
        found = run(pipeline, {source: [line.encode() for line in lines]}, epochs=epochs, parallelism=tasks)
        assert found.bytes[sink].decode().splitlines() == expected, f"{tasks} tasks, epochs of {epochs}"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FOR_REAL else pytest.mark.slow) for name in CASES if name != "long_words"],
)
def test_an_example_commits_the_output_of_a_sequential_program(name: str, tmp_path: Path) -> None:
    output, lines, reference = CASES[name]
    run_example(name, "".join(f"{line}\n" for line in lines).encode(), tmp_path)
    found = committed(tmp_path / "output" / output)
    assert found.decode().splitlines() == reference(lines)
    pipeline: Pipeline = runpy.run_path(str(EXAMPLES / f"{name}.py"))["pipeline"]
    (source,) = (source.name for source in pipeline.graph().sources)
    tested = run(pipeline, {source: [line.encode() for line in lines]}, epochs=200)
    assert found == tested.bytes[output.removeprefix(f"{pipeline.name}-").removesuffix("-0")]  # byte for byte


def test_a_line_that_cannot_be_decoded_becomes_a_dead_letter_and_the_others_are_committed(tmp_path: Path) -> None:
    output, lines, reference = CASES["long_words"]
    before, after = lines[:100], lines[100:]
    head = "".join(f"{line}\n" for line in before).encode()
    tail = "".join(f"{line}\n" for line in after).encode()
    run_example("long_words", head + b"no \xff text\n" + tail, tmp_path)
    assert committed(tmp_path / "output" / output).decode().splitlines() == reference(lines)
    (letter,) = committed(tmp_path / "output" / "long-words-dead-letter-0").splitlines()
    document = json.loads(letter)
    assert base64.b64decode(document["payload"]) == b"no \xff text"
    assert (document["message_id"], document["stage"]) == (len(head), "lines")


def test_the_doubler_prints_its_problems_in_five_cases() -> None:
    command = [sys.executable, str(EXAMPLES / "doubler.py")]
    output = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True).stdout
    names = ("zero-guarantee", "correct-if-committed", "at-most-once", "at-least-once", "effectively-once")
    places = [output.index(name) for name in names]
    assert places == sorted(places)
