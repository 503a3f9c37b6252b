"""A plugin of processors that rewrite the conversation in an attempt, and of those that reject the attempt then."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from procession.messages import map_text
from procession.processor import Options, Processor
from procession.registry import Registry

__all__ = ["WAYS", "register"]


def _with_parts(args: Any, parts: list[Any]) -> list[Any]:
    *earlier, last = args.messages
    return [*earlier, {**last, "content": {**last["content"], "parts": parts}}]


def _drop_earlier(args: Any) -> Any:
    """Leaves of the answer what tools did and what it says now."""
    parts = args.messages[-1]["content"]["parts"]
    return _with_parts(
        args, [p for p in parts if p["type"] == "tool-invocation" or p.get("text") == args.text]
    )


def _separate(args: Any) -> Any:
    return _with_parts(args, [{"type": "step-start"}, *args.messages[-1]["content"]["parts"]])


def _edit(args: Any) -> Any:
    return [
        map_text(message, str.upper) if message["role"] == "assistant" else message
        for message in args.messages
    ]


def _edit_in_place(args: Any) -> None:
    parts = args.messages[-1]["content"]["parts"]
    parts[:] = [
        {"type": "text", "text": f"{part['text']}, edited"} if "text" in part else part for part in parts
    ]


def _one_text(args: Any) -> Any:
    return _with_parts(args, [{"type": "text", "text": f"{args.text}, rewritten"}])


def _replace(args: Any) -> Any:
    return [*args.messages[:-1], {"role": "assistant", "content": f"{args.text}, rewritten"}]


def _replace_in_list(args: Any) -> Any:
    args.message_list.remove_by_ids([args.messages[-1]["id"]])
    return args.message_list.add({"role": "assistant", "content": f"{args.text}, rewritten"}, "response")


def _add(args: Any) -> Any:
    return [*args.messages, {"role": "assistant", "content": f"{args.text}, once more"}]


WAYS: Final[dict[str, Callable[[Any], Any]]] = {
    "drop-earlier": _drop_earlier,
    "separate": _separate,
    "edit": _edit,
    "edit-in-place": _edit_in_place,
    "one-text": _one_text,
    "replace": _replace,
    "replace-in-list": _replace_in_list,
    "add": _add,
}


class RewriteOptions(Options):
    way: str
    word: str = "WRONG"


class Rewrite(Processor[RewriteOptions]):
    """Rewrites an answer with the word, in one of the ways."""

    id: ClassVar[str] = "rewrite"

    def process_output_step(self, args: Any) -> Any:
        return WAYS[self.options.way](args) if self.options.word in args.text else None


class RejectOptions(Options):
    word: str = "WRONG"
    retry: bool = True


class Reject(Processor[RejectOptions]):
    """Rejects an answer with the word."""

    id: ClassVar[str] = "reject"

    def process_output_step(self, args: Any) -> None:
        if self.options.word in args.text:
            args.abort("say it well", retry=self.options.retry)


class MemoryReject(Reject):
    """The same, in the memory service."""

    id: ClassVar[str] = "memory-reject"
    host: ClassVar[str | None] = "memory"


class RejectResult(Processor[RejectOptions]):
    """Rejects a tool's result with the word."""

    id: ClassVar[str] = "reject-result"

    def process_tool_result(self, args: Any) -> None:
        if self.options.word in str(args.result):
            args.abort("ask for something else", retry=self.options.retry)


class RejectSoFar(Processor[RejectOptions]):
    """Rejects an answer as soon as what has come of it has the word, and with each chunk from then on."""

    id: ClassVar[str] = "reject-so-far"

    def process_output_stream(self, args: Any) -> Any:
        if args.part["type"] == "step-start":
            args.state["text"] = ""
        args.state["text"] += args.part.get("payload", {}).get("text", "")
        if self.options.word in args.state["text"]:
            args.abort("say it well", retry=self.options.retry)
        return args.part


def register(registry: Registry) -> None:
    for processor in (Rewrite, Reject, MemoryReject, RejectResult, RejectSoFar):
        registry.add_processor(processor)
