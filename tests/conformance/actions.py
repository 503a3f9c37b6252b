"""The actions of `README.md`: what each does to the call of a hook."""

import json
from collections.abc import Callable
from typing import Any

from tests.conformance.javascript import UNDEFINED, json_text, pattern, replace_all, without_undefined
from tests.conformance.record import db_text, prompt_of
from tests.conformance.refs import own_provider, strict_schema, tool_choice, tool_ref
from tests.conformance.turn import ACTIONS, Action, Message, Turn

__all__ = ["Turn", "unknown_actions"]


def _map_text(message: Message, change: Callable[[str], str]) -> None:
    content = message["content"]
    for part in content.get("parts") or []:
        if part.get("type") == "text":
            part["text"] = change(part["text"])
    if isinstance(content.get("content"), str):
        content["content"] = change(content["content"])


def _prompt_message(role: str, told: Any) -> dict[str, Any]:
    return {"role": role, "content": told if role == "system" else [{"type": "text", "text": told}]}


def unknown_actions(processors: dict[str, Any] | None) -> list[str]:
    """Says which actions of a scenario are not known, and where they are."""
    return [
        f"processor {name}, hook {hook}: unknown action {action.get('do')!r}"
        for name, definition in (processors or {}).items()
        for hook, actions in (definition.get("hooks") or {}).items()
        for action in actions
        if action.get("do") not in ACTIONS
    ]


def _action(*names: str) -> Callable[[Action], Action]:
    def register(function: Action) -> Action:
        for name in names:
            ACTIONS[name] = function
        return function

    return register


@_action("noop", "return")
async def _nothing(_turn: Turn, _x: dict[str, Any]) -> None:
    """The call is traced; the shape was taken before."""


@_action("uppercase", "replace-text")
async def _change_text(turn: Turn, x: dict[str, Any]) -> None:
    def change(told: str) -> str:
        return told.upper() if x["do"] == "uppercase" else replace_all(x["find"], x["with"], told)

    match turn.hook:
        case "processOutputStream":
            if turn.part["type"] == "text-delta":
                payload = turn.part["payload"]
                turn.part = {**turn.part, "payload": {**payload, "text": change(payload["text"])}}
        case "processLLMRequest":
            turn.prompt = [
                entry if x.get("role") and entry["role"] != x["role"] else _with_text(entry, change)
                for entry in turn.prompt
            ]
            turn.out["prompt"] = turn.prompt
        case "processToolResult":
            await _set_result(turn, json.loads(change(json_text(turn.args.result))))
        case _:
            role = x.get("role") or ("user" if turn.hook.startswith("processInput") else "assistant")
            for message in turn.given if turn.in_place else turn.messages:
                if message["role"] == role:
                    _map_text(message, change)
            turn.touched_messages = True


def _with_text(entry: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    content = entry["content"]
    if isinstance(content, str):
        return {**entry, "content": change(content)}
    changed = [{**part, "text": change(part["text"])} if part["type"] == "text" else part for part in content]
    return {**entry, "content": changed}


@_action("append-message")
async def _append_message(turn: Turn, x: dict[str, Any]) -> None:
    message: Message = {
        "id": f"scenario-msg-{await turn.board.next_number()}",
        "role": x["role"],
        "content": {"format": 2, "parts": [{"type": "text", "text": turn.fill(x["text"])}]},
    }
    first = turn.given[0] if turn.given else {}
    if first.get("threadId"):
        message |= {"threadId": first["threadId"], "resourceId": first.get("resourceId")}
    if turn.in_place or turn.hook == "processAPIError":
        turn.args.message_list.add(message, "response" if x["role"] == "assistant" else "input")
    else:
        turn.messages.append(message)
    turn.touched_messages = True


@_action("drop-messages")
async def _drop_messages(turn: Turn, x: dict[str, Any]) -> None:
    def hit(message: Message) -> bool:
        if x.get("role") and message["role"] != x["role"]:
            return False
        return not x.get("match") or pattern(x["match"]).search(db_text([message])) is not None

    if turn.in_place or turn.hook == "processAPIError":
        turn.args.message_list.remove_by_ids([message["id"] for message in turn.given if hit(message)])
    else:
        turn.messages = [message for message in turn.messages if not hit(message)]
    turn.touched_messages = True


@_action("keep-last")
async def _keep_last(turn: Turn, x: dict[str, Any]) -> None:
    turn.messages = turn.messages[-x["n"] :]
    turn.touched_messages = True


@_action("set-metadata")
async def _set_metadata(turn: Turn, x: dict[str, Any]) -> None:
    for message in turn.messages:
        if message["role"] == (x.get("role") or "assistant"):
            content = message["content"]
            content["metadata"] = {**(content.get("metadata") or {}), **x["metadata"]}
    turn.touched_messages = True


@_action("append-system")
async def _append_system(turn: Turn, x: dict[str, Any]) -> None:
    if turn.in_place:
        turn.args.message_list.add_system(turn.fill(x["text"]))
    else:
        turn.system.append({"role": "system", "content": turn.fill(x["text"])})
    turn.touched_system = True


@_action("replace-system")
async def _replace_system(turn: Turn, x: dict[str, Any]) -> None:
    turn.system = [{"role": "system", "content": each} for each in x["texts"]]
    turn.touched_system = True


@_action("switch-model")
async def _switch_model(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["model"] = turn.ctx["model"] + x["model"]


@_action("set-tool-choice")
async def _set_tool_choice(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["tool_choice"] = tool_choice(x["toolChoice"])
    await turn.board.note({"ev": "_choice", "choice": turn.out["tool_choice"]})


@_action("set-active-tools")
async def _set_active_tools(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["active_tools"] = x["tools"]


@_action("add-tools", "set-tools")
async def _set_tools(turn: Turn, x: dict[str, Any]) -> None:
    known = turn.ctx.get("tools") or {}
    before = dict(turn.out.get("tools", turn.args.tools)) if x["do"] == "add-tools" else {}
    turn.out["tools"] = before | {name: tool_ref(known[name], turn.ctx) for name in x["tools"]}


@_action("set-model-settings")
async def _set_model_settings(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["model_settings"] = {**turn.out.get("model_settings", turn.args.model_settings), **x["settings"]}


@_action("set-provider-options")
async def _set_provider_options(turn: Turn, x: dict[str, Any]) -> None:
    before = turn.out.get("provider_options", turn.args.provider_options)
    turn.out["provider_options"] = {**before, **own_provider(x["options"])}


@_action("set-structured-output")
async def _set_structured_output(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["structured_output"] = {"schema": strict_schema(x["schema"])}


@_action("replace-prompt")
async def _replace_prompt(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["prompt"] = turn.prompt = [_prompt_message(m["role"], m["text"]) for m in x["messages"]]


@_action("append-prompt")
async def _append_prompt(turn: Turn, x: dict[str, Any]) -> None:
    turn.out["prompt"] = turn.prompt = [*turn.prompt, _prompt_message(x["role"], turn.fill(x["text"]))]


@_action("respond")
async def _respond(turn: Turn, x: dict[str, Any]) -> None:
    nothing = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
    finish = {"stepResult": {"reason": "stop"}, "output": {"usage": nothing}, "metadata": {}}
    turn.response = {
        "chunks": [
            {"type": "text-start", "payload": {"id": "c"}},
            *({"type": "text-delta", "payload": {"id": "c", "text": each}} for each in x["chunks"]),
            {"type": "text-end", "payload": {"id": "c"}},
            {"type": "finish", "payload": finish},
        ]
    }


@_action("cache-lookup")
async def _cache_lookup(turn: Turn, x: dict[str, Any]) -> None:
    key = (x.get("key") or "") + json_text(prompt_of(turn.prompt))
    turn.args.state["cacheKey"] = key
    hit = await turn.board.lookup(key)
    if hit is not None:
        turn.response = {"chunks": hit}


@_action("cache-store")
async def _cache_store(turn: Turn, _x: dict[str, Any]) -> None:
    if not turn.args.from_cache:
        await turn.board.store(str(turn.args.state.get("cacheKey")), turn.args.chunks)


@_action("drop-chunk")
async def _drop_chunk(turn: Turn, _x: dict[str, Any]) -> None:
    turn.dropped = True


@_action("count-chunks")
async def _count_chunks(turn: Turn, x: dict[str, Any]) -> None:
    key = x.get("key") or "count"
    turn.args.state[key] = (turn.args.state.get(key) or 0) + 1


@_action("collect-text")
async def _collect_text(turn: Turn, x: dict[str, Any]) -> None:
    key = x.get("key") or "text"
    more = ((turn.part or {}).get("payload") or {}).get("text") or ""
    turn.args.state[key] = (turn.args.state.get(key) or "") + more


@_action("set-chunk")
async def _set_chunk(turn: Turn, x: dict[str, Any]) -> None:
    turn.part = without_undefined({**turn.part, **turn.fill(x["chunk"])})


@_action("emit-data")
async def _emit_data(turn: Turn, x: dict[str, Any]) -> None:
    writer = getattr(turn.args, "writer", None)
    if writer is None:
        await turn.board.note({"ev": "no-writer", "processor": turn.processor, "hook": turn.hook})
        return
    transient = {"transient": x["transient"]} if "transient" in x else {}
    await writer.custom(
        without_undefined({"type": x["type"], "data": turn.fill(x.get("data", UNDEFINED)), **transient})
    )


@_action("set-tool-result")
async def _set_tool_result(turn: Turn, x: dict[str, Any]) -> None:
    await _set_result(turn, x["value"])


async def _set_result(turn: Turn, result: Any) -> None:
    args = turn.args
    turn.list.update_tool_invocation(  # type: ignore[union-attr]  # processToolResult has a list
        {
            "type": "tool-invocation",
            "toolInvocation": {
                "state": "result",
                "toolCallId": args.tool_call_id,
                "toolName": args.tool_name,
                "args": args.args,
                "result": result,
            },
        }
    )
    await turn.board.note({"ev": "_outcome", "id": args.tool_call_id, "result": result})


@_action("set-state")
async def _set_state(turn: Turn, x: dict[str, Any]) -> None:
    value = turn.fill(x.get("value", UNDEFINED))
    if value is UNDEFINED:
        turn.args.state.pop(x["key"], None)
    else:
        turn.args.state[x["key"]] = without_undefined(value)


@_action("incr-state")
async def _incr_state(turn: Turn, x: dict[str, Any]) -> None:
    turn.args.state[x["key"]] = (turn.args.state.get(x["key"]) or 0) + x.get("by", 1)


@_action("abort")
async def _abort(turn: Turn, x: dict[str, Any]) -> None:
    reason = turn.fill(x.get("reason") or "")
    turn.args.abort(reason, retry=bool(x.get("retry")), metadata=x.get("metadata"))


@_action("throw")
async def _throw(_turn: Turn, x: dict[str, Any]) -> None:
    raise RuntimeError(x["message"])


@_action("retry")
async def _retry(turn: Turn, _x: dict[str, Any]) -> None:
    turn.retry = True
