"""Starts Spark with Procession's settings, each with its reason.

Invariant: every setting that differs from Spark's default is in SETTINGS, CLUSTER_SETTINGS or LOCAL_SETTINGS with its
reason; `procession bench epoch-time` measures their combined effect. Records do not pass through the JVM, only
manifests do. So the JVM is tuned for many small jobs and a quick start, not for peak speed.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from procession.errors import ConfigError
from procession.spark import jvm_launch
from procession.spark.jvm_launch import (
    MEMORY,
    Jvm,
    archive_options,
    driver_options,
    is_direct,
    jar_path,
    set_variables,
    start_jvm,
)
from procession.spark.master import LOCAL_CLUSTER, STANDALONE, YARN, is_on_this_machine
from procession.spark.shipped_environment import PYTHON, ShippedEnvironment, make_place

Session = SparkSession
"""The session's type, for packages that do not import pyspark."""

FILES = "spark.hadoop.fs.file.impl"
RAW_FILES = "org.apache.hadoop.fs.RawLocalFileSystem"
MEMORY_PROPERTY = "spark.driver.memory"
OUR_FILES = "procession.NioLocalFileSystem"
"""RAW_FILES without a process for each change of permissions. Only in a JVM that was started with its jar."""

SETTINGS: tuple[tuple[str, str, str], ...] = (
    (
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "the default forks and execs a program for each checkpoint file",
    ),
    (FILES, RAW_FILES, "no .crc beside each checkpoint file; on YARN it is set after Spark has started"),
    (
        "spark.hadoop.fs.permissions.umask-mode",
        "077",
        "only the owner may read the files; Hadoop ignores the system's umask",
    ),
    ("spark.python.unix.domain.socket.enabled", "true", "loopback TCP to the Python workers stalls for 40 ms"),
    ("spark.sql.adaptive.enabled", "false", "it merges partitions, but the number of partitions must not change"),
    ("spark.speculation", "false", "a second copy of a task costs time, and its output is discarded"),
    ("spark.sql.shuffle.partitions", "2", "the default of 200 starts 200 empty tasks"),
    ("spark.sql.streaming.offsetLog.formatVersion", "1", "Procession reads the offsets of an epoch in this format"),
    ("spark.sql.streaming.noDataMicroBatches.enabled", "false", "an epoch without records has nothing to commit"),
    ("spark.sql.streaming.metricsEnabled", "false", "Procession has its own metrics"),
    ("spark.sql.streaming.numRecentProgressUpdates", "4", "the default keeps a hundred in memory"),
    ("spark.sql.streaming.minBatchesToRetain", "100", "as many as the round records that are kept"),
    ("spark.sql.streaming.stopTimeout", "20s", "report a stop that hangs"),
    ("spark.sql.ui.retainedExecutions", "1", "no user interface reads them"),
    ("spark.ui.enabled", "false", "it is not used, and it opens a port"),
    ("spark.ui.showConsoleProgress", "false", "Procession shows progress itself"),
    ("spark.ui.retainedJobs", "10", "kept in memory even without the user interface"),
    ("spark.ui.retainedStages", "10", "kept in memory even without the user interface"),
    ("spark.ui.retainedTasks", "100", "kept in memory even without the user interface"),
    ("spark.driver.host", "127.0.0.1", "listen on loopback by default"),
    ("spark.driver.bindAddress", "127.0.0.1", "listen on loopback by default"),
    (MEMORY_PROPERTY, MEMORY, "manifests are small"),
)

MANIFEST_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("spark.sql.codegen.wholeStage", "false", "a plan for a few manifests takes longer to compile than to run"),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN", "as above; loading the compiler also delays the first epoch"),
)
"""Further settings for pipelines without Spark SQL transforms, whose rows are all manifests."""

CLUSTER_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("spark.network.timeout", "20s", "a host that hangs counts as lost after this time; the default is two minutes"),
    ("spark.network.timeoutInterval", "5s", "interval of the check of executors; must not exceed the time-out"),
    ("spark.executor.heartbeatInterval", "3s", "several heartbeats must fit into the time-out"),
)
"""Further settings for executors on other machines."""

SECURITY_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("spark.authenticate", "true", "a peer that reaches Spark's ports can run code, unless it needs a secret"),
    ("spark.network.crypto.enabled", "true", "the traffic between Spark's processes is encrypted"),
    ("spark.io.encryption.enabled", "true", "Spark's temporary files on executors are encrypted"),
)
"""Further settings for YARN and Kubernetes, where Spark creates a secret for each application, and for a standalone
cluster with a configured secret."""

YARN_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("spark.python.unix.domain.socket.enabled", "false", "the paths of containers are too long for such sockets"),
)
"""Further settings for YARN."""

LOCAL_SETTINGS: tuple[tuple[str, str, str], ...] = (
    ("spark.python.daemon.module", "procession.spark.worker_daemon", "workers share the imports of our modules"),
)
"""Further settings for executors on this machine. On other machines the package may be missing, which
`spark/executor_check` must be able to report."""

PYTHON_ARCHIVES = "PYSPARK_ARCHIVES_PATH"
"""Environment variable of Spark's client of YARN."""
JOINED = ("spark.files",)
"""Properties that are lists: the user's values are added to ours."""
JAVA_OPTIONS: tuple[str, ...] = jvm_launch.JAVA_OPTIONS
"""The options of every JVM of a session. Benchmarks leave some out."""
DRIVER_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
MEMORY_REFUSED = "Asked to launch cluster with"

SOURCE_PACKAGES = "pyspark_"
"""Prefix of the names of packages in which Spark looks for Python data sources."""

TASK_FAILURES_MAX = 4
"""Maximum number of attempts of a task whose worker was killed. A user's error is not retried; the manifest contains
it."""


def open_session(
    name: str,
    parallelism: int,
    *,
    master: str | None = None,
    log_file: Path | None = None,
    home: Path | None = None,
    scratch: Path | None = None,
    sockets: Path | None = None,
    java_options: Sequence[str] | None = None,
    properties: Mapping[str, str] | None = None,
    shipped: ShippedEnvironment | None = None,
    spark_secret: str = "",
    jvm: Jvm | None = None,
    is_for_manifests: bool = False,
) -> SparkSession:
    """Open a session with SETTINGS, on `master` or on as many local threads as the plan has tasks. `properties` are
    the user's properties, which override SETTINGS and `master`.

    Executors that Spark starts on this machine, for a `local-cluster`, write their logs to `work` in `home`. Temporary
    files are in `scratch`, sockets in `sockets`; both must be on this machine. The default is the system's temporary
    directory. Executors on other machines get the environment `shipped`. `spark_secret` is the secret of the cluster's
    ports. `jvm` was started earlier for this session (`driver/early_jvm`).
    With `is_for_manifests`, MANIFEST_SETTINGS also apply."""
    set_variables(scratch, python=sys.executable if shipped is None else PYTHON, home=home)
    options = [*JAVA_OPTIONS, *(archive_options() if java_options is None else java_options)]
    builder = SparkSession.Builder().appName(name).master(master or f"local[{parallelism},{TASK_FAILURES_MAX}]")
    is_apart = not is_on_this_machine(master or "local")
    for key, value, _ in settings_of(master or "local"):
        builder = builder.config(key, value)
    for key, value, _ in MANIFEST_SETTINGS if is_for_manifests else ():
        builder = builder.config(key, value)
    if is_apart and (spark_secret or not (master or "").startswith(STANDALONE)):
        for key, value, _ in SECURITY_SETTINGS:
            builder = builder.config(key, value)
    place = None if shipped is None or scratch is None else make_place(scratch, shipped)
    given = dict(properties or {})
    if shipped is not None and place is not None:
        for key, value in shipped.properties(place).items():
            given[key] = f"{value},{given[key]}" if key in JOINED and key in given else given.get(key, value)
    if master is None or master.startswith("local["):
        # A peer that reaches Spark's ports can run code. In local mode Spark generates a secret; a cluster has its own.
        builder = builder.config("spark.authenticate", "true")
    temporary = scratch
    if sockets is not None:
        if not is_apart:
            builder = builder.config("spark.python.unix.domain.socket.dir", str(sockets))
        else:
            temporary = sockets  # the setting would also apply to executors, whose machines have other directories
    temporary = temporary if scratch is not None else None
    of_driver = driver_options(options, temporary, log_file)
    if (master or "").startswith(LOCAL_CLUSTER):
        builder = builder.config("spark.executor.extraJavaOptions", _quoted(of_driver[:-1]))
    builder = builder.config(DRIVER_JAVA_OPTIONS, _quoted(of_driver))
    if master == YARN:
        os.environ[PYTHON_ARCHIVES] = ",".join(map(str, python_archives()))
    for key, value in given.items():
        is_added = key == DRIVER_JAVA_OPTIONS
        builder = builder.config(key, f"{value} {_quoted(of_driver)}" if is_added else value)
    try:
        if jvm is None and home is None and SparkContext._gateway is None:
            is_recorded = is_direct(master, given, place, spark_secret)
            jvm = start_jvm(of_driver, _memory()) if is_recorded else None
        if jvm is not None and jar_path().exists() and builder._options.get(FILES) == RAW_FILES:
            builder = builder.config(FILES, OUR_FILES)
        if jvm is not None or place is not None or spark_secret:
            _start_context(builder, place, spark_secret, jvm)
        session = builder.getOrCreate()
    except Py4JJavaError as error:
        if refused := _refused(error, master):
            raise refused from error
        raise
    if master == YARN:
        _use_raw_files(session)
    _skip_lookup(session)
    return session


def settings_of(master: str) -> list[tuple[str, str, str]]:
    """Return the settings with which Spark starts at this master, each with its reason."""
    if is_on_this_machine(master):
        return [*SETTINGS, *LOCAL_SETTINGS]
    if master == YARN:
        started = [setting for setting in SETTINGS if setting[0] != FILES]  # see _use_raw_files
        return [*started, *CLUSTER_SETTINGS, *YARN_SETTINGS]
    return [*SETTINGS, *CLUSTER_SETTINGS]


def _use_raw_files(session: SparkSession) -> None:
    """Let Spark write its checkpoint with RAW_FILES from now on. Spark's client of YARN cannot copy its own files with
    that class, so Spark starts with Hadoop's default, and the instance that Hadoop keeps is replaced."""
    context, jvm = session.sparkContext, session._jvm
    assert jvm is not None
    hadoop = context._jsc.hadoopConfiguration()
    local = jvm.java.net.URI("file:///")
    jvm.org.apache.hadoop.fs.FileSystem.get(local, hadoop).close()
    hadoop.set(FILES.removeprefix("spark.hadoop."), RAW_FILES)
    found = jvm.org.apache.hadoop.fs.FileSystem.get(local, hadoop).getClass().getName()
    if found != RAW_FILES:
        raise ConfigError(
            f"Spark would write its checkpoint with {found} and not with {RAW_FILES}.",
            next_step=f"Remove {FILES.removeprefix('spark.hadoop.')} from the configuration in HADOOP_CONF_DIR.",
        )


def python_archives() -> list[Path]:
    """Return Spark's own archives of PySpark and Py4J, which its client of YARN sends to executors. `spark_home` has
    directories in their place."""
    found = Path(pyspark.__file__).parent / "python" / "lib"
    return [found / "pyspark.zip", *found.glob("py4j-*-src.zip")]


def _skip_lookup(session: SparkSession) -> None:
    """Tell Spark that no installed package has a Python data source. Otherwise it starts a Python process that looks
    for packages with this prefix."""
    if any(found.name.startswith(SOURCE_PACKAGES) for found in pkgutil.iter_modules()):
        return
    with suppress(Exception):  # another version of Spark: it looks for them itself
        jvm: Any = session._jvm
        manager = getattr(getattr(jvm.org.apache.spark.sql.execution.datasources, "DataSourceManager$"), "MODULE$")
        empty = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
        getattr(manager, "dataSourceBuilders_$eq")(jvm.scala.Some(empty))


def _memory() -> str:
    return next(value for name, value, _ in SETTINGS if name == MEMORY_PROPERTY)


def _quoted(options: Sequence[str]) -> str:
    """Return the options as one property, which Spark splits like a shell."""
    return " ".join(f'"{option}"' if " " in option else option for option in options)


def _start_context(builder: SparkSession.Builder, place: Path | None, spark_secret: str, jvm: Jvm | None) -> None:
    """Start Spark in this JVM, or in a new one in this directory. The secret is sent over the JVM's socket, because
    properties at its start are visible on its command line."""
    conf = SparkConf()
    for key, value in builder._options.items():
        conf.set(key, value)
    popen = None if place is None else {"cwd": str(place)}
    gateway = jvm.gateway() if jvm is not None else launch_gateway(conf, popen)  # type: ignore[no-untyped-call]
    if spark_secret:
        conf.set("spark.authenticate.secret", spark_secret)
    SparkContext(conf=conf, gateway=gateway)


def _refused(error: Py4JJavaError, master: str | None) -> ConfigError | None:
    """Return the error if Spark refuses this master, in which case a retry does not help."""
    thrown = error.java_exception
    message = str(thrown.getMessage())
    if not (master or "").startswith(LOCAL_CLUSTER) or MEMORY_REFUSED not in message:
        return None
    return ConfigError(
        f"Spark does not start with the master {master}: {message.splitlines()[0]}",
        next_step="give the workers more memory, such as --master local-cluster[2,1,1024]",
    )


def local_url(directory: Path) -> str:
    """Return how Spark names a directory of this machine. A bare path is one of the default file system, which may be
    HDFS. Spark takes the text as it is, so a space must not be written as `%20`, as a URI would have it."""
    return f"file://{directory.absolute()}"
