"""The kinds of wire model: tolerant between services, strict towards people, and quick where every run passes."""

from contextlib import suppress
from functools import cache, partial
from typing import Any, ClassVar, Final, Literal, Self, dataclass_transform

import msgspec
import pydantic_core
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    create_model,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

JsonObject = dict[str, Any]
_PLAIN: Final = frozenset({str, int, float, bool})
_CACHED: Final = "keys"
"""What pydantic keeps of the JSON that it reads: else 16,384 short texts too, which hardly ever come again."""
from_json: Final = partial(pydantic_core.from_json, cache_strings=_CACHED)  # noqa: TID251 - here alone
"""pydantic's reader of JSON, for what is no model."""


class WireModel(BaseModel):
    """A message between services: camelCase on the wire, unknown fields ignored (rolling upgrades)."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        hide_input_in_errors=True,
        cache_strings=_CACHED,
    )

    def to_json(self) -> bytes:
        """Returns the wire bytes: camelCase keys, unset optional fields left out."""
        return self.__pydantic_serializer__.to_json(self, by_alias=True, exclude_none=True)


class StrictModel(BaseModel):
    """What a person writes (a request, an agent): unknown fields are errors that name the field.

    Keys are accepted in snake_case and in the contract's camelCase. Values are of the types that the JSON Schema names:
    no text for a number, no number for a boolean, and no NaN or infinity for a number.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        cache_strings=_CACHED,
    )


class UnfitError(ValueError):
    """What was read is not JSON, or does not fit the type; the message says where."""


class _ByName(msgspec.StructMeta):
    """Fields are given by name, those of subclasses too."""

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        return super().__new__(cls, *args, **{"kw_only": True, **settings})


@dataclass_transform(kw_only_default=True, field_specifiers=(msgspec.field,))
class WireStruct(msgspec.Struct, metaclass=_ByName, rename="camel", omit_defaults=True):
    """As `WireModel`, for what every run sends and stores many times, at a fifth of its cost (docs/adr/0029).

    What is read is checked, what is made is not. It may have pydantic models as fields, and be a field of theirs: then
    pydantic checks it, as a `FORM` of the same fields, whose descriptions and bounds (`Annotated[..., Field(...)]`)
    msgspec passes over.
    """

    FORM: ClassVar[type[BaseModel]] = WireModel

    @classmethod
    def from_json(cls, body: bytes | str) -> Self:
        """Reads the wire bytes; raises UnfitError."""
        try:
            read: Self = _decoder(cls).decode(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UnfitError(f"not a valid {cls.__name__}: {error}") from error
        return read

    @classmethod
    def of(cls, data: object) -> Self:
        """Reads decoded JSON; raises UnfitError."""
        try:
            return msgspec.convert(data, cls, dec_hook=_of_pydantic)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise UnfitError(f"not a valid {cls.__name__}: {error}") from error

    @classmethod
    def checked(cls, data: object) -> Self:
        """Reads what a person wrote, by the rules of its `FORM`; raises pydantic's ValidationError."""
        return cls._of_form(cls.form().model_validate(data))

    @classmethod
    def form(cls) -> type[BaseModel]:
        """The same fields, as pydantic reads them."""
        return _form(cls)

    def to_json(self) -> bytes:
        """Returns the wire bytes: camelCase keys, what has its default left out."""
        return _ENCODER.encode(self)

    def to_dict(self) -> JsonObject:
        """Returns what the wire bytes say."""
        told: JsonObject = msgspec.to_builtins(self, enc_hook=_dict_of_pydantic)
        return told

    def shown(self) -> JsonObject:
        """Returns what people see of it: camelCase keys, with what has its default, without what is None."""
        values = msgspec.structs.astuple(self)
        told = _tag(type(self)) | dict(zip(self.__struct_encode_fields__, values, strict=True))
        if _PLAIN.issuperset(map(type, values)):
            return told
        told_of = partial(msgspec.to_builtins, enc_hook=_dict_of_pydantic)
        return {key: told_of(value) for key, value in told.items() if value is not None}

    def but(self, **changed: Any) -> Self:
        """Returns a copy with other values; the rest is shared."""
        return msgspec.structs.replace(self, **changed)

    def _as_given(self) -> JsonObject:
        """Returns `to_dict`; where that fails, what a person has given, so that its place can be told."""
        try:
            return self.to_dict()
        except TypeError:
            values = zip(self.__struct_encode_fields__, msgspec.structs.astuple(self), strict=True)
            return {key: value for key, value in values if value is not None}

    @classmethod
    def _of_form(cls, form: BaseModel) -> Self:
        return cls(**{name: getattr(form, name) for name in cls.__struct_fields__})

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, read: ValidatorFunctionWrapHandler) -> WireStruct:
            if isinstance(value, cls):
                if cls.FORM is not StrictModel:
                    return value
                value = msgspec.structs.asdict(value)  # a person may have made it, of anything
            elif cls.FORM is WireModel and isinstance(value, dict) and value.keys() <= _names(cls):
                with suppress(UnfitError):  # pydantic may make it fit, or says better why not
                    return cls.of(value)
            return cls._of_form(read(value))

        check.__name__ = cls.__name__  # which errors in unions name
        told = core_schema.plain_serializer_function_ser_schema(
            cls._as_given if cls.FORM is StrictModel else cls.shown
        )
        return core_schema.no_info_wrap_validator_function(check, handler(cls.form()), serialization=told)


@cache
def _decoder(cls: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cls, dec_hook=_of_pydantic)


@cache
def _tag(cls: type[WireStruct]) -> JsonObject:
    config = cls.__struct_config__
    return {} if config.tag_field is None else {config.tag_field: config.tag}


@cache
def _names(cls: type[WireStruct]) -> frozenset[str]:
    """The keys that its wire bytes may have."""
    return frozenset((*cls.__struct_encode_fields__, *_tag(cls)))


@cache
def _form(cls: type[WireStruct]) -> type[BaseModel]:
    fields: dict[str, Any] = {name: (Literal[tag], tag) for name, tag in _tag(cls).items()}
    for field in msgspec.structs.fields(cls):
        if field.default_factory is not msgspec.NODEFAULT:
            fields[field.name] = (field.type, Field(default_factory=field.default_factory))
        else:
            fields[field.name] = (field.type, ... if field.required else field.default)
    return create_model(cls.__name__, __base__=cls.FORM, __doc__=cls.__doc__, **fields)


def _of_pydantic(cls: type[BaseModel], data: object) -> BaseModel:
    try:
        return cls.model_validate(data)
    except ValidationError as error:  # which quotes what it was given
        raise ValueError(f"not a valid {cls.__name__}") from error


def _json_of_pydantic(value: object) -> msgspec.Raw:
    model = _pydantics(value)
    return msgspec.Raw(model.__pydantic_serializer__.to_json(model, by_alias=True, exclude_none=True))


def _dict_of_pydantic(value: object) -> JsonObject:
    return _pydantics(value).model_dump(mode="json", by_alias=True, exclude_none=True)


def _pydantics(value: object) -> BaseModel:
    if isinstance(value, BaseModel):
        return value
    raise TypeError(f"a value of type {type(value).__name__} is not JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_json_of_pydantic)
