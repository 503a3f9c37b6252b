"""Runs the hooks outside the stream over an array of processors, with the contract's return shapes.

Each function takes the run's context and changes it; a tripwire or a processor's failure comes out as an exception.
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import asdict
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from procession import args as a
from procession.calls import Calls, Link, abort, of_another
from procession.context import RunContext, counted
from procession.errors import ProcessorError
from procession.message_list import MessageList
from procession.parts import InvalidMessageError
from procession.processor import Hook
from procession.prompt import to_prompt
from procession.returns import (
    BOTH,
    INVALID_RETURN,
    ROLES,
    UNSUPPORTED_MODEL,
    invalid,
    is_prompt,
    is_response,
    left_readable,
    reconcile,
    replace_system,
    same_list,
    wrong,
)
from procession.steps import copies, current_step, for_hooks, with_media
from procession_schemas.model_settings import misspelt, retries_of
from procession_schemas.validation import in_words, wrong_fields
from procession_schemas.work import StepConfig

_OVERRIDES = (
    "tool_choice",
    "active_tools",
    "tools",
    "provider_options",
    "model_settings",
    "structured_output",
)
_WITH_CURRENT_STEP = (Hook.LLM_RESPONSE, Hook.OUTPUT_STEP)
"""Hooks whose `steps` end with the step in hand (R-SR-2)."""
_ENTRY = f"a `role` ({', '.join(ROLES)}) and `content`, which is a text or a list of parts"
_PROMPT = f"it must be a list of entries, each with {_ENTRY}"
_EMPTY: dict[str, Any] = {"tools": {}, "provider_options": {}, "model_settings": {}, "tool_choice": "auto"}


def _base(
    ctx: RunContext, link: Link, calls: Calls, hook: Hook, writer: a.Writer | None = None
) -> dict[str, Any]:
    return {
        "abort": abort,
        "retry_count": ctx.retry_count,
        "request_context": ctx.request_context,
        "tracing_context": ctx.tracing_context,
        "state": ctx.state(link.id),
        "run_id": ctx.run_id,
        "services": calls.services(ctx, link, hook, writer),
    }


def _step(ctx: RunContext, link: Link, calls: Calls, hook: Hook, writer: a.Writer | None) -> dict[str, Any]:
    steps = ctx.accepted_steps()
    if hook in _WITH_CURRENT_STEP:
        steps.append(current_step(ctx))
    return {
        **_base(ctx, link, calls, hook, writer),
        "step_number": ctx.step_number,
        "steps": a.lazy(partial(for_hooks, ctx, steps)),
        "writer": writer,
        "abort_signal": calls.abort_signal,
    }


async def _called(ctx: RunContext, link: Link, calls: Calls, hook: Hook, args: Any) -> Any:
    """What a hook returns; raises ProcessorError also where it leaves a message that cannot be read."""
    try:
        value = await calls.call(link, hook, args)
    except BaseException:
        with suppress(InvalidMessageError):  # how the run ends says somebody else already
            ctx.messages.check()
        raise
    with calls.taking(ctx, link, hook):
        left_readable(ctx, link, hook)
    return value


def model_info(model: str) -> a.ModelInfo:
    """Splits `provider/name` (R-IS-7)."""
    provider, _, name = model.partition("/")
    return a.ModelInfo(model, provider if name else "", name or model)


async def run_input(ctx: RunContext, links: list[Link], calls: Calls) -> None:
    """`process_input` of each processor (R-IN)."""
    hook = Hook.INPUT
    for link in links:
        stage = ctx.messages.get.all.db()
        args = a.InputArgs(
            **_base(ctx, link, calls, hook),
            messages=list(stage),
            system_messages=ctx.messages.get_all_system_messages(),
            message_list=ctx.messages,
        )
        value = await _called(ctx, link, calls, hook, args)
        with calls.taking(ctx, link, hook):
            if isinstance(value, dict) and {"messages", "system_messages"} <= value.keys():
                reconcile(ctx, link, hook, stage, value["messages"])
                replace_system(ctx, link, hook, value["system_messages"])
            else:
                _take_messages(
                    ctx, link, hook, stage, value, others="{messages, system_messages}, or nothing"
                )


def _settings(config: StepConfig) -> dict[str, Any]:
    """What a step's call is made with, as its hooks get it."""
    structured = config.structured_output
    tools = {name: ref.shown() for name, ref in config.tools.items()}
    return {
        "model": model_info(config.model),
        "tool_choice": config.tool_choice,
        "active_tools": config.active_tools,
        "tools": tools,
        "provider_options": copy.deepcopy(config.provider_options),
        "model_settings": dict(config.model_settings),
        "structured_output": structured.model_dump(by_alias=True) if structured else None,
    }


async def run_input_step(
    ctx: RunContext,
    links: list[Link],
    calls: Calls,
    writer: a.Writer | None,
    complete: Callable[[Link], None] = lambda _link: None,
) -> None:
    """`process_input_step` of each processor; overrides go into `ctx.config`, for this step only (R-IS).

    `complete` adds to the tools that a processor has named what is known of them.
    """
    hook = Hook.INPUT_STEP
    for link in links:
        stage, config = ctx.messages.get.all.db(), ctx.config
        args = a.InputStepArgs(
            **_step(ctx, link, calls, hook, writer),
            messages=list(stage),
            message_list=ctx.messages,
            system_messages=ctx.messages.get_all_system_messages(),
            message_id=ctx.message_id,
            **_settings(config),
        )
        value = await _called(ctx, link, calls, hook, args)
        with calls.taking(ctx, link, hook):
            if isinstance(value, dict):
                _apply_step(ctx, link, stage, value)
                complete(link)
            else:
                _take_messages(ctx, link, hook, stage, value, others="an object of overrides, or nothing")


def _apply_step(ctx: RunContext, link: Link, stage: list[Any], value: dict[str, Any]) -> None:
    hook = Hook.INPUT_STEP
    if value.get("messages") is not None and value.get("message_list") is not None:
        raise wrong(link, hook, BOTH, "returned both messages and message_list; return one of them")
    if value.get("message_list") is not None:
        same_list(ctx, link, hook, value["message_list"])
    if value.get("messages") is not None:
        reconcile(ctx, link, hook, stage, value["messages"])
    if value.get("system_messages") is not None:
        replace_system(ctx, link, hook, value["system_messages"])
    _override_config(ctx, link, value)


def _override_config(ctx: RunContext, link: Link, value: dict[str, Any]) -> None:
    """Each present key replaces that setting of the step (R-IS-5, R-IS-6)."""
    hook = Hook.INPUT_STEP
    update: dict[str, Any] = {}
    model = value.get("model")
    if isinstance(model, a.ModelInfo):
        model = model.id
    if model and (not isinstance(model, str) or not model.strip()):
        raise wrong(
            link, hook, UNSUPPORTED_MODEL, f"returned model {model!r}; a model is a string 'provider/name'"
        )
    if model:
        update |= {"model": model, "model_by": link.id}
    for key in _OVERRIDES:
        if key in value:
            update[key] = _EMPTY.get(key) if value[key] is None else value[key]
    if isinstance(update.get("model_settings"), dict):
        kept = {k: v for k, v in ctx.config.model_settings.items() if k in ("maxRetries", "timeout")}
        update["model_settings"] = {**kept, **update["model_settings"]}
    if update:
        update["set_by"] = ctx.config.set_by | {
            to_camel(name): link.id for name in _OVERRIDES if name in update
        }
        ctx.config = _checked(link, ctx.config, update)


def _checked(link: Link, before: StepConfig, update: dict[str, Any]) -> StepConfig:
    try:
        config = StepConfig.checked({**asdict(before), **update})
        config.to_dict()
    except ValidationError as error:
        raise _unfit(link, in_words(wrong_fields(error).items(), "settings")) from error
    except (ValueError, RecursionError) as error:
        raise _unfit(link, "one of them contains itself, or nests too deeply") from error
    try:
        retries_of(config.model_settings)
    except ValueError as error:
        raise _unfit(link, f"model_settings: {error}") from error
    # What the agent has misspelt, `procession check` tells.
    if told := misspelt(config.model_settings, but=before.model_settings):
        raise _unfit(link, told)
    return config


def _unfit(link: Link, told: str) -> ProcessorError:
    return wrong(link, Hook.INPUT_STEP, INVALID_RETURN, f"returned invalid settings: {told}")


async def run_llm_request(ctx: RunContext, links: list[Link], calls: Calls, writer: a.Writer | None) -> None:
    """`process_llm_request` of each processor, on the prompt of this call (R-RQ)."""
    prompt = ctx.prompt if ctx.prompt is not None else to_prompt(ctx.messages)
    for link in links:
        args = a.LLMRequestArgs(
            **_step(ctx, link, calls, Hook.LLM_REQUEST, writer),
            prompt=prompt,
            message_list=ctx.messages,
            **_settings(ctx.config),
        )
        value = await _called(ctx, link, calls, Hook.LLM_REQUEST, args)
        with calls.taking(ctx, link, Hook.LLM_REQUEST):
            if not is_prompt(prompt):
                told = f"left a `prompt` that cannot be sent; {_PROMPT}"
                raise wrong(link, Hook.LLM_REQUEST, INVALID_RETURN, told)
            if value is None:
                continue
            _check_request(link, value)
        if value.get("prompt") is not None:
            prompt = value["prompt"]
        if value.get("response") is not None and ctx.cached is None:
            try:
                ctx.cached = copy.deepcopy(value["response"])
            except RecursionError as error:
                told = "returned a `response` that nests too deeply"
                raise wrong(link, Hook.LLM_REQUEST, INVALID_RETURN, told) from error
    ctx.prompt = prompt


def _check_request(link: Link, value: Any) -> None:
    """Raises ProcessorError where `process_llm_request` has returned what it may not."""
    hook = Hook.LLM_REQUEST
    if not isinstance(value, dict):
        raise invalid(link, hook, value, "it may return {prompt}, {response}, or nothing")
    if value.get("prompt") is not None and not is_prompt(value["prompt"]):
        raise invalid(link, hook, value["prompt"], _PROMPT, "prompt")
    if value.get("response") is not None and not is_response(value["response"]):
        allowed = 'it must be `{"chunks": [...]}`, with chunks such as a model sends'
        raise invalid(link, hook, value["response"], allowed, "response")


async def run_llm_response(ctx: RunContext, links: list[Link], calls: Calls, writer: a.Writer | None) -> None:
    """`process_llm_response` of each processor; what it returns is ignored (R-RS)."""
    response = ctx.response or {}
    for link in links:
        args = a.LLMResponseArgs(
            **_step(ctx, link, calls, Hook.LLM_RESPONSE, writer),
            chunks=copy.deepcopy(response.get("chunks", [])),
            model=model_info(ctx.config.model),
            from_cache=bool(response.get("fromCache")),
            warnings=copy.deepcopy(response.get("warnings", [])),
            request=copy.deepcopy(response.get("request", {})),
            raw_response=copy.deepcopy(response.get("rawResponse", response.get("metadata", {}))),
        )
        await calls.call(link, Hook.LLM_RESPONSE, args)


async def run_api_error(
    ctx: RunContext, links: list[Link], calls: Calls, writer: a.Writer | None, error: a.APIError
) -> bool:
    """Asks the error processors in order; the first `{"retry": True}` decides (R-AE-6). Returns that decision."""
    for link in links:
        args = a.APIErrorArgs(
            **_step(ctx, link, calls, Hook.API_ERROR, writer),
            error=error,
            messages=list(ctx.messages.get.all.db()),
            message_list=ctx.messages,
            message_id=ctx.message_id,
        )
        try:
            value = await calls.call(link, Hook.API_ERROR, args)
        except ProcessorError as failed:  # R-AE-7: counted in the report, the next one is asked
            if of_another(link, failed):
                raise
            value = None
        with calls.taking(ctx, link, Hook.API_ERROR):
            left_readable(ctx, link, Hook.API_ERROR)
        if isinstance(value, dict) and value.get("retry"):
            return True
        if value is not None and not isinstance(value, dict):
            calls.refused(link, Hook.API_ERROR, INVALID_RETURN, ctx.run_id)
    return False


async def run_output_step(ctx: RunContext, links: list[Link], calls: Calls, writer: a.Writer | None) -> None:
    """`process_output_step` of each processor (R-ST)."""
    hook, response = Hook.OUTPUT_STEP, ctx.response or {}
    tool_calls = [
        {k: c.get(k) for k in ("toolName", "toolCallId", "args")} for c in response.get("toolCalls", [])
    ]
    for link in links:
        stage = ctx.messages.get.all.db()
        args = a.OutputStepArgs(
            **_step(ctx, link, calls, hook, writer),
            messages=list(stage),
            message_list=ctx.messages,
            system_messages=ctx.messages.get_all_system_messages(),
            finish_reason=response.get("finishReason", "other"),
            tool_calls=copy.deepcopy(tool_calls) or None,
            text=response.get("text", ""),
            usage=dict(response.get("usage", {})),
            provider_metadata=copy.deepcopy(response.get("metadata", {}).get("providerMetadata", {})),
        )
        value = await _called(ctx, link, calls, hook, args)
        if isinstance(value, list) and not value:
            continue
        with calls.taking(ctx, link, hook):
            _take_messages(ctx, link, hook, stage, value)


def _take_messages(
    ctx: RunContext, link: Link, hook: Hook, stage: list[Any], value: Any, *, others: str = "or nothing"
) -> None:
    """Takes what a hook returned for its messages; `others` says what else it may return."""
    if isinstance(value, MessageList):
        same_list(ctx, link, hook, value)
    elif isinstance(value, list):
        reconcile(ctx, link, hook, stage, value)
    elif value is not None:
        raise invalid(link, hook, value, f"it may return a list of messages, the message list, {others}")


async def run_tool_result(
    ctx: RunContext, links: list[Link], calls: Calls, writer: a.Writer | None, outcome: dict[str, Any]
) -> None:
    """`process_tool_result` of each processor on one outcome; each sees what the one before made of it (D-34).

    Who makes a failure of the result, or a call that was denied, is the last one: there is no result any more.
    """
    hook, call_id = Hook.TOOL_RESULT, outcome["toolCallId"]
    for link in links:
        before = find_invocation(ctx.messages, call_id)
        stage = ctx.messages.get.all.db()
        args = a.ToolResultArgs(
            **_step(ctx, link, calls, hook, writer),
            messages=list(stage),
            message_list=ctx.messages,
            system_messages=ctx.messages.get_all_system_messages(),
            tool_name=outcome["toolName"],
            tool_call_id=call_id,
            args=copy.deepcopy(outcome.get("args")),
            result=copy.deepcopy(outcome["result"]),
            provider_executed=bool(outcome.get("providerExecuted")),
        )
        value = await _called(ctx, link, calls, hook, args)
        if not (isinstance(value, list) and not value):
            with calls.taking(ctx, link, hook):
                _take_messages(ctx, link, hook, stage, value)
        after = find_invocation(ctx.messages, call_id)
        if after and after != before:
            _take_outcome(outcome, after)
        if "result" not in outcome:
            return


def _take_outcome(outcome: dict[str, Any], changed: dict[str, Any]) -> None:
    """Makes of an outcome what a processor has made of its call in the conversation."""
    state = changed["state"]
    if state == "output-error":
        told: dict[str, Any] = {"error": {"name": "Error", "message": changed.get("errorText") or ""}}
    elif state == "output-denied":
        approval = {"approved": False, **(changed.get("approval") or {})}
        told = {"denied": {"reason": approval.get("reason"), "approval": approval}}
    elif "result" in changed:
        told = {"result": changed["result"]}
    else:
        return
    if told.get("result") != outcome.pop("result"):
        outcome.pop("modelOutput", None)  # what the tool shows the model of its own result
    outcome.update(told)


def find_invocation(messages: MessageList, call_id: str) -> dict[str, Any] | None:
    """A copy of the stored tool invocation with that call id, searched from the end."""
    for message in reversed(messages.get.all.db()):
        for part in reversed(message["content"]["parts"]):
            invocation = part.get("toolInvocation")
            if invocation and invocation["toolCallId"] == call_id:
                return dict(copy.deepcopy(invocation))
    return None


async def run_output_result(
    ctx: RunContext, links: list[Link], calls: Calls, writer: a.Writer, finish_reason: str
) -> None:
    """`process_output_result` of each processor; `result` is the snapshot taken before the first (R-OR)."""
    hook = Hook.OUTPUT_RESULT
    if ctx.final is None:
        ctx.final = {
            "text": ctx.text() + ctx.unaccepted_text(),
            "usage": counted(ctx.usage),
            "finishReason": finish_reason,
        }
    final, steps = dict(ctx.final), with_media(ctx, ctx.steps)
    for link in links:
        result = a.OutputResult(
            final["text"],
            dict(final["usage"]),
            final["finishReason"],
            a.lazy(partial(copies, steps)),
        )
        stage = ctx.messages.get.response.db()
        args = a.OutputResultArgs(
            **_base(ctx, link, calls, hook, writer),
            messages=list(stage),
            message_list=ctx.messages,
            result=result,
            writer=writer,
        )
        value = await _called(ctx, link, calls, hook, args)
        with calls.taking(ctx, link, hook):
            _take_messages(ctx, link, hook, stage, value)


__all__ = [
    "find_invocation", "model_info", "run_api_error", "run_input", "run_input_step", "run_llm_request",
    "run_llm_response", "run_output_result", "run_output_step", "run_tool_result",
]  # fmt: skip
