"""Each number with its double: 1 becomes "1:2". What may go wrong with that, `procession semantics` shows."""

from procession import Pipeline


def double(number: str) -> str:
    return f"{number}:{int(number) * 2}"


pipeline = Pipeline("doubler")
pipeline.source("numbers", codec="text").map(double).sink("output", to="file:output")
