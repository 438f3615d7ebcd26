"""The mutation tool finds lines that protect an invariant in the syntax tree, and changes only these."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import Fate, Tree, Verdict, all_mutants, explained, quick_tests
from tests.mutation.mutants import Mutant, mutants

CODE = """
class Log:
    def append(self, file, batch, fence):
        self._check_usable()
        if fence < self.fence:
            raise FencedError("é")
        file.write(0, batch)
        file.sync()
        for end in batch:
            if end > self.durable_end: self.seen = end

    async def commit(self):
        await self._durably(self.log.sync)
        self.count = 1 if self.count < 3 else 2
"""


def found(code: str = CODE) -> dict[str, Mutant]:
    return {f"{mutant.rule}: {mutant.code}": mutant for mutant in mutants("room.module", code)}


def test_each_rule_finds_its_lines_and_no_others() -> None:
    assert list(found()) == [
        "no check: self._check_usable()",
        "no check: if fence < self.fence: raise",
        "boundary: fence < self.fence",
        "swapped: file.write(0, batch); file.sync()",
        "no sync: file.sync()",
        "boundary: end > self.durable_end",
        "no sync: await self._durably(self.log.sync)",
    ]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("no check: self._check_usable()", "self._check_usable()", "pass"),
        (
            "no check: if fence < self.fence: raise",
            'if fence < self.fence:\n            raise FencedError("é")',
            "pass",
        ),
        ("boundary: fence < self.fence", "fence < self.fence", "(fence <= self.fence)"),
        (
            "swapped: file.write(0, batch); file.sync()",
            "file.write(0, batch)\n        file.sync()",
            "file.sync()\n        file.write(0, batch)",
        ),
        ("boundary: end > self.durable_end", "end > self.durable_end", "(end >= self.durable_end)"),
    ],
)
def test_a_mutant_is_the_module_with_one_change(name: str, old: str, new: str) -> None:
    assert found()[name].text == CODE.replace(old, new, 1)


NESTED = """
def handle(self, request, claimed, message):
    if request.fence != claimed:
        raise fenced(request.fence, claimed)
    if request.epoch is None:
        raise ConfigError("é")
    if request.fence > claimed:
        raise ConfigError("ü")
    if message.is_late:
        return self.refuse(message)
    elif message.is_odd:
        raise went_back(message)
    else:
        self.seen = 1
    self.write(message)
    faults.point("between")
    faults.point("and again")
    self.reply(message)
    return checked(message.data, claimed)

def take(self, event):
    match event:
        case Commit(epoch) if epoch == self.epoch:
            if epoch <= self.epoch:
                return []
    return [event.what == 1]
"""
NESTED_CHANGES = {
    "no check: if request.fence != claimed: raise": (
        "if request.fence != claimed:\n        raise fenced(request.fence, claimed)",
        "pass",
    ),
    "reversed: request.fence != claimed": ("if request.fence != claimed", "if (request.fence == claimed)"),
    "no check: if request.fence > claimed: raise": (
        'if request.fence > claimed:\n        raise ConfigError("ü")',
        "pass",
    ),
    "boundary: request.fence > claimed": ("if request.fence > claimed", "if (request.fence >= claimed)"),
    "no check: if message.is_late: return self.refuse(message)": ("if message.is_late", "if False"),
    "no check: if message.is_odd: raise": ("elif message.is_odd", "elif False"),
    "swapped: self.write(message); self.reply(message)": (
        'self.write(message)\n    faults.point("between")\n    faults.point("and again")\n    self.reply(message)',
        'self.reply(message)\n    faults.point("between")\n    faults.point("and again")\n    self.write(message)',
    ),
    "no check: checked(message.data, claimed)": ("return checked(message.data, claimed)", "return message.data"),
    "reversed: epoch == self.epoch": ("if epoch == self.epoch", "if (epoch != self.epoch)"),
    "boundary: epoch <= self.epoch": ("if epoch <= self.epoch", "if (epoch < self.epoch)"),
}


def test_checks_are_found_that_raise_by_a_function_return_a_refusal_or_wrap_a_value() -> None:
    assert {name: mutant.text for name, mutant in found(NESTED).items()} == {
        name: NESTED.replace(old, new, 1) for name, (old, new) in NESTED_CHANGES.items()
    }


def test_the_fence_check_of_the_checkpoint_and_the_checks_of_a_recovered_log_have_mutants() -> None:
    names = {mutant.name for mutant in all_mutants()}
    assert {
        "commit.checkpoint:Checkpoint.check_fence: no check: if current != self.fence: raise",
        "storage.driver_claim:check_claimed: no check: if fence > claimed: raise",
        "storage.recovery:recover_segment: reversed: index.end == upper",
        "gateway.registry:RegisteredStream.is_fresh: no check: if message_id < self.next_id: raise",
        "commit.performer:CommitPerformer._perform: swapped: self._checkpoint.rounds.write(record);"
        " self._do(self._coordinator.handle(RecordWritten(record.epoch)))",
        "driver.driver:Driver.run: no check: self._checkpoint.check_fence()",
    } <= names


KILLED, SURVIVOR, UNDECIDED = (
    Fate("a", "room.module:1", "a test", 1.0),
    Fate("b", "room.module:2", "", 1.0),
    Fate("c", "room.module:3", "", 300.0, is_undecided=True),
)


@pytest.mark.parametrize(
    ("verdict", "status", "line"),
    [
        (Verdict([KILLED], 0, {}), 0, "1 mutants, 0 survive, 0 undecided, 0 not tried"),
        (Verdict([KILLED], 1, {}), 1, "1 mutants were not tried"),
        (Verdict([KILLED], 0, {"a": "why"}), 0, "its reason can go: a"),
        (Verdict([SURVIVOR], 0, {}), 1, "survives without a reason"),
        (Verdict([SURVIVOR], 0, {"b": "why"}), 0, "1 mutants, 1 survive, 0 undecided, 0 not tried"),
        (Verdict([UNDECIDED], 0, {}), 1, "undecided without a reason"),
        (Verdict([UNDECIDED], 0, {"c": "why"}), 0, "1 mutants, 0 survive, 1 undecided, 0 not tried"),
    ],
)
def test_the_command_fails_for_a_mutant_that_is_neither_killed_nor_explained(
    verdict: Verdict, status: int, line: str
) -> None:
    assert verdict.exit_status == status
    assert any(line in shown for shown in verdict.lines())


def test_a_mutant_that_makes_the_simulator_take_too_long_is_undecided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.mutation.__main__.SIMULATION_S", 0.0)
    fate = Tree(tmp_path, runs=1, test_s=0).try_out(next(all_mutants()))
    assert (fate.killed_by, fate.is_undecided) == ("", True)


def test_two_mutants_of_one_function_with_the_same_code_have_two_names() -> None:
    code = "def f(file):\n    file.sync()\n    if file:\n        file.sync()\n"
    names = [mutant.name for mutant in mutants("room.module", code)]
    assert names == ["room.module:f: no sync: file.sync()", "room.module:f: no sync: file.sync() #2"]


def test_every_mutant_of_the_shipped_code_is_a_program_with_a_unique_name() -> None:
    names = set()
    for mutant in all_mutants():
        ast.parse(mutant.text)
        assert mutant.name not in names
        names.add(mutant.name)
    assert "gateway.performer:GatewayPerformer.offer: no sync: await self._durably(self.log.sync)" in names
    assert len(names) > 600


def test_every_survivor_that_is_explained_is_a_mutant_and_has_a_reason() -> None:
    reasons = explained()
    assert set(reasons) <= {mutant.name for mutant in all_mutants()}
    assert all(len(reason) > 20 for reason in reasons.values())


def test_the_tests_of_a_module_are_those_that_import_it_with_its_own_first() -> None:
    assert quick_tests("storage.journal")[0] == "tests/storage/test_journal.py"


def test_the_tests_of_a_module_that_its_room_does_not_test_are_those_of_other_rooms() -> None:
    assert "tests/gateway/test_several_ordering.py" in quick_tests("driver.offsets")


@pytest.mark.slow
def test_a_mutant_without_the_sync_of_a_commit_is_killed_by_the_simulator(tmp_path: Path) -> None:
    name = "commit.spark_log:SparkLog._renew: no write"
    mutant = next(mutant for mutant in all_mutants() if mutant.name.startswith(name))
    assert Tree(tmp_path, runs=5, test_s=0).try_out(mutant).killed_by.startswith("the simulator: seed ")
