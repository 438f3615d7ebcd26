"""Finds what an app needs on another machine: modules in its directory, and installed packages with their
requirements.

Invariant: names are read from the source code; no code is imported or run. A name is omitted if it is not in the
app's directory, not in the standard library and not installed: the app handles its absence, or already fails on this
machine. Used by `deployment/environment_archive`.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from procession.errors import ConfigError

OURS = "procession"
PROVIDED = frozenset({"pyspark", "py4j"})
"""Packages that executors have with Spark."""
REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass
class AppPackages:
    """The files of an app, by their paths in the archive's `app` folder, and the packages that it imports."""

    modules: dict[str, Path] = field(default_factory=dict)
    distributions: set[str] = field(default_factory=set)


def app_packages(app: Path | None, named: Iterable[str] = ()) -> AppPackages:
    """Return the requirements of this app and of these packages. Raises ConfigError for a package that is not
    installed."""
    found = AppPackages()
    wanted = {(OURS, "")}
    for name in named:
        base, _ = _parsed(name)
        if _installed(base) is None:
            raise ConfigError(f"The package {name} is not installed here.", next_step="Install it, or leave it out.")
        wanted.add(_parsed(name))
    if app is not None:
        wanted |= {(name, "") for name in _scan(app, found.modules)}
    found.distributions = set(_closure(wanted))
    return found


def _scan(app: Path, modules: dict[str, Path]) -> set[str]:
    """Collect the imported modules in the app's directory, and return the names of the imported installed
    packages."""
    root = app.parent.resolve()
    providers = packages_distributions()
    packages: set[str] = set()
    pending, seen = [app.resolve()], {app.resolve()}
    while pending:
        for name in _imports(pending.pop()):
            top = name.partition(".")[0]
            if (beside := _beside(root, top)) is not None:
                new = {path for path in beside if path not in seen}
                modules |= {str(path.relative_to(root)): path for path in new}
                pending += sorted(path for path in new if path.suffix == ".py")
                seen |= new
            elif top in sys.stdlib_module_names:
                continue
            elif top in providers:
                packages.update(providers[top])
            else:
                modules |= _elsewhere(top)
    return packages


def _imports(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{path} cannot be read: {reason}.", next_step="Correct the file, or its path.") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def _beside(root: Path, name: str) -> list[Path] | None:
    """Return the files of the module or package with this name in the app's directory, or None."""
    if (module := root / f"{name}.py").is_file():
        return [module]
    folder = root / name
    return _folder_files(folder) if folder.is_dir() and any(folder.glob("*.py")) else None


def _elsewhere(name: str) -> dict[str, Path]:
    """Return the files of a module on the Python path that is not among the files of an installed package, such as a
    package in editable mode."""
    if name == OURS:
        return {}
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin in (None, "built-in", "frozen"):
        return {}
    origin = Path(str(spec.origin))
    if spec.submodule_search_locations is None:
        return {origin.name: origin}
    return {str(path.relative_to(origin.parent.parent)): path for path in _folder_files(origin.parent)}


def _folder_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]


def _closure(wanted: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of those packages that are installed, and of all packages that they require."""
    pending, seen = sorted(wanted), set(wanted)
    names: set[str] = set()
    while pending:
        name, extra = pending.pop()
        package = _installed(name)
        if package is None or canonical(name) in PROVIDED:
            continue
        if canonical(name) not in names:
            names.add(canonical(name))
            yield canonical(name)
        for requirement in _requirements(package, extra):
            if requirement not in seen:
                seen.add(requirement)
                pending.append(requirement)


def _requirements(package: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Yield the requirements of a package, or only those of one of its extras, as pairs of name and extra."""
    for text in package.requires or ():
        found = EXTRA.search(text)
        if (found[1] if found else "") != extra:
            continue
        name, extras = _parsed(text)
        yield name, ""
        yield from ((name, extra.strip()) for extra in extras.split(",") if extra.strip())


def _parsed(text: str) -> tuple[str, str]:
    found = REQUIREMENT.match(text)
    return (found[1], found[2] or "") if found else (text, "")


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        return None


def canonical(name: str) -> str:
    """Return the normal form of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()
