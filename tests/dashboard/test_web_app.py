"""The web application on a real port: its answers, who receives them, and the answer to a client that reconnects."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from procession.commit.checkpoint import Checkpoint
from procession.dashboard import feed
from procession.dashboard.access import Sessions, own_hosts
from procession.dashboard.web_app import web_app
from procession.driver.epoch_log import EpochLog
from tests.driver.test_driver_reports import outcome_of

LINK = "the-link"
CONTROL = b"the-operators-secret"
EPOCHS = 20


@dataclass
class Visitor:
    """A client of the server, with or without a cookie."""

    port: int
    cookie: str = ""

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            given = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, headers=given | {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def json(self, path: str) -> Any:
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def events(self, count: int, last_id: str = "") -> list[dict[str, str]]:
        """Return the first events of the feed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Cookie": self.cookie} | ({"Last-Event-ID": last_id} if last_id else {})
            connection.request("GET", "/events", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200
            found: list[dict[str, str]] = [{}]
            while len(found) <= count:
                line = answer.fp.readline().decode().rstrip("\r\n")
                name, _, value = line.partition(": ")
                if line and name and answer.chunked and name in ("event", "id", "data"):
                    found[-1][name] = value
                elif not line and found[-1].get("data"):
                    found.append({})
            return found[:count]
        finally:
            connection.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a pipeline that ran for some epochs."""
    checkpoint = Checkpoint.claim(tmp_path / "checkpoint", name="orders", fingerprint="f", endpoints={})
    log = EpochLog(tmp_path / "epochs.jsonl", checkpoint=checkpoint.id)
    for epoch in range(EPOCHS):
        log.add(outcome_of(epoch))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "driver.log").write_text("2026-01-01T00:00:00.1Z [info     ] driver.started fence=1\nplain\n")
    (tmp_path / "run-details.json").write_text(json.dumps({"app": "app.py", "settings": {"gateways": 1}}))
    return tmp_path


@pytest.fixture
def stranger(directory: Path) -> Iterator[Visitor]:
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    app = web_app(
        directory, Sessions(directory, b"key", LINK), own_hosts("127.0.0.1", port), "procession", CONTROL, None
    )
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        yield Visitor(port)
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def visitor(stranger: Visitor) -> Visitor:
    status, headers, _ = stranger.ask(f"/?secret={LINK}")
    assert status == 200
    return Visitor(stranger.port, headers["set-cookie"].partition(";")[0])


PATHS = ["/", "/?nosecret=1", "/events", "/static/page.js"]
PATHS += [
    f"/api/{name}" for name in ("snapshot", "streams", "history", "letters", "logs", "states", "settings", "plan")
]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_link_every_request_is_refused(stranger: Visitor, path: str) -> None:
    assert stranger.ask(path)[0] == 401


def test_the_link_gives_a_strict_cookie_once(stranger: Visitor) -> None:
    _, headers, _ = stranger.ask(f"/?secret={LINK}")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    status, headers, _ = stranger.ask(f"/?secret={LINK}")
    assert status == 401
    assert "set-cookie" not in headers


def test_the_page_and_its_modules_load_nothing_from_elsewhere(visitor: Visitor) -> None:
    for path in (
        "/",
        "/static/page.js",
        "/static/plan.js",
        "/static/chart.js",
        "/static/format.js",
        "/static/style.css",
    ):
        status, headers, body = visitor.ask(path)
        assert status == 200
        assert "default-src 'none'" in headers["content-security-policy"]
        text = body.decode().replace("http://www.w3.org/2000/svg", "")  # an XML namespace, which is not loaded
        assert "//" not in "".join(line for line in text.splitlines() if "http" in line)
        assert "https:" not in text


def test_a_pipeline_that_ran_is_shown_with_its_verdict_and_history(visitor: Visitor) -> None:
    found = visitor.json("/api/snapshot")
    assert (found["pipeline"], found["state"]) == ("orders", "stopped")
    assert found["verdict"]["proved_epoch"] == EPOCHS - 1
    history = visitor.json("/api/history")
    assert [point["epoch"] for point in history["points"]] == list(range(EPOCHS))
    assert visitor.json("/api/history?from=nonsense&to=1")["points"] == []
    assert visitor.json("/api/settings")["settings"] == {"gateways": 1}


def test_secrets_among_the_properties_of_spark_are_not_shown(visitor: Visitor, directory: Path) -> None:
    names = ("fs.s3a.secret.key", "fs.s3a.session.token", "jdbc.password", "store.credentials")
    conf = {f"spark.hadoop.{name}": "hidden" for name in names} | {"spark.executor.memory": "4g"}
    (directory / "run-details.json").write_text(json.dumps({"app": "app.py", "settings": {"conf": conf}}))
    found = visitor.json("/api/settings")
    assert "hidden" not in json.dumps(found)
    assert found["settings"]["conf"]["spark.executor.memory"] == "4g"


def test_logs_are_parsed_into_events_and_no_other_file_can_be_read(visitor: Visitor, directory: Path) -> None:
    (directory / "secret.log").write_text("secret")
    found = visitor.json("/api/logs?part=driver")
    assert [(line["event"], line["level"]) for line in found["lines"]] == [("", ""), ("driver.started", "info")]
    assert visitor.json("/api/logs?part=../secret")["lines"] == []
    assert visitor.ask("/static/../web_app.py")[0] == 404


def test_a_client_that_reconnects_gets_the_epochs_that_it_missed(visitor: Visitor) -> None:
    epochs, snapshot = visitor.events(2)
    assert (epochs["event"], snapshot["event"]) == ("epochs", "snapshot")
    assert [point["epoch"] for point in json.loads(epochs["data"])] == list(range(EPOCHS))
    assert json.loads(snapshot["data"])["pipeline"] == "orders"
    checkpoint, _, last = epochs["id"].partition(":")
    assert last == str(EPOCHS - 1)
    (missed,) = visitor.events(1, f"{checkpoint}:{EPOCHS - 3}")
    assert [point["epoch"] for point in json.loads(missed["data"])] == [EPOCHS - 2, EPOCHS - 1]
    (none,) = visitor.events(1, epochs["id"])
    assert none["event"] == "snapshot"
    (other,) = visitor.events(1, f"another:{EPOCHS}")
    assert len(json.loads(other["data"])) == EPOCHS


def test_more_pages_than_allowed_are_refused(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "CLIENTS_MAX", 0)
    assert visitor.ask("/events")[0] == 503


def test_the_operators_secret_is_needed_to_change_anything(visitor: Visitor) -> None:
    origin = f"http://127.0.0.1:{visitor.port}"
    assert visitor.ask("/api/actions/pause", "POST", X_Operator_Secret=CONTROL.decode())[0] == 403  # no origin
    assert visitor.ask("/api/actions/pause", "POST", Origin=origin)[0] == 403
    assert visitor.ask("/api/actions/pause", "POST", Origin=origin, X_Operator_Secret="wrong")[0] == 403
    assert visitor.json("/api/action")["state"] == "none"
    given = {"Origin": origin, "X_Operator_Secret": CONTROL.decode()}
    assert visitor.ask("/api/actions/erase", "POST", **given)[0] == 404
    assert visitor.ask("/api/actions/pause", "POST", **given)[0] == 202
    while (done := visitor.json("/api/action"))["state"] == "running":
        pass
    assert (done["state"], done["sentence"].startswith("No pipeline runs")) == ("failed", True)
