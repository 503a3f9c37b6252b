"""A message as it was read from a connection to NATS."""

from typing import Final

import msgspec

__all__ = ["Heard"]

_VERSION: Final = b"NATS/1.0"
_NOBODY: Final = _VERSION + b" 503"


class Heard(msgspec.Struct, frozen=True):
    """A message; its header is taken apart when somebody asks for it.

    Attributes:
        subject: Where it was sent.
        reply: The subject for an answer, or empty.
        data: The body.
        header: The version of the protocol, perhaps a status, and a line for each header; or empty.
    """

    subject: str
    reply: str
    data: bytes
    header: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers as nats-py reads them, `Status` and `Description` of a server's own message among them."""
        if not self.header:
            return {}
        headers = {}
        first, *lines = self.header.split(b"\r\n")
        status, _, description = first.removeprefix(_VERSION).strip().partition(b" ")
        if status.isdigit():
            headers["Status"] = status.decode()
        if description:
            headers["Description"] = description.decode("utf-8", "replace")
        for line in lines:
            name, colon, value = line.partition(b":")
            if colon and len(token := name.split()) == 1 and name.isascii():
                headers[token[0].decode()] = value.strip().decode("utf-8", "replace")
        return headers

    @property
    def is_bounce(self) -> bool:
        """Whether it says that nobody listens where its question, or what wanted a reply, was sent."""
        return self.header.startswith(_NOBODY)
