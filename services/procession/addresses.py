"""Addresses of servers: what counts as one, and how a message may show it."""

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

NATS_SCHEMES: Final = ("nats", "tls", "ws", "wss")
"""How a NATS address begins."""
WEB_SCHEMES: Final = ("http", "https")
"""How the address of a server that is asked over HTTP begins."""


def address(url: str) -> str:
    """The address of a server, or of several, as a message may show it: without user and password."""
    return re.sub(r"(^|//|,\s*)[^/?#\s]*@", r"\1", url)


def unread(value: object) -> str:
    """What was given in the place of an address, as a message may show it: a password in it may hold anything."""
    return re.sub(r"^(['\"](?:\w+://)?).*@", r"\1...@", repr(value), flags=re.DOTALL)


def login(servers: Iterable[str]) -> dict[str, str]:
    """User and password of NATS where they are part of the address, and the same for all servers.

    In an address they are percent-encoded. Servers that nats-py discovers by itself want them too.
    """
    found = set()
    with suppress(ValueError):  # of what is no address; whoever connects tells
        for each in servers:
            parts = split_address(each)
            if parts.username and parts.password:
                found.add((unquote(parts.username), unquote(parts.password)))
    return dict(zip(("user", "password"), found.pop(), strict=True)) if len(found) == 1 else {}


def split_address(url: str) -> SplitResult:
    """The parts of an address; one without a scheme is taken for a NATS address.

    Raises:
        ValueError: It is not an address; the error's text may quote a part of a password.
    """
    return urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")


def is_address(url: str, schemes: tuple[str, ...]) -> bool:
    """Whether it is the address of one server, and begins with one of these.

    Where a slash in a password ends the address, what is behind it is not a way of the web, and no path either.
    """
    try:
        parts = split_address(url)
        if parts.scheme not in WEB_SCHEMES and "@" in f"{parts.path}{parts.query}{parts.fragment}":
            return False
        return parts.scheme in schemes and (
            parts.scheme == "unix" or (bool(parts.hostname) and parts.port != 0)
        )
    except ValueError:
        return False
