"""Finds the lines of a module that protect an invariant, and makes a mutant of each. Pure.

Invariant: mutants are found in the syntax tree, by four rules, and never by a list of places. A mutant is named by its
module, its function and its code, not by a line number, so a name outlives changes elsewhere. `tests.mutation` runs
the mutants.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

SYNC = re.compile(r"(^|_)f?sync(_|$)")
CHECK = re.compile(r"^_?(check|refuse|verify)")
ERRORS = frozenset({"FencedError", "StorageError", "DiskError", "RoundError"})
"""A condition that raises one of these stops what would break a guarantee."""
WRITE = re.compile(
    r"(^|_)(f?sync|write|append|rename|replace|remove|truncate|trim|save|keep|send|reply|vote|decide|commit|prepare|abort"
    r"|perform|handle|raise|renew|drop|link|claim)(_|$)|durably$"
)
POSITION = re.compile(
    r"(^|_)(sequence|position|positions|end|start|epoch|epochs|fence|committed|offered|seen|durable|attempt|turn|base)($|_)"
)
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


@dataclass(frozen=True)
class Mutant:
    module: str
    """Below `procession`, such as `gateway.performer`."""
    function: str
    rule: str
    code: str
    """What is removed or changed."""
    line: int
    last_line: int
    text: str
    """The whole module with the change."""

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}: {self.rule}: {self.code}"


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """All mutants of a module. Of several with the same name, the second is `#2`, and so on."""
    counts: dict[str, int] = {}
    for mutant in _found(module, text):
        counts[mutant.name] = count = counts.get(mutant.name, 0) + 1
        yield mutant if count == 1 else Mutant(**{**vars(mutant), "code": f"{mutant.code} #{count}"})


def _found(module: str, text: str) -> Iterator[Mutant]:
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    for function, block in _blocks(tree):
        for number, statement in enumerate(block):
            after = block[number + 1] if number + 1 < len(block) else None
            for rule, code, changed in _changes(statement, after, lines):
                last = after if after is not None and rule == "swapped" else statement
                yield Mutant(module, function, rule, code, statement.lineno, last.end_lineno or 0, changed)


def _blocks(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Every block of statements inside a function, with the function's qualified name."""

    def walk(node: ast.AST, name: str) -> Iterator[tuple[str, list[ast.stmt]]]:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{name}.{child.name}" if name else child.name
            is_code = not isinstance(child, ast.ClassDef) and inner
            for field in ("body", "orelse", "finalbody"):
                block = getattr(child, field, None)
                if is_code and isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield inner, block
            yield from walk(child, inner)

    yield from walk(tree, "")


def _changes(statement: ast.stmt, after: ast.stmt | None, lines: list[str]) -> Iterator[tuple[str, str, str]]:
    """The rule, the code and the changed module of each mutant that begins with this statement."""
    code = _one_line(statement)
    if any(SYNC.search(name) for name in _called(statement)):
        yield "no sync", code, _replaced(lines, statement, "pass")
    elif any(name.endswith("durably") for name in _called(statement)[:1]):
        yield "no write", code, _replaced(lines, statement, "pass")
    elif any(CHECK.search(name) for name in _called(statement)[:1]):
        yield "no check", code, _replaced(lines, statement, "pass")
    if isinstance(statement, ast.If) and not statement.orelse and _raises(statement):
        yield "no check", code, _replaced(lines, statement, "pass")
    if after is not None and _writes(statement) and _writes(after):
        yield "swapped", f"{code}; {_one_line(after)}", _swapped(lines, statement, after)
    for compare in _comparisons(statement):
        changed = BOUNDARY[type(compare.ops[0])]()
        other = ast.Compare(compare.left, [changed], compare.comparators)
        yield "boundary", ast.unparse(compare), _replaced(lines, compare, ast.unparse(other))


def _called(statement: ast.stmt) -> list[str]:
    """For a statement that is one call: the name of what is called, and the names of its arguments that may be."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Await):
        value = value.value
    if not isinstance(value, ast.Call):
        return []
    return [name for node in (value.func, *value.args) if (name := _name(node))]


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _raises(statement: ast.If) -> bool:
    last = statement.body[-1]
    if not isinstance(last, ast.Raise) or last.exc is None:
        return False
    made = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
    return _name(made) in ERRORS or _name(made).startswith("_")


def _writes(statement: ast.stmt) -> bool:
    return bool(_called(statement)) and bool(WRITE.search(_called(statement)[0]))


def _comparisons(statement: ast.stmt) -> Iterator[ast.Compare]:
    """Comparisons with a position in the statement itself, not in the blocks below it."""
    parts = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt | ast.excepthandler)]
    for node in (node for part in parts for node in ast.walk(part)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in BOUNDARY:
            names = {_name(inner) for inner in ast.walk(node) if isinstance(inner, ast.expr)}
            if any(POSITION.search(name) for name in names):
                yield node


def _one_line(node: ast.stmt) -> str:
    text = ast.unparse(node.test if isinstance(node, ast.If) else node)
    return f"if {text}: raise" if isinstance(node, ast.If) else " ".join(text.split())


def _span(lines: list[str], node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where a node begins and ends in the text, in characters."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None

    def at(line: int, offset: int) -> int:
        return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:offset].decode())

    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def _replaced(lines: list[str], node: ast.stmt | ast.expr, by: str) -> str:
    text, (start, end) = "".join(lines), _span(lines, node)
    return text[:start] + by + text[end:]


def _swapped(lines: list[str], first: ast.stmt, second: ast.stmt) -> str:
    text, (start, end), (other_start, other_end) = "".join(lines), _span(lines, first), _span(lines, second)
    return text[:start] + text[other_start:other_end] + text[end:other_start] + text[start:end] + text[other_end:]
