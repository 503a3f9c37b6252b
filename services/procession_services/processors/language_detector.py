"""`language-detector`: tells the language of incoming messages; translates, warns or blocks (builtins.md 4).

A library detects (no model call); a model is asked to translate, or to detect as well where `detector: model` says so.
"""

import logging
from typing import Any, Final, Literal, Self, cast

from pydantic import Field, model_validator

from procession.args import InputArgs
from procession.messages import clone
from procession_schemas.messages import Message
from procession_services.processors import language_library
from procession_services.processors.core.detector_text import detector_text, examined_ids, with_text
from procession_services.processors.core.languages import Found, name_of
from procession_services.processors.detector import Detector, DetectorOptions

log = logging.getLogger(__name__)
_DEFAULT_TARGETS: Final = ("English", "en")


class LanguageDetectorOptions(DetectorOptions):
    """Options of `language-detector`."""

    model: str = Field(
        default="",
        description="Model that translates, `provider/name`; with `detector: model` it detects too.",
    )
    detector: Literal["auto", "library", "model"] = Field(
        default="auto",
        description="Who detects. `auto`: the library where it is installed (extra `guardrails`), else the model.",
    )
    target_languages: tuple[str, ...] = Field(
        default=_DEFAULT_TARGETS,
        description="Wanted languages, as names or ISO codes; translations are into the first.",
    )
    threshold: float = Field(default=0.7, ge=0, le=1, description="Confidence at which a detection counts.")
    strategy: Literal["detect", "translate", "block", "warn"] = Field(
        default="detect",
        description="For a message in another language. `detect`: metadata only. `warn`: report a violation too. "
        "`translate`: its text is replaced by a translation. `block`: the run ends.",
    )
    preserve_original: bool = Field(
        default=True, description="Keep the text before translation in the metadata."
    )
    min_text_length: int = Field(default=10, ge=0, description="Shorter texts are not examined.")
    include_detection_details: bool = Field(
        default=False, description="Log messages in a wanted language too, at level info."
    )
    translation_quality: Literal["speed", "quality", "balanced"] = Field(
        default="balanced", description="What the translator is told to pay attention to."
    )

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        if self.strategy == "translate" and not self.model:
            raise ValueError("strategy 'translate' needs `model`, which translates")
        if self.strategy == "translate" and not self.target_languages:
            raise ValueError(
                "strategy 'translate' needs `targetLanguages`; it translates into the first of them"
            )
        if self.detector == "model" and not self.model:
            raise ValueError("detector 'model' needs `model`")
        if self.detector == "library" and not language_library.installed():
            raise ValueError("detector 'library' needs py3langid: install procession[guardrails]")
        if self.detector == "auto" and not self.model and not language_library.installed():
            raise ValueError(
                "there is nothing to detect languages with: install procession[guardrails], or give a `model`"
            )
        return self

    @property
    def asks_model(self) -> bool:
        """Whether the model detects."""
        if self.detector == "auto":
            return not language_library.installed()
        return self.detector == "model"


class LanguageDetector(Detector[LanguageDetectorOptions]):
    """Examines the request's messages, whatever their role (R-LANG-13)."""

    id = "language-detector"
    name = "Language Detector"
    description = "Detects the language of messages; translates, warns or blocks."
    subject = "Language detection"

    async def process_input(self, args: InputArgs) -> list[Message]:
        """Returns the messages with what was found in `content.metadata.language_detection` (R-LANG-9)."""
        options = self.options
        new = args.message_list.get.input.db() if options.scope == "new" else None
        ids = examined_ids(args.messages, new, last_only=options.last_message_only)
        return [await self._examined(args, m) if m["id"] in ids else m for m in args.messages]

    async def _examined(self, args: InputArgs, message: Message) -> Message:
        text = detector_text(message)
        if len(text) < self.options.min_text_length:
            return message
        found = await self._detect(args, text)
        if found.unsure(self.options.threshold):
            return message
        if not found.is_foreign(self.options.target_languages):
            if self.options.include_detection_details:
                log.info("%s: %s, a wanted language", self.id, _told(found))
            return self._noted(message, found, foreign=False)
        return await self._foreign(args, message, text, found)

    async def _detect(self, args: InputArgs, text: str) -> Found:
        if not self.options.asks_model:
            return await language_library.identify(text)
        translates = self.options.strategy == "translate"
        asked = ("iso_code", "confidence", *(("translated_text",) if translates else ()))
        remark = f"Wanted languages: {'/'.join(self.options.target_languages)}."
        if translates:
            remark += f" {self._wish()}"
        answer = await self.ask(args, text, schema=_schema(asked), system=_DETECT, remark=remark) or {}
        return Found.of_answer({name: answer.get(name) for name in asked})

    async def _foreign(self, args: InputArgs, message: Message, text: str, found: Found) -> Message:
        """Applies the strategy to a message in another language (R-LANG-8)."""
        strategy, told = self.options.strategy, _told(found)
        if strategy == "detect":
            log.info("%s: %s", self.id, told)
            return self._noted(message, found, foreign=True)
        if strategy == "block":
            args.abort(f"Language not allowed: {told}")
        args.services.warn(f"not a wanted language: {told} ({strategy})")
        await args.services.violation(
            f"Not a wanted language: {told}",
            {"isoCode": found.code, "confidence": found.confidence, "strategy": strategy},
        )
        if strategy == "translate":
            translation = found.translation if self.options.asks_model else await self._translate(args, text)
            if translation:
                return self._translated(message, text, found, translation)
            args.services.warn("the model gave no translation; the text stays as it is")
        return self._noted(message, found, foreign=True)

    async def _translate(self, args: InputArgs, text: str) -> str | None:
        schema = _schema(("translated_text",))
        answer = await self.ask(args, text, schema=schema, system=_TRANSLATE, remark=self._wish())
        return Found.of_answer(answer or {}).translation

    def _wish(self) -> str:
        quality = _QUALITY[self.options.translation_quality]
        return f"Translate into {name_of(self.options.target_languages[0])}, in `translated_text`.{quality}"

    def _translated(self, message: Message, text: str, found: Found, translation: str) -> Message:
        more: dict[str, Any] = {
            "translation": {
                "original_language": name_of(found.code or ""),
                "target_language": self.options.target_languages[0],
                "translation_confidence": found.confidence,
            }
        }
        if self.options.preserve_original:
            more["original_content"] = text
        return self._noted(with_text(message, translation), found, foreign=True, **more)

    def _noted(self, message: Message, found: Found, *, foreign: bool, **more: Any) -> Message:
        """A copy of the message that says what was found, which is not what was wanted (D-25)."""
        noted: dict[str, Any] = {}
        if found.code:
            noted |= {"detected_language": name_of(found.code), "iso_code": found.code}
        if found.confidence:
            noted["confidence"] = found.confidence
        noted |= {
            "is_target_language": not foreign,
            "target_languages": list(self.options.target_languages),
            **more,
        }
        copy = clone(message)
        content = cast("dict[str, Any]", copy["content"])
        content["metadata"] = {**(content.get("metadata") or {}), "language_detection": noted}
        return copy


def _told(found: Found) -> str:
    code = found.code or "none"
    return f"{name_of(code)} ({code}) with confidence {found.confidence:.2f}"


def _schema(fields: tuple[str, ...]) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {
        "iso_code": {"type": ["string", "null"]},
        "confidence": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
        "translated_text": {"type": ["string", "null"]},
    }
    return {
        "type": "object",
        "properties": {name: kinds[name] for name in fields},
        "required": list(fields),
    }


_DETECT: Final = """\
You identify languages, and translate where asked. Give the ISO 639-1 code of the language that the text is written in \
and how sure you are, from 0 to 1; null for both if it is in none. Where a translation is asked for, give it only if \
the text is in none of the wanted languages, else null."""

_TRANSLATE: Final = """\
You translate. Give the whole text in the demanded language and nothing else; keep its form, names, numbers, code and \
links. If it cannot be translated, give null."""

_QUALITY: Final = {
    "balanced": "",
    "speed": " A quick, literal translation is enough.",
    "quality": " Take care of tone, idiom and exact meaning.",
}
