"""Write the input unchanged, like `cat`, but in parallel and with recovery after a kill."""

from procession import Pipeline

pipeline = Pipeline("passthrough")
pipeline.source("lines").sink("output", to="file:output")
