"""Names and codes of languages, and whether a text is in one that is wanted (builtins.md 4)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NAMES: Final = {
    "en": "English", "es": "Spanish", "fr": "French", "de": "German", "it": "Italian", "pt": "Portuguese",
    "ru": "Russian", "ja": "Japanese", "ko": "Korean", "zh": "Chinese", "zh-cn": "Chinese (Simplified)",
    "zh-tw": "Chinese (Traditional)", "ar": "Arabic", "hi": "Hindi", "th": "Thai", "vi": "Vietnamese",
    "tr": "Turkish", "pl": "Polish", "nl": "Dutch", "sv": "Swedish", "da": "Danish", "no": "Norwegian",
    "fi": "Finnish", "el": "Greek", "he": "Hebrew", "cs": "Czech", "hu": "Hungarian", "ro": "Romanian",
    "bg": "Bulgarian", "hr": "Croatian", "sk": "Slovak", "sl": "Slovenian", "et": "Estonian", "lv": "Latvian",
    "lt": "Lithuanian", "uk": "Ukrainian", "be": "Belarusian",
}  # fmt: skip
"""R-LANG-10."""

_CODES: Final = {name.lower(): code for code, name in NAMES.items()}
_LONGEST_CODE: Final = 3
_UNKNOWN: Final = "unknown"
_ASSUMED: Final = 0.95

_CODE: Final = re.compile(r"[A-Za-z]{2,8}([-_][A-Za-z0-9]{1,8})*")
_LINK: Final = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]{1,20}://\S+|\S{1,64}@\S{1,255}")
_SLICE: Final = 2000


@dataclass(frozen=True, slots=True)
class Found:
    """What a detector says of a text.

    Attributes:
        code: ISO code as the detector gave it; None where it found no language.
        confidence: 0 to 1; 0 counts as unknown.
        translation: The text in the wanted language.
    """

    code: str | None = None
    confidence: float = 0.0
    translation: str | None = None

    @classmethod
    def of_answer(cls, answer: dict[str, object]) -> "Found":
        """What a model's answer says; a translation without confidence counts as sure (R-LANG-3)."""
        code, confidence, text = (answer.get(key) for key in ("iso_code", "confidence", "translated_text"))
        sure = float(confidence) if isinstance(confidence, int | float) else 0.0
        translation = text if isinstance(text, str) and text.strip() else None
        return cls(
            code if isinstance(code, str) and _CODE.fullmatch(code) else None,
            sure or (_ASSUMED if translation else 0.0),
            translation,
        )

    def unsure(self, threshold: float) -> bool:
        """Whether it found something, but not surely enough to act or to tell (R-LANG-5)."""
        return 0 < self.confidence < threshold

    def is_foreign(self, targets: Iterable[str]) -> bool:
        """Whether it found a language, and that is none of the targets (R-LANG-6)."""
        code = self.code
        return code is not None and self.confidence > 0 and not any(matches(each, code) for each in targets)


def name_of(code: str) -> str:
    """The language's name; a regional code the table lacks has the name of its language, an unknown one its own."""
    lower = code.lower()
    return NAMES.get(lower) or NAMES.get(_language(lower)) or code


def code_of(target: str) -> str:
    """The code of a target that was given as a name or a code; `unknown` for a name the table lacks (R-LANG-11)."""
    lower = target.lower()
    if lower in NAMES:
        return lower
    return _CODES.get(lower) or (lower if len(lower) <= _LONGEST_CODE or "-" in lower else _UNKNOWN)


def matches(target: str, code: str) -> bool:
    """Whether a detected code is the target's language (R-LANG-11).

    Regions count only where both sides name one: `en-US` is English, `zh` may be simplified or traditional Chinese,
    and `zh-TW` is not `zh-CN` (D-66).
    """
    wanted, found = code_of(target), code.lower().replace("_", "-")
    if wanted == found or target.lower() == name_of(code).lower():
        return True
    regional = "-" in wanted and "-" in found
    return not regional and _language(wanted) == _language(found) and wanted != _UNKNOWN


def _language(code: str) -> str:
    return code.partition("-")[0]


def sample(text: str) -> str:
    """The part of a text from which a library tells its language, in time that does not grow with it.

    Links and addresses say nothing. Of a long text these are its beginning, its middle and its end.
    """
    if len(text) > 3 * _SLICE:
        middle = (len(text) - _SLICE) // 2
        slices = text[:_SLICE], text[middle : middle + _SLICE], text[-_SLICE:]
        text = "\n".join(slices)
    return _LINK.sub(" ", text)
