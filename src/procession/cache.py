"""The cache: a directory for data derived from the installation, such as Spark's links, the class archive and compiled
kernels.

Invariant: the cache can be deleted at any time and is created again. Its directory is `PROCESSION_CACHE_DIR`, or a
directory in the Python environment, or in the user's cache if the environment is read-only. If none is writable, a
pipeline keeps its cache in its own directory.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

VARIABLE = "PROCESSION_CACHE_DIR"
NUMBA_VARIABLE = "NUMBA_CACHE_DIR"

INSTALLED = Path(sys.prefix) / "var" / "procession"
"""The cache in the Python environment, created by `procession warm`, which the setup calls. It may become read-only."""


def cache_directory() -> Path | None:
    """Return the first writable candidate for the cache directory, or None."""
    return next((place for place in _places() if _is_writable(place)), None)


def _places() -> list[Path]:
    if named := os.environ.get(VARIABLE):
        return [Path(named)]
    places = [INSTALLED]
    cache_home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and f"{os.environ['HOME']}/.cache")
    if cache_home:
        places.append(Path(cache_home) / "procession" / hashlib.sha256(sys.prefix.encode()).hexdigest()[:12])
    return places


def _is_writable(place: Path) -> bool:
    """Whether this is a writable directory or can be created as one."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def find_place(fallback: Path | None = None) -> None:
    """Set the cache directories of this process and its children; `fallback` is used if no other is writable.

    Without this setting, numba would look only next to its modules and in the user's home.
    """
    if cache_directory() is None and fallback is not None and not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = str(fallback)
    is_named = bool(os.environ.get(VARIABLE))
    place = cache_directory()
    if place is not None and (is_named or not os.access(Path(__file__).parent, os.W_OK)):
        os.environ.setdefault(NUMBA_VARIABLE, str(place / "numba"))
