"""Whether two requests are the same."""

import hashlib


def fingerprint(subject: str, body: bytes) -> str:
    """A digest of a request: of the subject, which names tenant and agent, and of the bytes sent there."""
    return hashlib.sha256(subject.encode() + body).hexdigest()[:32]
