"""Pipeline.run in a real Jupyter kernel: functions defined in cells run on Spark, and an interrupt stops the run."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tests.walk.commands import MARK, TIMEOUT_S, living

DEFINED = """
from procession import Pipeline, aggregates
import beside

least = 100
pipeline = Pipeline("large-orders", dead_letter="file:output")
orders = pipeline.source("orders", codec="json")

def is_large(order):
    return order["cents"] >= least

large = orders.filter(is_large).map(lambda order: beside.name(order))
large.sink("large", to="file:output")
orders.rolling(aggregates.count(), key=lambda order: order["shop"]).sink("counts", to="file:output")
"""
RUN = """
found = pipeline.run({"orders": [
    {"id": 1, "shop": "north", "cents": 50}, {"id": 2, "shop": "north", "cents": 500}, {"id": 3}
]})
display(found)
"""
SHOWN = """
import os, sys
print(found.is_done, found["large"], found["counts"], sorted(found), len(found["dead-letter"]))
print("procession_app" in sys.modules, "PYTHONPATH" in os.environ, sorted({*os.listdir(".")} - {"__pycache__"}))
place = found.directory
del found
print(place.exists())
"""
ENDLESS = """
stopped = pipeline.run(directory="kept")
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "beside.py").write_text("def name(order):\n    return f\"order {order['id']}\"\n")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv(MARK, mark := uuid.uuid4().hex)
    return mark


def test_a_notebook_runs_the_pipeline_of_its_cells_and_shows_it(tmp_path: Path, mark: str) -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (DEFINED, RUN, SHOWN)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=int(TIMEOUT_S), kernel_name="python3").execute(cwd=str(tmp_path / "work"))
    shown, result = notebook.cells[1].outputs
    assert shown.output_type == "display_data"
    assert "<th>committed</th>" in shown.data["text/html"]
    assert "records in 3, committed 3, " in shown.data["text/plain"]
    assert "verdict clean" in shown.data["text/plain"]
    assert "secret=" not in shown.data["text/html"]
    assert "3 of 3 records committed" in result.data["text/plain"]
    first, second, third = notebook.cells[2].outputs[0].text.splitlines()
    assert first == "True ['order 2'] [1, 2] ['counts', 'dead-letter', 'large'] 2"
    assert second == "False False ['beside.py']", "nothing is left in the kernel or beside the notebook"
    assert third == "False", "the directory of the run goes with it"
    assert living(mark) == [], "processes were left behind"


@pytest.mark.slow
def test_an_interrupt_of_the_cell_stops_the_pipeline_and_the_next_run_continues(tmp_path: Path, mark: str) -> None:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path / "work"), env=dict(os.environ))
    client = manager.client()
    client.start_channels()
    seen: list[str] = []

    def hook(message: Any) -> None:
        text = str(message["content"].get("data", {}).get("text/plain", "")) + message["content"].get("text", "")
        if "ready: connectors send" in text and not any("ready: connectors send" in one for one in seen):
            manager.interrupt_kernel()
        seen.append(text)

    def run(code: str) -> Any:
        return client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=hook)["content"]

    try:
        client.wait_for_ready(timeout=60)
        assert run(DEFINED)["status"] == "ok"
        assert run(ENDLESS)["status"] == "ok", seen
        run("print(stopped.is_done, stopped.figures['committed'])")
        assert any("dashboard: http://" in text for text in seen), "the link is there while it runs"
        assert "False 0" in seen[-1] + seen[-2]
        assert len(living(mark)) == 1, "the kernel alone is left"
        run("again = pipeline.run({'orders': [{'id': 1, 'shop': 'a', 'cents': 500}]}, directory='kept')")
        run("print(again.is_done, again['large'], __import__('os').path.isdir('output'))")
        assert "True ['order 1'] True" in "".join(seen[-3:])
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
