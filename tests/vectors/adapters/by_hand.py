"""Arguments of hooks as the error and request vectors give them: any error, any model, messages as they are."""

from typing import Any

from procession.args import APIError, APIErrorArgs, InputStepArgs, LLMRequestArgs, ModelInfo, RequestContext
from procession.calls import Calls, Link, abort
from procession.context import RunContext
from procession.message_list import MessageList
from procession.processor import Hook, Processor
from procession.services import Environment
from procession.testing import environment as make_environment

STATUS = "statusCode"


class Run:
    """One run of one processor, whose hooks are called with arguments made here."""

    def __init__(
        self, processor: Processor[Any], environment: Environment | None = None, **context: Any
    ) -> None:
        self.processor = processor
        self.written: list[Any] = []
        messages = MessageList(
            new_id=(f"m{number}" for number in range(1, 1000)).__next__,
            now=lambda: "2026-01-01T00:00:00.000Z",
        )
        self.context = RunContext(
            run_id="run-1",
            tenant="test",
            agent="",
            message_id="answer-1",
            messages=messages,
            request_context=RequestContext(context),
        )
        self.calls = Calls(clock=lambda: 0, environment=environment or make_environment())

    def common(self, hook: Hook) -> dict[str, Any]:
        """The arguments that every hook in the loop has."""
        link, ctx = Link(self.processor, self.processor.id), self.context
        return {
            "abort": abort,
            "retry_count": ctx.retry_count,
            "request_context": ctx.request_context,
            "tracing_context": {},
            "state": ctx.state(link.id),
            "run_id": ctx.run_id,
            "services": self.calls.services(ctx, link, hook, self),
            "step_number": ctx.step_number,
            "steps": [],
            "writer": self,
            "abort_signal": self.calls.abort_signal,
        }

    async def custom(self, chunk: Any) -> None:
        """Takes what the processor writes for the client."""
        self.written.append(chunk)

    def add(self, messages: list[Any], source: str = "input") -> None:
        """Adds flattened messages, each a second after the one before."""
        for number, flat in enumerate(messages):
            at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z"
            self.context.messages.add({"createdAt": at, **stored(flat)}, source, merge=False)

    def api_error(self, error: APIError, retry_count: int = 0) -> APIErrorArgs:
        """Arguments of `process_api_error`."""
        self.context.retry_count = retry_count
        messages = self.context.messages
        return APIErrorArgs(
            **self.common(Hook.API_ERROR),
            error=error,
            messages=messages.get.all.db(),
            message_list=messages,
            message_id="answer-1",
        )

    def input_step(
        self, model: Any = "p/m", structured_output: dict[str, Any] | None = None
    ) -> InputStepArgs:
        """Arguments of `process_input_step`."""
        messages = self.context.messages
        return InputStepArgs(
            **self.common(Hook.INPUT_STEP),
            messages=messages.get.all.db(),
            message_list=messages,
            system_messages=[],
            model=model_of(model),
            tool_choice="auto",
            active_tools=None,
            tools={},
            provider_options={},
            model_settings={},
            structured_output=structured_output,
            message_id="answer-1",
        )

    def llm_request(self, prompt: list[dict[str, Any]], model: Any, **call: Any) -> LLMRequestArgs:
        """Arguments of `process_llm_request`; a model may be anything that the reference takes for one."""
        return LLMRequestArgs(
            **self.common(Hook.LLM_REQUEST),
            prompt=prompt,
            model=model_of(model),
            message_list=self.context.messages,
            **call,
        )


def stored(flat: Any) -> dict[str, Any]:
    """A message in our form: flattened, or `"role text"`."""
    if isinstance(flat, str):
        role, _, text = flat.partition(" ")
        return {"role": role, "content": text}
    content: dict[str, Any] = {"format": 2, "parts": flat.get("parts", [])}
    content |= {
        key: flat[key] for key in ("content", "metadata", "toolInvocations") if flat.get(key) is not None
    }
    return {key: flat[key] for key in ("id", "role", "createdAt") if key in flat} | {"content": content}


def flat(message: Any) -> dict[str, Any]:
    """A message as vectors show it."""
    content = message["content"]
    shown = {"id": message["id"], "role": message["role"], "parts": content["parts"]}
    return shown | {key: content[key] for key in ("content", "metadata", "toolInvocations") if key in content}


def model_of(model: Any) -> Any:
    """A model as hooks get it, where it can be one."""
    if isinstance(model, dict) and "provider" in model:
        provider, name = model["provider"], model.get("modelId", "")
        return ModelInfo(f"{provider}/{name}", provider, name)
    if isinstance(model, str) and "/" in model and not model.startswith("<"):
        provider, _, name = model.partition("/")
        return ModelInfo(model, provider, name)
    return model


def error_of(told: Any) -> APIError:
    """An error of a vector.

    A value that is thrown and is no error has no message of its own: all that it says is in its data.
    """
    if not isinstance(told, dict):
        return APIError("", name="", data={"thrown": told})
    kind = told.get("kind")
    if kind == "cycle":
        error = APIError("cycle", name="Error")
        object.__setattr__(error, "cause", APIError("again", name="Error", cause=error))
        return error
    value = told.get("value", {key: v for key, v in told.items() if key not in ("kind", "cause")})
    if kind not in ("Error", "APICallError"):
        cause = (
            _cause({"cause": value["cause"]})
            if isinstance(value, dict) and "cause" in value
            else _cause(told)
        )
        return APIError(
            "", name="", data=value if isinstance(value, dict) else {"thrown": value}, cause=cause
        )
    fields = {
        key: v
        for key, v in {**told, **told.get("props", {})}.items()
        if key not in ("kind", "cause", "props")
    }
    retryable = fields.get("isRetryable")
    if retryable is None and kind == "APICallError":
        retryable = _passes(fields.get(STATUS))
    return APIError(
        str(fields.get("message", "")),
        name=kind,
        status_code=fields.get(STATUS),
        is_retryable=retryable,
        code=fields.get("code"),
        response_headers=fields.get("responseHeaders") or {},
        response_body=fields.get("responseBody"),
        cause=_cause(told),
        data=fields,
    )


def _passes(status: Any) -> bool:
    """What the reference's `APICallError` takes for granted where nobody says it, as our gateway does."""
    return isinstance(status, int) and (status in (408, 409, 429) or status >= 500)


def _cause(told: dict[str, Any]) -> APIError | None:
    cause = told.get("cause")
    if isinstance(cause, str):
        return APIError(cause, name="Error")
    if isinstance(cause, dict) and "kind" not in cause:
        return error_of({"kind": "object", "value": cause})
    return None if cause is None else error_of(cause)


def raw_value(told: Any) -> Any:
    """The bare value of an error, for functions that look at one."""
    if not isinstance(told, dict) or "kind" not in told:
        return told
    if "value" in told:
        return told["value"]
    return {
        key: v
        for key, v in {**told, **told.get("props", {})}.items()
        if key not in ("kind", "cause", "props")
    }
