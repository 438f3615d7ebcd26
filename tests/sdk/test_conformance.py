"""The conformance suite finds planted bugs of an Output and passes a correct one; its command does, too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from procession.sdk.conformance import CASES, POINTS, RECOVERY_POINTS, CaseOutcome, Conformance, ConformanceCase
from procession.sdk.scripted_worker import ScriptedWorker, reply
from procession.sdk.sink_process import SinkProcess
from procession.sdk.transaction_log import committed_ranges
from procession.wire import two_phase_commit
from procession.wire.messages import Phase2

SINK = """
import sys
from pathlib import Path
from procession.sdk import Output, run_sink

DIRECTORY, LISTEN, BUG = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


class Plain(Output):
    def __init__(self, instance):
        self.draft, self.visible = DIRECTORY / f"{instance}.tmp", DIRECTORY / f"{instance}.out"
        self.draft.touch()
        self.visible.touch()
        self.is_shown = False

    def recover(self, committed_end, prepared):
        self.is_shown = False
        if BUG == "a prepared transaction is dropped" or not prepared and BUG != "data without a vote stays":
            self.draft.write_bytes(b"")

    def append(self, position, payloads):
        if self.is_shown:
            self.draft.write_bytes(b"")
            self.is_shown = False
        with self.draft.open("ab") as file:
            file.write(b"".join(payloads))
        if BUG == "received data is visible at once":
            self.show(position)

    def prepare(self, transaction):
        if BUG == "a prepared transaction is visible":
            self.show(transaction.start)

    def commit(self, transaction):
        if BUG == "a repeated commit appends again":
            with self.visible.open("ab") as file:
                file.write(self.draft.read_bytes())
        elif transaction.start < transaction.end:
            self.show(transaction.start)
        self.is_shown = True

    def abort(self, transaction):
        if BUG != "aborted data stays":
            self.draft.write_bytes(b"")

    def show(self, position):
        with self.visible.open("r+b") as file:
            file.seek(position)
            file.write(self.draft.read_bytes())


run_sink(Plain, DIRECTORY, LISTEN)
"""

BUGS = {
    "a prepared transaction is dropped": "killed after its vote, it lists the transaction and accepts the commit",
    "data without a vote stays": "data without a vote is dropped at a crash and at a new session",
    "received data is visible at once": "data without a vote is dropped at a crash and at a new session",
    "a prepared transaction is visible": "exactly the committed output is visible",
    "aborted data stays": "after an abort, other bytes may follow at the same position",
    "a repeated commit appends again": (
        "killed at sink:after-output-commit in an epoch that ends with commit, it recovers"
    ),
}


def command(bug: str) -> list[str]:
    return [sys.executable, "-c", SINK, "{dir}", "{listen}", bug]


def shown(directory: Path, instance: str) -> bytes:
    return (directory / f"{instance}.out").read_bytes()


@pytest.mark.parametrize(("bug", "name"), BUGS.items())
def test_a_planted_bug_is_found(tmp_path: Path, bug: str, name: str) -> None:
    (case,) = [case for case in CASES if case.name == name]
    with SinkProcess(command(bug), tmp_path, shown) as trial:
        finding = asyncio.run(Conformance(trial).run(case))
    assert finding.outcome is CaseOutcome.FAILED
    assert finding.why


def test_without_a_planted_bug_none_is_found(tmp_path: Path) -> None:
    cases = [case for case in CASES if case.name in BUGS.values()]
    assert len(cases) == len(set(BUGS.values()))
    with SinkProcess(command(""), tmp_path, shown) as trial:
        conformance = Conformance(trial)
        for case in [*cases, CASES[-1]]:
            finding = asyncio.run(conformance.run(case))
            assert finding.outcome is CaseOutcome.PASSED, f"{case.name}: {finding.why}"


def test_every_fault_point_of_a_round_has_its_case() -> None:
    from procession.sdk import participant

    named = {
        line.split('"')[1] for line in Path(participant.__file__).read_text().splitlines() if "faults.point(" in line
    }
    assert named == set(POINTS) | set(RECOVERY_POINTS)


TINY_LOG = """
import sys
from pathlib import Path
from procession.connectors.file_sink import opener
from procession.sdk.sink_directory import SinkDirectory, serve
from procession.sdk.transaction_log import TransactionLog

DIRECTORY = Path(sys.argv[1])


class TinyHome(SinkDirectory):
    def open_txnlog(self, instance):
        txnlog = TransactionLog(DIRECTORY / f"{instance}.txnlog", entries_max=8, transactions_kept=2)
        txnlog.open()
        return txnlog


serve(TinyHome(DIRECTORY, opener(DIRECTORY)), sys.argv[2])
"""


@pytest.mark.parametrize("point", ["sink:before-compact", "sink:after-compact"])
def test_a_sink_that_dies_while_it_compacts_its_log_has_lost_nothing(tmp_path: Path, point: str) -> None:
    def committed(directory: Path, instance: str) -> bytes:
        data = (directory / f"{instance}.data").read_bytes()
        return b"".join(data[start:end] for start, end in committed_ranges(directory / f"{instance}.txnlog"))

    async def play(script: ScriptedWorker) -> None:
        for _ in range(2):
            worker = await script.greet()
            script.trial.arm(point)
            while True:
                txn_id, data = script.next_id(), b"<%d>" % script.end
                await script.prepare(worker, txn_id, data)
                worker.send(two_phase_commit.wrap(Phase2(txn_id, commit=True)))
                if await reply(worker) is None:
                    break
                script.committed += data
            await script.trial.died()
            await script.run_more_rounds(await script.settle(txn_id, data, True))

    with SinkProcess([sys.executable, "-c", TINY_LOG, "{dir}", "{listen}"], tmp_path, committed) as trial:
        finding = asyncio.run(Conformance(trial).run(ConformanceCase("compacts", "it compacts", play)))
        assert finding.outcome is CaseOutcome.PASSED, finding.why
        assert trial.lives == 3


def check(tmp_path: Path, bug: str, *options: str) -> subprocess.CompletedProcess[str]:
    show = f"{sys.executable} -c 'import sys; sys.stdout.write(open(sys.argv[1]).read())' {{dir}}/{{instance}}.out"
    arguments = [
        "sink",
        "check",
        "--visible",
        show,
        "--only",
        "gap",
        "--only",
        "empty",
        *options,
        "--",
        *command(bug),
    ]
    return subprocess.run([sys.executable, "-m", "procession", *arguments], capture_output=True, text=True, check=False)


def test_the_command_lists_passed_and_failed_cases(tmp_path: Path) -> None:
    done = check(tmp_path, "")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 passed, 0 failed, 0 not reached"), done.stderr
    done = check(tmp_path, "a prepared transaction is visible", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["outcome"]) == (1, "failed")
    assert {case["outcome"] for case in document["cases"]} == {"failed"}
    assert "are visible" in document["cases"][0]["why"]


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--", "prog", "{dir}"], 2, "The sink's command has no {listen}."),
        (["--only", "no such case", "--", "prog", "{dir}", "{listen}"], 2, "No case is called 'no such case'"),
        (["--", "no-such-program", "{dir}", "{listen}"], 3, "Cannot start no-such-program: No such file or directory."),
        (["--", "false", "{dir}", "{listen}"], 3, "The sink ended with status 1 before it listened"),
    ],
)
def test_a_command_that_cannot_be_tried_is_explained(arguments: list[str], status: int, sentence: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "procession", "sink", "check", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Next: " in done.stderr
