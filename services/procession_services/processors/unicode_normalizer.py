"""`unicode-normalizer`: makes incoming text consistent before anything else looks at it (builtins.md 3).

No model, no cost. Input only; every role. Text parts change, everything else is kept (D-6).
"""

import re
import unicodedata

import regex
from pydantic import Field

from procession.args import InputArgs
from procession.messages import map_text
from procession.processor import Processor
from procession_schemas.messages import Message
from procession_services.processors.core.detector_text import JS_SPACE
from procession_services.processors.core.lenient_options import LenientOptions

_CONTROL = re.compile("[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]")
_EMOJI = regex.compile(
    r"""(?: [0-9#*]\ufe0f?\u20e3                                      # keycaps
          | \p{Regional_Indicator}+                                  # flags
          | (?: (?![©®])\p{Extended_Pictographic} | [©®](?=\ufe0f) | \p{Emoji_Modifier} )
            \ufe0f? \p{Emoji_Modifier}? [\U000e0020-\U000e007f]*   # presentation, skin, subdivision flags
            \u200d?                                                  # joined to the next one
        )+""",
    regex.VERBOSE,
)


class UnicodeNormalizerOptions(LenientOptions):
    """Options of `unicode-normalizer`; null is the default (R-UNI-1)."""

    strip_control_chars: bool = Field(
        default=False, description="Drop control characters except TAB, LF and CR."
    )
    preserve_emojis: bool = Field(
        default=True, description="False: drop emojis along with control characters (D-15)."
    )
    collapse_whitespace: bool = Field(default=True, description="One LF for line ends, one space for runs.")
    trim: bool = Field(default=True, description="Strip both ends.")


class UnicodeNormalizer(Processor[UnicodeNormalizerOptions]):
    """NFKC, control characters, whitespace, trim: in this order (R-UNI-3)."""

    id = "unicode-normalizer"
    name = "Unicode Normalizer"
    description = "Normalises the text of incoming messages."

    def process_input(self, args: InputArgs) -> list[Message]:
        """Returns normalised copies; the messages given stay as they are, also where one is malformed (R-UNI-7)."""
        try:
            return [map_text(message, self.normalise) for message in args.messages]
        except (AttributeError, KeyError, TypeError):
            return args.messages

    def normalise(self, text: str) -> str:
        """Normalises one text, in linear time; what is no text stays (R-UNI-2)."""
        options = self.options
        if not isinstance(text, str):
            return text
        text = unicodedata.normalize("NFKC", text)
        if options.strip_control_chars:
            text = _CONTROL.sub("", text)
            if not options.preserve_emojis:
                text = _EMOJI.sub("", text)
        if options.collapse_whitespace:
            text = re.sub(r"\r\n?", "\n", text)
            text = re.sub(r"\n+", "\n", text)
            text = re.sub(r"[ \t]+", " ", text)
        return text.strip(JS_SPACE) if options.trim else text
