"""Reversible masking: tokens that stand for values, and the values sealed with a key of their conversation.

All keys follow from one secret by HMAC-SHA-256 (RFC 5869 in spirit: one label for each use), so two conversations or
tenants share no token and no key. Values are sealed with AES-SIV (RFC 5297): authenticated, bound to their token, and
without a nonce that could repeat, so sealing the same value twice gives the same text.
"""

import base64
import hmac
import re
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from procession.text_hold import Match, Scan
from procession_services.processors.core.pii.family import Rule, ShapeFinder
from procession_services.processors.core.pii.grammar import chars, maybe, seq, text
from procession_services.processors.core.pii.scanner import settled_hits

LEAST_KEY: Final = 16
"""Bytes that the secret must have."""
_DIGITS: Final = (8, 16, 32)
_NOT_NAME = re.compile("[^A-Z0-9]+")
_SHAPE = seq(
    maybe(text("<")),
    chars("[A-Z]"),
    chars("[A-Z0-9-]", 0, 40),
    text("_"),
    chars("[0-9a-f]", 8, 32),
    maybe(text(">")),
)
TOKEN: Final = re.compile(_SHAPE.full + "(?![0-9a-f])")
"""A token; a model may have lost its brackets."""
_FINDER: Final = ShapeFinder("[<A-Z]", [Rule("token", _SHAPE, behind=chars("[0-9a-f]"))], apart="[A-Z0-9_-]")


class TokenScanner:
    """Finds tokens in a stream; see `procession.hold_back.Scanner`."""

    def scan(self, text: str, start: int, *, final: bool) -> Scan:
        """The tokens from `start` on."""
        settled = len(text) if final else _FINDER.hot(text, start)
        hits, settled = settled_hits(_FINDER.find(text, start, settled), settled)
        return Scan([Match(hit.start, hit.end, hit.type) for hit in hits], settled)


def bare(token: str) -> str:
    """The token without its brackets."""
    return token.strip("<>")


class ConversationKey:
    """Makes and opens the tokens of one conversation of a tenant.

    Args:
        secret: The operator's, at least `LEAST_KEY` bytes.
        tenant: Whose conversation it is.
        conversation: Its id.
    """

    def __init__(self, secret: bytes, tenant: str, conversation: str) -> None:
        root = _derived(secret, f"procession/pii\0{tenant}\0{conversation}")
        self._tokens = _derived(root, "tokens")
        self._cipher = AESSIV(_derived(root, "seal/1") + _derived(root, "seal/2"))

    def tokens(self, kind: str, value: str) -> list[str]:
        """The tokens for a value, without brackets; each is for when another value has the shorter one before it."""
        digest = hmac.new(
            self._tokens, f"{kind}\0{value}".encode("utf-8", "surrogatepass"), sha256
        ).hexdigest()
        name = _NOT_NAME.sub("-", kind.upper()).strip("-")[:36]
        name = name if name[:1].isalpha() else f"PII-{name}".rstrip("-")
        return [f"{name}_{digest[:digits]}" for digits in _DIGITS]

    def seal(self, token: str, value: str) -> str:
        """The value, encrypted for this token."""
        sealed = self._cipher.encrypt(value.encode("utf-8", "surrogatepass"), [token.encode()])
        return base64.b64encode(sealed).decode()

    def unseal(self, token: str, sealed: str) -> str | None:
        """The value of a token; None where it was sealed with another key or for another token."""
        try:
            return self._cipher.decrypt(base64.b64decode(sealed), [token.encode()]).decode(
                "utf-8", "surrogatepass"
            )
        except (InvalidTag, ValueError):
            return None


def _derived(key: bytes, label: str) -> bytes:
    return hmac.new(key, label.encode("utf-8", "surrogatepass"), sha256).digest()
