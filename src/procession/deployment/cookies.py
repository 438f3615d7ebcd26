"""Finds the secrets that a command presents or requires, in the files that it was given or in the pipeline's
directory.

Invariant: a given file takes precedence; otherwise the secret in the pipeline's directory is used, where `run`
creates it. An open port is never the default. Command lines, environments and logs contain only the path of a
secret's file, never the secret. This module is separate from the settings, because every connector needs it.
"""

from __future__ import annotations

from pathlib import Path

from procession.errors import ConfigError, UsageError
from procession.gateway.listen_address import ADDRESS_FILE, addresses
from procession.storage.secret import Secret, find_secret, make_secret, pipeline_of

PIPELINES = Path(".procession")
"""The directory where `procession run` stores pipelines by default."""


def read_cookie(path: Path | None) -> bytes:
    """Return the secret in a file, without its final newline; empty if no file is given."""
    if path is None:
        return b""
    try:
        cookie = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(
            f"the cookie file {path} cannot be read: {error.strerror}",
            next_step="choose a file that this user may read",
        ) from error
    if not cookie:
        raise ConfigError(f"the cookie file {path} is empty", next_step="put a secret into it, or give no cookie file")
    return cookie


def check_open(cookie_file: Path | None, *, is_open: bool) -> None:
    if cookie_file is not None and is_open:
        raise UsageError("A cookie file and --open-producers exclude each other.", next_step="Use one of them.")


def gateway_cookies(
    directory: Path, join: str | Path | None, cookie_file: Path | None, control_file: Path | None, *, is_open: bool
) -> tuple[bytes, bytes]:
    """Return the secrets that a gateway requires from producers, and from the driver and other gateways.

    A missing secret is created in the pipeline's directory. A gateway that joins a pipeline on another machine must
    be given both secrets."""
    check_open(cookie_file, is_open=is_open)
    pipeline = pipeline_of(join if isinstance(join, Path) else directory)
    secret_of = find_secret if isinstance(join, str) else make_secret
    producers = b"" if is_open else read_cookie(cookie_file) or secret_of(pipeline, Secret.PRODUCERS)
    control = read_cookie(control_file) or secret_of(pipeline, Secret.CONTROL)
    if not control or not (producers or is_open):
        missing = Secret.CONTROL if not control else Secret.PRODUCERS
        option = "--control-cookie-file" if not control else "--cookie-file"
        raise UsageError(
            f"A gateway that joins needs the secret of the pipeline for its {missing} port.",
            next_step=f"Copy secrets/{missing} of the pipeline's directory here, and give it with {option}.",
        )
    return producers, control


def source_cookie(cookie_file: Path | None, directory: Path | None, to: str) -> bytes:
    """Return the secret that a producer presents.

    It comes from the file, from the pipeline in this directory, or from the pipeline in `.procession` whose gateway
    listens at this address. Otherwise it is empty, which is enough for an open port."""
    if cookie_file is not None:
        return read_cookie(cookie_file)
    if directory is not None:
        pipeline = directory if (directory / "secrets").is_dir() else pipeline_of(directory)
        return find_secret(pipeline, Secret.PRODUCERS)
    wanted = set(to.split(","))
    for found in sorted(PIPELINES.glob(f"*/*/{ADDRESS_FILE}")):
        if str(addresses(found.parent).get("listen")) in wanted:
            return find_secret(found.parent.parent, Secret.PRODUCERS)
    return b""


def control_cookie(at: str | Path, control_file: Path | None) -> bytes:
    """Return the secret for the control port of the gateway at this address or in this directory."""
    if control_file is not None or isinstance(at, str):
        return read_cookie(control_file)
    return find_secret(pipeline_of(at), Secret.CONTROL)
