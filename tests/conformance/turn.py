"""One call of one scripted hook: goes through the hook's actions and ends with what the hook returns."""

import copy
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.conformance.board import Board
from tests.conformance.conditions import substitute, when
from tests.conformance.javascript import UNDEFINED
from tests.conformance.refs import Context

__all__ = ["ACTIONS", "Action", "Message", "Turn"]

Message = dict[str, Any]


def _cloned(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": {**content, "parts": [dict(part) for part in content.get("parts") or []]}}


class Turn:
    """One call of one hook: what it has changed so far, and what it will return."""

    def __init__(self, hook: str, args: Any, ctx: Context, board: Board, *, processor: str, n: int) -> None:
        self.hook = hook
        self.args = args
        self.ctx = ctx
        self.board = board
        self.processor = processor
        self.n = n
        self.list = getattr(args, "message_list", None)
        self.given: list[Message] = list(getattr(args, "messages", None) or [])
        self.messages = [_cloned(message) for message in self.given]
        self.system: list[dict[str, Any]] = copy.deepcopy(getattr(args, "system_messages", None) or [])
        self.prompt: Any = getattr(args, "prompt", None)
        self.part: Any = getattr(args, "part", None)
        self.out: dict[str, Any] = {}
        self.shape: str | None = None
        self.touched_messages = self.touched_system = False
        self.dropped = self.retry = False
        self.response: dict[str, Any] | None = None

    @property
    def in_place(self) -> bool:
        """Whether the return shape says that messages are changed where they are."""
        return self.shape in ("messageList", "void-mutate")

    async def play(self, actions: list[dict[str, Any]]) -> Any:
        """Runs the actions and returns what the hook returns."""
        for action in actions:
            if action["do"] == "return" and when(action.get("when"), self.hook, self.args, self.n):
                self.shape = action["shape"]
        for action in actions:
            if when(action.get("when"), self.hook, self.args, self.n):
                if action["do"] not in ACTIONS:
                    raise ValueError(f"unknown action {action['do']}")
                await ACTIONS[action["do"]](self, action)
        return self._returned()

    def fill(self, value: Any) -> Any:
        """Fills the placeholders of a value."""
        env = {
            "n": self.n,
            "run": self.ctx.get("run"),
            "state": self.args.state,
            "step": getattr(self.args, "step_number", UNDEFINED),
            "retryCount": self.args.retry_count,
        }
        return substitute(value, env)

    def _returned(self) -> Any:
        match self.hook:
            case "processOutputStream":
                return None if self.dropped or self.shape == "undefined" else self.part
            case "processLLMRequest":
                answer = {} if self.response is None else {"response": self.response}
                return {**self.out, **answer} or None
            case "processLLMResponse":
                return None
            case "processAPIError":
                return {"retry": True} if self.retry else None
            case _:
                return self._messages()

    def _messages(self) -> Any:
        """What a hook returns that deals with messages."""
        shapes: dict[str, Callable[[], Any]] = {
            "messageList": lambda: self.list,
            "external-messageList": lambda: copy.deepcopy(self.list),
            "both": lambda: {"messages": self.messages, "message_list": self.list},
            "empty-array": list,
            "void": lambda: None,
            "void-mutate": lambda: None,
            "object": lambda: {"messages": self.messages, "system_messages": self.system, **self.out},
            "messages": lambda: self.messages,
        }
        return shapes.get(self.shape or "", self._by_default)()

    def _by_default(self) -> Any:
        if self.hook == "processInput":
            both = {"messages": self.messages, "system_messages": self.system}
            return both if self.touched_system else self.messages
        if self.hook == "processInputStep":
            if self.touched_messages:
                self.out["messages"] = self.messages
            if self.touched_system:
                self.out["system_messages"] = self.system
            return self.out or None
        if self.hook == "processOutputResult":
            return self.messages
        return self.messages if self.touched_messages else None


Action = Callable[[Turn, dict[str, Any]], Awaitable[None]]
ACTIONS: Final[dict[str, Action]] = {}
"""Every action by its name in the scenarios; `actions` fills it."""
