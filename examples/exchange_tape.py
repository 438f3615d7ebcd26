"""Trades of one exchange, as lines of JSON like {"at_ms": 1700000000000, "symbol": "ABC", "price": 12.5, "amount": 3}.

Each exchange has a pipeline of its own. It writes the value of each trade to two lanes:

    procession run exchange_tape.py --set exchange=north --dir north-state --input north.jsonl
    procession run exchange_tape.py --set exchange=south --dir south-state --input south.jsonl

Any service merges the lanes of both by event time, and every service gets the same sequence:

    procession merge lanes:north lanes:south --by-event-time --to file:tape
"""

from procession import Pipeline


def valued(trade):
    return {"at_ms": trade["at_ms"], "symbol": trade["symbol"], "value": trade["price"] * trade["amount"]}


pipeline = Pipeline("tape", parallelism=2)
exchange = pipeline.setting("exchange", str, default="north")
trades = pipeline.source("trades", codec="json").add_timestamps(lambda trade: trade["at_ms"], unit="ms")
trades.rebalance().map(valued).sink("trades", to=f"lanes:{exchange}", lanes=2)
