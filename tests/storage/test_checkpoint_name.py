"""One module names the directory of the checkpoint, so that it can be moved by changing one line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import procession
from procession.storage.driver_claim import CHECKPOINT, checkpoint_of

SOURCE = Path(procession.__file__).parent
OWN_DIRECTORIES = ("bench", "sim")
"""Rooms that lay out directories of their own."""


def names_of_the_directory(text: str) -> Iterator[int]:
    """The lines of a module with a string that is this directory, or a path in it. A key in brackets is none."""
    tree = ast.parse(text)
    keys = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in keys:
            is_path = " " not in node.value
            if is_path and CHECKPOINT in node.value.split("/"):
                yield node.lineno


def test_no_other_module_names_the_directory_of_the_checkpoint() -> None:
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    naming = {
        name
        for name, text in texts.items()
        if not name.startswith(OWN_DIRECTORIES) and any(names_of_the_directory(text))
    }
    assert naming == {"storage/driver_claim.py"}


def test_planted_names_are_found() -> None:
    lines = ['a = ("checkpoint", 1)', 'b = f"checkpoint/{a}"', 'c = "*/checkpoint/x"', 'd = found["checkpoint"]']
    assert sorted(names_of_the_directory("\n".join(lines))) == [1, 2, 3]


def test_the_checkpoint_is_in_the_directory_of_its_pipeline() -> None:
    assert checkpoint_of(Path("orders")) == Path("orders", CHECKPOINT)
