"""Pipeline.run: what it refuses before anything starts. tests/walk/test_notebook.py runs pipelines with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from procession import Pipeline, ProcessionError
from procession.jobs.pipeline_run import PROGRAM
from procession.storage.process_lock import locked
from procession.testing import with_settings


def declared(from_: str | None = None) -> Pipeline:
    pipeline = Pipeline("declared")
    pipeline.setting("threshold", float, default=1)
    pipeline.source("orders", from_=from_, codec="json").sink("out", to="file:output")
    return pipeline


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (None, {}, "and no directory to continue from"),
        ({"order": []}, {}, "has no source 'order'"),
        ({"orders": [{1, 2}]}, {}, "cannot be given"),
        ({"orders": [1]}, {"event_time_field": "at"}, "event_time_field is for files"),
        ({"orders": [1]}, {"event_time_unit": "weeks"}, "weeks"),
        ({"orders": [1]}, {"epoch_intervals": 3}, "there is no setting 'epoch_intervals'"),
        (["missing.jsonl"], {}, "missing.jsonl"),
    ],
)
def test_an_invalid_call_of_run_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Any, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProcessionError, match=message):
        declared().run(inputs, **options)


def test_records_for_a_source_that_reads_a_url_are_refused() -> None:
    with pytest.raises(ProcessionError, match="reads file:"):
        declared("file:orders.jsonl").run({"orders": [1]}, directory="unused")


def test_a_value_of_a_setting_that_would_be_ignored_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCESSION_APP_THRESHOLD", "5")
    with pytest.raises(ProcessionError, match="PROCESSION_APP_THRESHOLD sets 'threshold'"):
        declared().run({"orders": [1]})
    with with_settings(threshold=5):
        given = declared()
    with pytest.raises(ProcessionError, match="has no source"):
        given.run({"order": []})


def test_a_directory_whose_pipeline_runs_keeps_its_program(tmp_path: Path) -> None:
    (tmp_path / PROGRAM).mkdir()

    def never() -> Any:
        raise AssertionError

    with locked(tmp_path / PROGRAM / "lock", never), pytest.raises(ProcessionError, match=r"runs in .* already"):
        declared().run({"orders": [1]}, directory=tmp_path)
    assert [path.name for path in (tmp_path / PROGRAM).iterdir()] == ["lock"]
