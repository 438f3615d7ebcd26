"""Writes the programs that tests contain as text to files, so that the type checker reads them too.

`python -m tests.embedded_code FOLDER` writes a file for each string of a test that is a program with an import. A test
replaces the placeholders of its program: names in capitals and names in braces. The files declare them.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]+\b|(?<=\{)[a-z_]+(?=\})")
HEADER = """\
# mypy: disable-error-code="arg-type,has-type,no-untyped-call,no-untyped-def,operator,return-value,var-annotated"
from typing import Any
"""


def programs(text: str) -> Iterator[tuple[int, str, ast.Module]]:
    """Yield each multi-line string of a file that is Python: its line, its text and its syntax tree."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            program = textwrap.dedent(node.value)
            try:
                compile(program, "", "exec")
            except SyntaxError:
                continue
            yield node.lineno, program, ast.parse(program)


def bound_names(tree: ast.Module) -> set[str]:
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return assigned | {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def written(text: str) -> Iterator[tuple[int, str]]:
    """Yield the programs of a test file for the type checker: the line of each, and its text with declared
    placeholders.

    The cells of a notebook share their names, so a program may use a name that another program of the file assigns.
    """
    found = list(programs(text))
    shared = {name for _, _, tree in found for name in bound_names(tree)}
    for line, program, tree in found:
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body):
            declared = (shared | set(PLACEHOLDER.findall(program))) - bound_names(tree)
            yield line, HEADER + "".join(f"{name}: Any\n" for name in sorted(declared)) + program


def write_programs(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(TESTS.rglob("*.py")):
        stem = "_".join(path.relative_to(TESTS).with_suffix("").parts)
        for line, program in written(path.read_text()):
            (folder / f"{stem}_{line}.py").write_text(program)


if __name__ == "__main__":
    write_programs(Path(sys.argv[1]))
