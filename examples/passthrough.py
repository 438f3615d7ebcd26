"""What comes in goes out: like `cat`, but in parallel, and it survives being killed."""

from procession import Pipeline

pipeline = Pipeline("passthrough")
pipeline.source("lines").sink("output", to="file:output")
