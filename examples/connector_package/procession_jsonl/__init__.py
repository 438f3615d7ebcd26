"""A connector in its own package: `to="jsonl:DIR"` writes records as JSON lines, one file for each epoch.

This module is imported by the planner. It imports no client library.
"""

from procession.planner.connector import Connector, SinkTraits

CONNECTOR = Connector(
    name="jsonl",
    form="jsonl:DIR",
    sink=SinkTraits(
        help="Write each committed epoch to a file of JSON lines.",
        check=lambda url: url.check_options({"prefix"}),
        arguments=lambda url, directory: [url.place, str(directory), "--prefix", url.options.get("prefix", "part")],
    ),
    commands="procession_jsonl.commands",
)
