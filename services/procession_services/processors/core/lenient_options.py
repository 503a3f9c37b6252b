"""Options of which null counts as not given, as the reference has it."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationInfo, field_validator

from procession.processor import Options

__all__ = ["LenientOptions"]


class LenientOptions(Options):
    """Base of option models that take null for the default, where there is one."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _null_is_default(cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        if value is None and not field.is_required():
            return field.get_default(call_default_factory=True)
        return handler(value)
