"""`response-cache.json`: keys, or two requests with an answer between them, and what the store was asked."""

import re
from typing import Any

from procession.args import LLMResponseArgs, ModelInfo
from procession.errors import ProcessionError
from procession.processor import Hook
from procession.services import NO_ENVIRONMENT, Environment
from procession.testing import DictStore
from procession.testing import environment as make_environment
from procession_services.processors.core.own_state import own_by_options
from procession_services.processors.core.response_key import CacheInputs, response_key
from procession_services.processors.response_cache import CONTEXT_KEY, DEFAULT_TTL, ResponseCache
from tests.vectors.adapters.by_hand import Run

_HASHES = (re.compile(r"(?<=:)[0-9a-f]{32}$"), re.compile(r"(?<=:)[0-9a-f]{8}(?=:)"))


class Recorder(DictStore):
    """A store that notes what it is asked, and fails where it is to."""

    def __init__(self, *, get_fails: bool, set_fails: bool) -> None:
        super().__init__()
        self.get_fails, self.set_fails = get_fails, set_fails
        self.ops: list[list[Any]] = []
        self.keys: list[str] = []

    async def get(self, key: str) -> Any:
        self.ops.append(["get", len(_given(key).split(":"))])
        if self.get_fails:
            raise ProcessionError("the store is away")
        return await super().get(key)

    async def put(self, key: str, value: Any, *, ttl: float | None = None, only_new: bool = False) -> bool:
        self.ops.append(["set", (ttl or 0) * 1000])
        if self.set_fails:
            raise ProcessionError("the store is away")
        self.keys.append(_given(key))
        return await super().put(key, value, ttl=ttl, only_new=only_new)


def _given(key: str) -> str:
    return key.removeprefix(f"{ResponseCache.id}:")


async def observe(vector: dict[str, Any]) -> Any:
    """Makes keys, or asks twice."""
    given = vector["input"]
    if not given:
        return {"defaultTtlSeconds": DEFAULT_TTL, "contextKey": CONTEXT_KEY}
    if "a" in given:
        return {"equal": _key(given, given["a"]) == _key(given, given["b"])}
    if "base" in given:
        key = _key(given, {name: given[name] for name in given if name != "base"})
        pattern = vector["expected"].get("pattern", "")
        shown = {"pattern": pattern} if pattern and re.search(pattern, key) else {}
        return {"key": key, **shown}
    return await _asked_twice(vector)


def _key(given: dict[str, Any], changes: dict[str, Any]) -> str:
    told = {**given.get("base", {}), **changes}
    model = told.get("model") or {}
    return response_key(
        CacheInputs(
            agent_id=told["agentId"],
            step_number=told["stepNumber"],
            scope=told.get("scope"),
            model=ModelInfo("", model.get("provider") or "", model.get("modelId") or ""),
            spec_version=model.get("specVersion") or "",
            prompt=told["prompt"],
        )
    )


async def _asked_twice(vector: dict[str, Any]) -> dict[str, Any]:
    given, options = vector["input"], dict(vector["options"])
    store = Recorder(get_fails=bool(given.get("cacheGetFails")), set_fails=bool(given.get("cacheSetFails")))
    environment = NO_ENVIRONMENT if _is_absent(vector) else make_environment(store=store)
    options.pop("cache", None)
    function = options.pop("key") if str(options.get("key", "")).startswith("<function") else ""
    processor = _configured(function).build(options)

    first = await _request(processor, environment, given, "first")
    pending = bool(own_by_options(first.context.state(processor.id), "asked", processor.options).get("key"))
    await processor.process_llm_response(
        LLMResponseArgs(
            **first.common(Hook.LLM_RESPONSE),
            chunks=given["responseChunks"],
            model=ModelInfo("p/m", "p", "m"),
            from_cache=given.get("fromCache", False),
            warnings=[],
            request={},
            raw_response={},
        )
    )
    second = await _request(processor, environment, given, "second")
    observed = {
        "firstHit": first.context.cached is not None,
        "keyPendingAfterFirst": pending,
        "ops": store.ops,
        "keys": [_blank(key) for key in dict.fromkeys(store.keys)],
        "secondHit": second.context.cached is not None,
    }
    return observed | ({"replayedChunks": second.context.cached["chunks"]} if second.context.cached else {})


async def _request(
    processor: ResponseCache, environment: Environment, given: dict[str, Any], which: str
) -> Run:
    context = given.get(f"{which}Context", given.get("firstContext")) or {}
    run = Run(processor, environment, **context)
    run.context.step_number = given.get("stepNumber", 0)
    text = str(given.get(f"{which}Request", given["firstRequest"])).removeprefix("prompt ")
    prompt = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    answered = await processor.process_llm_request(run.llm_request(prompt, {"provider": "p", "modelId": "m"}))
    run.context.cached = answered.get("response") if answered else None
    return run


def _configured(function: str) -> type[ResponseCache]:
    """The processor with the key function that a vector describes."""
    if not function:
        return ResponseCache

    class Keyed(ResponseCache):
        def key_for(self, inputs: CacheInputs) -> str | None:
            if "throws" in function:
                raise RuntimeError(function)
            shape = function.removeprefix("<function returning ").removesuffix(">")
            return shape.replace("AGENTID", inputs.agent_id).replace("STEPNUMBER", str(inputs.step_number))

    return Keyed


def _blank(key: str) -> str:
    return _HASHES[1].sub("<hash8>", _HASHES[0].sub("<hash32>", key))


def _is_absent(vector: dict[str, Any]) -> bool:
    """Whether the vector has no cache at all."""
    given, options = vector["input"], vector["options"]
    return bool(given.get("noCache")) or any(
        "cache" in where and where["cache"] in (None, False, "<undefined>", "none")
        for where in (given, options)
    )


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """A failed read still writes (D-23); without a store nothing is read or written, though a key is made."""
    expected, given = vector["expected"], vector["input"]
    if _is_absent(vector):
        quiet = not (observed["firstHit"] or observed["secondHit"] or observed["ops"] or observed["keys"])
        return "D-23" if quiet and not expected["secondHit"] else None
    if not given.get("cacheGetFails") or observed["firstHit"] or observed["secondHit"]:
        return None
    ttl = vector["options"].get("ttl", DEFAULT_TTL) * 1000
    kinds = [op[0] for op in observed["ops"]]
    written = ["set", ttl] in observed["ops"] and len(observed["keys"]) == 1
    return "D-23" if kinds == ["get", "set", "get"] and written and observed["keyPendingAfterFirst"] else None
