"""Scenario -> requests: the inline agent, the options of a run, the seed of its memory."""

from dataclasses import dataclass, field
from typing import Any, Final

from tests.conformance.actions import unknown_actions
from tests.conformance.refs import own_provider, strict_schema, tool_choice, tool_ref

__all__ = ["Plan", "seed_messages"]

AGENT: Final = "scenario-agent"
_ARRAYS: Final = ("inputProcessors", "outputProcessors", "errorProcessors")
_RUNNERS_OWN: Final = frozenset({"abortAfterTextChunks", "abortBeforeStart", "prepareStep", *_ARRAYS})


@dataclass(frozen=True)
class Plan:
    """How a scenario becomes requests.

    Attributes:
        scenario: The scenario's file.
        key: Prefix of the board's names in Redis, and id of the model script.
        api_base: Base URL of the model server.
        stream: Whether the runs are streamed.
    """

    scenario: dict[str, Any]
    key: str
    api_base: str
    stream: bool
    tools: dict[str, dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        agent = self.scenario.get("agent") or {}
        defined = [*(agent.get("tools") or []), *(self.scenario.get("extra_tools") or [])]
        object.__setattr__(self, "tools", {tool["name"]: tool for tool in defined})

    def problems(self) -> list[str]:
        """What of the scenario cannot be played."""
        known = self.scenario.get("processors") or {}
        options = [run.get("options") or {} for run in self.scenario["runs"]]
        named = [
            *(
                name
                for source in (self.scenario.get("agent") or {}, *options)
                for a in _ARRAYS
                for name in source.get(a) or []
            ),
            *(each["prepareStep"] for each in options if each.get("prepareStep")),
        ]
        return [*unknown_actions(known), *(f"no processor {name!r}" for name in named if name not in known)]

    def request(self, index: int) -> dict[str, Any]:
        """The request of a run, as `RunRequest` takes it."""
        run = self.scenario["runs"][index]
        options = run.get("options") or {}
        text = run["input"]
        messages = (
            text if isinstance(text, str) else [{"role": m["role"], "content": m["text"]} for m in text]
        )
        request: dict[str, Any] = {
            "input": messages,
            "agent": self._agent(index),
            "stream": self.stream,
            **{name: value for name, value in options.items() if name not in _RUNNERS_OWN},
            **{name: self._refs(options[name], index) for name in _ARRAYS if options.get(name) is not None},
        }
        if options.get("prepareStep"):
            # A callback has the id `prepare-step`, and so a state of its own (R-IS-11).
            callback = self._ref(options["prepareStep"], index)
            request["prepareStep"] = {name: value for name, value in callback.items() if name != "as"}
        if "toolChoice" in options:
            request["toolChoice"] = tool_choice(options["toolChoice"])
        if "providerOptions" in options:
            request["providerOptions"] = own_provider(options["providerOptions"])
        if options.get("structuredOutput"):
            request["structuredOutput"] = self._structured(options["structuredOutput"])
        if run.get("defaults") is not False:
            request["modelSettings"] = {"maxRetries": 0, **(options.get("modelSettings") or {})}
        if self.scenario.get("memory") is not None and not run.get("no_memory"):
            request["memory"] = self.memory_of(run)
        return request

    def memory_of(self, run: dict[str, Any]) -> dict[str, str]:
        """Thread and resource of a run."""
        memory = self.scenario.get("memory") or {}
        thread = run.get("thread") or memory.get("thread") or "thread-1"
        return {"thread": thread, "resource": run.get("resource") or memory.get("resource") or "user-1"}

    def model(self, name: str) -> str:
        """The model string of a scenario's model; one script is played for all models of a scenario."""
        return f"openai/script:{self.key}~{name}"

    def _agent(self, index: int) -> dict[str, Any]:
        given = self.scenario.get("agent") or {}
        agent: dict[str, Any] = {
            "name": AGENT,
            "instructions": given.get("instructions", "You are a test agent."),
            "model": self.model(given.get("model", "model-a")),
            "apiBase": self.api_base,
            **{name: given[name] for name in ("maxProcessorRetries", "maxRetries") if name in given},
            **{name: self._refs(given[name], index) for name in _ARRAYS if given.get(name) is not None},
        }
        if tools := given.get("tools"):
            agent["tools"] = [tool_ref(tool, self._context(index)) for tool in tools]
        memory = self.scenario.get("memory")
        if memory is not None:
            agent["memory"] = {"lastMessages": memory.get("lastMessages", 10)}
        return agent

    def _refs(self, names: list[str], index: int) -> list[dict[str, Any]]:
        return [self._ref(name, index) for name in names]

    def _ref(self, name: str, index: int) -> dict[str, Any]:
        definition = self.scenario["processors"][name]
        if definition.get("builtin"):
            return {"id": definition["builtin"], "options": definition.get("options") or {}}
        hooks = definition.get("hooks") or {}
        wants_tools = any(
            action["do"] in ("add-tools", "set-tools") for acts in hooks.values() for action in acts
        )
        options = {
            "id": name,
            "hooks": hooks,
            "processDataParts": bool(definition.get("processDataParts")),
            "onViolation": bool(definition.get("onViolation")),
            "ctx": self._context(index) | ({"tools": self.tools} if wants_tools else {}),
        }
        return {"id": "scripted", "as": name, "options": options}

    def _context(self, index: int) -> dict[str, Any]:
        return {"key": self.key, "run": index, "model": self.model("")}

    def _structured(self, given: dict[str, Any]) -> dict[str, Any]:
        model = {"model": self.model(given["model"])} if given.get("model") else {}
        return {**given, **model, "schema": strict_schema(given.get("schema"))}


def seed_messages(memory: dict[str, Any]) -> list[dict[str, Any]]:
    """The stored messages that a scenario starts with, a second apart."""
    thread, resource = memory.get("thread", "thread-1"), memory.get("resource", "user-1")
    return [
        {
            "id": f"seed-{i}",
            "role": message["role"],
            "createdAt": f"2024-01-01T00:{(i + 1) // 60:02}:{(i + 1) % 60:02}.000Z",
            "threadId": thread,
            "resourceId": resource,
            "type": "text",
            "content": {"format": 2, "parts": [{"type": "text", "text": message["text"]}]},
        }
        for i, message in enumerate(memory.get("seed") or [])
    ]
