"""`retry-budget.json`: runs of a scripted model under the real plan, reducer and operations, but without a bus."""

from typing import Any

from procession.args import AbortSignal, APIErrorArgs, APIErrorResult, OutputStepArgs
from procession.context import add_usage
from procession.processor import Options, Processor
from procession.registry import Registry
from procession.response import ResponseCollector
from procession.testing import answers
from procession_schemas.agent import Agent, ProcessorRef
from procession_schemas.run import RunRequest, RunResult
from procession_schemas.work import ModelOp, StepFacts
from procession_services.bus import Hold
from procession_services.orchestrator.core.plan import make_plan, opening
from procession_services.processor_host.errors import ModelFailed
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.instances import Instances
from procession_services.processor_host.job import Job
from procession_services.runs.events import Started
from procession_services.runs.program import command
from procession_services.runs.reducer import reduce
from procession_services.runs.state import RunState
from procession_services.runtime.run_records import StoredContext

OUR_DEFAULT = 10
"""Retries where there are error processors and nothing is said (A-2)."""
_ENDLESS = 10**6
_KINDS = ("input", "output", "error")


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


class Script:
    """The model and the processors of a vector, and what they saw."""

    def __init__(self, vector: dict[str, Any]) -> None:
        given = vector["input"]
        self.fails = _times(given.get("modelFailsTimes", 0))
        self.aborts = _times(given.get("abortWithRetryTimes", 0))
        self.retry = bool(given.get("retry", True))
        self.text = vector["expected"].get("text") or "ok"
        self.model_calls = 0
        self.seen: list[int] = []

    async def model(self, _op: ModelOp, job: Job) -> None:
        """Answers, or fails as often as it is to."""
        self.model_calls += 1
        job.result.facts = StepFacts()
        if self.model_calls <= self.fails:
            error = {"name": "APICallError", "message": "Bad Request: nope", "statusCode": 400}
            job.ctx.response = {"error": error}
            raise ModelFailed(error)
        collector = ResponseCollector(keep_chunks=True)
        for chunk in answers.answer([self.text], message_id=job.ctx.message_id):
            collector.arrived(chunk)
            collector.passed(chunk)
        response = collector.to_dict()
        job.ctx.response = response
        job.ctx.usage = add_usage(job.ctx.usage, response["usage"])
        job.ctx.messages.append_response_parts(collector.parts)
        job.result.facts = StepFacts(finish_reason=response["finishReason"], tool_calls=0, started=True)

    def processors(self) -> tuple[type[Processor[Any]], type[Processor[Any]]]:
        """An error processor that always asks for a retry, and a guard that aborts as often as it is to."""
        script = self

        class Again(Processor[Options]):
            id = "again"

            def process_api_error(self, args: APIErrorArgs) -> APIErrorResult:
                script.seen.append(args.retry_count)
                return {"retry": True}

        class Guard(Processor[Options]):
            id = "guard"

            def process_output_step(self, args: OutputStepArgs) -> None:
                script.seen.append(args.retry_count)
                if len(script.seen) <= script.aborts:
                    args.abort("not good", retry=script.retry, metadata={"k": len(script.seen)})

        return Again, Guard


def _times(told: Any) -> int:
    return told if isinstance(told, int) else _ENDLESS


async def observe(vector: dict[str, Any]) -> Any:
    """Runs the agent of the vector to its end."""
    script, at_step = Script(vector), "abortWithRetryTimes" in vector["input"]
    result = await _run(script, vector["options"], at_step=at_step)
    observed: dict[str, Any] = {"modelCalls": script.model_calls, "retryCountsSeen": script.seen}
    if at_step:
        tripwire = result.tripwire and {
            "reason": result.tripwire.reason,
            "retry": bool(result.tripwire.retry),
            "metadata": result.tripwire.metadata,
            "processorId": result.tripwire.processor_id,
        }
        return observed | {"text": result.text, "finishReason": result.finish_reason, "tripwire": tripwire}
    return observed | ({"throws": result.error.message} if result.error else {"text": result.text})


async def _run(script: Script, options: dict[str, Any], *, at_step: bool) -> RunResult:
    registry = Registry()
    error_processor, guard = script.processors()
    registry.add_processor(error_processor)
    registry.add_processor(guard)
    place = "output" if at_step else options.get("registeredIn", "error")
    arrays = {
        kind: [] if kind != place else [ProcessorRef(id="guard" if at_step else "again")] for kind in _KINDS
    }
    agent = Agent(name="a", model="m/one", max_processor_retries=options.get("agentMaxProcessorRetries"))
    called = options.get("maxProcessorRetries", options.get("callMaxProcessorRetries"))
    request = RunRequest(agent=agent, input="hello", max_processor_retries=called, stream=False)
    state = RunState(
        run="r",
        tenant="t",
        agent="a",
        plan=make_plan(request, agent, arrays, registry, {}),
        open=opening(request, agent)[0],
        message_id="msg-r",
        fingerprint="f",
        accepted_at="2026-01-01T00:00:00Z",
        deadline_ms=1,
    )
    nothing: Any = _NoBus()
    executor = Executor(
        "any",
        nothing,
        nothing,
        Instances(registry),
        nothing,
        max_deliver=5,
        runners={"model": script.model},
    )
    state, _ = reduce(state, Started())
    context = StoredContext(0, -1, None, None, cancelled=False)
    while state.sent is not None:
        job = executor._job(command(state, state.sent), context, AbortSignal(), Hold(), 1)
        await executor._run(job, executor._runners)
        context = StoredContext(
            context.version + 1, job.command.seq, job.ctx.to_json(), None, cancelled=False
        )
        state, _ = reduce(state, job.result)
    assert state.result is not None
    return state.result


def override(vector: dict[str, Any], observed: Any, _differences: list[str]) -> str | None:
    """The default budget is 10 (A-2); a blocked answer is never told, and ends with reason `other` (A-7)."""
    expected, options = vector["expected"], vector["options"]
    if "abortWithRetryTimes" in vector["input"]:
        blocked = {**expected, "text": "", "finishReason": "other"}
        return "A-7" if expected.get("tripwire") and observed == blocked else None
    budgets = (options.get("agentMaxProcessorRetries"), options.get("callMaxProcessorRetries"))
    if options.get("registeredIn") != "error" or budgets != (None, None):
        return None
    fails = _times(vector["input"].get("modelFailsTimes", 0))
    calls, seen = min(fails, OUR_DEFAULT) + 1, list(range(min(fails, OUR_DEFAULT + 1)))
    recovered = ("throws" in observed) == (fails > OUR_DEFAULT)
    return (
        "A-2"
        if (observed["modelCalls"], observed["retryCountsSeen"]) == (calls, seen) and recovered
        else None
    )
