"""The display of a run in a notebook. tests/walk/test_notebook.py shows it in a real one."""

from __future__ import annotations

from typing import Any

import pytest

from procession.monitoring.notebook_display import NotebookDisplay, as_html, display_here
from procession.monitoring.progress import Display


def test_text_is_escaped_and_links_can_be_followed() -> None:
    shown = as_html({"away": "<b>"}, ['<script> at http://127.0.0.1:1/?secret="a" ended'])
    assert "<td>&lt;b&gt;</td>" in shown
    assert '&lt;script&gt; at <a href="http://127.0.0.1:1/?secret=&quot;a&quot;"' in shown


def test_without_a_notebook_the_display_of_the_command_line_is_used() -> None:
    assert type(display_here()) is Display


def test_one_output_is_updated_and_the_final_one_has_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            assert raw
            bundles.append(bundle)

    def show(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert (raw, display_id) == (True, True)
        return Handle()

    display = NotebookDisplay()
    monkeypatch.setattr(display, "_display", show)
    with display:
        display.say("dashboard: http://127.0.0.1:1/?secret=abc")
        display.say("ready")
        assert "secret=abc" in bundles[-1]["text/html"]
        assert "secret=abc" in bundles[-1]["text/plain"]
    assert "secret" not in "".join(bundles[-1].values())
    assert bundles[-1]["text/plain"] == "ready"
