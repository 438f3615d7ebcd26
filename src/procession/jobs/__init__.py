"""Job control: runs, submits, pauses, drains and upgrades whole pipelines."""
