"""The gateways of a chaos run: reads their status and makes them join and leave.

Invariant: no call blocks on a gateway. A gateway whose process does not run is not asked; a gateway that does not
answer immediately is asked again at the next poll. Uses `gateway/control_client`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from procession.address import Address
from procession.chaos.chaos_supervisor import ChaosSupervisor
from procession.chaos.scenario import GATEWAY, GATEWAYS, THIRD
from procession.deployment.local_pipeline import COMMAND
from procession.errors import ProcessionError
from procession.gateway.control_client import ControlClient
from procession.gateway.listen_address import ADDRESS_FILE

BEHIND = "127.0.0.3"
"""Host where gateways listen, at the same ports as their proxies. They advertise the proxies' host, so that every
connection goes through a proxy. No other program uses this host, so its ports are free."""
STATUS_TIMEOUT_S = 0.3

Answer = TypeVar("Answer")


class GatewayProxies(NamedTuple):
    """The proxies of a gateway: for producers, for the driver, and, to the leader, for the other gateways."""

    listen: Address
    control: Address
    leader: Address


class ChaosGateways:
    def __init__(self, directory: Path, supervisor: ChaosSupervisor) -> None:
        self._directory = directory
        self._supervisor = supervisor
        self._clients = {
            name: ControlClient(directory / name, timeout_s=STATUS_TIMEOUT_S) for name in (*GATEWAYS, THIRD)
        }

    def announcement(self, name: str) -> Path:
        """Return the file in which a gateway announces that it is ready, and its address."""
        return self._directory / name / ADDRESS_FILE

    def argv(self, name: str, proxies: GatewayProxies) -> list[str]:
        """Return the command of a gateway behind these proxies. All other gateways join the first."""
        argv = [*COMMAND, "gateway", "--dir", str(self._directory / name), "--advertise", proxies.listen.host]
        argv += ["--listen", str(Address(BEHIND, proxies.listen.port))]
        argv += ["--control", str(Address(BEHIND, proxies.control.port))]
        return argv if name == GATEWAY else [*argv, "--join", str(proxies.leader), "--name", name]

    @property
    def names(self) -> list[str]:
        """The current members, including those whose process does not run at the moment."""
        return [name for name in self._clients if self._supervisor.has(name) and not self._is_gone(name)]

    def _is_gone(self, name: str) -> bool:
        return self._supervisor.is_done(name) and name not in self._supervisor.held

    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the status of each gateway that answers."""
        answers = {name: self._ask(name, ControlClient.status) for name in self.names}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def has_joined(self, name: str) -> bool:
        """Return whether the leader lists the gateway and is connected to it."""
        listed = self._ask(GATEWAY, ControlClient.gateways) or []
        return any(member["name"] == name and member["is_connected"] for member in listed)

    def let_go(self, name: str) -> bool:
        """Ask the leader to remove the gateway. Return whether the request arrived."""

        def leave(leader: ControlClient) -> bool:
            leader.leave(name)
            return True

        return bool(self._ask(GATEWAY, leave))

    def _ask(self, name: str, question: Callable[[ControlClient], Answer]) -> Answer | None:
        if self._supervisor.pid(name) is None:
            return None
        try:
            return question(self._clients[name])
        except ProcessionError:
            self._clients[name].close()
            return None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
