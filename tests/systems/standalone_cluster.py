"""A standalone Spark cluster of a master and one worker, whose machines have only Spark as delivered and a plain Python
that cannot import our package."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from procession.spark.java import java

START_TIMEOUT_S = 300.0
"""It ends a hang. A busy machine may need minutes to start two JVMs."""
HERE = "127.0.0.1"
PLAIN_PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
"""The Python that the test environment was created from. It has none of the environment's packages."""
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@dataclass(frozen=True)
class StandaloneCluster:
    directory: Path
    master: str
    secret_file: Path

    @property
    def work(self) -> Path:
        """The directory with the working directories of executors."""
        return self.directory / "work"

    @property
    def local(self) -> Path:
        """The directory with the local directories of applications."""
        return self.directory / "local"


@contextmanager
def running(directory: Path, *, has_python: bool = True) -> Iterator[StandaloneCluster]:
    """Start a cluster with a secret. Without `has_python`, its machines have no Python at all."""
    programs = directory / "bin"
    programs.mkdir(parents=True)
    for program in (
        "sh",
        "bash",
        "env",
        "dirname",
        "hostname",
        "tar",
        "gzip",
        "ps",
        "cat",
        "rm",
        "chmod",
        "df",
        "tail",
    ):
        for place in ("/usr/bin", "/bin"):
            if Path(place, program).exists():
                (programs / program).symlink_to(Path(place, program))
                break
    if has_python:
        (programs / f"python{VERSION}").symlink_to(PLAIN_PYTHON)
    conf, secret = directory / "conf", secrets.token_hex(16)
    conf.mkdir(mode=0o700)
    properties = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    properties |= {"spark.authenticate.secret": secret, "spark.worker.timeout": "20"}
    (conf / "spark-defaults.conf").write_text("".join(f"{name} {value}\n" for name, value in properties.items()))
    (directory / "spark.secret").write_text(secret)
    env = {
        "PATH": str(programs),
        "HOME": str(directory),
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_LOCAL_IP": HERE,
        "SPARK_LOCAL_HOSTNAME": HERE,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    (directory / "local").mkdir()
    with _service(directory, "master.Master", env, "--host", HERE, "--port", "0", "--webui-port", "0") as log:
        master = f"spark://{HERE}:{_found(log, 'Starting Spark master at spark://127.0.0.1:').split()[0]}"
        room = ("--cores", "2", "--memory", "1G", "--work-dir", str(directory / "work"))
        with _service(directory, "worker.Worker", env, *room, "--host", HERE, "--webui-port", "0", master) as log:
            _found(log, "Successfully registered with master")
            yield StandaloneCluster(directory, master, directory / "spark.secret")


def java_home() -> str:
    """Return the directory of the installed Java."""
    found = os.environ.get("JAVA_HOME")
    if found:
        return found
    shown = subprocess.run(
        [java(), "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True
    )
    return next(line.partition("=")[2].strip() for line in shown.stderr.splitlines() if "java.home" in line)


@contextmanager
def _service(directory: Path, main: str, env: Mapping[str, str], *arguments: str) -> Iterator[Path]:
    log = directory / f"{main}.log"
    argv = [str(Path(env["SPARK_HOME"], "bin", "spark-class")), f"org.apache.spark.deploy.{main}", *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=dict(env), stdout=output, stderr=output, cwd=directory)
    try:
        yield log
    finally:
        process.terminate()
        process.wait()


def _found(log: Path, text: str) -> str:
    """Wait for this text in a log, and return what follows it."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while text not in (said := log.read_text(errors="replace")):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    return said.partition(text)[2]
