"""The demo's app: what comes in goes out. Like `cat`, but in parallel, and it survives being killed."""

from procession import Pipeline

pipeline = Pipeline("demo", parallelism=2)
pipeline.source("lines").sink("output", to="file:output")
