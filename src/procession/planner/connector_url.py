"""The URL of a source or a sink, as an app names it: `kafka://broker:9092/orders?partitions=0,1`. Pure.

Invariant: a URL holds no secret. It is shown by `explain`, logged, and passed on command lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias
from urllib.parse import parse_qsl, unquote

from procession.errors import PlanError

URL_CHARACTERS_MAX = 4096
FLAG, TEXT, NUMBER, LIST = "flag", "text", "number", "list"
OptionKind: TypeAlias = str | Sequence[str]
"""The kind of an option: one of the constants above, or its possible values."""
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

_PASSWORD = re.compile(r"//[^/?#]*:[^/?#]*@|//[^/?#@,]*:(?!\d*(?:[,/?#]|$))[^@?]*@")
"""Matches a password. The password may contain an unencoded `/`; then a text of only digits counts as a port."""
_SECRET_VALUE = re.compile(
    r"([?&][^=&]*(?:password|passwd|pwd|secret|token|credential|key)[^=&]*=)[^&]*", re.IGNORECASE
)
_SECRET_OPTION = re.compile(
    r"(^|[._-])(password|passwd|pwd|secret|token|credentials?|(access|secret|api|account|private|session)[._-]?key"
    r"|sslpassword)$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ConnectorUrl:
    """A parsed URL: `SCHEME:PLACE?OPTIONS`, where the place may begin with `//AUTHORITY/`.

    Example:
        >>> url = parse_url("postgres://ann@db:5432/shop?table=alerts")
        >>> url.scheme, url.user, url.host, url.port, url.path, url.options["table"]
        ('postgres', 'ann', 'db', 5432, '/shop', 'alerts')
        >>> parse_url("delta:s3://bucket/table").place
        's3://bucket/table'
    """

    text: str
    """The URL as the user wrote it."""
    scheme: str
    place: str
    """Everything between the scheme and the options, such as a directory, `//HOST:PORT/NAME` or another URL."""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def authority(self) -> str:
        """The text between `//` and the next `/`: `USER@HOST:PORT`, or several hosts, separated by commas."""
        return self.place[2:].partition("/")[0] if self.place.startswith("//") else ""

    @property
    def path(self) -> str:
        """The decoded path after the authority. It begins with `/` if there is an authority and the path is not
        empty."""
        rest = self.place[2 + len(self.authority) :] if self.place.startswith("//") else self.place
        return unquote(rest)

    @property
    def user(self) -> str:
        user, at, _ = self.authority.rpartition("@")
        return unquote(user) if at else ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Each `HOST:PORT` or `HOST` of the authority."""
        return tuple(filter(None, self.authority.rpartition("@")[2].split(",")))

    @property
    def host(self) -> str:
        """The first host, without its port. An IPv6 address has no brackets."""
        first = self.hosts[0] if self.hosts else ""
        name = first.rpartition(":")[0] if re.search(r":[0-9]*$", first) else first
        return name.strip("[]")

    @property
    def port(self) -> int | None:
        """The port of the first host, or None."""
        first = self.hosts[0] if self.hosts else ""
        found = re.search(r":([0-9]+)$", first)
        return int(found[1]) if found else None

    def refuse(self, why: str, next_step: str) -> NoReturn:
        """Raise the PlanError of a check."""
        raise PlanError(f"{self.text!r} {why}", next_step=next_step)

    def check_options(self, known: Collection[str]) -> None:
        """Raise PlanError if the URL has other options than these."""
        for name in self.options:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                self.refuse(f"has an option {name!r} that is not known", f"the options of {self.scheme}: are {listed}")

    def check_values(self, kinds: Mapping[str, OptionKind]) -> None:
        """Raise PlanError if the value of an option is not of its kind. An option without a kind is text."""
        for name, value in self.options.items():
            kind = kinds.get(name, TEXT)
            if kind == NUMBER:
                self.count(name, 0)
            elif kind == FLAG and value not in ("true", "false"):
                self.refuse(f"has {name}={value}", f"write {name}=true or {name}=false")
            elif not isinstance(kind, str) and value not in kind:
                self.refuse(f"has {name}={value}", f"give {name} one of {', '.join(kind)}")

    def count(self, name: str, least: int = 1, most: int = 2**53) -> int | None:
        """Return a numeric option, or None if it is not given."""
        text = self.options.get(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            self.refuse(f"has {name}={text}", f"give {name} a whole number from {least} to {most}")
        return int(text)


def without_secrets(text: str) -> str:
    """Return the text that a user wrote as a URL, without secrets, for display before it is checked."""
    return _SECRET_VALUE.sub(r"\1…", _PASSWORD.sub("//…@", text))


def parse_url(text: str, *, password_hint: str = "", is_opaque: bool = False) -> ConnectorUrl:
    """Parse a URL.

    Args:
        text: The URL.
        password_hint: Where to put the password instead, for the error: "the environment variable PGPASSWORD".
        is_opaque: Everything after the scheme is the place, `?` included. File patterns need this.

    Raises:
        PlanError: The text is not a URL, or it contains a password or another secret.
    """
    scheme, colon, rest = text.partition(":")
    if len(text) > URL_CHARACTERS_MAX or not colon or not SCHEME.fullmatch(scheme) or not rest.strip():
        shown = without_secrets(text)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        raise PlanError(f"{shown!r} is not a URL of a source or a sink", next_step="write SCHEME:PLACE")
    if _PASSWORD.search(rest):
        raise PlanError(
            f"{without_secrets(text)!r} has a password in it, which would be shown and logged with the URL",
            next_step=f"take it out, and give it as {password_hint or 'an environment variable or a file'}",
        )
    if is_opaque:
        return ConnectorUrl(text, scheme.lower(), rest)
    place, _, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=64)
    except ValueError:
        raise PlanError(
            f"{without_secrets(text)!r} has options that cannot be read",
            next_step="write them as ?name=value&other=value",
        ) from None
    for name, _ in pairs:
        if _SECRET_OPTION.search(name):
            raise PlanError(
                f"a URL of {scheme}: has the secret option {name!r}, which would be shown and logged with it",
                next_step=f"take it out, and give it as {password_hint or 'an environment variable or a file'}",
            )
    options = dict(pairs)
    if len(options) < len(pairs):
        raise PlanError(f"{text!r} has an option twice", next_step="give each option once")
    return ConnectorUrl(text, scheme.lower(), place, options)
