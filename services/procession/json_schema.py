"""JSON Schemas that somebody else has written: nothing is fetched for them, and no check takes long."""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from time import thread_time
from typing import Any, Final

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, SchemaResource, specification_with

from procession.errors import ProcessionError
from procession.pattern_size import written_out

Keyword = Callable[[Any, Any, Any, Any], Iterable[ValidationError] | None]

_SECONDS: Final = 0.25
"""How much CPU one check may take: nothing else runs in the process meanwhile."""
_KEPT: Final = 256
_LONGEST_KEPT: Final = 32 * 1024
"""Characters: what all schemas that are kept may come to is bounded by both."""
_MANY: Final = 1_000
"""Items or names up to which the library's slow checks are made, whose time goes with the square of the number."""
_LONGEST_PATTERN: Final = 10_000
"""Characters: it may take 60 ms to compile, which nothing ends."""
_MOST_ELEMENTS: Final = 2_000
"""Of a pattern, beside what is written in it."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_LEADS_NOWHERE: Final = (Unresolvable, LookupError, TypeError, ValueError)
"""What the library raises: the others of some pointers into what is no schema, and of what is no address."""
_KNOWN: Final = ("http://json-schema.org/", "https://json-schema.org/")
"""The schemas of schemas, which the library has."""
_ends: ContextVar[float] = ContextVar("ends")


class UnusableSchemaError(ProcessionError):
    """A schema cannot be used: it is not valid, refers to something outside it, or takes too long to check."""


def misfits(schema: Any, value: Any) -> list[ValidationError]:
    """What is wrong with a value; nothing when it fits.

    Raises:
        UnusableSchemaError: The schema itself is at fault; the message says why.
    """
    try:
        text = json.dumps(schema)
        validator = _kept(text) if len(text) <= _LONGEST_KEPT else _validator(text)
        try:
            return _in_time(validator, value)
        except TimeoutError:  # the garbage collector may have taken it
            return _in_time(validator, value)
    except TimeoutError:
        raise UnusableSchemaError(
            f"checking a value takes more than {_SECONDS:g} s: a pattern backtracks too much, or alternatives are "
            "nested too deeply"
        ) from None
    except Exception as error:  # a bad pattern, a dead reference, endless recursion: each raises its own
        raise UnusableSchemaError(f"{type(error).__name__}: {error}") from error


def _in_time(validator: Validator, value: Any) -> list[ValidationError]:
    ends = _ends.set(thread_time() + _SECONDS)
    try:
        return list(validator.iter_errors(value))
    finally:
        _ends.reset(ends)


def unknown_names(schema: Any, instance: dict[str, Any]) -> list[str]:
    """The names in an object that neither `properties` nor `patternProperties` knows."""
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return [
        name for name in instance if name not in known and not any(_found(each, name) for each in patterns)
    ]


def dead_reference(schema: dict[str, Any]) -> str | None:
    """A reference in a schema that leads nowhere: what is not in the schema is not fetched."""
    specification = specification_with(schema.get("$schema", ""), default=DRAFT202012)
    root: SchemaResource = specification.create_resource(schema)
    registry: Registry[Any] = Registry()
    todo = [(root, registry.resolver_with_root(root))]
    while todo:
        each, resolver = todo.pop()
        for name in _REFERENCES:
            reference = each.contents.get(name) if isinstance(each.contents, dict) else None
            if isinstance(reference, str) and not reference.startswith(_KNOWN):
                try:
                    resolver.lookup(reference)
                except _LEADS_NOWHERE:
                    return reference
        todo += ((part, resolver.in_subresource(part)) for part in each.subresources())
    return None


def _validator(text: str) -> Validator:
    schema = json.loads(text)
    kind = validator_for(schema, default=Draft202012Validator)
    # 4,000 properties would take a second, and what is wrong shows all the same.
    if len(text) <= _LONGEST_KEPT:
        kind.check_schema(schema)
    if "unevaluatedProperties" in text and "patternProperties" in text:
        raise SchemaError("`unevaluatedProperties` together with `patternProperties` is not supported")
    validator: Validator = _bounded(kind)(schema, registry=Registry())
    return validator


_kept = lru_cache(maxsize=_KEPT)(_validator)


@lru_cache
def _bounded(kind: type[Validator]) -> type[Validator]:
    """The checks of a draft, all of which mind the time."""
    ours: dict[str, Keyword] = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    checks = dict[str, Keyword](kind.VALIDATORS) | ours
    checks |= {name: _of_few(checks[name]) for name in checks if name.startswith("unevaluated")}
    bounded: type[Validator] = extend(kind, {name: _timed(check) for name, check in checks.items()})  # type: ignore[no-untyped-call]
    return bounded


def _timed(check: Keyword) -> Keyword:
    def timed(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        _left()
        return check(validator, wanted, instance, schema)

    return timed


def _of_few(check: Keyword) -> Keyword:
    def bounded(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterable[ValidationError] | None:
        if isinstance(instance, dict | list) and len(instance) > _MANY:
            raise SchemaError(
                "`unevaluatedItems` and `unevaluatedProperties` are not supported for values with more than "
                f"{_MANY:,} items or properties"
            )
        return check(validator, wanted, instance, schema)

    return bounded


def _left() -> float:
    """Seconds until the end of the check; raises TimeoutError."""
    seconds = _ends.get() - thread_time()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _found(pattern: str, text: str) -> bool:
    seconds = _left() if _ends.get(None) else None
    _check_size(pattern)
    return regex.search(pattern, text, timeout=seconds) is not None


@lru_cache
def _check_size(pattern: str) -> None:
    if len(pattern) > _LONGEST_PATTERN:
        raise SchemaError(f"a pattern has more than {_LONGEST_PATTERN:,} characters: {pattern[:60]!r}...")
    if written_out(pattern) > _MOST_ELEMENTS + len(pattern):
        raise SchemaError(f"a pattern asks for too many repetitions: {pattern[:60]!r}")


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, wanted: dict[str, Any], instance: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, schema in wanted.items():
        for name, value in instance.items():
            if _found(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, wanted: Any, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    extras = unknown_names(schema, instance)
    if validator.is_type(wanted, "object"):
        for name in extras:
            yield from validator.descend(instance[name], wanted, path=name)
    elif not wanted and extras:
        names = ", ".join(map(repr, extras))
        yield ValidationError(f"Additional properties are not allowed ({names})")


def _unique_items(validator: Any, wanted: Any, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """The library would compare each two objects."""
    if not wanted or not validator.is_type(instance, "array"):
        return
    seen = set[Hashable]()
    for item in instance:
        _left()
        seen.add(_value(item))
    if len(seen) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _value(item: Any) -> Hashable:
    """What is the same for equal values: numbers by their value, whereas `true` is not 1."""
    if isinstance(item, dict):
        return dict, frozenset((name, _value(value)) for name, value in item.items())
    if isinstance(item, list):
        return list, tuple(map(_value, item))
    return isinstance(item, bool), item


__all__ = ["UnusableSchemaError", "dead_reference", "misfits", "unknown_names"]
