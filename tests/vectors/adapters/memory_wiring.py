"""`memory-wiring.json`: which processors memory adds, how much history, and what whole runs leave in a thread."""

import asyncio
import copy
import itertools
import re
from typing import Any

from pydantic import ValidationError

from procession.args import (
    AbortSignal,
    InputArgs,
    InputStepArgs,
    OutputResultArgs,
    OutputStepArgs,
)
from procession.context import add_usage
from procession.messages import map_text, text_of
from procession.processor import Options, Processor
from procession.prompt import to_prompt
from procession.registry import Registry
from procession.response import ResponseCollector
from procession.stream import StreamChain
from procession.testing import ScriptedModels, answers, environment
from procession_schemas.agent import Agent, ProcessorRef
from procession_schemas.memory import MemoryConfig, MemoryOptions, RequestMemory, history_limits
from procession_schemas.run import RunRequest, RunResult
from procession_schemas.validation import RefusedError
from procession_schemas.work import ModelOp, StepFacts
from procession_services.bus import Hold
from procession_services.memory.history import MessageHistory
from procession_services.memory.input_filter import MemoryInputFilter
from procession_services.orchestrator.core.memory_wiring import NoVectorStoreError, merged_options, wire
from procession_services.orchestrator.core.plan import make_plan, opening
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.instances import Instances
from procession_services.processor_host.job import Job
from procession_services.processors.moderation import Moderation
from procession_services.runs.events import Started
from procession_services.runs.program import command
from procession_services.runs.reducer import reduce
from procession_services.runs.state import RunState
from procession_services.runtime.run_records import StoredContext
from tests.vectors.adapters.common import without
from tests.vectors.adapters.memory_stage import DictMessages, on_stage

_GUARD = re.compile(r"(input step|input|output stream|output step|output result) guard aborts")
_MODERATION = "moderation"


async def observe(vector: dict[str, Any]) -> Any:
    """Asks the wiring, or runs an agent."""
    given = vector["input"]
    if given.get("call") == "normalizeMessageHistoryConfig":
        return _limits(given)
    if "call" in given:
        return _wired(vector)
    if "turns" in given:
        return await _turns(vector)
    return await _once(vector)


# --- wiring ------------------------------------------------------------------------------------


def _limits(given: dict[str, Any]) -> Any:
    named = {
        name: given.get(name) for name in ("lastMessages", "messageHistory") if given.get(name) is not None
    }
    try:
        options = MemoryOptions.model_validate(named)
    except ValidationError as error:
        return {"throws": str(error)}
    return history_limits(options.last_messages, options.message_history)


def _wired(vector: dict[str, Any]) -> Any:
    given = vector["input"]
    try:
        own = MemoryOptions.model_validate(_known(vector["options"]))
        called = given.get("perCallMemoryOptions")
        asked = MemoryOptions.model_validate(_known(called)) if called else None
        ids = set(given.get("alreadyConfiguredIds") or ())
        made = wire(
            merged_options(own, asked),
            input_ids=ids,
            output_ids=ids,
            vectors=bool(given.get("vectorStoreAndEmbedderGiven")),
        )
    except (ValidationError, RefusedError, NoVectorStoreError) as error:
        return {"throws": {"message": str(error)}}
    return {
        "input": [ref.id for ref in made.input],
        "output": [ref.id for ref in made.output],
        "tools": [ref.name for ref in made.tools],
    }


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON has them: a schema of the reference's language stands for any."""
    made = copy.deepcopy(without(options))
    note = made.get("workingMemory")
    if isinstance(note, dict) and isinstance(note.get("schema"), str):
        note["schema"] = {"type": "object", "properties": {}}
    return made


# --- whole runs --------------------------------------------------------------------------------


class _NoBus:
    """Takes what a run tells its client, and forgets it."""

    max_payload = 1 << 20

    def fits(self, _body: bytes) -> bool:
        return True

    async def room_to_keep(self) -> None: ...

    async def publish_kept(self, *_: Any, **__: Any) -> int:
        return 0

    async def kept(self, number: int) -> None: ...

    async def publish_stored(self, *_: Any, **__: Any) -> bool:
        return True


class _Runs:
    """Runs of one agent with one memory, under the real plan, reducer and operations, but without a bus."""

    def __init__(self, model_text: str, *processors: type[Processor[Any]]) -> None:
        self.store = DictMessages()
        self.models = ScriptedModels(lambda _request: '{"category_scores": []}')
        self.model_calls = 0
        self.prompts: list[Any] = []
        self._text = model_text
        self._numbers = itertools.count()
        self.registry = Registry()
        for kind in (MemoryInputFilter, MessageHistory, Moderation, *processors):
            self.registry.add_processor(kind)

    async def run(
        self, text: Any, arrays: dict[str, list[dict[str, Any]]], memory: dict[str, Any] | None
    ) -> RunResult:
        """Runs the agent to its end."""
        refs = {
            kind: [ProcessorRef.checked(each) for each in arrays.get(kind, [])]
            for kind in ("input", "output", "error")
        }
        agent = Agent(name="a", model="m/one", memory=None if memory is None else MemoryConfig())
        place = None if memory is None else RequestMemory(thread="t1", resource="r1", **memory)
        request = RunRequest(agent=agent, input=text, stream=False, memory=place)
        number = next(self._numbers)
        state = RunState(
            run=f"r{number}",
            tenant="test",
            agent="a",
            plan=make_plan(request, agent, refs, self.registry, {}),
            open=opening(request, agent)[0],
            message_id=f"msg-{number}",
            fingerprint="f",
            accepted_at="2026-01-01T00:00:00Z",
            deadline_ms=1,
        )
        nothing: Any = _NoBus()
        executor = Executor(
            "any", nothing, nothing, Instances(self.registry), nothing,
            max_deliver=5, runners={"model": self._model}, environment=environment(self.models),
        )  # fmt: skip
        state, _ = reduce(state, Started())
        context = StoredContext(0, -1, None, None, cancelled=False)
        with on_stage(self.store):
            while state.sent is not None:
                job = executor._job(command(state, state.sent), context, AbortSignal(), Hold(), 1)
                await executor._run(job, executor._runners)
                seq = job.command.seq
                context = StoredContext(context.version + 1, seq, job.ctx.to_json(), None, cancelled=False)
                state, _ = reduce(state, job.result)
        assert state.result is not None
        await asyncio.sleep(0.01)  # messages sort by time: the next turn comes a moment later
        return state.result

    async def _model(self, op: ModelOp, job: Job) -> None:
        self.model_calls += 1
        self.prompts.append(to_prompt(job.ctx.messages))
        collector = ResponseCollector(keep_chunks=True)
        chain = StreamChain(
            await job.instances.links(op.processors),
            job.ctx,
            job.calls,
            lambda _chunk: None,
            collector=collector,
        )
        job.result.facts = StepFacts()
        for chunk in answers.answer([self._text], message_id=job.ctx.message_id):
            await chain.feed(chunk)
        await chain.end()
        response = job.ctx.response = collector.to_dict()
        job.ctx.usage = add_usage(job.ctx.usage, response["usage"])
        job.ctx.messages.append_response_parts(collector.parts)
        job.result.facts = StepFacts(finish_reason=response["finishReason"], tool_calls=0, started=True)

    def saved(self) -> list[Any]:
        """The messages in the thread, oldest first."""
        return sorted(self.store.rows.get(("r1", "t1"), {}).values(), key=lambda row: row["createdAt"])


async def _once(vector: dict[str, Any]) -> Any:
    """One run with the processors that a vector describes."""
    given = vector["input"]
    told = given["processors"]
    kind = _processor(told)
    runs = _Runs(given["modelText"], *([kind] if kind else []))
    side = "input" if told.startswith("input") else "output"
    memory = {"readOnly": True} if "readOnly" in told else {}
    result = await runs.run(given["userText"], {side: [{"id": kind.id}] if kind else []}, memory)
    saved = [{"role": m["role"], "text": text_of(m)} for m in runs.saved()]
    tripwire = result.tripwire and {
        "reason": result.tripwire.reason,
        "processorId": result.tripwire.processor_id,
    }
    observed = {
        "modelCalls": runs.model_calls,
        "text": result.text,
        "finishReason": result.finish_reason,
        "tripwire": tripwire,
        "saved": saved,
    }
    return {key: value for key, value in observed.items() if key in vector["expected"]}


def _processor(told: str) -> type[Processor[Any]] | None:
    """The processor that a text describes; None for none."""
    if guard := _GUARD.fullmatch(told):
        return _guard(guard[1])
    if rewritten := re.fullmatch(r"input rewritten to (.*)", told):
        return _rewriting("process_input", rewritten[1])
    if rewritten := re.fullmatch(r"output result rewrites text to (.*)", told):
        return _rewriting("process_output_result", rewritten[1])
    if told == "output step returns []":
        return _EmptyStep
    assert told == "none" or "readOnly" in told, told
    return None


def _guard(place: str) -> type[Processor[Any]]:
    class Guard(Processor[Options]):
        id = "g"

    def stop(_self: Any, args: Any) -> None:
        args.abort("no")

    setattr(Guard, f"process_{place.replace(' ', '_')}", stop)
    return Guard


def _rewriting(hook: str, text: str) -> type[Processor[Any]]:
    class Rewriting(Processor[Options]):
        id = "w"

    def rewrite(_self: Any, args: InputArgs | OutputResultArgs) -> Any:
        return [map_text(message, lambda _old: text) for message in args.messages]

    setattr(Rewriting, hook, rewrite)
    return Rewriting


class _EmptyStep(Processor[Options]):
    """Returns an empty list."""

    id = "e"

    def process_output_step(self, args: OutputStepArgs) -> Any:
        return []


class _Upper(Processor[Options]):
    """Upper-cases every message that it is given."""

    id = "u"

    def process_input(self, args: InputArgs) -> Any:
        return [map_text(message, str.upper) for message in args.messages]


class _Newest(Processor[Options]):
    """Lets only the newest of the messages through."""

    id = "n"

    def process_input(self, args: InputArgs) -> Any:
        return list(args.messages)[-1:]


def _guard_of(told: str) -> type[Processor[Any]]:
    """The guard that a text describes."""
    if re.search(r"\b(upper)", told):
        return _Upper
    assert re.search(r"\b(drop|only|newest|last)", told), told
    return _Newest


def _spy(seen: list[Any]) -> type[Processor[Any]]:
    def texts(messages: Any) -> list[str]:
        return [text_of(message) for message in messages]

    class Spy(Processor[Options]):
        id = "spy"

        def process_input(self, args: InputArgs) -> None:
            whole = texts(args.message_list.get.all.db())
            seen.append(
                {
                    "who": "spy",
                    "hook": "processInput",
                    "messagesArgument": texts(args.messages),
                    "wholeList": whole,
                }
            )

        def process_input_step(self, args: InputStepArgs) -> None:
            seen.append({"who": "spy", "hook": "processInputStep", "messagesArgument": texts(args.messages)})

        def process_output_step(self, args: OutputStepArgs) -> None:
            seen.append({"who": "spy", "hook": "processOutputStep", "messagesArgument": texts(args.messages)})

        def process_output_result(self, args: OutputResultArgs) -> None:
            seen.append(
                {"who": "spy", "hook": "processOutputResult", "messagesArgument": texts(args.messages)}
            )

    return Spy


async def _turns(vector: dict[str, Any]) -> Any:
    """Two runs; what the second one shows."""
    given, options = vector["input"], vector["options"]
    seen: list[Any] = []
    spy = _spy(seen)
    runs = _Runs(given["modelText"], spy, _Upper, _Newest)
    memory: dict[str, Any] | None = {} if given.get("memory", True) else None
    turns = [re.sub(r" \(guard (?:on|off)\)$", "", t) if isinstance(t, str) else t for t in given["turns"]]
    if "guard" in given:
        await runs.run(turns[0], {}, memory)
        await runs.run(turns[1], {"input": [{"id": _guard_of(given["guard"]).id}]}, memory)
        prompt = [f"{entry['role']}: {_prompt_text(entry)}" for entry in runs.prompts[-1]]
        return {"promptOnTurnTwo": prompt, "savedAfterwards": [text_of(m) for m in runs.saved()]}
    if "detectorCalls" in vector["expected"]:
        moderation: Any = {"id": _MODERATION, "options": {**without(options), "model": "m/judge"}}
        for turn in turns:
            runs.models.requests.clear()
            await runs.run(turn, {"input": [moderation]}, memory)
        judged = [
            _judged(request, [*_flat_texts(turns), given["modelText"]]) for request in runs.models.requests
        ]
        return {"detectorCalls": len(judged), "textsJudged": judged}
    for turn in turns:
        seen.clear()
        await runs.run(turn, {"input": [{"id": "spy"}], "output": [{"id": "spy"}]}, memory)
    return {"secondTurn": seen}


def _prompt_text(entry: Any) -> str:
    content = entry["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _flat_texts(turns: list[Any]) -> list[str]:
    return [t for turn in turns for t in ([turn] if isinstance(turn, str) else [m["content"] for m in turn])]


def _judged(request: Any, known: list[str]) -> str:
    """Which of the texts a detector was asked about."""
    asked = "\n".join(_prompt_text(entry) for entry in request.prompt if entry["role"] != "system")
    return max(
        (text for text in known if re.search(rf"\b{re.escape(text)}\b", asked)),
        key=asked.rfind,
        default=asked,
    )


def override(vector: dict[str, Any], observed: Any, differences: list[str]) -> str | None:
    """The rule that demands what differs.

    D-7: a detector sees what is new. A-5: an empty array changes nothing. A-7: a blocked run saves nothing and ends
    with `other`. A-13: the text of a blocked answer is never told. D-85: what is indexed is saved.
    """
    given, expected = vector["input"], vector["expected"]
    if "detectorCalls" in expected:
        last = _flat_texts([given["turns"][-1]])
        return "D-7" if observed == {"detectorCalls": len(last), "textsJudged": last} else None
    if given.get("processors") == "output step returns []":
        usual = [
            {"role": "user", "text": given["userText"]},
            {"role": "assistant", "text": given["modelText"]},
        ]
        return "A-5" if observed == {**expected, "saved": usual} else None
    if "tripwire" in expected and expected["tripwire"] and observed.get("tripwire") == expected["tripwire"]:
        blocked = {**expected, "text": "", "finishReason": "other", "saved": []}
        if observed == blocked:
            return "A-7" if expected["saved"] else "A-13"
        return None
    if (
        "output" in expected
        and "semantic-recall" in expected["output"]
        and observed.get("input") == expected["input"]
    ):
        return "D-85" if observed["output"] == [*expected["output"], "message-history"] else None
    return None
