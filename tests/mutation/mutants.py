"""Finds the lines of a module that protect an invariant, and makes a mutant of each. Pure.

Invariant: mutants are found in the syntax tree by six rules, and never by a list of places. The name of a mutant has
its module, its function and its code instead of a line number, so it stays the same when other code changes.
`tests.mutation` runs the mutants.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

SYNC = re.compile(r"(^|_)f?sync(_|$)")
CHECK = re.compile(r"^_?(check|refuse|verify)")
CHECKED = re.compile(r"^_?checked(_|$)")
"""Returns its first argument, or raises an error."""
REFUSED = re.compile(r"^_?refuse(_|$)")
USERS = frozenset({"ConfigError", "UsageError", "PlanError", "TypeError", "AttributeError"})
"""Errors that say what a user wrote wrong. A condition that raises another one, by its class or by a function that
makes it, stops what would break a guarantee; so does one of these that compares a position."""
WRITE = re.compile(
    r"(^|_)(f?sync|write|append|rename|replace|remove|truncate|trim|save|keep|send|reply|vote|decide|commit|prepare|abort"
    r"|perform|handle|raise|renew|drop|link|claim|do|copy|mark|acknowledge|delete|upload|put|flush|advance)(_|$)|durably$"
)
POSITION = re.compile(
    r"(^|_)(sequence|position|positions|end|start|epoch|epochs|fence|committed|offered|seen|durable|attempt|turn|base)($|_)"
)
Node = TypeVar("Node", bound=ast.expr)
BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
REVERSED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
COMPARED = BOUNDARY | REVERSED


@dataclass(frozen=True)
class Mutant:
    module: str
    """The module's name below `procession`, such as `gateway.performer`."""
    function: str
    rule: str
    code: str
    """The code that is removed or changed."""
    line: int
    last_line: int
    text: str
    """The whole module with the change."""

    @property
    def name(self) -> str:
        return f"{self.module}:{self.function}: {self.rule}: {self.code}"


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """Return all mutants of a module. If several have the same name, the second ends with `#2`, and so on."""
    counts: dict[str, int] = {}
    for mutant in _found(module, text):
        counts[mutant.name] = count = counts.get(mutant.name, 0) + 1
        yield mutant if count == 1 else Mutant(**{**vars(mutant), "code": f"{mutant.code} #{count}"})


def _found(module: str, text: str) -> Iterator[Mutant]:
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    for function, block in _blocks(tree):
        for number, statement in enumerate(block):
            after = next((later for later in block[number + 1 :] if not _is_fault_point(later)), None)
            for rule, code, changed in _changes(statement, after, lines):
                last = after if after is not None and rule == "swapped" else statement
                yield Mutant(module, function, rule, code, statement.lineno, last.end_lineno or 0, changed)


def _blocks(tree: ast.Module) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield every block of statements inside a function, with the function's qualified name."""

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
    """Yield the rule, the code and the changed module of each mutant of this statement."""
    code = _one_line(statement)
    if any(SYNC.search(name) for name in _called(statement)):
        yield "no sync", code, _replaced(lines, statement, "pass")
    elif any(name.endswith("durably") for name in _called(statement)[:1]):
        yield "no write", code, _replaced(lines, statement, "pass")
    elif any(CHECK.search(name) for name in _called(statement)[:1]):
        yield "no check", code, _replaced(lines, statement, "pass")
    if isinstance(statement, ast.If) and (_raises(statement) or _refuses(statement)):
        if statement.orelse:
            yield "no check", code, _replaced(lines, statement.test, "False")
        else:
            yield "no check", code, _replaced(lines, statement, "pass")
    for call in _nested(statement, ast.Call):
        if CHECKED.search(_name(call.func)) and call.args:
            yield "no check", ast.unparse(call), _replaced(lines, call, ast.unparse(call.args[0]))
    if after is not None and _writes(statement) and _writes(after):
        yield "swapped", f"{code}; {_one_line(after)}", _swapped(lines, statement, after)
    for compare in _comparisons(statement):
        kind = type(compare.ops[0])
        other = ast.Compare(compare.left, [COMPARED[kind]()], compare.comparators)
        rule = "boundary" if kind in BOUNDARY else "reversed"
        yield rule, ast.unparse(compare), _replaced(lines, compare, f"({ast.unparse(other)})")


def _called(statement: ast.stmt) -> list[str]:
    """Return, for a statement that is one call, the name of the called function and the names of its arguments."""
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


def _is_fault_point(statement: ast.stmt) -> bool:
    return ast.unparse(statement).startswith("faults.point(")


def _raises(statement: ast.If) -> bool:
    last = statement.body[-1]
    if not isinstance(last, ast.Raise) or last.exc is None:
        return False
    made = last.exc.func if isinstance(last.exc, ast.Call) else last.exc
    return _name(made) not in USERS or any(True for _ in _comparisons(statement))


def _refuses(statement: ast.If) -> bool:
    last = statement.body[-1]
    calls = _nested(last, ast.Call) if isinstance(last, ast.Return) else ()
    return any(REFUSED.search(_name(call.func)) for call in calls)


def _writes(statement: ast.stmt) -> bool:
    return bool(_called(statement)) and bool(WRITE.search(_called(statement)[0]))


def _comparisons(statement: ast.stmt) -> Iterator[ast.Compare]:
    """Comparisons with a position that have another boundary or a reverse."""
    for node in _nested(statement, ast.Compare):
        if len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            names = {_name(inner) for inner in ast.walk(node) if isinstance(inner, ast.expr)}
            if any(POSITION.search(name) for name in names):
                yield node


def _nested(statement: ast.stmt, kind: type[Node]) -> Iterator[Node]:
    """The expressions of a kind in the statement itself, not in the blocks below it."""
    below = (ast.stmt, ast.excepthandler, ast.match_case)
    parts = [node for node in ast.iter_child_nodes(statement) if not isinstance(node, below)]
    if isinstance(statement, ast.Match):
        parts += [case.guard for case in statement.cases if case.guard is not None]
    yield from (node for part in parts for node in ast.walk(part) if isinstance(node, kind))


def _one_line(node: ast.stmt) -> str:
    text = ast.unparse(node.test if isinstance(node, ast.If) else node)
    if isinstance(node, ast.If):
        return f"if {text}: {'raise' if isinstance(node.body[-1], ast.Raise) else ast.unparse(node.body[-1])}"
    return " ".join(text.split())


def _span(lines: list[str], node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Return the start and end of a node in the text, in characters."""
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
