"""Alerts for large values, as lines of JSON like {"sensor": "s1", "value": 7.5}. The limits are settings: run it with
`--set limit=50`, with PROCESSION_APP_LIMIT=50, or with `limit = 50` under `[app]` in procession.toml. A reusable piece
finds what is above a limit for several records in a row."""

from typing import Any

from procession import Pipeline, Stage

pipeline = Pipeline("value-alerts", parallelism=2)
limit = pipeline.setting("limit", float, default=80)
rows = pipeline.setting("rows", int, default=2)


def sustained(readings: Stage, limit: float, rows: int) -> Stage:
    """Readings above the limit, if the sensor's last ones were above it too."""

    def count(above: int, reading: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
        above = above + 1 if reading["value"] > limit else 0
        return above, [{**reading, "limit": limit, "rows": above}] if above >= rows else []

    return readings.flat_map_stateful(count, key=lambda reading: reading["sensor"], initial=0, name="rows")


readings = pipeline.source("readings", codec="json")
high = readings.apply(sustained, limit, rows, name="high")
far = readings.apply(sustained, limit * 1.5, 1, name="far-above")
high.merge(far).sink("alerts", to="file:output")
