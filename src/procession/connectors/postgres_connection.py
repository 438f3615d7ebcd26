"""Opens sessions with PostgreSQL, with a limit on every wait and errors that say who must act.

Invariant: the locks and settings of a session last until it is closed. So a connection pooler that shares sessions is
refused. Secrets come from the environment or a file, never from the URL. Upstream: `connectors/postgres_session`;
downstream: psycopg.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from procession.errors import ConfigError, DiskError, StorageError, UsageError

try:
    import psycopg
    from psycopg import conninfo, errors, sql
except ImportError as error:  # pragma: no cover
    raise ConfigError(
        "PostgreSQL connectors need the package psycopg, which is not installed.",
        next_step="Install it: pip install 'procession[postgres]'.",
    ) from error

Session = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_S = 10
PATIENCE_S = 60.0
"""How long to try to reach a server that cannot be reached, or that is starting."""
LOCK_TIMEOUT_S = 10.0
RETRY_S = 0.25
SILENCE_S = 30
"""Seconds without any data after which either side closes the connection."""
VERSION_MIN = 150000

SESSION_SETTINGS = {
    "client_encoding": "UTF8",
    "idle_in_transaction_session_timeout": "0",
    "statement_timeout": "0",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "tcp_keepalives_idle": str(SILENCE_S // 3),
    "tcp_keepalives_interval": str(SILENCE_S // 6),
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": f"{SILENCE_S}s",
}

_TLS_REFUSALS = re.compile(
    r"certificate|SSL error|private key|server does not support SSL|SSL is required|sslmode value|\.pem|no encryption"
)
"""Matches libpq's errors if TLS cannot be negotiated. Retries do not help."""

log = structlog.get_logger()


def checked_url(url: str) -> str:
    """Return the URL, if libpq can read it and it has no password. Raises UsageError."""
    if not re.match(r"postgres(ql)?://", url):
        raise UsageError(
            f"{_without_secret(url)!r} is not a URL of a PostgreSQL database.",
            next_step="Write postgres://USER@HOST:PORT/DATABASE, or postgres:///?service=NAME.",
        )
    try:
        found = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        message = str(error).strip()
        raise UsageError(
            f"{_without_secret(url)!r} cannot be read as a URL of a PostgreSQL database: {message}.",
            next_step="Write postgres://USER@HOST:PORT/DATABASE; parameters after ? are those of libpq.",
        ) from None
    if found.get("password"):
        raise UsageError(
            f"The URL {_without_secret(url)} has a password in it, which other users of the machine could read.",
            next_step="Take it out of the URL and set PGPASSWORD, or put it into a file and set PGPASSFILE.",
        )
    return url


def connect(
    url: str,
    purpose: str,
    *,
    patience_s: float = PATIENCE_S,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
    is_pooler_allowed: bool = False,
) -> Session:
    """Open a session in autocommit mode.

    Retries an unreachable server for `patience_s`. Raises ConfigError immediately for a permanent error, such as a
    wrong password.
    """
    deadline = time.monotonic() + patience_s
    given = conninfo.conninfo_to_dict(checked_url(url))
    options: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": f"procession {purpose}",
        "keepalives_idle": SILENCE_S // 3,
        "keepalives_interval": SILENCE_S // 6,
        "keepalives_count": 4,
        "tcp_user_timeout": SILENCE_S * 1000,
    }
    last_error = ""
    while True:
        try:
            session = psycopg.connect(url, autocommit=True, **{k: v for k, v in options.items() if k not in given})
            break
        except psycopg.OperationalError as error:
            if _is_permanent(error):
                raise _refused(url, error) from error
            if time.monotonic() >= deadline:
                raise DiskError(
                    f"{place(url)} cannot be reached: {_line(error)}.",
                    next_step="Start the server or repair the network, then start this again: nothing is lost.",
                ) from error
            if _line(error) != last_error:
                last_error = _line(error)
                log.warning("postgres.unreachable", server=place(url), reason=last_error, patience_s=patience_s)
            time.sleep(RETRY_S)  # the server sends no signal when it is back
    try:
        with named(url):
            _begin(session, url, lock_timeout_s, is_pooler_allowed=is_pooler_allowed)
    except BaseException:
        session.close()
        raise
    return session


def _begin(session: Session, url: str, lock_timeout_s: float, *, is_pooler_allowed: bool) -> None:
    if session.info.server_version < VERSION_MIN:
        raise ConfigError(
            f"{place(url)} runs PostgreSQL {session.info.server_version // 10000}.",
            next_step=f"Use PostgreSQL {VERSION_MIN // 10000} or newer.",
        )
    # A pooler invents the process ids that it gives to clients.
    backend_pid = value(session, "SELECT pg_backend_pid()")
    if backend_pid != session.info.backend_pid and not is_pooler_allowed:
        raise ConfigError(
            f"There is a connection pooler between this program and {place(url)}: locks of a session may not last.",
            next_step="Connect to the server itself. If the pooler gives each client a session of its own, add"
            " --session-pooler.",
        )
    for name, setting in (SESSION_SETTINGS | {"lock_timeout": f"{int(lock_timeout_s * 1000)}ms"}).items():
        session.execute("SELECT set_config(%s, %s, false)", (name, setting))
    # A weaker setting could lose committed data. A stronger setting (remote_apply) is the operator's choice.
    session.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
    )


@contextmanager
def named(url: str) -> Iterator[None]:
    """Translate errors of the database into sentences for the operator."""
    try:
        yield
    except psycopg.Error as error:
        raise explained(error, place(url)) from error


def explained(error: psycopg.Error, where: str) -> StorageError | ConfigError:
    """Return the error of the database as a sentence."""
    match error:
        case errors.InsufficientPrivilege():
            return ConfigError(
                f"{where} refuses: {_line(error)}.",
                next_step="Grant the user what it lacks, then start this again: nothing is lost.",
            )
        case errors.LockNotAvailable():
            return StorageError(
                f"{where} did not give a lock in time: {_line(error)}.",
                next_step="Find who holds it (pg_locks, pg_prepared_xacts), then start this again: nothing is lost.",
            )
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.InvalidCatalogName():
            return ConfigError(
                f"{where} says: {_line(error)}.", next_step="Create it, or name what is there, then start this again."
            )
        case psycopg.OperationalError() if is_lost(error):
            # A restart of the connector helps, so it is restarted automatically.
            return DiskError(
                f"The connection to {where} was lost: {_line(error)}.",
                next_step="Start this again when the server can be reached: nothing is lost.",
            )
    return StorageError(
        f"{where} refuses: {_line(error)}{_detail(error)}.",
        next_step="Correct what it names, then start this again: nothing is lost.",
    )


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection is lost: the network failed, or the server was stopped or killed, or is
    starting."""
    return not error.sqlstate or error.sqlstate.startswith(("57P", "08"))


def place(url: str) -> str:
    """Return the name of the database for messages, without parameters."""
    found = conninfo.conninfo_to_dict(url)
    if found.get("service"):
        return f"PostgreSQL (service {found['service']})"
    host = found.get("hostaddr") or found.get("host") or "localhost"
    return f"PostgreSQL at {host}:{found.get('port') or 5432}/{found.get('dbname') or found.get('user') or ''}"


def value(session: Session, statement: str, parameters: Mapping[str, object] | tuple[object, ...] = ()) -> Any:
    """Return the first value of the first row, or None."""
    row = session.execute(statement, parameters or None).fetchone()
    return row[0] if row else None


def lock_number(*names: str) -> int:
    """Return the number of the advisory lock for these names."""
    digest = hashlib.blake2b("\0".join(names).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def try_lock(session: Session, number: int) -> bool:
    """Take an advisory lock until the session ends. Waits up to the session's lock time-out."""
    try:
        session.execute("SELECT pg_advisory_lock(%s)", (number,))
    except errors.LockNotAvailable:
        return False
    return True


def table_name(text: str) -> sql.Identifier:
    """Return a table as `NAME` or `SCHEMA.NAME`, taken literally. Raises UsageError."""
    parts = text.split(".")
    if len(parts) > 2 or not all(parts):
        raise UsageError(f"{text!r} is no name of a table.", next_step="Write TABLE or SCHEMA.TABLE.")
    return sql.Identifier(*parts)


def _is_permanent(error: psycopg.OperationalError) -> bool:
    """Return whether the server or libpq refuses the connection permanently. A server that is starting reports
    57P03."""
    if error.sqlstate is not None:
        return not error.sqlstate.startswith(("57P", "53", "08"))
    message = str(error)
    if _TLS_REFUSALS.search(message) or "no password supplied" in message:
        return True
    return "FATAL:" in message and not re.search(
        r"starting up|shutting down|in recovery|accepting connections|too many|remaining connection", message
    )


def _refused(url: str, error: psycopg.OperationalError) -> ConfigError:
    message = _line(error)
    next_step = "Correct the URL or the server's configuration, then start this again."
    if _TLS_REFUSALS.search(message):
        next_step = (
            "Correct sslmode, sslrootcert, sslcert and sslkey in the URL, or the server's certificate, or a clock that"
            " is wrong; then start this again."
        )
    elif "password" in message or "authentication" in message:
        next_step = "Set PGPASSWORD, or PGPASSFILE, or the passfile of the service, then start this again."
    return ConfigError(f"{place(url)} refuses the connection: {message}.", next_step=next_step)


def _line(error: psycopg.Error) -> str:
    """Return the database's error as one line without a full stop, and without libpq's question to the user."""
    message = " ".join((error.diag.message_primary or str(error)).split())
    message = re.sub(r" Is the server running [^?]*\?", "", message.removeprefix("connection failed: "))
    return message.rstrip(".")


def _detail(error: psycopg.Error) -> str:
    return f" ({error.diag.message_detail.rstrip('.')})" if error.diag.message_detail else ""


def _without_secret(url: str) -> str:
    return re.sub(r"(//[^:/@]*):[^@]*@|([?&]password=)[^&]*", lambda m: f"{m[1]}@" if m[1] else f"{m[2]}…", url)
