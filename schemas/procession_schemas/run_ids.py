"""The id of the run that a request asks for, and the id of its answer."""

import json
from typing import Any, Final

from procession_schemas import subjects
from procession_schemas.base import from_json

LONGEST: Final = 128
"""Subjects take longer ones: earlier versions gave runs such names."""


def valid_id(value: str) -> str:
    """Returns the value when it can be the id of a run; raises InvalidSubjectError as `subjects.token` does."""
    return subjects.token(value, "run id", LONGEST)


def asked_id(body: bytes) -> str | None:
    """The run id that a request asks for, even if the request is otherwise wrong: its sender listens there."""
    try:
        given = _read(body)
        return valid_id(given.get("runId") or given.get("run_id") or "")
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _read(body: bytes) -> Any:
    r"""A body as JSON, also where it is none for us: JavaScript and Python write half of a character as `\ud83d`."""
    try:
        return from_json(body)
    except ValueError:
        return json.loads(body, strict=False)


def derived_id(message_id: str | None, sequence: int | str) -> str:
    """The id of a run whose request asks for none: the id of the message, else its place in RUNS."""
    try:
        return valid_id(message_id or "")
    except subjects.InvalidSubjectError:
        return f"run-{sequence}"


def answer_id(run_id: str) -> str:
    """The id of the message with which the run answers."""
    return f"msg-{run_id}"
