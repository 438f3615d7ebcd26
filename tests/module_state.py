"""Finds what a module keeps: variables of a module or a class that change, and caches, in the syntax tree.

Invariant: a table that nothing changes is no state. These are: an empty container, a lock, a counter or an object of
ours that changes itself, in a variable of a module or a class; a variable that a function of the module changes; and a
function with a cache. `tests/test_house.py` refuses them where the simulator runs many processes in one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

KEEPING = frozenset(
    {"dict", "list", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "ChainMap", "count", "cycle"}
    | {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "ContextVar", "local", "Random", "Lock", "RLock"}
    | {"Condition", "Event", "Semaphore", "Queue", "SimpleQueue"}
)
"""Constructors of what exists to be changed."""
CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove"}
    | {"reverse", "setdefault", "sort", "subtract", "update"}
)
"""Methods that change a container."""
READ_ONLY = frozenset({"Mapping", "Sequence", "Set", "AbstractSet", "frozenset", "tuple"})
"""Types whose values mypy lets nobody change."""
CACHES = frozenset({"cache", "lru_cache"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def changing_classes(trees: Iterable[ast.Module]) -> frozenset[str]:
    """The classes whose objects change themselves after they are made."""
    return frozenset(
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, Function) and method.name not in ("__init__", "__post_init__", "__setstate__")
        if any(place.startswith("self.") for place in _changed_places(method))
    )


def kept(tree: ast.Module, classes: frozenset[str] = frozenset()) -> set[str]:
    """The names of what the module keeps; `Class.name` for a variable of a class, `name()` for a function with a
    cache. `classes` are those whose objects change themselves."""
    return {*_variables(tree.body, "", classes), *_changed_variables(tree), *_cached(tree)}


def _variables(body: Iterable[ast.stmt], prefix: str, classes: frozenset[str]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _variables(node.body, f"{prefix}{node.name}.", classes)
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _variables(node.body, prefix, classes)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and _is_to_change(node.value, classes):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not _is_read_only(node):
                yield from (f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name))


def _is_to_change(value: ast.expr | None, classes: frozenset[str]) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set):
        return not (value.keys if isinstance(value, ast.Dict) else value.elts)
    if not isinstance(value, ast.Call):
        return False
    name = _last_name(value.func)
    is_filled = name in ("dict", "list", "set") and (value.args or value.keywords)
    return (name in KEEPING or name in classes) and not is_filled


def _is_read_only(node: ast.Assign | ast.AnnAssign) -> bool:
    return isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).partition("[")[0] in READ_ONLY


def _changed_variables(tree: ast.Module) -> Iterator[str]:
    """Variables of the module, of its classes or of a module that it imports, that a function changes."""
    imports = [node for node in tree.body if isinstance(node, ast.Import)]
    modules = {alias.asname or alias.name for node in imports for alias in node.names}
    names, classes = set(_bound(tree.body)), {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    for function in (node for node in ast.walk(tree) if isinstance(node, Function)):
        is_global = {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}
        yield from is_global
        own = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
        own |= {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in is_global
        }
        for place in _changed_places(function):
            first, _, rest = place.partition(".")
            is_of_module = first in names - own and (rest or first not in modules)
            if is_of_module or (rest and (first in classes or first == "cls")):
                yield place


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _bound(node.body)
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _changed_places(function: Function) -> Iterator[str]:
    """`name` or `name.attribute` of each container and object that the function changes."""
    for node in ast.walk(function):
        changed: ast.expr | None = None
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            changed = node.value if isinstance(node, ast.Subscript) else node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            changed = node.func.value
        elif isinstance(node, ast.Call) and _last_name(node.func) == "next" and node.args:
            changed = node.args[0]
        while isinstance(changed, ast.Subscript):
            changed = changed.value
        if isinstance(changed, ast.Name | ast.Attribute):
            yield ast.unparse(changed)


def _cached(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            if any(_last_name(made) in CACHES for made in node.decorator_list):
                yield f"{node.name}()"
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _last_name(node.value.func) in CACHES
        ):
            yield from (f"{ast.unparse(target)}()" for target in node.targets)


def _last_name(node: ast.expr) -> str:
    """`local` of `threading.local`, and `lru_cache` of `functools.lru_cache(2)`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
