"""The three whole pipelines among the examples, compared with plain sequential Python programs: market surveillance,
telecom rating and a clickstream.

Each runs in this process with several epoch sizes and numbers of tasks, and with real processes.
"""

from __future__ import annotations

import json
import random
import runpy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from procession import Pipeline
from procession.exit_status import Status
from procession.testing import Outputs, run
from procession.verify.sink_outputs import committed_output
from tests.walk.commands import run as run_command

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
BERLIN = ZoneInfo("Europe/Berlin")
Record = dict[str, Any]


def outputs(name: str, inputs: dict[str, list[Record]]) -> Outputs:
    """Return the output of the example, after checking that it is the same for several epoch sizes and numbers of
    tasks."""
    pipeline: Pipeline = runpy.run_path(str(EXAMPLES / f"{name}.py"))["pipeline"]
    found = run(pipeline, inputs)
    for epochs, tasks in ((37, 2), (200, 3)):
        again = run(pipeline, inputs, epochs=epochs, parallelism=tasks)
        assert (dict(again), again.counters) == (dict(found), found.counters)
    return found


# Market surveillance


def market() -> tuple[list[Record], list[Record], list[Record]]:
    """Return events, limits, and the alerts that follow from their construction.

    The rounds are two minutes apart, so that the actions of one do not mix with those of the one before.
    """
    chance = random.Random(22)
    events, limits, alerts = [], [], []
    for round_number in range(40):
        for number, trader in enumerate("ABC"):
            at = 1_000_000 + round_number * 120 + number * 20
            limit = chance.choice([450, 600])
            limits.append({"at": at, "trader": trader, "count": limit})
            counts = [chance.choice([100, 500]) for _ in range(3)]
            is_traded, is_cancelled = chance.random() < 0.7, chance.random() < 0.7
            places = [("place", "buy", count) for count in counts]
            others = [("trade", "sell", 5)] * is_traded + [("cancel", "buy", 500)] * (2 * is_cancelled)
            for later, (kind, side, count) in enumerate(places + others, 1):
                events.append({"at": at + later, "trader": trader, "kind": kind, "side": side, "count": count})
                if kind == "place" and count > limit:
                    alerts.append(
                        {"alert": "limit", "trader": trader, "at": at + later, "count": count, "limit": limit}
                    )
            large = [at + later for later, count in enumerate(counts, 1) if count >= 400]
            if len(large) >= 2 and is_traded and is_cancelled:
                alerts.append({"alert": "spoofing", "trader": trader, "at": at + 6, "orders": large})
    return events, limits, alerts


def test_market_surveillance_finds_every_planted_case() -> None:
    events, limits, alerts = market()
    assert {alert["alert"] for alert in alerts} == {"limit", "spoofing"}
    assert outputs("market_surveillance", {"events": events, "limits": limits})["alerts"] == alerts


def test_a_bad_event_and_a_late_one_become_dead_letters() -> None:
    events, limits, alerts = market()
    bad = {**events[0], "side": "both", "at": events[-1]["at"]}
    late = events[3]
    found = outputs("market_surveillance", {"events": [*events, bad, late], "limits": limits})
    assert found["alerts"] == alerts
    reasons = sorted(letter["error"].partition(":")[0] for letter in found["dead-letter"])
    assert reasons == ["LateRecord", "ValueError"]


# Telecom rating


def month_of(at: datetime) -> tuple[int, int]:
    local = at.astimezone(BERLIN)
    first = local.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    after = (first + timedelta(days=40)).replace(day=1)
    return int(first.replace(tzinfo=BERLIN).timestamp()), int(after.replace(tzinfo=BERLIN).timestamp())


def billed(prices: list[Record], calls: list[Record]) -> tuple[list[Record], list[Record]]:
    """Compute bills and calls without a price, one call after the other."""
    bills: list[Record] = []
    unrated: list[Record] = []
    sums: dict[tuple[int, int, str], list[Any]] = {}
    fired: set[tuple[int, int, str]] = set()
    watermark = 0.0

    def tell(place: tuple[int, int, str], before: str | None) -> None:
        count, value = sums[place]
        month = f"{datetime.fromtimestamp(place[0], BERLIN):%Y-%m}"
        bills.append({"customer": place[2], "month": month, "calls": count, "total": str(value), "before": before})

    def fire() -> None:
        for end, customer, start in sorted((end, customer, start) for start, end, customer in sums.keys() - fired):
            if end <= watermark:
                fired.add((start, end, customer))
                tell((start, end, customer), None)

    for call in calls:
        at = datetime.fromisoformat(call["at"])
        valid = [
            price
            for price in prices
            if (price["tariff"], price["zone"]) == (call["tariff"], call["zone"])
            and datetime.fromisoformat(price["valid_from"]) <= at
        ]
        if not valid:
            unrated.append(call)
            continue
        price = max(valid, key=lambda one: str(one["valid_from"]))
        cost = Decimal(price["per_minute"]) * -(-call["seconds"] // 60)
        watermark = max(watermark, at.timestamp())
        fire()
        place = (*month_of(at), call["customer"])
        before = sums.get(place)
        sums[place] = [1, cost] if before is None else [before[0] + 1, before[1] + cost]
        if place[1] <= watermark:
            fired.add(place)
            tell(place, None if before is None else str(before[1]))
    watermark = float("inf")
    fire()
    return bills, unrated


def telephony() -> tuple[list[Record], list[Record]]:
    """Return prices and calls."""
    chance = random.Random(7)
    prices = [
        {"tariff": tariff, "zone": zone, "valid_from": f"2026-{month:02}-15T00:00:00Z", "per_minute": f"0.{cents}"}
        for tariff, zone, month, cents in (
            ("b", "EU", 1, 10),
            ("b", "EU", 3, 12),
            ("b", "US", 2, 45),
            ("p", "EU", 1, 5),
        )
    ]
    calls = []
    for number in range(400):
        # Over two ends of a month, and up to two days late.
        at = datetime(2026, 2, 10, tzinfo=UTC) + timedelta(hours=number * 4, seconds=-chance.choice([0, 0, 170_000]))
        keys = {"tariff": chance.choice("bp"), "zone": chance.choice(["EU", "US"]), "customer": chance.choice("xyz")}
        calls.append({"id": number, **keys, "at": at.isoformat(), "seconds": chance.randrange(1, 600)})
    return prices, calls


def test_telecom_rating_bills_months_of_local_time_and_corrects_bills() -> None:
    prices, calls = telephony()
    bills, unrated = billed(prices, calls)
    assert any(bill["before"] is not None for bill in bills)
    assert unrated
    found = outputs("telecom_rating", {"prices": prices, "calls": calls})
    assert found["bills"] == bills
    assert found["unrated"] == unrated


# A clickstream


def clicked() -> list[Record]:
    chance = random.Random(3)
    clicks: list[Record] = []
    at = 0
    for _ in range(600):
        at += chance.choice([1, 20, 40, 900])
        page = chance.choice(["/a", "/b", "/cart", "/checkout", "/paid"])
        clicks.append({"user": chance.choice(["u1", "u2", "u3", "u4", "bot1"]), "at": at, "page": page})
    return clicks


def test_the_clickstream_has_visits_purchases_and_the_busiest_users() -> None:
    clicks = clicked()
    human = [click for click in clicks if click["user"] != "bot1"]
    visits, hours = [], {}
    for user in ("u1", "u2", "u3", "u4"):
        own = [click for click in human if click["user"] == user]
        breaks = [0, *(place for place in range(1, len(own)) if own[place]["at"] - own[place - 1]["at"] >= 1800)]
        for first, behind in zip(breaks, [*breaks[1:], len(own)], strict=True):
            visit = own[first:behind]
            seconds, pages = visit[-1]["at"] - visit[0]["at"], len({click["page"] for click in visit})
            visits.append({"user": user, "from": visit[0]["at"], "seconds": seconds, "pages": pages})
        for click in own:
            hours.setdefault(click["at"] // 3600 * 3600, {}).setdefault(user, []).append(click)
    broken: Any = b'{"user": "u1", "page": "/a"}'
    found = outputs("clickstream", {"clicks": [*clicks, broken]})
    assert [letter["error"] for letter in found["dead-letter"]] == ["ValueError: not a Click: at is missing"]
    assert sorted(map(str, found["visits"])) == sorted(map(str, visits))
    assert found.counters["counter robots"] == len(clicks) - len(human)
    counts = {hour: sorted((len(own) for own in users.values()), reverse=True)[:3] for hour, users in hours.items()}
    assert {entry["hour"]: [count for _, count in entry["users"]] for entry in found["busiest"]} == counts
    assert all(len(hours[entry["hour"]][user]) == count for entry in found["busiest"] for user, count in entry["users"])
    assert found["purchases"]
    for purchase in found["purchases"]:
        own = [click for click in human if click["user"] == purchase["user"]]
        steps = [click["page"] for click in own if purchase["cart_at"] <= click["at"] <= purchase["paid_at"]]
        assert (steps[0], steps[-1], "/checkout" in steps) == ("/cart", "/paid", True)
        assert purchase["paid_at"] - purchase["cart_at"] <= 3600


# All three, with real processes


@pytest.mark.slow  # tests/walk/test_daily_files.py runs files in event-time order every time
@pytest.mark.parametrize("name", ["market_surveillance", "telecom_rating", "clickstream"])
def test_a_real_run_writes_the_bytes_of_a_run_in_this_process(name: str, tmp_path: Path) -> None:
    pipeline: Pipeline = runpy.run_path(str(EXAMPLES / f"{name}.py"))["pipeline"]
    inputs: dict[str, list[Record]]
    runs: list[dict[str, list[Record]]]
    if name == "market_surveillance":
        events, limits, _ = market()
        late = events[3]
        inputs = {"events": [*events, late], "limits": limits}
        runs = [{"events-1": events[:300], "events-2": [*events[300:], late], "limits": limits}]
    elif name == "telecom_rating":
        prices, calls = telephony()
        calls.append({"id": 400, "tariff": "b"})
        inputs = {"prices": prices, "calls": calls}
        runs = [
            {"prices": prices, "calls-1": []},
            {"calls-1": calls},
        ]  # the order of two files is that of their arrival
    else:
        inputs = {"clicks": [*clicked(), {"user": "u1", "page": "/a"}]}
        runs = [inputs]
    for files in runs:
        for file, records in files.items():
            (tmp_path / f"{file}.jsonl").write_text(
                "".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records)
            )
        options = ("--listen", "127.0.0.1:0", "--epoch-records-max", "150")
        done = run_command("run", EXAMPLES / f"{name}.py", *options, cwd=tmp_path)
        assert done.returncode == Status.DONE, done.stderr
    tested = run(pipeline, inputs, epochs=200)
    for sink, expected in tested.bytes.items():
        found = b"".join(committed_output(tmp_path / "out", f"{pipeline.name}-{sink}-0"))
        if sink == "dead-letter":
            assert without_positions(found) == without_positions(expected)
        else:
            assert found == expected, sink
    assert all(tested.bytes.values())


def without_positions(letters: bytes) -> list[Record]:
    """Return dead letters without the positions of their records, which are different in a file."""
    found = [json.loads(letter) for letter in letters.splitlines()]
    return [{name: letter[name] for name in letter if name not in ("stream_id", "message_id")} for letter in found]
