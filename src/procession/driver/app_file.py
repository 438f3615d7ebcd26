"""The app file: a user's Python file with one module-level Pipeline in it.

Invariant: every mistake in the file is reported as one sentence that names the file. Called by the command line; the
driver sends the file's functions to Spark's workers inside the plan.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType

from procession.api.app_settings import PROVIDED
from procession.api.pipeline import Pipeline
from procession.driver.app_values import check_known, provided
from procession.errors import ConfigError, PlanError, ProcessionError
from procession.planner.graph import Graph
from procession.planner.plan import Plan
from procession.planner.rules import check_runnable, make_plan
from procession.planner.upgrade import Upgrade

MODULE = "procession_app"
NO_UPGRADE = Upgrade()
LOADED: ContextVar[Path | None] = ContextVar("LOADED", default=None)
"""The app file that is being executed."""


@dataclass(frozen=True)
class App:
    """A loaded app file: its module, and the plan of its pipeline."""

    module: ModuleType
    plan: Plan
    upgrade: Upgrade = NO_UPGRADE
    """How the states of the previous program become states of this program."""

    @property
    def graph(self) -> Graph:
        return self.plan.graph


InputStreams = frozenset[int] | Callable[[Graph], frozenset[int]]


def load_app(path: Path, *, is_to_run: bool = True, input_streams: InputStreams = frozenset()) -> App:
    """Execute the file and plan the one Pipeline that it defines.

    With `is_to_run`, raise an error for a pipeline that cannot run. `input_streams` are the streams of the run's
    inputs, or a function that returns them."""
    if not path.is_file():
        raise ConfigError(
            f"there is no app at {path}", next_step="give the path of a Python file with a Pipeline in it"
        )
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", next_step="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    # The file may import modules from its directory, here and in Spark's workers.
    sys.path.insert(0, str(path.parent.resolve()))
    values = provided()
    token, loaded = PROVIDED.set(values), LOADED.set(path)
    try:
        spec.loader.exec_module(module)
    except ProcessionError:
        raise
    except (Exception, SystemExit) as error:  # the user's file may raise anything
        # The traceback starts in the user's file: our own frames do not help the user.
        trace = "".join(traceback.format_exception(error.with_traceback(_in_file(error, path.absolute()))))
        raise PlanError(
            f"the app {path} cannot be loaded: {type(error).__name__}: {error}", next_step="fix the file", trace=trace
        ) from error
    finally:
        PROVIDED.reset(token)
        LOADED.reset(loaded)
    pipelines = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(pipelines) != 1:
        found = "no Pipeline" if not pipelines else f"{len(pipelines)} Pipelines"
        raise PlanError(
            f"the app {path} has {found} at module level", next_step="define exactly one, as `pipeline = Pipeline(…)`"
        )
    graph = next(iter(pipelines.values())).graph()
    check_known(values, graph.settings, path)
    plan = make_plan(graph.with_inputs(input_streams(graph) if callable(input_streams) else input_streams))
    if is_to_run:
        check_runnable(plan)
    upgrades = {id(value): value for value in vars(module).values() if isinstance(value, Upgrade)}
    if len(upgrades) > 1:
        raise PlanError(f"the app {path} has {len(upgrades)} Upgrades at module level", next_step="define at most one")
    return App(module, plan, next(iter(upgrades.values()), NO_UPGRADE))


def _in_file(error: BaseException, path: Path) -> TracebackType | None:
    """Return the part of the traceback that starts in the user's file; None if no frame is in that file, as with a
    syntax error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    return trace
