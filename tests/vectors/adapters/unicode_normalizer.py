"""`unicode-normalizer.json`: the input hook, called with messages as they are, that may lack anything."""

import copy
from typing import Any

import regex

from procession.args import InputArgs, RequestContext
from procession.calls import abort
from procession_services.processors.unicode_normalizer import UnicodeNormalizer
from tests.vectors.adapters.common import Bench, without

_EMOJI = regex.compile(
    r"(?![©®])\p{Extended_Pictographic}|\p{Regional_Indicator}|\p{Emoji_Modifier}|[\u200d\ufe0f\u20e3]"
)
_KEYCAP = regex.compile(r"[0-9#*]\ufe0f?\u20e3")


async def observe(vector: dict[str, Any]) -> dict[str, Any]:
    """The messages, and whether the hook left its input alone."""
    processor = UnicodeNormalizer.build(without(vector["options"]))
    given = copy.deepcopy(vector["input"]["messages"])
    args = InputArgs(
        abort=abort,
        retry_count=0,
        request_context=RequestContext(),
        tracing_context={},
        state={},
        run_id="r1",
        messages=given,
        system_messages=[],
        message_list=Bench([processor]).context.messages,
    )
    out = processor.process_input(args)
    return {
        "messages": out,
        "inputMutated": given != vector["input"]["messages"],
        "sameArray": out is given,
    }


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """D-15: emojis go where they are not to be preserved. D-28: the flat copy follows the parts."""
    wanted = copy.deepcopy(vector["expected"])
    reasons = set()
    for message, ours in zip(wanted["messages"], observed["messages"], strict=False):
        content, our_content = (each and each.get("content") for each in (message, ours))
        if not isinstance(content, dict) or not isinstance(our_content, dict):
            continue
        texts = [part["text"] for part in our_content.get("parts", []) if part["type"] == "text"]
        if texts and "content" in content and content["content"] != texts[-1]:
            content["content"] = texts[-1]
            reasons.add("D-28")
        for part, our_part in zip(content.get("parts", []), our_content.get("parts", []), strict=False):
            if (
                part == our_part
                or part["type"] != "text"
                or vector["options"].get("preserveEmojis") is not False
            ):
                continue
            if _EMOJI.search(our_part["text"]) or _bare(part["text"]) != _bare(our_part["text"]):
                return None
            part["text"] = our_part["text"]
            reasons.add("D-15")
    return min(reasons) if reasons and wanted == observed else None


def _bare(text: str) -> str:
    return "".join(_EMOJI.sub("", _KEYCAP.sub("", text)).split())
