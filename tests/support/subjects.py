"""Subjects and patterns of NATS."""

import re


def matches(pattern: str, subject: str) -> bool:
    """Whether NATS would hand the subject to a subscription of the pattern."""
    expression = re.escape(pattern).replace(r"\*", "[^.]+").replace(r">", ".+")
    return re.fullmatch(expression, subject) is not None
