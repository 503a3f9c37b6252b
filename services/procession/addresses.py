"""Addresses of servers: what is one, and how a message may show it."""

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

NATS_SCHEMES: Final = ("nats", "tls", "ws", "wss")
"""How an address of NATS begins."""
WEB_SCHEMES: Final = ("http", "https")
"""How one of a server that is asked over HTTP begins."""


def address(url: str) -> str:
    """The address of a server, or of several, as a message may show it: without user and password."""
    return re.sub(r"//[^@/,\s]*@", "//", url)


def split_address(url: str) -> SplitResult:
    """The parts of an address; one that does not say of what is NATS's.

    Raises:
        ValueError: It is none; the text may quote a part of a password.
    """
    return urlsplit(url.strip() if "://" in url else f"nats://{url.strip()}")


def is_address(url: str, schemes: tuple[str, ...]) -> bool:
    """Whether it is the address of one server, and begins with one of these."""
    try:
        parts = split_address(url)
        return parts.scheme in schemes and (
            parts.scheme == "unix" or (bool(parts.hostname) and parts.port != 0)
        )
    except ValueError:
        return False
