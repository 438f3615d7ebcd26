"""Clicks as lines of JSON like {"user": "u1", "at": 1700000000, "page": "/a"}: visits, and pages a minute."""

from procession import Pipeline, aggregates, windows

pipeline = Pipeline("visits", parallelism=2)
clicks = pipeline.source("clicks", codec="json")
visits = clicks.window(
    windows.session(30),
    aggregates.all_of(clicks=aggregates.count(), first=aggregates.min_by(lambda click: click["at"])),
    key=lambda click: click["user"],
    time=lambda click: click["at"],
    lateness_s=5,
    name="sessions",
)
visits.sink("visits", to="file:output")
