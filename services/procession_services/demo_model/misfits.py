"""What does not fit a script or a load, in words for whoever wrote it."""

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from procession_schemas.validation import Place, placed, plain
from procession_services.runtime.problems import suggested_field

__all__ = ["misfits"]


def misfits(error: ValidationError, body: Any, model: type[BaseModel]) -> list[tuple[str, str]]:
    """Everything in `body` that does not fit `model`: where, and what; of unknown keys, which ones are known."""
    found = placed(error.errors(include_url=False), body)
    return [(".".join(map(str, place)), _told(place, problem, model)) for place, problem in found]


def _told(place: Place, problem: ErrorDetails, model: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        return f"unknown key{suggested_field(place, model)}"
    return plain(problem)
