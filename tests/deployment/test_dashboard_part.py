"""The dashboard of a run uses no resources until the link is opened, and never fails the run."""

from __future__ import annotations

import socket
import sys
from contextlib import closing
from pathlib import Path

from procession.deployment.dashboard_part import LINK_VARIABLE, DashboardPort
from procession.deployment.settings import Settings
from procession.supervisor.part import Part
from procession.supervisor.restart_policy import RestartPolicy
from procession.supervisor.supervisor import Supervisor


class Starts(Supervisor):
    """Records what it is told to start."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def start(self, part: Part) -> None:
        self.parts.append(part)


def test_the_process_starts_with_the_first_visitor_and_once(tmp_path: Path) -> None:
    supervisor = Starts()
    with closing(DashboardPort(Settings(), tmp_path)) as dashboard:
        address, _, secret = dashboard.sentence.removeprefix("dashboard: http://").partition("/?secret=")
        host, _, port = address.partition(":")
        assert host == "127.0.0.1"
        dashboard.poll(supervisor)
        assert supervisor.parts == []
        with socket.create_connection((host, int(port))):
            dashboard.poll(supervisor)
            dashboard.poll(supervisor)
        (part,) = supervisor.parts
        assert part.env[LINK_VARIABLE] == secret
        assert secret not in " ".join(part.argv)
        assert part.pass_fds
        assert not part.is_needed


def test_a_port_in_use_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        settings = Settings(dashboard_listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with closing(DashboardPort(settings, tmp_path)) as dashboard:
            assert dashboard.sentence.startswith(f"no dashboard: {settings.dashboard_listen} cannot be used")
            dashboard.poll(Starts())


def test_an_invalid_address_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with closing(DashboardPort(Settings(dashboard_listen="nowhere"), tmp_path)) as dashboard:
        assert dashboard.sentence.startswith("no dashboard: nowhere cannot be used")


def test_without_a_dashboard_nothing_listens(tmp_path: Path) -> None:
    with closing(DashboardPort(Settings(dashboard=False), tmp_path)) as dashboard:
        assert dashboard.sentence == ""
        dashboard.poll(Starts())


def test_an_optional_part_may_fail_permanently(tmp_path: Path) -> None:
    said: list[str] = []
    restarts: list[tuple[str, str]] = []
    policy = RestartPolicy(delay_first_s=0.01, deaths_max=2)
    with Supervisor(tmp_path, policy, said.append, lambda part, how: restarts.append((part, how))) as supervisor:
        supervisor.start(Part("stays", (sys.executable, "-c", "import time; time.sleep(60)")))
        supervisor.start(Part("fails", (sys.executable, "-c", "raise SystemExit(1)"), is_needed=False))
        while not supervisor.is_done("fails"):
            assert supervisor.watch(0.05)
        assert supervisor.pid("stays") is not None
    assert restarts[0] == ("fails", "ended with status 1")
    assert "fails keeps failing" in said[-1] or any("fails keeps failing" in line for line in said)
