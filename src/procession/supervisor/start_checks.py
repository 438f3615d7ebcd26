"""What is checked before a pipeline is started, and before anything is written.

Invariant: each check raises one error with a next step if a pipeline cannot start. `procession run`, `demo` and
`doctor` make the same checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from procession.address import check_free, parse_address
from procession.spark.java import check_java
from procession.spark.master import check_master
from procession.spark.spark_conf import check_properties
from procession.supervisor.local_pipeline import HERE
from procession.supervisor.pipeline_replicas import replica_options
from procession.supervisor.settings import Settings


def check_start(settings: Settings, listen: str = HERE) -> None:
    """Raise ConfigError, before anything is started or written, if Java is missing, the master is invalid, or an
    address is in use."""
    for _, check in start_checks(settings, listen):
        check()


def start_checks(settings: Settings, listen: str = HERE) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is checked before a start: names, and functions that raise an error if a pipeline cannot start."""
    yield "master", partial(check_master, settings.master)
    yield "conf", partial(check_properties, settings.conf or {})
    yield "java", check_java
    if settings.replicas:
        yield "replicas", partial(replica_options, settings)
    for address in filter(None, (listen, settings.control, settings.metrics)):
        yield f"port {address}", partial(check_free, parse_address(address))
