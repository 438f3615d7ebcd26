"""Builds environment archives: Procession, its dependencies and an app's modules in one file, for executors without
them.

Invariant: an executor needs Spark and a plain Python of the same minor version, or no Python if the archive contains
Python. `bin/python` in the archive finds Python and sets its package path; the archive contains no path of this
machine. The name of an archive is derived from its content, so the same content is packed only once. Used by
`procession submit` and `pack`; Spark unpacks it (`spark/shipped_environment`).
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from importlib.util import cache_from_source
from io import BytesIO
from pathlib import Path
from typing import Any

from procession.deployment.app_packages import OURS, AppPackages
from procession.errors import ConfigError
from procession.spark.shipped_environment import PACKED_PYTHON, SUFFIX, VERSION
from procession.storage.durable import make_directory, storage_error

PACKAGES, APP, PYTHON = "packages", "app", "python"
"""Folders of the archive."""
KEPT = 2
"""Number of archives that a directory keeps: the current one, and the previous one, which a driver may still ship."""

UNUSED_FOLDERS = frozenset({"tests", "test", "include", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"})
"""Folders in packages and in the standard library that tasks do not need."""
UNUSED_SUFFIXES = (".pyi", ".pyx", ".pxd", ".h", ".hpp", ".a", ".c", ".cc", ".cpp")

NO_PYTHON = "procession: there is no Python"
"""Beginning of the error that `bin/python` prints on a machine without a suitable Python."""

SCRIPT = f"""#!/bin/sh
# Runs Python with the packages of this archive. Written by `procession pack`.
here=$(cd "$(dirname "$0")/.." && pwd)
export PROCESSION_ENVIRONMENT="$here" PYTHONNOUSERSITE=1
export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}$here/{APP}:$here/{PACKAGES}"
if [ -x "$here/{PYTHON}/bin/python{VERSION}" ]; then
    export PYTHONHOME="$here/{PYTHON}" LD_LIBRARY_PATH="$here/{PYTHON}/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
    exec "$here/{PYTHON}/bin/python{VERSION}" "$@"
fi
for python in ${{PROCESSION_PYTHON:-python{VERSION} python3}}; do
    is="import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    if command -v "$python" > /dev/null && "$python" -S -c "$is" 2> /dev/null; then exec "$python" "$@"; fi
done
echo "{NO_PYTHON} {VERSION} on $(hostname)" >&2
exit 127
"""


def packed(directory: Path, needed: AppPackages, *, has_python: bool) -> Path:
    """Return the archive with an app's requirements in this directory. Create the archive if it does not exist."""
    files = archive_files(needed, has_python=has_python)
    path = directory / f"environment-{_key(files)}{SUFFIX}"
    if not path.exists():
        write_archive(path, files)
        for old in sorted(directory.glob(f"environment-*{SUFFIX}"), key=_modified, reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)
    return path


def write_archive(path: Path, files: Mapping[str, Path]) -> None:
    """Write an archive with these files, and the script that runs Python with them."""
    make_directory(path.parent)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        with _zipped(draft) as zipped, tarfile.open(fileobj=zipped, mode="w|") as archive:
            script = tarfile.TarInfo("bin/python")
            script.size, script.mode = len(SCRIPT), 0o755
            archive.addfile(script, BytesIO(SCRIPT.encode()))
            for name, source in files.items():
                with source.open("rb") as file:
                    info = archive.gettarinfo(arcname=name, fileobj=file)
                    info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.fstat(file.fileno()).st_size
                    info.uid = info.gid = 0
                    info.uname = info.gname = ""
                    info.mode = 0o755 if info.mode & 0o100 else 0o644
                    archive.addfile(info, file)
        draft.replace(path)
    except OSError as error:
        raise storage_error(path, "write", error) from error
    finally:
        draft.unlink(missing_ok=True)


def _zipped(path: Path) -> Any:
    from isal import igzip

    return igzip.IGzipFile(str(path), "wb", compresslevel=1)  # type: ignore[no-untyped-call]


def archive_files(needed: AppPackages, *, has_python: bool) -> dict[str, Path]:
    """Return the files of an archive, by their names in it."""
    return dict(_files(needed, has_python=has_python))


def _files(needed: AppPackages, *, has_python: bool) -> Iterator[tuple[str, Path]]:
    if has_python:
        yield from _python_files()  # first, because readers of an archive check the first files
    for name, path in sorted(needed.modules.items()):
        yield f"{APP}/{name}", path
    for name in sorted(needed.distributions):
        yield from _package_files(name)
    root = Path(__file__).resolve().parent.parent  # also if it is installed in editable mode
    for path in _below(root):
        yield from _with_compiled(f"{PACKAGES}/{OURS}/{path.relative_to(root)}", path)


def _package_files(name: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of an installed package. Programs and files outside of its directory are omitted."""
    package = distribution(name)
    for file in package.files or ():
        text = str(file)
        is_ours = name == OURS and ".dist-info" not in text
        if text.startswith("..") or text.endswith(".pth") or is_ours or not _is_used(Path(text)):
            continue
        path = Path(str(package.locate_file(file)))
        if path.is_file() and path.suffix != ".pyc":
            yield from _with_compiled(f"{PACKAGES}/{text}", path)


def _python_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of this Python: its program, its library and the standard library."""
    program = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    yield PACKED_PYTHON, program
    stdlib = Path(sysconfig.get_path("stdlib"))
    if not stdlib.is_dir():
        raise ConfigError("The standard library of this Python cannot be found.", next_step="Leave out --with-python.")
    for path in _below(stdlib):
        relative = path.relative_to(stdlib)
        if relative.parts[0] not in ("site-packages", "dist-packages", *UNUSED_FOLDERS):
            yield from _with_compiled(f"{PYTHON}/lib/python{VERSION}/{relative}", path)
    shared = sysconfig.get_config_var("INSTSONAME") or ""
    library = Path(sysconfig.get_config_var("LIBDIR") or "") / shared
    if shared.endswith(".so") or ".so." in shared:
        yield f"{PYTHON}/lib/{shared}", library


def _with_compiled(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield a file and its compiled code, so that executors need not compile it again."""
    yield name, path
    if path.suffix == ".py" and (compiled := Path(cache_from_source(str(path)))).is_file():
        yield f"{Path(name).parent}/{compiled.parent.name}/{compiled.name}", compiled


def _below(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and _is_used(path.relative_to(root)):
            yield path


def _is_used(path: Path) -> bool:
    is_of_tests = not UNUSED_FOLDERS.isdisjoint(path.parts[1:-1])
    return not is_of_tests and not path.name.endswith(UNUSED_SUFFIXES)


def _key(files: Mapping[str, Path]) -> str:
    """Return a name for these files, which differs if a file is changed, added or removed."""
    digest = hashlib.sha256(SCRIPT.encode())
    for name, path in files.items():
        found = path.stat()
        digest.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _modified(path: Path) -> float:
    return path.stat().st_mtime
