"""The gateways of a chaos run: the harness asks for their state and lets them join and leave.

The one rule: nobody is waited for who is not there. A gateway whose process is away is not asked at all, and one that
does not answer at once is asked again at the next look. Before it `chaos/chaos_cluster`; after it
`gateway/control_client`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from procession.address import Address
from procession.chaos.chaos_supervisor import ChaosSupervisor
from procession.chaos.scenario import GATEWAY, GATEWAYS, THIRD
from procession.errors import ProcessionError
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE
from procession.supervisor.local_pipeline import COMMAND

BEHIND = "127.0.0.3"
"""Where gateways listen, each at the ports of its proxies: to others it says their host, so that whoever hears from the
leader where a gateway is comes through its proxies. Nobody else is at that host, so the ports stay free for it."""
STATUS_TIMEOUT_S = 0.3

Answer = TypeVar("Answer")


class GatewayProxies(NamedTuple):
    """The proxies that stand before a gateway: for producers, for the driver; and the one before the leader, for the
    other gateways."""

    listen: Address
    control: Address
    leader: Address


class ChaosGateways:
    def __init__(self, directory: Path, stage: ChaosSupervisor) -> None:
        self._directory = directory
        self._stage = stage
        self._clients = {
            name: ControlClient(directory / name, timeout_s=STATUS_TIMEOUT_S) for name in (*GATEWAYS, THIRD)
        }

    def announcement(self, name: str) -> Path:
        """Where a gateway says that it is ready, and where."""
        return self._directory / name / ADDRESS_FILE

    def argv(self, name: str, doors: GatewayProxies) -> list[str]:
        """How it is started, behind these doors; all but the first join that one."""
        argv = [*COMMAND, "gateway", "--dir", str(self._directory / name), "--advertise", doors.listen.host]
        argv += ["--listen", str(Address(BEHIND, doors.listen.port))]
        argv += ["--control", str(Address(BEHIND, doors.control.port))]
        return argv if name == GATEWAY else [*argv, "--join", str(doors.leader), "--name", name]

    @property
    def names(self) -> list[str]:
        """Those that there are, be they away for the moment."""
        return [name for name in self._clients if self._stage.has(name) and not self._is_gone(name)]

    def _is_gone(self, name: str) -> bool:
        return self._stage.is_done(name) and name not in self._stage.held

    def statuses(self) -> dict[str, dict[str, Any]]:
        """What each says that answers."""
        answers = {name: self._ask(name, ControlClient.status) for name in self.names}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def has_joined(self, name: str) -> bool:
        """Whether the leader has it on its list, and is connected with it."""
        listed = self._ask(GATEWAY, ControlClient.gateways) or []
        return any(one["name"] == name and one["is_connected"] for one in listed)

    def let_go(self, name: str) -> bool:
        """Ask the leader to let it go; whether it has heard that."""

        def leave(leader: ControlClient) -> bool:
            leader.leave(name)
            return True

        return bool(self._ask(GATEWAY, leave))

    def _ask(self, name: str, question: Callable[[ControlClient], Answer]) -> Answer | None:
        if self._stage.pid(name) is None:
            return None
        try:
            return question(self._clients[name])
        except ProcessionError:
            self._clients[name].close()
            return None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
