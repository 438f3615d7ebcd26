"""An S3-compatible server that stores objects as files: versitygw, in its own process, as `scripts/s3` builds it.

It has the methods of `S3Server`, so the same tests run on both. It compares and creates in one step, checks signatures,
and stores its data on disk. If it cannot be built, the tests fail, unless `PROCESSION_WITHOUT` names `s3`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pa_fs

from procession.chaos.system_server import HOST, SystemServer, is_listening
from procession.errors import ConfigError
from tests.systems.s3_server import bucket_name

KEY = "procession-test"


class S3FileServer(SystemServer):
    """A server with any number of buckets. `environment` has the variables that its clients need."""

    title = "The S3-compatible server"
    start_timeout_s = 30.0

    def __init__(self) -> None:
        self._binary = Path(__file__).parents[2] / ".make/versitygw/versitygw"
        if not self._binary.exists():
            raise ConfigError(
                "There is no S3-compatible server in .make/versitygw of this checkout.",
                next_step="Run scripts/s3, which needs Go, or set PROCESSION_WITHOUT=s3.",
            )
        super().__init__("s3", {"secret": KEY})

    def _make(self) -> None:
        self.files.mkdir()
        (self.directory / "metadata").mkdir()

    @property
    def files(self) -> Path:
        """The root of the files: a directory for each bucket, a file for each object."""
        return self.directory / "buckets"

    def _program(self) -> list[str]:
        account = ["--access", KEY, "--secret", self._settings["secret"], "--region", "us-east-1"]
        # Beside the files, because not every file system has extended attributes.
        storage = ["posix", "--sidecar", str(self.directory / "metadata"), str(self.files)]
        return [str(self._binary), "--port", f"{HOST}:{self.port}", "--quiet", *account, *storage]

    def is_ready(self, pid: int = 0) -> bool:
        return is_listening(self.port)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{self.address}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": KEY,
        }

    def bucket(self) -> str:
        """Create a bucket."""
        name = bucket_name()
        files = pa_fs.S3FileSystem(
            access_key=KEY,
            secret_key=KEY,
            endpoint_override=self.environment["AWS_ENDPOINT_URL"],
            region="us-east-1",
            allow_bucket_creation=True,
        )
        files.create_dir(name)
        return name

    def demand_credentials(self, is_demanded: bool) -> None:
        """Change the secret, so that the credentials of every client are wrong, or change it back."""
        self.stop()
        self.start(secret=f"{KEY}-changed" if is_demanded else KEY)


def running() -> S3FileServer:
    """Start a server, as a context manager."""
    return S3FileServer()
