"""Each line becomes the number of its words."""

from procession import Pipeline

pipeline = Pipeline("words-per-line")
lines = pipeline.source("lines", codec="text")
lines.map(lambda line: str(len(line.split()))).sink("output", to="file:output")
