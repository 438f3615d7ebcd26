"""Drives Chromium over the WebDriver protocol (https://www.w3.org/TR/webdriver2/).

If Chromium cannot be started, the tests fail and say so, unless `PROCESSION_WITHOUT` names `browser`.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "browser"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
PATIENCE_S = 120.0

is_left_out = "browser" in os.environ.get("PROCESSION_WITHOUT", "").replace(" ", "").split(",")
needs_browser = pytest.mark.skipif(is_left_out, reason="PROCESSION_WITHOUT names browser")


class Browser:
    """A window of the browser."""

    def __init__(self, port: int, chromium: str, profile: Path) -> None:
        self._port = port
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
        arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
        arguments += ["--disable-dev-shm-usage", "--force-device-scale-factor=1", f"--user-data-dir={profile}"]
        options = {"binary": chromium, "args": arguments}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._at = f"/session/{session['sessionId']}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            content = None if method == "GET" else json.dumps(body if body is not None else {})
            connection.request(method, path, content, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value and "stacktrace" in value:
            raise AssertionError(f"{value['error']}: {value['message']}")
        return value

    def open(self, url: str) -> None:
        self._ask("POST", f"{self._at}/url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._ask("GET", f"{self._at}/url"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self._ask("POST", f"{self._at}/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def until(self, script: str, what: str, timeout_s: float = PATIENCE_S) -> Any:
        """Wait until the script returns something true, and return it."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.run(script)):
            assert time.monotonic() < deadline, f"the page does not show {what}: {self.text('main')[:2000]}"
            time.sleep(0.1)
        return found

    def press(self, *keys: str) -> None:
        actions = [
            action for key in keys for action in ({"type": "keyDown", "value": key}, {"type": "keyUp", "value": key})
        ]
        self._ask("POST", f"{self._at}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def resize(self, width: int, height: int) -> None:
        """Set the size of the page itself, which may be narrower than a window can be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        body = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        self._ask("POST", f"{self._at}/goog/cdp/execute", body)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self._at}/screenshot")))

    def complaints(self) -> list[str]:
        """Return the errors that the page has caused, including refusals by its Content-Security-Policy."""
        lines = self._ask("POST", f"{self._at}/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] == "SEVERE"]

    def close(self) -> None:
        self._ask("DELETE", self._at)


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile, and yield it."""
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    chromium, driver = done.stdout.split()
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = next(
                int(found[1]) for line in process.stdout if (found := re.search(r"successfully on port (\d+)", line))
            )
            browser = Browser(port, chromium, profile)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
