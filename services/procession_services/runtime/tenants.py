"""What each tenant may use: a YAML file with `default`, for whoever is not named, and `tenants` by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field, ValidationError

from procession_schemas.base import StrictModel
from procession_schemas.subjects import InvalidSubjectError, token
from procession_services.runtime.problems import ConfigurationError, Problem, suggestion, unreadable
from procession_services.runtime.yaml_text import no_yaml, parsed

__all__ = ["Limits", "Tenants", "load_tenants"]

_KEYS: Final = ("default", "tenants")


class Limits(StrictModel):
    """The limits of one tenant; None: there is none."""

    concurrent_runs: int | None = Field(
        default=None, ge=1, description="Runs at work at once; further ones wait."
    )
    waiting_runs: int = Field(
        default=1_000, ge=0, description="Accepted runs that may wait; further requests are refused."
    )
    requests_per_second: float | None = Field(
        default=None, gt=0, description="Requests per second; those of one second may come at once."
    )
    tokens_per_day: int | None = Field(
        default=None, ge=1, description="Tokens of model calls, input and output, per UTC day."
    )
    cost_per_day: float | None = Field(
        default=None, gt=0, description="US dollars for model calls per UTC day, as far as prices are known."
    )


_WRITTEN: Final = {name: str(field.alias) for name, field in Limits.model_fields.items()}
_SPELLINGS: Final = {spelling: name for name, alias in _WRITTEN.items() for spelling in (name, alias)}


@dataclass(frozen=True, slots=True)
class Tenants:
    """The limits of all tenants."""

    default: Limits = field(default_factory=Limits)
    named: Mapping[str, Limits] = field(default_factory=dict)

    def of(self, tenant: str) -> Limits:
        """What holds for a tenant."""
        return self.named.get(tenant, self.default)


def load_tenants(path: Path) -> Tenants:
    """Reads the limits from a file; what a named tenant leaves out is as in `default`, and `null` lifts a limit.

    Raises:
        ConfigurationError: The file cannot be read, or something in it is wrong; everything at once.
    """
    try:
        content = parsed(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError([Problem(str(path), "", unreadable(error))]) from error
    except yaml.YAMLError as error:
        raise ConfigurationError([no_yaml(path, error)]) from error
    problems: list[Problem] = []
    top = _mapping(content, path, "", problems)
    problems += [
        Problem(str(path), str(key), f"unknown key{suggestion(str(key), _KEYS)}")
        for key in top
        if key not in _KEYS
    ]
    default = _mapping(top.get("default"), path, "default", problems)
    limits = _limits(default, path, "default", problems)
    named = {}
    for name, own in _mapping(top.get("tenants"), path, "tenants", problems).items():
        where = f"tenants.{name}"
        try:
            token(str(name), "tenant")
        except InvalidSubjectError as error:
            problems.append(Problem(str(path), where, str(error)))
        merged = {**_spelt(default), **_spelt(_mapping(own, path, where, problems))}
        named[str(name)] = _limits(merged, path, where, [] if limits is None else problems)
    if problems:
        raise ConfigurationError(problems)
    return Tenants(limits or Limits(), {name: own for name, own in named.items() if own})


def _mapping(value: Any, path: Path, where: str, problems: list[Problem]) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem(str(path), where, f"must be a mapping, not {value!r}"))
        return {}
    return value


def _spelt(fields: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields by the names of the model, however they were spelt."""
    return {_SPELLINGS.get(str(key), str(key)): value for key, value in fields.items()}


def _limits(fields: Mapping[Any, Any], path: Path, where: str, problems: list[Problem]) -> Limits | None:
    try:
        return Limits.model_validate(_spelt(fields))
    except ValidationError as error:
        for wrong in error.errors():
            name = _SPELLINGS.get(str(wrong["loc"][0]), str(wrong["loc"][0]))
            unknown = wrong["type"] == "extra_forbidden"
            told = (
                f"unknown limit{suggestion(name, _WRITTEN.values())}"
                if unknown
                else f"{wrong['msg']}: {wrong['input']!r}"
            )
            problems.append(Problem(str(path), f"{where}.{_WRITTEN.get(name, name)}", told))
        return None
