"""Options of `pii-detector` (builtins.md 6)."""

from collections.abc import Iterable
from typing import Any, Literal, Self

from phonenumbers import SUPPORTED_REGIONS
from pydantic import Field, field_validator, model_validator

from procession.hold_back import StreamMode, refuse_blind_action
from procession.processor import Options
from procession.scanners import RegexRule, RegexScanner
from procession_services.processors.core.pii.phones import REGIONS
from procession_services.processors.core.pii.scanner import CONTEXT_TYPES, LOCAL_TYPES
from procession_services.processors.detector import ParallelOptions


class CustomType(Options):
    """A type of data that only you know, and what it looks like (D-9)."""

    name: str = Field(
        min_length=1, max_length=64, description="Name of the type in reports and placeholders."
    )
    pattern: str = Field(
        min_length=1, description="Regular expression, in the syntax of the `regex` package."
    )
    ignore_case: bool = Field(default=False, description="Whether letters match in either case.")

    def rule(self) -> RegexRule:
        """The pattern as the scanner takes it."""
        return RegexRule(self.name, f"(?i:{self.pattern})" if self.ignore_case else self.pattern)


class RestoreOptions(Options):
    """Where tokens become values again, with redaction method `token`."""

    answer: bool = Field(default=False, description="In the text of the answer, as the client gets it.")
    tool_arguments: bool = Field(default=False, description="In the arguments of tool calls.")


class PIIDetectorOptions(ParallelOptions):
    """Options of `pii-detector`."""

    model: str | None = Field(  # type: ignore[assignment]  # optional here: the first stage needs none
        default=None,
        min_length=1,
        description="Model of the second stage, `provider/name`; without one only the local stage runs.",
    )
    detection_types: tuple[str | CustomType, ...] | None = Field(
        default=None,
        min_length=1,
        description="What to look for: names of types, or objects with `name` and `pattern`. Default: all that is "
        f"found locally ({', '.join(LOCAL_TYPES)}), and with a model {', '.join(CONTEXT_TYPES)} too.",
    )
    threshold: float = Field(
        default=0.6, ge=0, le=1, description="Confidence or score at which something counts."
    )
    strategy: Literal["block", "warn", "filter", "redact"] = Field(
        default="redact",
        description="`block`: the run ends. `warn`: the text passes, the violation is reported. `filter`: the message "
        "is dropped; in a stream, only what was found. `redact`: what was found is replaced.",
    )
    redaction_method: Literal["mask", "hash", "remove", "placeholder", "token"] = Field(
        default="mask",
        description="What replaces it: asterisks, a short hash, nothing, `[TYPE]`, or a token that can be turned "
        "back into the value.",
    )
    preserve_format: bool = Field(default=True, description="A mask keeps the form of the value.")
    include_detections: bool = Field(default=False, description="Add the number of places to the report.")
    buffer_size: int = Field(
        default=200,
        ge=1,
        le=20_000,
        description="Characters of a stream after which the model is asked, at the end of the sentence; with "
        "`hold` it is asked about the whole block.",
    )
    stream_mode: StreamMode | None = Field(
        default=None,
        description="`window`: text goes out when no later text can change it. `hold`: when its block has ended "
        "without an objection. `observe`: at once. Default: `observe` for `warn`, else `window`.",
    )
    on_unlocatable: Literal["abort", "drop"] = Field(
        default="abort",
        description="What `redact` does with text in which it is unknown where the flagged data is (D-3).",
    )
    phone_regions: tuple[str, ...] = Field(
        default=REGIONS, description="Countries (ISO 3166) whose national phone numbers are found."
    )
    restore: RestoreOptions = Field(
        default_factory=RestoreOptions, description="Where tokens are turned back into values."
    )
    token_ttl: float = Field(
        default=2_592_000,
        gt=0,
        description="Seconds during which the tokens of a conversation can be turned back.",
    )
    masking_key: str = Field(
        default="masking-key",
        pattern="^[A-Za-z0-9_-]{1,64}$",
        description="Name of the secret that tokens are made with: a file in `PROCESSION_SECRETS_DIR`.",
    )

    @property
    def custom(self) -> tuple[CustomType, ...]:
        """The types that carry a pattern."""
        return tuple(each for each in self.detection_types or () if isinstance(each, CustomType))

    @property
    def types(self) -> tuple[str, ...]:
        """The names of all types to look for."""
        if self.detection_types is None:
            return LOCAL_TYPES + (CONTEXT_TYPES if self.model else ())
        return tuple(each if isinstance(each, str) else each.name for each in self.detection_types)

    @property
    def model_types(self) -> tuple[str, ...]:
        """The types that only a model finds."""
        local = {*LOCAL_TYPES, *(each.name for each in self.custom)}
        return tuple(each for each in self.types if each not in local)

    @property
    def mode(self) -> StreamMode:
        """How a stream is treated."""
        default = StreamMode.OBSERVE if self.strategy == "warn" else StreamMode.WINDOW
        return self.stream_mode or default

    @field_validator("phone_regions")
    @classmethod
    def _known_regions(cls, regions: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [each for each in regions if each not in SUPPORTED_REGIONS]:
            raise ValueError(
                f"phone numbers of {', '.join(unknown)} are not known; give country codes such as US, GB, DE"
            )
        return regions

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if not self.model and (lost := self.model_types):
            raise ValueError(
                f"detectionTypes: {_listed(lost)} cannot be found without a model. Name a `model`, or give a pattern: "
                f'{{"name": "{lost[0]}", "pattern": "..."}}. Found without a model are: {_listed(LOCAL_TYPES)}'
            )
        if twice := {each for each in self.types if self.types.count(each) > 1}:
            raise ValueError(f"detectionTypes names {_listed(sorted(twice))} more than once")
        RegexScanner([each.rule() for each in self.custom])
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse_blind_action(self.stream_mode, self.strategy, reports=frozenset({"warn"}))
        if self.redaction_method == "token" and self.strategy != "redact":
            raise ValueError(f"redactionMethod 'token' needs strategy 'redact', not {self.strategy!r}")
        if self.redaction_method != "token" and (self.restore.answer or self.restore.tool_arguments):
            raise ValueError(
                f"restore needs redactionMethod 'token': {self.redaction_method!r} cannot be undone"
            )
        if not self.model and self.model_fields_set & {"instructions"} and self.instructions:
            raise ValueError("instructions are for the model of the second stage, but no `model` is named")
        return self


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names))
