"""The dashboard in a real browser, while the driver and the gateway of its pipeline are killed.

With PROCESSION_SCREENSHOTS=1 this run replaces the screenshots of the docs.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from procession.driver.driver import READY, SPARE_READY
from tests.dashboard.browser import Browser, needs_browser, running

PROCESSION = [sys.executable, "-m", "procession"]
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
RATE = 300

APP = '''"""Orders: prices, large orders apart, a total of each customer. An item without a price is a dead letter."""

from typing import Any

from procession import Pipeline


def priced(order: dict[str, Any]) -> dict[str, Any]:
    if order["item"] == 13:
        raise ValueError("item 13 has no price")
    return {**order, "cents": order["item"] * 125}


def summed(total: int, order: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    total += order["cents"]
    return total, {"customer": order["customer"], "total": total}


pipeline = Pipeline("orders", parallelism=2, dead_letter="file:letters")
orders = pipeline.source("orders", codec="json").map(priced, name="priced")
orders.filter(lambda order: order["cents"] > 10_000, name="large").sink("large-orders", to="file:large")
totals = orders.map_stateful(summed, key=lambda order: order["customer"], initial=0, name="totals")
totals.sink("customer-totals", to="file:totals")
'''


class Command:
    """A command of ours in its own process. Its output lines are read as they are printed."""

    def __init__(self, directory: Path, *argv: str) -> None:
        self.lines: list[str] = []
        self._has_new = threading.Condition()
        self.process = subprocess.Popen(
            [*PROCESSION, *argv], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._has_new:
                self.lines.append(line.rstrip())
                self._has_new.notify_all()

    def said(self, pattern: str, timeout_s: float = 120.0) -> str:
        """Wait for a line that matches, and return its first group."""

        def found() -> re.Match[str] | None:
            return next((match for line in list(self.lines) if (match := re.search(pattern, line))), None)

        with self._has_new:
            assert self._has_new.wait_for(found, timeout_s), "\n".join(self.lines)
        match = found()
        assert match is not None
        return match[1]


@contextmanager
def started(directory: Path, *argv: str) -> Iterator[Command]:
    command = Command(directory, *argv)
    try:
        yield command
    finally:
        command.process.send_signal(signal.SIGTERM)
        try:
            command.process.wait(60)
        except subprocess.TimeoutExpired:
            command.process.kill()


def write_orders(path: Path) -> None:
    chance = random.Random(7)
    with path.open("w") as file:
        for number in range(200_000):
            item = 13 if chance.random() < 0.004 else chance.randint(14, 100)
            customer = f"c{int(chance.paretovariate(1)) % 200}"
            file.write(json.dumps({"order": number, "customer": customer, "item": item}) + "\n")


def shown(browser: Browser, name: str, tmp_path: Path) -> None:
    """Take a screenshot, and store it for the docs if requested."""
    browser.screenshot(tmp_path / name)
    if os.environ.get("PROCESSION_SCREENSHOTS"):
        IMAGES.mkdir(exist_ok=True)
        browser.screenshot(IMAGES / name)


def proved(browser: Browser) -> int:
    text = browser.run("return [...document.querySelectorAll('#counts div')].map(e => e.textContent).join('|')")
    found = re.search(r"epoch ([\d,]+)", str(text))
    return -1 if found is None else int(found[1].replace(",", ""))


CLEAN = "return document.querySelector('#outcome')?.textContent === 'Clean'"


@needs_browser
@pytest.mark.timeout(600)
def test_the_page_shows_a_pipeline_that_is_killed_and_operated(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    write_orders(tmp_path / "orders.jsonl")
    directory = tmp_path / ".procession" / "orders"
    with (
        running(tmp_path / "profile") as browser,
        started(tmp_path, "run", "app.py", "--listen", "127.0.0.1:0") as run,
    ):
        link = run.said(r"dashboard: (http://127\.0\.0\.1:\d+/\?secret=\S+)")
        address = run.said(r"connectors send to (\S+?)[,;]")
        with started(tmp_path, "source", "file", "orders.jsonl", "--to", address, "--rate", str(RATE)):
            browser.resize(1360, 1120)
            browser.open(link)
            browser.until(f"{CLEAN} && /rate[1-9]/.test(document.querySelector('#counts').textContent)", "records")
            assert "secret" not in browser.url
            _check_page(browser)
            _kill_parts(browser, directory)
            browser.until("return document.querySelectorAll('#chart rect').length > 150", "bars of epochs")
            browser.until("return document.querySelectorAll('#chart .tick').length >= 2", "marks of both restarts")
            shown(browser, "dashboard.png", tmp_path)
            _read_boxes(browser, tmp_path)
            _operate(browser, directory, tmp_path)
        assert run.process.wait(60) == 0
        refused = [text for text in browser.complaints() if "Content Security Policy" in text or "Uncaught" in text]
        assert refused == []
        _check_ended_run(browser, tmp_path, directory, link)


def _check_page(browser: Browser) -> None:
    browser.until("return document.querySelectorAll('#plan .node').length === 7", "the stages of the plan")
    reasons = browser.run("return [...document.querySelectorAll('#plan .edge')].map(e => e.getAttribute('aria-label'))")
    assert any("priced → totals: partition" in reason for reason in reasons)
    browser.until("return document.querySelectorAll('#sinks tbody tr').length === 3", "three sinks")
    browser.until("return document.querySelector('#streams').textContent.includes('orders')", "the stream")
    assert "violated" not in browser.text("#verdict").lower()


def _kill_parts(browser: Browser, directory: Path) -> None:
    """Check that the page names the part that is away and then continues without losses or duplicates."""
    before = proved(browser)
    for name in (SPARE_READY, READY):  # with a spare the part might return before the next poll of the page
        if (directory / name).exists():
            with suppress(ProcessLookupError):
                os.kill(json.loads((directory / name).read_text())["pid"], signal.SIGKILL)
    browser.until("return !document.querySelector('#bottleneck').hidden", "the part that it waits for")
    assert "driver" in browser.text("#bottleneck")
    os.kill(json.loads((directory / "gateway" / "gateway.json").read_text())["pid"], signal.SIGKILL)
    browser.until(
        "const text = document.querySelector('#processes').textContent;"
        "return text.includes('driverrestarted 1 time') && text.includes('gatewayrestarted 1 time')",
        "both restarts",
    )
    number = "Number(/epoch ([\\d,]+)/.exec(document.querySelector('#counts').textContent)?.[1].replaceAll(',', ''))"
    script = f"{CLEAN} && {number} > {before + 3}"
    browser.until(script, "that it goes on, clean")
    counts = browser.text("#counts")
    for name in ("lost", "doubled", "out of order"):
        assert f"{name}0" in counts


def _read_boxes(browser: Browser, tmp_path: Path) -> None:
    """Check that dead letters, logs and settings load when they are opened, and that the history can be used by
    keyboard."""
    browser.run("document.querySelector('#letters-box').open = true")
    browser.until("return document.querySelector('#letters').textContent.includes('item 13 has no price')", "a letter")
    browser.run("document.querySelector('#logs-box').open = true")
    browser.until(
        "return document.querySelector('#logs').textContent.includes('driver.started')", "an event of the log"
    )
    browser.run("document.querySelector('#settings-box').open = true")
    browser.until("return document.querySelector('#settings').textContent.includes('epoch_interval_s')", "the settings")
    browser.run("document.querySelector('#states button').click()")
    browser.until("return document.querySelector('#largest').textContent.includes('c1')", "the largest states")
    browser.run("document.querySelector('#chart').focus()")
    browser.press("\ue012", "\ue012")  # arrow left
    browser.until("return /^Epoch [\\d,]+, /.test(document.querySelector('#point').textContent)", "an epoch's phases")
    browser.run("for (const box of document.querySelectorAll('details')) box.open = false")
    browser.run("document.querySelector('#theme').click(); document.querySelector('#theme').click()")
    assert browser.run("return document.documentElement.dataset.theme") == "dark"
    shown(browser, "dashboard-dark.png", tmp_path)
    browser.resize(390, 844)
    browser.until("return document.documentElement.scrollWidth <= 390", "a page that fits a phone")
    browser.until("return document.querySelector('#chart').viewBox.baseVal.width < 390", "a chart that fits")
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    shown(browser, "dashboard-phone.png", tmp_path)
    browser.resize(1360, 1120)


def _operate(browser: Browser, directory: Path, tmp_path: Path) -> None:
    """Check that pause, resume, savepoint and drain need the operator's secret and nothing else."""
    secret = (directory / "secrets" / "control").read_text().strip()

    def press(action: str, given: str) -> None:
        browser.run("document.querySelector('#operate').click()")
        browser.run("document.querySelector('#secret').value = arguments[0]", given)
        browser.run(f"document.querySelector('[data-action={action}]').click()")

    press("pause", "wrong")
    browser.until("return document.querySelector('#result').textContent.includes('not the operator')", "a refusal")
    assert browser.text("#state") == "running"
    press("pause", secret)
    browser.until("return document.querySelector('#state').textContent === 'paused'", "the pause")
    browser.until("return document.querySelector('#bottleneck').textContent.includes('paused')", "why it waits")
    press("resume", secret)
    browser.until("return document.querySelector('#state').textContent === 'running'", "that it runs again")
    press("savepoint", secret)
    browser.until("return document.querySelector('#result').textContent === 'savepoint: done'", "the savepoint")
    press("drain", secret)
    browser.until("return document.querySelector('#state').textContent === 'not connected'", "that it has stopped")


def _check_ended_run(browser: Browser, tmp_path: Path, directory: Path, used: str) -> None:
    """Check that a run that has ended is shown by a new link, and that the used link is refused."""
    with started(tmp_path, "dashboard", "--dir", str(directory)) as command:
        browser.open(command.said(r"dashboard: (\S+)"))
        browser.until("return document.querySelector('#state')?.textContent === 'drained'", "that it was drained")
        assert json.loads((directory / "drained.json").read_text())["committed"] > 0
        browser.until(CLEAN, "a clean verdict")
        browser.until("return document.querySelectorAll('#chart rect').length > 30", "the epochs of before")
        browser.until(
            "return document.querySelector('#happened').textContent.includes('driver: was ended')", "restarts"
        )
        port = re.search(r":(\d+)/", browser.url)
        assert port is not None
        browser.open(re.sub(r":\d+/", f":{port[1]}/", used))
        assert "This link was used" in str(browser.run("return document.body.textContent"))
