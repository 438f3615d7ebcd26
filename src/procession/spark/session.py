"""The session: Spark as we start it, each setting with its reason.

The one rule: every setting that differs from Spark's default stands in SETTINGS with why, and `procession bench
epoch-time` measures what they buy together. Records do not pass through the JVM, only manifests, so it is tuned for
many small jobs and a quick start rather than for peak speed. After it `spark/query`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import py4j
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from procession.cache import INSTALLED, VARIABLE, cache_directory
from procession.errors import ConfigError
from procession.spark.java import java
from procession.spark.master import LOCAL_CLUSTER

Session = SparkSession
"""For rooms that hold one and know nothing else of Spark."""

SETTINGS: tuple[tuple[str, str, str], ...] = (
    (
        "spark.sql.streaming.checkpointFileManagerClass",
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
        "the default forks and execs a program for each checkpoint file",
    ),
    ("spark.hadoop.fs.file.impl", "org.apache.hadoop.fs.RawLocalFileSystem", "no .crc beside each checkpoint file"),
    (
        "spark.hadoop.fs.permissions.umask-mode",
        "077",
        "its files are nobody else's; Hadoop does not ask the system's mask",
    ),
    ("spark.python.unix.domain.socket.enabled", "true", "loopback TCP to the Python workers stalls for 40 ms"),
    ("spark.sql.adaptive.enabled", "false", "it merges partitions; ours are counted"),
    ("spark.speculation", "false", "a second copy of a task would burn time only to be thrown away"),
    ("spark.sql.shuffle.partitions", "2", "the default of 200 makes 200 tasks of nothing"),
    ("spark.sql.streaming.noDataMicroBatches.enabled", "false", "an epoch without records decides nothing"),
    ("spark.sql.streaming.metricsEnabled", "false", "we count ourselves"),
    ("spark.sql.streaming.numRecentProgressUpdates", "4", "the default keeps a hundred in memory"),
    ("spark.sql.streaming.minBatchesToRetain", "100", "so many round records are kept, too"),
    ("spark.sql.streaming.stopTimeout", "20s", "a stop that hangs must say so"),
    ("spark.sql.ui.retainedExecutions", "1", "no user interface reads them"),
    ("spark.ui.enabled", "false", "nobody looks at it, and it opens a port"),
    ("spark.ui.showConsoleProgress", "false", "we show progress ourselves"),
    ("spark.ui.retainedJobs", "10", "kept in memory even without the user interface"),
    ("spark.ui.retainedStages", "10", "kept in memory even without the user interface"),
    ("spark.ui.retainedTasks", "100", "kept in memory even without the user interface"),
    ("spark.driver.host", "127.0.0.1", "listen on loopback unless told otherwise"),
    ("spark.driver.bindAddress", "127.0.0.1", "listen on loopback unless told otherwise"),
    ("spark.driver.memory", "1g", "manifests are small"),
)

JAVA_OPTIONS = (
    "-Xss4m",  # Spark matches whole Python traces with one regular expression, and overflows the default stack
    "-XX:TieredStopAtLevel=1",  # the JVM moves manifests only: compile quickly rather than well
    "-XX:+UseSerialGC",  # a small heap on few cores
    "-Xshare:auto",
)

MEMORY_REFUSED = "Asked to launch cluster with"

TASK_FAILURES_MAX = 4
"""A task whose worker was killed is tried again this often; a user's error never is (it comes back as a manifest)."""


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
) -> SparkSession:
    """A session as SETTINGS says, on `master` or on as many local threads as the plan has tasks. Executors that Spark
    starts here by itself, for a `local-cluster`, leave their logs in `home`, in `work`. Temporary files are in
    `scratch`, sockets in `sockets`, both of this machine; without them, where the system keeps such."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(home))
    options = [*JAVA_OPTIONS, *(archive_options() if java_options is None else java_options)]
    builder = SparkSession.Builder().appName(name).master(master or f"local[{parallelism},{TASK_FAILURES_MAX}]")
    for key, value, _ in SETTINGS:
        builder = builder.config(key, value)
    if master is None or master.startswith("local["):
        # Who reaches Spark's ports can run code; here Spark makes a secret for itself. A cluster has one of its own.
        builder = builder.config("spark.authenticate", "true")
    if scratch is not None:
        os.environ["SPARK_LOCAL_DIRS"] = os.environ["TMPDIR"] = str(scratch)
        options.append(f'"-Djava.io.tmpdir={scratch}"')
    if sockets is not None:
        builder = builder.config("spark.python.unix.domain.socket.dir", str(sockets))
    if (master or "").startswith(LOCAL_CLUSTER):
        builder = builder.config("spark.executor.extraJavaOptions", " ".join(options))
    options.append(f"-Dlog4j2.configurationFile={_log_settings(log_file)}")
    builder = builder.config("spark.driver.extraJavaOptions", " ".join(options))
    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        if refused := _refused(error, master):
            raise refused from error
        raise


def _refused(error: Py4JJavaError, master: str | None) -> ConfigError | None:
    """Why Spark does not take this master, if that is what its error says. Trying again would not help."""
    thrown = error.java_exception
    told = str(thrown.getMessage())
    if not (master or "").startswith(LOCAL_CLUSTER) or MEMORY_REFUSED not in told:
        return None
    return ConfigError(
        f"Spark does not start with the master {master}: {told.splitlines()[0]}",
        next_step="give the workers more memory, such as --master local-cluster[2,1,1024]",
    )


def spark_home(home: Path | None = None) -> Path:
    """A Spark home whose Python path is the installed package. Spark would put its own zip first, which holds no
    compiled modules and costs each worker most of a second."""
    package = Path(pyspark.__file__).parent
    name = f"spark-home-{pyspark.__version__}"
    links = {"bin": package / "bin", "jars": package / "jars", "python/lib/pyspark.zip": package.parent}
    for archive in (package / "python" / "lib").glob("py4j-*-src.zip"):
        links[f"python/lib/{archive.name}"] = Path(py4j.__file__).parent.parent
    if home is None and all(_is_link(INSTALLED / name / link, target) for link, target in links.items()):
        return INSTALLED / name  # it may be read-only
    home = home or _cache() / name
    for link, target in links.items():
        (home / link).parent.mkdir(parents=True, exist_ok=True)
        if not _is_link(home / link, target):
            draft = (home / link).with_name(f"{(home / link).name}.{os.getpid()}")
            draft.symlink_to(target)
            draft.replace(home / link)
    return home


def _is_link(name: Path, target: Path) -> bool:
    return name.is_symlink() and name.readlink() == target


def archive_options() -> list[str]:
    """The class-data-sharing archive, if `procession warm` has made one for this Java and this Spark."""
    archive = archive_path()
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.exists() else []


def archive_path() -> Path:
    """Where the archive is, or is to be made."""
    version = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr
    key = hashlib.sha256(f"{version}{pyspark.__version__}".encode()).hexdigest()[:12]
    installed = INSTALLED / f"classes-{key}.jsa"
    return installed if installed.exists() else _cache() / installed.name


def _cache() -> Path:
    place = cache_directory()
    if place is None:
        raise ConfigError(
            f"there is no place for a cache: neither {sys.prefix} nor a home directory can be written to",
            next_step=f"set {VARIABLE} to a directory of your own",
        )
    return place


def _log_settings(log_file: Path | None) -> Path:
    """Spark's own log: warnings, into a file that rolls over, or errors to the standard error stream."""
    name = "log4j2-file.properties" if log_file else "log4j2-console.properties"
    if log_file:
        os.environ["PROCESSION_SPARK_LOG"] = str(log_file)
    return Path(__file__).with_name(name)
