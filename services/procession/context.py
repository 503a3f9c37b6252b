"""The context of a run: everything that hooks see and change, as it travels between services."""

from collections import Counter
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, Self

import orjson
from msgspec import Struct, field
from msgspec.structs import astuple, fields

from procession.args import RequestContext, State
from procession.errors import ProcessorError
from procession.json_values import encoded
from procession.message_list import MessageList
from procession_schemas.messages import StepResult
from procession_schemas.work import StepConfig

USAGE_FIELDS = (
    "inputTokens", "outputTokens", "totalTokens", "reasoningTokens", "cachedInputTokens", "cacheCreationInputTokens",
)  # fmt: skip
UNKNOWN_USAGE: dict[str, int | None] = {"inputTokens": None, "outputTokens": None, "totalTokens": None}
"""The usage of an attempt whose provider reported none (R-US-3)."""
_MOST_BYTES: Final = 128 * 1024 * 1024
"""Of a context as JSON: each service on its way reads and writes all of it, and Redis takes four times as much."""


def counted(usage: dict[str, int | None]) -> dict[str, int | None]:
    """The usage of a run that is over: what nobody reported is zero (7.7)."""
    return {field: used or 0 for field, used in {**UNKNOWN_USAGE, **usage}.items()}


def add_usage(total: dict[str, int | None], more: dict[str, int | None]) -> dict[str, int | None]:
    """Field-wise sum; a field that neither reports stays unknown (R-US-4)."""
    out: dict[str, int | None] = {}
    for key in USAGE_FIELDS:
        a, b = total.get(key), more.get(key)
        if a is not None or b is not None:
            out[key] = (a or 0) + (b or 0)
    return out


class RunContext(Struct, rename="camel"):
    """One run as the services see it.

    `steps` holds every attempt so far; a rejected one has `tripwire` or finish reason `retry` and is left out of what
    hooks get (R-AB-32). `response` is the attempt in hand, `outcomes` are what its tools gave, `pending_parts` are
    data chunks written before there is a response to keep them with (R-WR-8). `stream_ids` are those of the streams
    through the output chain so far, which tell each from one that was in vain. `steps_shown`: hooks have got the steps
    here, so what these hold may have been changed. `told_error` is what the output chain has made of the error of a
    model that failed for good.
    """

    run_id: str
    tenant: str
    agent: str
    message_id: str
    messages: MessageList
    states: dict[str, State] = {}
    request_context: RequestContext = field(default_factory=RequestContext)
    tracing_context: dict[str, Any] = {}
    step_number: int = 0
    retry_count: int = 0
    config: StepConfig = field(default_factory=lambda: StepConfig(model=""))
    steps: list[StepResult] = []
    prompt: list[dict[str, Any]] | None = None
    cached: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    outcomes: list[dict[str, Any]] = []
    pending_parts: list[Any] = []
    usage: dict[str, int | None] = {}
    object: Any = None
    used_fallback: bool = False
    told_error: Any = None
    final: dict[str, Any] | None = None
    stream_ids: list[int] = []
    steps_shown: bool = False

    @property
    def streams(self) -> int:
        """How many streams have gone through the output chain so far."""
        return len(self.stream_ids)

    def state(self, processor: str) -> State:
        """The state of a processor, made on first use (R-SS-1)."""
        return self.states.setdefault(processor, {})

    def accepted_steps(self) -> list[StepResult]:
        """Completed steps as hooks get them, rejected attempts left out."""
        return [s for s in self.steps if not is_rejected(s)]

    def text(self) -> str:
        """The texts of the accepted steps, in order (R-FR-2)."""
        return "".join(s.get("text", "") for s in self.accepted_steps())

    def unaccepted_text(self) -> str:
        """The text of an attempt that was cancelled, or failed in the middle."""
        response = self.response
        return response.get("text", "") if response and not response.get("accepted") else ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form in which it is stored between services."""
        told = dict(zip(_STORED, astuple(self), strict=False))
        told["messages"] = self.messages.serialize()
        told["config"] = self.config.to_dict()
        told["streams"] = self.streams
        return told

    def to_json(self, hook: str = "") -> bytes:
        """`to_dict` as it travels; `hook` is the one to name where it cannot.

        Steps, most of a long loop's context, were JSON when they were told, and are looked at again if hooks got them.

        Raises:
            ProcessorError: Something in it is no JSON: a state, whose processor is named, or something else; or it is
                too long.
        """
        try:
            data = self.to_dict()
            if self.steps_shown:
                body = encoded(data, "run")
            else:
                steps = orjson.dumps(data.pop("steps"))
                body = encoded(data, "run")[:-1] + b',"steps":' + steps + b"}"
        except (TypeError, ValueError, RecursionError) as error:  # settings may contain themselves
            self.check_states(hook)
            text = f"the request context, messages and prompt of a run must be JSON: {error}"
            raise _not_json("CONTEXT_NOT_JSON", text, "", hook) from error
        if len(body) > _MOST_BYTES:
            raise self._too_long(len(body), hook)
        return body

    def _too_long(self, size: int, hook: str) -> ProcessorError:
        kept = Counter[tuple[str, str]]()
        for processor, state in self.states.items():
            kept[f"the state of {processor}", processor] = len(orjson.dumps(state))
        for tool, result in self._tool_results():
            kept[f"results of the tool {tool!r}", ""] += len(orjson.dumps(result))
        kept["messages, steps and the rest", ""] = size - kept.total()
        [((what, processor), most)] = kept.most_common(1)
        text = f"the data of the run has {size} bytes, {most} of them in {what}; at most {_MOST_BYTES} are allowed"
        return ProcessorError(text, processor_id=processor, hook=hook, code="CONTEXT_TOO_LONG")

    def _tool_results(self) -> Iterator[tuple[str, Any]]:
        """What tools gave, with their names, as often as it is kept."""
        for outcome in self.outcomes:
            yield outcome["toolName"], outcome.get("result")
        for step in self.steps:
            for given in step.get("toolResults", []):
                yield given["toolName"], given["output"]
        for message in self.messages.get.all.db():
            for part in message["content"]["parts"]:
                if invocation := part.get("toolInvocation"):
                    yield invocation["toolName"], invocation.get("result")

    def check_states(self, hook: str) -> None:
        """Raises ProcessorError where the state of a processor is no JSON."""
        for processor, state in self.states.items():
            try:
                encoded(state, "state")
            except TypeError as error:
                text = f"the state of a processor must be JSON: {error}"
                raise _not_json("STATE_NOT_JSON", text, processor, hook) from error

    @classmethod
    def from_dict(cls, data: dict[str, Any], *, new_id: Callable[[], str], now: Callable[[], str]) -> Self:
        """The inverse of `to_dict`."""
        ctx = cls(*_stored(data))
        ctx.messages = MessageList.deserialize(data["messages"], new_id=new_id, now=now)
        ctx.request_context = RequestContext(data["requestContext"])
        ctx.config = StepConfig.of(data["config"])
        return ctx


_STORED: Final = tuple(field.encode_name for field in fields(RunContext))[:-1]
"""What is stored, in the order of the fields: all but `steps_shown`."""
_stored: Final = itemgetter(*_STORED)


def _not_json(code: str, text: str, processor: str, hook: str) -> ProcessorError:
    return ProcessorError(text, processor_id=processor, hook=hook, code=code, name="NotJsonError")


def is_rejected(step: StepResult) -> bool:
    """Whether an attempt was rejected, so that it does not count as a step."""
    return "tripwire" in step or step.get("finishReason") == "retry"
