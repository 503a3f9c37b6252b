"""Errors in options that carry the contract's id beside their text (R-CLS-1, R-MSEL-1)."""

from collections.abc import Mapping

from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from procession.errors import InvalidOptionsError


class CodedOptionsError(InvalidOptionsError):
    """Options do not fit; `code` is the contract's id of what is wrong first."""

    def __init__(self, code: str, error: InvalidOptionsError) -> None:
        super().__init__(f"{error} ({code})", error.fields)
        self.code = code


def problem(code: str, text: str) -> PydanticCustomError:
    """What a validator raises for a problem that has an id."""
    escaped = text.replace("{", "{{").replace("}", "}}")
    return PydanticCustomError(code, escaped)


def coded(error: InvalidOptionsError, codes: Mapping[str, str]) -> InvalidOptionsError:
    """The error with its id, where it has one; `codes` are the ids of problems of single options, by option."""
    cause = error.__cause__
    found = cause.errors() if isinstance(cause, ValidationError) else []
    ids = [each["type"] for each in found if each["type"].isupper()]
    wrong = {to_camel(str(each["loc"][0])) for each in found if each["loc"]}
    ids += [code for option, code in codes.items() if option in wrong]
    return CodedOptionsError(ids[0], error) if ids else error
