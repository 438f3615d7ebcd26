"""The cache: where what is derived from the installation is kept, Spark's links, its class archive and compiled loops.

The one rule: it can be lost at any time, and is made again. It is the directory that `PROCESSION_CACHE_DIR` names; or
in the environment itself, so that it goes with it; or in the user's cache, where the environment is read-only. Where
there is no such place either, a pipeline keeps its cache in its own directory. Imports nothing of ours.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

VARIABLE = "PROCESSION_CACHE_DIR"
NUMBA_VARIABLE = "NUMBA_CACHE_DIR"

INSTALLED = Path(sys.prefix) / "var" / "procession"
"""Made by `procession warm`, which set-up calls; it may be read-only later."""


def cache_directory() -> Path | None:
    """The first of these places that can be written to; None if none can."""
    return next((place for place in _places() if _is_writable(place)), None)


def _places() -> list[Path]:
    if named := os.environ.get(VARIABLE):
        return [Path(named)]
    places = [INSTALLED]
    home = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and f"{os.environ['HOME']}/.cache")
    if home:
        places.append(Path(home) / "procession" / hashlib.sha256(sys.prefix.encode()).hexdigest()[:12])
    return places


def _is_writable(place: Path) -> bool:
    """Whether it is a directory that can be written to, or can be made."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)


def find_place(fallback: Path | None = None) -> None:
    """Let this process and those that it starts keep their caches where that is possible: in `fallback`, if nowhere
    else. numba would look beside its modules and in the user's home only."""
    if cache_directory() is None and fallback is not None and not os.environ.get(VARIABLE):
        os.environ[VARIABLE] = str(fallback)
    is_named = bool(os.environ.get(VARIABLE))
    place = cache_directory()
    if place is not None and (is_named or not os.access(Path(__file__).parent, os.W_OK)):
        os.environ.setdefault(NUMBA_VARIABLE, str(place / "numba"))
