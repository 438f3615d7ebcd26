"""Starts Spark's JVM with the command that Spark's own launcher made, without the launcher.

Invariant: the JVM is the one that `spark-submit` would start: the same command, environment and main class. Spark's
launcher is a shell script and a Java program that computes this command, which takes a quarter of a second.
`procession warm` records the command beside the class archive (`spark/class_archive`). It depends only on the
installation, unless the user configures Spark; then `start_jvm` returns None, and PySpark starts the JVM as usual. This
module does not import pyspark, so that the driver starts the JVM before its other imports. `spark/session` connects.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from procession.cache import INSTALLED, VARIABLE, cache_directory
from procession.errors import ConfigError
from procession.spark.java import java_build
from procession.spark.master import THREADS

JAVA_OPTIONS = (
    "-Xss16m",  # Spark matches whole Python tracebacks with one regular expression, which overflows smaller stacks
    "-XX:TieredStopAtLevel=1",  # the JVM handles only manifests: prefer fast compilation to fast code
    "-XX:+UseSerialGC",  # a small heap on few cores
    "-Xshare:auto",
)
MEMORY = "1g"
"""The JVM's maximum heap: manifests are small."""

SUBMIT = "org.apache.spark.deploy.SparkSubmit"
SHELL = "pyspark-shell"
CONNECTION = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""PySpark's environment variable for the file to which the JVM writes its port and its secret."""
ATTACHED = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
"""PySpark's environment variables for a JVM that runs already."""
OF_USERS = re.compile(
    r"SPARK_(?!HOME$|LOCAL_DIRS$|AUTH_SOCKET_TIMEOUT$|BUFFER_SIZE$)|PYSPARK_SUBMIT_ARGS$|HADOOP_CONF_DIR$|YARN_CONF_DIR$"
)
"""Environment variables from which Spark's launcher makes another command. The excepted ones are set by `set_variables`
and by PySpark itself."""
OF_LAUNCHER = re.compile(r"SPARK_(SCALA_VERSION|ENV_LOADED|CONF_DIR|CONNECT_MODE)$|PYTHONHASHSEED$")
"""Environment variables that Spark's scripts set."""
POLL_S = 0.01


class Jvm:
    """A started JVM. It ends when its standard input is closed, so at the latest with this process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._directory = Path(tempfile.mkdtemp())
        self._connection = self._directory / "connection"

        def ignore_interrupt() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver decides what Ctrl-C does

        environment = {**environment, CONNECTION: str(self._connection)}
        self.popen = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            preexec_fn=ignore_interrupt,
        )

    def gateway(self) -> Any:
        """Wait until the JVM answers, and return PySpark's gateway to it."""
        from pyspark.errors import PySparkRuntimeError
        from pyspark.java_gateway import launch_gateway
        from pyspark.serializers import UTF8Deserializer, read_int

        try:
            while not self._connection.exists():
                if self.popen.poll() is not None:
                    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
                time.sleep(POLL_S)
            with self._connection.open("rb") as lines:
                port = read_int(lines)  # type: ignore[no-untyped-call]
                secret = UTF8Deserializer().loads(lines)  # type: ignore[no-untyped-call]
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        os.environ.update(zip(ATTACHED, (str(port), secret), strict=True))
        try:
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in ATTACHED:  # processes that this one starts must not see the secret
                del os.environ[name]
        gateway.proc = self.popen
        return gateway

    def close(self) -> None:
        """End a JVM to which nobody has connected."""
        self.popen.kill()
        self.popen.communicate()
        shutil.rmtree(self._directory, ignore_errors=True)


def start_jvm(options: Sequence[str], memory: str = MEMORY) -> Jvm | None:
    """Start the JVM with these options, in the environment of this process. Return None if there is no recorded
    command for it, or if the user configures Spark by its environment."""
    if _is_configured():
        return None
    try:
        recorded = json.loads(launch_path().read_text())
        if recorded["home"] != str(spark_home()):
            return None
        *before, class_path = recorded["before"]
        if jar_path().exists():  # at the end, so that the class archive stays valid
            class_path = f"{class_path}{os.pathsep}{jar_path()}"
        command = [*before, class_path, f"-Xmx{memory}", *options, *recorded["after"], SHELL]
        return Jvm(command, os.environ | recorded["environment"])
    except (OSError, ValueError, LookupError):
        return None


def _is_configured() -> bool:
    return any(OF_USERS.match(name) for name in os.environ)


def record_launch(pid: int, options: Sequence[str], memory: str = MEMORY) -> None:
    """Record how Spark's launcher has started this JVM with these options, unless the user configures Spark."""
    if _is_configured():
        return
    command = _words(Path(f"/proc/{pid}/cmdline"))
    given = [f"-Xmx{memory}", *options]
    begin, end = command.index(given[0]), command.index(SUBMIT) + 1
    rest = begin + len(given)
    if command[begin:rest] != given:
        raise ValueError(f"Spark's launcher has changed the JVM's options: {command[begin:end]}")
    variables = dict(word.partition("=")[::2] for word in _words(Path(f"/proc/{pid}/environ")))
    recorded = {
        "home": str(spark_home()),
        "before": command[:begin],
        "after": command[rest:end],
        "environment": {name: value for name, value in variables.items() if OF_LAUNCHER.match(name)},
    }
    draft = launch_path().with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(recorded))
    draft.replace(launch_path())


def _words(path: Path) -> list[str]:
    return os.fsdecode(path.read_bytes()).split("\0")[:-1]


def is_direct(master: str | None, properties: Mapping[str, str], shipped: object, spark_secret: str) -> bool:
    """Return whether the recorded command fits this session: only the driver's JVM, without properties of the user."""
    return THREADS.fullmatch(master or "local") is not None and not (properties or shipped or spark_secret)


def set_variables(scratch: Path | None, *, python: str = sys.executable, home: Path | None = None) -> None:
    """Set the environment variables of a session's JVM, which its Python workers inherit."""
    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(home))
    if scratch is not None:
        os.environ["SPARK_LOCAL_DIRS"] = os.environ["TMPDIR"] = str(scratch)


def driver_options(options: Sequence[str], temporary: Path | None, log_file: Path | None) -> list[str]:
    """Return the options of the driver's JVM: `options`, its temporary directory and its log."""
    directory = [] if temporary is None else [f"-Djava.io.tmpdir={temporary}"]
    return [*options, *directory, f"-Dlog4j2.configurationFile={log_settings(log_file)}"]


def spark_home(home: Path | None = None) -> Path:
    """Return a SPARK_HOME whose Python path is the installed package.

    Spark's own zip has no compiled modules, and importing it costs each worker most of a second."""
    package = _package("pyspark")
    name = f"spark-home-{spark_version()}"
    links = {"bin": package / "bin", "jars": package / "jars", "python/lib/pyspark.zip": package.parent}
    for archive in (package / "python" / "lib").glob("py4j-*-src.zip"):
        links[f"python/lib/{archive.name}"] = _package("py4j").parent
    if home is None and all(_is_link(INSTALLED / name / link, target) for link, target in links.items()):
        return INSTALLED / name  # the installation may be read-only
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


@cache
def _package(name: str) -> Path:
    """Return the directory of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f"the package {name} is not installed")
    return Path(spec.origin).parent


@cache
def spark_version() -> str:
    """Return the version of the installed pyspark, without importing it."""
    text = (_package("pyspark") / "version.py").read_text()
    found = re.search(r"""^__version__(?:: str)? = ['"]([^'"]+)""", text, re.MULTILINE)
    if found is None:
        import pyspark

        return str(pyspark.__version__)
    return found[1]


def archive_options() -> list[str]:
    """Return the JVM options for the class-data-sharing archive, if there is one for this Java and this Spark."""
    archive = archive_path()
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if archive.exists() else []


def archive_path() -> Path:
    """Return the path of the archive, whether or not it exists."""
    return _cached("classes", "jsa")


def launch_path() -> Path:
    """Return the path of the recorded command, whether or not it exists."""
    return _cached("launch", "json")


def jar_path() -> Path:
    """Return the path of the jar with our class for the JVM, whether or not it exists."""
    return _cached("file-system", "jar")


def _cached(name: str, suffix: str) -> Path:
    """Return the path of a file in the cache for this Java and this Spark."""
    key = hashlib.sha256(f"{java_build()}{spark_version()}".encode()).hexdigest()[:12]
    installed = INSTALLED / f"{name}-{key}.{suffix}"
    return installed if installed.exists() else _cache() / installed.name


def _cache() -> Path:
    directory = cache_directory()
    if directory is None:
        raise ConfigError(
            f"there is no directory for the cache: neither {sys.prefix} nor a home directory is writable",
            next_step=f"set {VARIABLE} to a directory of your own",
        )
    return directory


def log_settings(log_file: Path | None) -> Path:
    """Return the log4j settings: warnings to a rotated file, or errors to the standard error stream."""
    name = "log4j2-file.properties" if log_file else "log4j2-console.properties"
    if log_file:
        os.environ["PROCESSION_SPARK_LOG"] = str(log_file)
    return Path(__file__).with_name(name)
