"""Runs a faulty sink: the file sink with configurable misbehaviour. `python -m procession.chaos.faulty_sink`.

Invariant: the code is that of the shipped file sink, except for the faults in its behaviour file. The file is read at
every message of a round, so a harness can change it at run time. It contains comma-separated `name=value` pairs; with
an empty or missing file the sink behaves correctly. Counts start when the file is written.

    abort_on=N            vote abort on the N-th transaction
    abort_content=TEXT    vote abort on output that contains TEXT (at most three times)
    abort_chance=P        vote abort with this probability, drawn from `seed=S`
    vote_delay_s=S, decide_delay_s=S    delay a vote, or phase 2
    hang_on=N             from the N-th transaction on, do not answer until the file changes close_before_vote=N,
    close_after_vote=N, close_before_decision=N, close_after_decision=N
                          close the connection at the N-th occasion
    double=N              a planted bug: in the N-th piece of data, replace a record by a copy of the previous one, to
    test the harness itself
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from procession.chaos.cluster_view import EXIT_AGAIN, EXIT_CLEAR
from procession.connectors.file_sink import opener
from procession.errors import DiskError, RemoteProtocolError, StorageError
from procession.sdk.output import Output, Wait
from procession.sdk.participant import SinkParticipant, Where
from procession.sdk.sink_directory import SinkDirectory, serve
from procession.sdk.transaction_log import TransactionLog
from procession.storage.secret import PRIVATE_UMASK

ABORTS = ("abort_on", "abort_content", "abort_chance", "seed")
DELAYS = ("vote_delay_s", "decide_delay_s", "hang_on")
CLOSES = ("close_before_vote", "close_after_vote", "close_before_decision", "close_after_decision")
BEHAVIOURS = (*ABORTS, *DELAYS, *CLOSES, "double")
CONTENT_ABORTS_MAX = 3
HANG_POLL_S = 0.05


def injected_faults_file(behaviour: Path) -> Path:
    """Return the path of the log of misbehaviour, which has one line for each occasion."""
    return behaviour.with_name("misdeeds")


class Behaviour:
    """The current content of the behaviour file, and the count of each occasion since the file changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chance = random.Random()
        self._text = ""
        self._options: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def get(self, name: str) -> str:
        try:
            text = self._path.read_text().strip()
        except FileNotFoundError:
            text = ""
        if text != self._text:
            self._text = text
            self._options = dict(option.split("=", 1) for option in text.split(",") if "=" in option)
            self._counts = {}
            self._chance = random.Random(self._options.get("seed", ""))
        return self._options.get(name, "")

    def number(self, name: str) -> float:
        return float(self.get(name) or 0)

    def is_turn(self, name: str) -> bool:
        """Return whether this is the N-th occasion."""
        turn = int(self.number(name))
        self._counts[name] = self._counts.get(name, 0) + 1
        return self._noted(name, turn == self._counts[name])

    def happens(self, name: str) -> bool:
        limit = self.number(name)  # read first, because a new file has a new seed
        return self._noted(name, self._chance.random() < limit)

    def may_still(self, name: str, times: int) -> bool:
        self._counts[name] = self._counts.get(name, 0) + 1
        return self._noted(name, self._counts[name] <= times)

    def delay(self, name: str) -> None:
        seconds = self.number(name)
        time.sleep(seconds)
        self._noted(name, seconds > 0)

    def _noted(self, name: str, is_done: bool) -> bool:
        """Log that a fault was carried out, for the harness."""
        if is_done:
            with injected_faults_file(self._path).open("a") as file:
                file.write(f"{name}\n")
        return is_done


class FaultyParticipant(SinkParticipant):
    """A participant that misbehaves as configured."""

    def __init__(self, output: Output, txnlog: TransactionLog, wait: Wait, behaviour: Behaviour) -> None:
        super().__init__(output, txnlog, wait=wait)
        self._behaviour = behaviour
        self._has_content = False

    def append(self, message_ids: Sequence[int] | npt.NDArray[np.uint64], payloads: Sequence[bytes]) -> None:
        text = self._behaviour.get("abort_content").encode()
        if text and any(text in payload for payload in payloads):
            self._has_content = True
        super().append(message_ids, [self._damaged(payload) for payload in payloads])

    def _damaged(self, payload: bytes) -> bytes:
        lines = payload.splitlines(keepends=True)
        if len(lines) >= 2 and self._behaviour.get("double") and self._behaviour.is_turn("double"):
            lines[1] = lines[0]
        return b"".join(lines)

    def phase1(self, txn_id: str, where: Where) -> bool:
        behaviour = self._behaviour
        self._close_if("close_before_vote")
        if behaviour.is_turn("abort_on") or behaviour.happens("abort_chance") or self._rejects_content():
            self._has_gap = True  # as if data were missing, so the vote is abort
        behaviour.delay("vote_delay_s")
        if behaviour.get("hang_on") and behaviour.is_turn("hang_on"):
            while behaviour.get("hang_on"):
                time.sleep(HANG_POLL_S)
        vote = super().phase1(txn_id, where)
        self._close_if("close_after_vote")
        return vote

    def phase2(self, txn_id: str, commit: bool) -> None:
        self._close_if("close_before_decision")
        self._behaviour.delay("decide_delay_s")
        super().phase2(txn_id, commit)
        self._close_if("close_after_decision")

    def _rejects_content(self) -> bool:
        had_content, self._has_content = self._has_content, False
        return had_content and self._behaviour.may_still("abort_content", CONTENT_ABORTS_MAX)

    def _close_if(self, name: str) -> None:
        if self._behaviour.get(name) and self._behaviour.is_turn(name):
            raise RemoteProtocolError("the faulty sink closes the session")


class FaultySinkDirectory(SinkDirectory):
    def __init__(self, directory: Path, behaviour: Behaviour) -> None:
        super().__init__(directory, opener(directory))
        self._behaviour = behaviour

    def open_participant(self, instance: str, wait: Wait) -> SinkParticipant:
        return FaultyParticipant(self._open_output(instance), self.open_txnlog(instance), wait, self._behaviour)


def main() -> None:
    parser = argparse.ArgumentParser(prog="procession.chaos.faulty_sink", description="A file sink that misbehaves.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--behaviour", type=Path, required=True)
    parser.add_argument("--cookie-file", type=Path, help="file with the secret that the driver must send")
    given = parser.parse_args()
    os.umask(PRIVATE_UMASK)
    cookie = given.cookie_file.read_bytes().strip() if given.cookie_file else b""
    try:
        sink = FaultySinkDirectory(given.directory, Behaviour(given.behaviour))
        try:
            serve(sink, given.listen, cookie)
        finally:
            sink.close()
    except StorageError as error:
        # A failing disk ends the sink as it ends every other part.
        print(f"error: {error.explain()}", file=sys.stderr)
        sys.exit(EXIT_AGAIN if isinstance(error, DiskError) else EXIT_CLEAR)


if __name__ == "__main__":
    main()
