"""The work of `procession bench loop` as in a small job: parses fields, computes a number and formats a line."""

from procession import Pipeline
from procession.bench.peers.fields import is_wanted, marked, parted

pipeline = Pipeline("by-fields", parallelism=2)
(pipeline.source("lines").filter(is_wanted).map(parted).rebalance().map(marked).sink("output", to="file:output"))
