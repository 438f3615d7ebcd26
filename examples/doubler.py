"""Each number with its double: 1 becomes "1:2". Run as a program, it prints the problems that its plan has."""

from procession import Pipeline


def double(number: str) -> str:
    return f"{number}:{int(number) * 2}"


pipeline = Pipeline("doubler")
pipeline.source("numbers", codec="text").map(double).sink("output", to="file:output")

if __name__ == "__main__":
    from procession.cli.semantics_command import five_cases

    print(five_cases())
