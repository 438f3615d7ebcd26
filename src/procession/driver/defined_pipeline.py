"""Writes the pipeline of a notebook or script into an app file, which the driver's process loads.

Invariant: the pipeline is written by the user who runs it, into a directory that only this user can enter, and a file
that others could have written is refused before it is read. Unpickling the file is therefore safe: only users who can
also write this user's app files and Python modules can write it. Used by `jobs/pipeline_run`; the app file that is
written here calls `read_pipeline` in each process that loads it.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
from pathlib import Path

from procession.api.pipeline import Pipeline
from procession.errors import ConfigError, PlanError
from procession.storage.secret import OTHERS, write_private

PICKLE = "pipeline.pickle"
APP = f'''"""Written by Pipeline.run: the pipeline that a notebook or a script has defined."""

from pathlib import Path

from procession.driver.defined_pipeline import read_pipeline

pipeline = read_pipeline(Path(__file__).with_name("{PICKLE}"))
'''


def write_app(pipeline: Pipeline, directory: Path) -> Path:
    """Write the pipeline and its app file into this directory, which becomes private. Return the app file. Raises
    PlanError if a function uses an object that cannot be pickled."""
    from procession.spark.pickled_program import pickled

    try:
        data = pickled(pipeline)
    except Exception as error:  # what a function uses may raise anything
        raise PlanError(
            f"Pipeline {pipeline.name!r} cannot be passed to the driver's process: {type(error).__name__}: {error}.",
            next_step="One of its functions uses an object of this process, such as a connection, a lock or an open"
            " file. Create that object inside the function.",
        ) from error
    path = [str(Path(entry).resolve()) for entry in sys.path]
    write_private(directory / PICKLE, pickle.dumps((platform.python_version_tuple()[:2], path, data)))
    write_private(directory / "app.py", APP.encode())
    return directory / "app.py"


def read_pipeline(path: Path) -> Pipeline:
    """Return the pipeline that `write_app` has written. The pipeline's modules are imported from the directories of
    the program that defined it, also in Spark's workers. Raises ConfigError if the file is not this user's."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & OTHERS or found.st_uid not in (os.geteuid(), 0):
                raise ConfigError(
                    f"The pipeline {path} could be read or written by others.",
                    next_step="Delete it, and run the notebook or the script again.",
                )
            version, places, data = pickle.load(file)
    except OSError as error:
        raise ConfigError(
            f"The pipeline {path} cannot be read: {error.strerror}.",
            next_step="Run the notebook or the script again, as the user who runs the pipeline.",
        ) from error
    if version != platform.python_version_tuple()[:2]:
        raise ConfigError(
            f"The pipeline {path} was written by Python {'.'.join(version)}, and this is {platform.python_version()}.",
            next_step="Run the notebook or the script again.",
        )
    if missing := [place for place in places if place not in sys.path]:
        sys.path += missing
        given = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*([given] if given else []), *missing])
    pipeline: Pipeline = pickle.loads(data)
    return pipeline
