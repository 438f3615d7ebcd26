"""Another user of the machine attacks a running pipeline with default settings, at every port that it opens and at
every file that it writes. The umask of the user who started it lets everybody read.

The attacker is `nobody`: a process that root forks and that drops its privileges. If the tests do not run as root, the
attacker is the same user without any secret; then ports are attacked in the same way, and files are checked by their
modes.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401  (the attacker cannot read the files of this Python, and needs it to connect)
import json
import multiprocessing
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from procession.address import Address, SocketFile, connected_file
from procession.gateway.control_client import ControlClient
from procession.storage.secret import Secret, find_secret, path_of
from procession.wire import two_phase_commit, v3
from procession.wire.frame_codec import Framer
from procession.wire.messages import (
    DATA_STREAM,
    Error,
    Hello,
    Message,
    Notify,
    Ok,
    Phase1,
    Phase2,
)
from tests.walk.cluster import committed, read_json, wait_for
from tests.walk.commands import all_pids, running

APP = """
from procession import Pipeline

pipeline = Pipeline("attacked", parallelism=1)
pipeline.source("lines").sink("output", to="file:output")
"""
OF_A_PIPELINE = [secret for secret in Secret if secret is not Secret.SOS]  # an object service has its own directory
RECORDS = 20_000
FORGED = b"a forged record\n"
ANSWER_TIMEOUT_S = 20.0
FORK = multiprocessing.get_context("fork")
IS_ROOT = os.geteuid() == 0


class Attacked:
    """A running pipeline, and what an attacker can find out about it."""

    def __init__(self, place: Path, mark: str) -> None:
        self.place = place
        self.directory = place / ".procession" / "attacked"
        self.mark = mark

    @property
    def ports(self) -> list[Address]:
        """Return every TCP port at which a process of the pipeline listens, including Spark's, as `ss -ltn` shows
        them."""
        inodes = {inode for pid in all_pids(self.mark) for inode in _sockets_of(pid)}
        return [address for address, inode in _listening() if inode in inodes]

    @property
    def files(self) -> list[Path]:
        return [path for root in (self.directory, self.place / "output") for path in root.rglob("*")]


def _sockets_of(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if (target := os.readlink(link)).startswith("socket:["):
                    yield target.removeprefix("socket:[").removesuffix("]")


def _listening() -> Iterator[tuple[Address, str]]:
    for table, hosts in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                raw, port = fields[1].split(":")
                address_bytes = [bytes.fromhex(raw[start : start + 8])[::-1] for start in range(0, len(raw), 8)]
                yield Address(socket.inet_ntop(hosts, b"".join(address_bytes)), int(port, 16)), fields[9]


def as_another_user(attack: Callable[[], Any]) -> Any:
    """Run the attack as `nobody`, or as this user if that is not root, and return its result."""
    here, there = FORK.Pipe()

    def act() -> None:
        if IS_ROOT:
            nobody = pwd.getpwnam("nobody")
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
        there.send(attack())

    process = FORK.Process(target=act)
    process.start()
    there.close()
    try:
        return here.recv()
    finally:
        process.join()


def said(address: Address, *data: bytes) -> bytes:
    """Send these bytes, and return everything that the peer answers until it closes the connection."""
    heard = b""
    with suppress(OSError), socket.create_connection(address, timeout=ANSWER_TIMEOUT_S) as peer:
        for piece in data:
            peer.sendall(piece)
        peer.shutdown(socket.SHUT_WR)
        while piece := peer.recv(65536):
            heard += piece
    return heard


def control_words(op: dict[str, Any]) -> list[bytes]:
    """Return the request without a secret, with an empty one and with a guessed one."""
    shown: list[dict[str, Any]] = [
        {},
        {"cookie": ""},
        {"cookie": b"guess".hex()},
        {"cookie": "\ud800"},
        {"cookie": None},
    ]
    return [json.dumps(op | one).encode() + b"\n" for one in shown]


def forged_output(instance: str, cookie: bytes) -> bytes:
    """Return the bytes with which a worker makes a sink write, prepare and commit forged data."""
    txn_id = "attack:c_id=1"
    return b"".join(
        map(
            v3.encode,
            (
                Hello(v3.SINK_VERSION, cookie, "attack", instance),
                Notify(DATA_STREAM, "out", 0),
                Message(DATA_STREAM, 0, 0, b"", FORGED),
                two_phase_commit.wrap(Phase1(txn_id, ((DATA_STREAM, 0, len(FORGED)),))),
                two_phase_commit.wrap(Phase2(txn_id, True)),
            ),
        )
    )


def frames(heard: bytes) -> list[Any]:
    found = []
    with suppress(Exception):
        found = [v3.decode(frame) for frame in Framer().feed(heard)]
    return found


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    if not IS_ROOT:
        warnings.warn("not root: the attacker is this user without a secret; files are judged by mode", stacklevel=1)
    # Not in a directory that other users cannot enter anyway.
    place = Path(tempfile.mkdtemp(prefix="procession-attack-"))
    place.chmod(0o755)
    (place / "app.py").write_text(APP)
    (place / "input.txt").write_bytes(b"".join(b"record %d\n" % number for number in range(RECORDS)))
    before = os.umask(0)
    try:
        with running("run", "app.py", "--listen", "127.0.0.1:0", cwd=place) as run:
            os.umask(before)
            wait_for(lambda: "ready: connectors" in run.said, "the pipeline to be ready", lambda: run.said)
            pipeline = Attacked(place, run.mark)
            listen = read_json(pipeline.directory / "gateway" / "gateway.json")["listen"]
            os.umask(0)
            with running("source", "file", "input.txt", "--to", listen, "--rate", "4000", cwd=place) as source:
                os.umask(before)
                yield pipeline
                assert source.wait() == 0, f"{source.said}\n{run.said}"
            run.process.send_signal(signal.SIGINT)
            assert run.wait() == 0, run.said
            assert not re.search("restarts [1-9]", run.said), run.said
            assert f"{RECORDS:,} of {RECORDS:,} records committed" in run.said, run.said
        assert committed(place / "output" / "attacked-output-0") == (place / "input.txt").read_bytes()
        snapshot = read_json(pipeline.directory / "gateway" / "positions.json")
        assert snapshot["fence"] == int((pipeline.directory / "checkpoint" / "CURRENT").read_text()) == 1
        for secret in OF_A_PIPELINE:
            shown = find_secret(pipeline.directory, secret)
            assert shown
            for log in (pipeline.directory / "logs").rglob("*.log"):
                assert shown not in log.read_bytes(), f"the secret {secret} is in {log.name}"
    finally:
        os.umask(before)
        shutil.rmtree(place)


def test_a_forged_fence_is_refused_at_every_port(attacked: Attacked) -> None:
    """Case (a): a forged fence once blocked every later driver."""
    fence = control_words({"op": "fence", "fence": 1_000_000})
    ports = attacked.ports
    assert ports, "the pipeline listens somewhere"
    answers = as_another_user(lambda: [said(port, word) for port in ports for word in fence])
    assert not any(b'"ok":true' in answer for answer in answers)


def test_a_forged_commit_is_refused_at_every_port(attacked: Attacked) -> None:
    """Case (b): a source once got an acknowledgement of records that were then lost."""
    commit = control_words({"op": "commit", "fence": 1, "epoch": 9, "end": 10**6, "positions": {"1": 10**9}})
    ports = attacked.ports
    answers = as_another_user(lambda: [said(port, word) for port in ports for word in commit])
    assert not any(b'"ok":true' in answer for answer in answers)


def test_without_the_secret_no_one_can_write_to_a_sink_or_send_to_a_gateway(attacked: Attacked) -> None:
    """Case (c): a forged record was once printed by `cat`, and the pipeline stopped permanently."""
    ports = attacked.ports
    greetings = [forged_output("attacked-output-0", cookie) for cookie in (b"", b"guess")]
    greetings += [v3.encode(Hello(v3.SOURCE_VERSION, cookie, "attack", "attack")) for cookie in (b"", b"guess")]
    answers = as_another_user(lambda: [said(port, greeting) for port in ports for greeting in greetings])
    heard = [frame for answer in answers for frame in frames(answer)]
    assert not any(isinstance(frame, Ok) for frame in heard)
    reasons = {frame.reason for frame in heard if isinstance(frame, Error)}
    assert {"a cookie is needed here", "bad cookie"} <= reasons, "the gateway has logged the reason"
    assert any("cookie does not match" in reason for reason in reasons), "the sink has logged the reason"
    assert FORGED not in (attacked.place / "output" / "attacked-output-0.data").read_bytes()


def test_the_control_socket_is_out_of_reach(attacked: Attacked) -> None:
    address = read_json(attacked.directory / "gateway" / "gateway.json")["control"]
    assert address.startswith("unix:")
    socket_file = SocketFile(attacked.directory / "gateway" / "control.sock")

    def connect() -> str:
        try:
            connected_file(socket_file.path, ANSWER_TIMEOUT_S).close()
        except OSError as error:
            return type(error).__name__
        return "connected"

    assert as_another_user(connect) == ("PermissionError" if IS_ROOT else "connected")
    with ControlClient(str(socket_file), b"a guess") as control, pytest.raises(Exception, match="wrong secret"):
        control.status()
    with ControlClient(attacked.directory / "gateway") as control:
        assert control.status()["next_sequence"] >= 0, "its owner needs no secret"
        with pytest.raises(Exception, match="Driver 1000000 has not claimed"):
            control.fence(1_000_000)
        with pytest.raises(Exception, match="no record from"):
            control.commit(1, 9, 10**12, {1: 10**9})
    log = (attacked.directory / "logs" / "gateway.log").read_text()
    assert "control.refused" in log
    assert f"of user {os.geteuid()}" in log, "the log has the user who asked"


def test_no_file_of_the_pipeline_can_be_read_by_other_users(attacked: Attacked) -> None:
    """Case (d): payloads were once readable by every user. The modes must not depend on the umask."""
    files = attacked.files
    for path in (attacked.directory, *files):
        with suppress(FileNotFoundError):
            if not path.is_symlink():
                mode = stat.S_IMODE(path.stat().st_mode)
                assert not mode & 0o077, f"{path} has mode {mode:o}"
    for secret in OF_A_PIPELINE:
        assert stat.S_IMODE(path_of(attacked.directory, secret).stat().st_mode) == 0o600

    def opened() -> list[str]:
        found = []
        for path in (attacked.directory, *files):
            with suppress(OSError):
                os.close(os.open(path, os.O_RDONLY))
                found.append(str(path))
        return found

    if IS_ROOT:
        assert as_another_user(opened) == []


def test_no_secret_is_on_a_command_line_or_in_an_environment(attacked: Attacked) -> None:
    shown = [find_secret(attacked.directory, secret) for secret in OF_A_PIPELINE]
    for pid in all_pids(attacked.mark):
        with suppress(OSError):
            visible = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            assert not any(secret in visible for secret in shown), visible
