"""Readings of sensors, as lines of JSON like {"sensor": "s1", "celsius": 81}. Each line is decoded once: readings above
80 degrees, other readings and lines that are no JSON go to three outputs."""

import json
from typing import Any

from procession import Pipeline


def checked(line: str) -> tuple[str, Any]:
    """The name of the output, and what goes there."""
    try:
        reading = json.loads(line)
    except ValueError as error:
        return "broken", {"line": line, "reason": str(error)}
    return "hot" if reading["celsius"] > 80 else "normal", reading


def output_of(pair: tuple[str, Any]) -> str:
    return pair[0]


def value_of(pair: tuple[str, Any]) -> Any:
    return pair[1]


pipeline = Pipeline("readings", parallelism=2)
lines = pipeline.source("lines", codec="text")
hot, normal, broken = lines.map(checked).split(output_of, "hot", "normal", "broken", value=value_of)
hot.sink("hot", to="file:output", codec="json")
normal.sink("normal", to="file:output", codec="json")
broken.sink("broken", to="file:output", codec="json")
