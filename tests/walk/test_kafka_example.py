"""The example with Kafka and PostgreSQL, as a user runs it: real servers, and the contents of both outputs."""

from __future__ import annotations

import json
import random
import runpy
from collections.abc import Iterable
from pathlib import Path

import pytest

from procession.testing import run as run_here
from tests.systems import kafka_broker, postgres_server
from tests.systems.kafka_broker import needs_kafka
from tests.systems.postgres_server import needs_postgres
from tests.walk.commands import run

pytestmark = [needs_kafka, needs_postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kafka_trade_surveillance.py"


def test_every_wash_trade_is_reported_once_in_the_topic_and_in_the_table(tmp_path: Path) -> None:
    chance = random.Random(7)
    trades = [
        {
            "id": f"t{number}",
            "symbol": chance.choice("ABC"),
            "trader": chance.choice(["ann", "bob"]),
            "side": chance.choice(["buy", "sell"]),
            "price": chance.randint(1, 3),
            "quantity": 10,
        }
        for number in range(400)
    ]
    with kafka_broker.running() as kafka, postgres_server.running() as server:
        database = postgres_server.new_database(server)
        database.execute("CREATE TABLE alerts (id text PRIMARY KEY, symbol text, trader text)")
        kafka.topic("trades", partitions=2)
        kafka.topic("alerts", partitions=2)
        for number, symbol in enumerate("ABC"):
            values = [json.dumps(trade).encode() for trade in trades if trade["symbol"] == symbol]
            kafka.publish("trades", values, [symbol.encode()] * len(values), partition=number % 2)
        expected = expected_alerts(trades)
        tested = run_here(runpy.run_path(str(EXAMPLE))["pipeline"], {"trades": trades}).bytes["topic"]
        messages = tested.replace(b"}{", b"}\n{").splitlines()  # messages have no delimiter
        environment = {
            "SURVEILLANCE_KAFKA": kafka.server.address,
            "SURVEILLANCE_DATABASE": database.url,
            "SURVEILLANCE_OPTIONS": "?stop_at_end=true",
        }
        for _ in range(2):  # the second run finds everything committed
            done = run("run", EXAMPLE, "--listen", "127.0.0.1:0", cwd=tmp_path, **environment)
            assert done.returncode == 0, done.stderr + done.stdout
            written = [value or b"" for value in kafka.values("alerts")]
            assert by_symbol(map(json.loads, written)) == by_symbol(expected)
            for symbol in "ABC":  # byte for byte
                assert of_symbol(symbol, written) == of_symbol(symbol, messages)
            rows = database.execute("SELECT id, symbol, trader FROM alerts")
            assert sorted(rows) == sorted((alert["id"], alert["symbol"], alert["trader"]) for alert in expected)


def expected_alerts(trades: list[dict[str, object]]) -> list[dict[str, object]]:
    recent: dict[object, list[tuple[object, ...]]] = {}
    found = []
    for trade in trades:
        seen = recent.setdefault(trade["symbol"], [])
        other = "sell" if trade["side"] == "buy" else "buy"
        if (trade["trader"], other, trade["price"], trade["quantity"]) in seen[-20:]:
            found.append({name: trade[name] for name in ("id", "symbol", "trader")})
        seen.append((trade["trader"], trade["side"], trade["price"], trade["quantity"]))
    return found


def by_symbol(alerts: Iterable[dict[str, object]]) -> dict[object, list[dict[str, object]]]:
    found = list(alerts)
    return {symbol: [alert for alert in found if alert["symbol"] == symbol] for symbol in "ABC"}


def of_symbol(symbol: str, written: list[bytes]) -> list[bytes]:
    return [value for value in written if json.loads(value)["symbol"] == symbol]
