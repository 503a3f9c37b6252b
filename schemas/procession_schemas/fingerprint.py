"""Whether two requests are the same."""

import hashlib


def fingerprint(body: bytes) -> str:
    """A digest of a request's bytes."""
    return hashlib.sha256(body).hexdigest()[:32]
