"""Lines of JSON like {"host": "a", "bytes": 7}: each host's lines in one task, large ones looked up, all in order."""

import asyncio
from typing import Any

from procession import Pipeline


async def owner_of(line: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.001)  # a slow service
    return {**line, "owner": line["host"].upper()}


pipeline = Pipeline("busy-hosts", parallelism=2)
lines = pipeline.source("lines", codec="json")
large = lines.filter(lambda line: line["bytes"] > 1000).rebalance(lambda line: line["host"]).map_async(owner_of)
small = lines.filter(lambda line: line["bytes"] <= 1000)
small.merge(large).sink("all", to="file:output")
