"""The declared order of streams, and what an app must declare of its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from procession import Pipeline
from procession.connectors.file_source import FileSource
from procession.driver.stream_order import check_inputs
from procession.errors import ConfigError


def test_a_file_that_no_source_declares_by_its_path_is_named_before_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    files = FileSource([path]).paths
    for declared, order_by in ((path, "event_time"), ("a.jsonl", "event_time"), ("a.jsonl", "arrival")):
        pipeline = Pipeline("p", order_by=order_by)  # type: ignore[arg-type]
        pipeline.source("s", streams=[declared]).sink("o", to="file:o")
        if declared == path or order_by == "arrival":
            check_inputs(pipeline.graph(), files)
            continue
        with pytest.raises(ConfigError, match=f"no source declares the file {path}") as caught:
            check_inputs(pipeline.graph(), files)
        assert f"streams=[Path('{path}')]" in caught.value.next_step
