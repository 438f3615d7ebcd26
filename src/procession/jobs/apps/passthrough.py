"""The demo's app: copies its input to its output. Like `cat`, but parallel, and it survives kills of its
processes."""

from procession import Pipeline

pipeline = Pipeline("demo", parallelism=2)
pipeline.source("lines").sink("output", to="file:output")
