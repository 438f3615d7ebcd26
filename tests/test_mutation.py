"""The mutation tool finds what protects an invariant, by the syntax tree, and changes that and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutation.__main__ import Tree, all_mutants, explained, quick_tests
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
        ("boundary: fence < self.fence", "fence < self.fence", "fence <= self.fence"),
        (
            "swapped: file.write(0, batch); file.sync()",
            "file.write(0, batch)\n        file.sync()",
            "file.sync()\n        file.write(0, batch)",
        ),
        ("boundary: end > self.durable_end", "end > self.durable_end", "end >= self.durable_end"),
    ],
)
def test_a_mutant_is_the_module_with_one_change(name: str, old: str, new: str) -> None:
    assert found()[name].text == CODE.replace(old, new, 1)


def test_two_mutants_of_one_function_with_the_same_code_have_two_names() -> None:
    code = "def f(file):\n    file.sync()\n    if file:\n        file.sync()\n"
    names = [mutant.name for mutant in mutants("room.module", code)]
    assert names == ["room.module:f: no sync: file.sync()", "room.module:f: no sync: file.sync() #2"]


def test_every_mutant_of_the_shipped_code_is_a_program_with_a_name_of_its_own() -> None:
    names = set()
    for mutant in all_mutants():
        ast.parse(mutant.text)
        assert mutant.name not in names
        names.add(mutant.name)
    assert "gateway.performer:GatewayPerformer.offer: no sync: await self._durably(self.log.sync)" in names
    assert len(names) > 250


def test_every_survivor_that_is_explained_is_a_mutant_and_has_a_reason() -> None:
    reasons = explained()
    assert set(reasons) <= {mutant.name for mutant in all_mutants()}
    assert all(len(reason) > 20 for reason in reasons.values())


def test_the_tests_of_a_module_are_those_that_import_it_with_its_own_first() -> None:
    assert quick_tests("storage.journal")[0] == "tests/storage/test_journal.py"


@pytest.mark.slow
def test_a_mutant_without_the_sync_of_a_commit_is_killed_by_the_simulator(tmp_path: Path) -> None:
    name = "commit.spark_log:SparkLog._renew: no write"
    mutant = next(mutant for mutant in all_mutants() if mutant.name.startswith(name))
    assert Tree(tmp_path, runs=5, test_s=0).try_out(mutant).killed_by.startswith("the simulator: seed ")
