"""Stores a lake table's files in a remote object store: Amazon S3 and compatible stores.

Invariant: a failure is one sentence that says who must act. A transient failure (no answer, an overloaded server) is a
DiskError, which ends the sink so that it is restarted. A permanent one (credentials, a missing bucket) is a
StorageError. Credentials, region and endpoint come from the environment. Upstream: `connectors/object_store`;
downstream: obstore.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from procession.connectors.object_store import HIDDEN, ObjectStore
from procession.errors import ConfigError, DiskError, StorageError, UsageError
from procession.storage.durable import replace_durably

REQUEST_TIMEOUT_S = 30
RETRIES_MAX = 4
RETRY_TIMEOUT_S = 30
"""How long a request is retried before the sink ends and is restarted."""

SCHEME = "s3"
PART_BYTES = 8 * 1024 * 1024
"""Files are fetched in parts of about this size."""

METADATA_SERVICE = "169.254.169.254"
"""The address where a client without credentials asks for those of the machine."""
_STATUS = re.compile(r"status code: (\d{3})")
_CREDENTIALS = "Set the credentials in the environment (for S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY)"

_CERTIFICATE = (
    "Correct the endpoint's host name, or name a file with the authority's certificate in SSL_CERT_FILE, or correct a"
    " clock that is wrong"
)
_FULL = ("storagefull", "quotaexceeded", "insufficientstorage", "nospaceleft")


def storage_options(environment: Mapping[str, str]) -> dict[str, str]:
    """Options for libraries on Rust's object_store. A plain-HTTP endpoint is used only if the environment names one."""
    options = {
        "timeout": f"{REQUEST_TIMEOUT_S}s",
        "max_retries": str(RETRIES_MAX),
        "retry_timeout": f"{RETRY_TIMEOUT_S}s",
    }
    endpoint = environment.get("AWS_ENDPOINT_URL", environment.get("AWS_ENDPOINT", ""))
    if endpoint.startswith("http://"):
        options["allow_http"] = "true"
    return options


def missing_package(extra: str, error: ImportError) -> ConfigError:
    """Return the error for a package that is not installed."""
    return ConfigError(
        f"This needs the package {error.name}, which is not installed.",
        next_step=f'Install it with: pip install "procession[{extra}]"',
    )


class RemoteStore(ObjectStore):
    """A prefix of a bucket."""

    def __init__(self, url: str) -> None:
        scheme = url.partition("://")[0]
        if scheme != SCHEME:
            raise UsageError(
                f"This sink knows no store whose URLs begin with {scheme}://.",
                next_step="Give a path, or s3://BUCKET/PREFIX.",
            )
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as error:
            raise missing_package("s3", error) from error
        self._obstore = obstore
        self.url = url.rstrip("/")
        options = storage_options(os.environ)
        is_http = "allow_http" in options
        with self._translated_errors("open"):
            self._store = S3Store.from_url(
                self.url,
                copy_if_not_exists="multipart",  # S3 has a conditional copy only for uploads in parts
                client_options={"allow_http": is_http, "timeout": timedelta(seconds=REQUEST_TIMEOUT_S)},
                retry_config={"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=RETRY_TIMEOUT_S)},
            )

    def spool_path(self, spare: Path) -> Path:
        return spare

    def check(self) -> None:
        """List a folder that does not exist, because S3 reports a missing bucket only when a folder is listed. Writes
        nothing: a missing permission to write is reported before the first vote."""
        with self._translated_errors("use"):
            self._obstore.list(self._store, f"{HIDDEN}/probe").collect()

    def upload(self, spool: Path, name: str, *, is_synced: bool = False) -> None:
        with self._translated_errors(f"write {name} in"), spool.open("rb") as file:
            self._obstore.put(self._store, name, file)
        spool.unlink(missing_ok=True)

    def put_file(self, path: Path, name: str) -> None:
        """Copy a local file to the store, in parts, so its size is not limited by memory."""
        with self._translated_errors(f"write {name} in"), path.open("rb") as file:
            self._obstore.put(self._store, name, file)

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file of the store to a local file, which is durable when this returns. Raises StorageError if the
        store has no such file."""
        with self._translated_errors(f"read {name} of"):
            parts = self._obstore.get(self._store, name).stream(min_chunk_size=PART_BYTES)
            replace_durably(path, (bytes(part) for part in parts))

    def create(self, name: str, data: bytes) -> bool:
        with self._translated_errors(f"write {name} in"):
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                # The retry of a request that has succeeded fails with this error too. In that case the object is
                # ours.
                return self.read(name, len(data) + 1) == data
        return True

    def publish(self, name: str, visible: str) -> bool:
        with self._translated_errors(f"write {visible} in"):
            try:
                self._obstore.copy(self._store, name, visible, overwrite=False)
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def renew(self, name: str) -> None:
        """Do nothing: a remote store's reply confirms that the file is durable."""

    def read(self, name: str, bytes_max: int) -> bytes | None:
        with self._translated_errors(f"read {name} of"):
            try:
                size = self._obstore.head(self._store, name)["size"]
                if not size:
                    return b""
                return bytes(self._obstore.get_range(self._store, name, start=0, end=min(size, bytes_max)))
            except FileNotFoundError as error:
                self._refuse_missing_bucket(error)
                return None

    def open_input(self, name: str) -> pa.NativeFile:
        with self._translated_errors(f"read {name} of"):
            return pa.BufferReader(bytes(self._obstore.get(self._store, name).bytes()))

    def has(self, name: str) -> bool:
        with self._translated_errors(f"read {name} of"):
            try:
                self._obstore.head(self._store, name)
            except FileNotFoundError as error:
                self._refuse_missing_bucket(error)
                return False
        return True

    def names(self, folder: str, after: str = "") -> Iterator[str]:
        with self._translated_errors("list"):
            offset = f"{folder}/{after}" if after else None
            for chunk in self._obstore.list(self._store, folder, offset=offset):
                for found in chunk:
                    name = found["path"].removeprefix(f"{folder}/")
                    if "/" not in name and name > after:
                        yield name

    def delete(self, name: str) -> None:
        with self._translated_errors(f"remove {name} from"):
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError as error:
                self._refuse_missing_bucket(error)

    @staticmethod
    def _refuse_missing_bucket(error: FileNotFoundError) -> None:
        if "NoSuchBucket" in str(error):
            raise error

    @contextmanager
    def _translated_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (self._obstore.exceptions.BaseError, FileNotFoundError, PermissionError) as error:
            raise store_error(self.url, doing, error) from error
        except OSError as error:
            raise store_error(self.url, doing, error) from error


def store_error(url: str, doing: str, error: Exception) -> StorageError:
    """Return the error of a library that uses Rust's object_store as a sentence."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    kind: type[StorageError] = StorageError
    letters = re.sub(r"[^a-z0-9]", "", text.lower())  # one library reports AccessDenied, another ACCESS_DENIED
    if "nosuchbucket" in letters:
        reason, step = "there is no such bucket", "Make the bucket, or correct the URL"
    elif "requesttimetooskewed" in letters:
        reason, step = "the clock of this machine differs too much from its clock", "Set the clock, for example by NTP"
    elif "certificateexpired" in letters:
        reason, step = "its certificate has expired", "Renew it, or correct the clock of this machine if it is wrong"
    elif "certificate" in letters:
        reason, step = "its certificate is not trusted", _CERTIFICATE
    elif any(word in letters for word in _FULL):
        kind, reason = DiskError, "it has no room left"
        step = "Free space in the store or raise its quota; the sink then continues"
    elif status == 401 or "signaturedoesnotmatch" in letters or "invalidaccesskeyid" in letters:
        reason, step = "it refuses the credentials", _CREDENTIALS
    elif status == 403 or "accessdenied" in letters:
        reason, step = "it denies the access", f"{_CREDENTIALS}, and allow reads and writes"
    elif METADATA_SERVICE in text:
        reason, step = "there are no credentials", _CREDENTIALS
    elif status >= 500 or any(
        word in letters for word in ("errorsendingrequest", "timedout", "curlcode", "networkconn")
    ):
        kind, reason = DiskError, "it does not answer"
        step = "Check the endpoint and the network; the sink continues when the store answers"
    else:
        kind, reason = DiskError, text.partition("\n")[0][:300]
        step = "Start the sink again: it continues from the stored output. If it keeps failing, check the store"
    return kind(f"Cannot {doing} {url}: {reason}.", next_step=f"{step}.", url=url)
