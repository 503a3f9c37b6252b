"""From an agent and a request to the plan: defaults, overrides, memory, and every way to be refused."""

from typing import Any, ClassVar

import orjson
import pytest

from procession.processor import Hook, Options, Processor
from procession.registry import Registry
from procession.tools import Tool
from procession_schemas.agent import Agent
from procession_schemas.run import RunRequest
from procession_schemas.validation import RefusedError
from procession_schemas.work import OpenOp
from procession_services.memory.history import MessageHistory
from procession_services.memory.input_filter import MemoryInputFilter
from procession_services.memory.semantic import SemanticRecall
from procession_services.memory.working import WorkingMemory
from procession_services.memory.working_state import WorkingMemoryState
from procession_services.memory.working_tool import SetWorkingMemory, UpdateWorkingMemory
from procession_services.orchestrator.core.plan import (
    make_plan,
    opening,
    parse_request,
)
from procession_services.processors.stop_conditions import step_count_is
from procession_services.processors.structured_output import StructuredOutput
from procession_services.runs.state import Line, Placed, Plan
from tests.unit.procession_services.runs.driving import Run

LIMIT = 2000


class SizeOptions(Options):
    size: int = 1


class Both(Processor[SizeOptions]):
    """Has hooks of both arrays."""

    id = "both"

    def process_input(self, args: Any) -> Any:
        return args.messages

    def process_output_stream(self, args: Any) -> Any:
        return args.part

    def process_output_result(self, args: Any) -> Any:
        return args.messages


class Data(Both):
    """Wants data parts."""

    id = "data"
    process_data_parts = True


class Stepper(Processor[Options]):
    id = "stepper"

    def process_input_step(self, args: Any) -> Any:
        return None


class Rescuer(Processor[Options]):
    id = "rescuer"

    def process_api_error(self, args: Any) -> Any:
        return {"retry": True}


class Elsewhere(Both):
    """Handles streams in a service that cannot."""

    id = "elsewhere"
    host = "memory"


class BesideOptions(Options):
    parallel: bool = True


class Beside(Processor[BesideOptions]):
    """Judges the input beside the model, and every step before it."""

    id = "beside"

    @classmethod
    def runs_parallel(cls, options: dict[str, Any]) -> bool:
        return cls.build(options).options.parallel

    def process_input(self, args: Any) -> Any:
        return None

    def process_input_step(self, args: Any) -> Any:
        return None


class Away(Beside):
    id = "away"
    host = "memory"


class Nowhere(Both):
    """Names a service that there is not."""

    id = "nowhere"
    host = "input-processors"


class Holder(Processor[Options]):
    """Holds parts of a stream."""

    id = "holder"

    def process_output_stream(self, args: Any) -> Any:
        return None

    def flush_stream(self, args: Any) -> Any:
        return None


class ToolJudge(Processor[Options]):
    id = "tool-judge"
    host: ClassVar[str | None] = "memory"

    def process_tool_result(self, args: Any) -> Any:
        return None


class Unsure(Stepper):
    """Cannot say which hooks it has."""

    id = "unsure"

    @classmethod
    def hooks_for(cls, options: dict[str, Any]) -> frozenset[Hook]:
        raise LookupError("no such table")


class Broken(Both):
    id = "broken"

    def __init__(self, options: SizeOptions) -> None:
        raise RuntimeError("no database")


class BrokenTool(Tool):
    id = "broken-tool"

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        raise RuntimeError("no database")


class Search(Tool):
    """A tool with options."""

    id = "search"
    options_type = SizeOptions
    description = "Searches."
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}  # noqa: RUF012 - read only


MEMORY_PROCESSORS = (MemoryInputFilter, MessageHistory, SemanticRecall, WorkingMemory, WorkingMemoryState)


def make_registry() -> Registry:
    registry = Registry()
    registry.factories["chain"] = lambda _context, _options: []
    for processor in (
        Both,
        Data,
        Stepper,
        Rescuer,
        Elsewhere,
        Beside,
        Away,
        Nowhere,
        Holder,
        ToolJudge,
        Unsure,
        Broken,
        *MEMORY_PROCESSORS,
        StructuredOutput,
    ):
        registry.add_processor(processor)
    for tool in (Search, BrokenTool, UpdateWorkingMemory, SetWorkingMemory):
        registry.add_tool(tool)
    registry.stop_conditions["enough"] = lambda steps, options: True
    registry.stop_conditions["step-count-is"] = step_count_is
    return registry


def parsed(request: dict[str, Any] | None, agent: dict[str, Any]) -> tuple[RunRequest, Agent]:
    asked = RunRequest.model_validate({"input": "hello", **(request or {})})
    return asked, Agent.model_validate({"name": "a", "model": "m/one", **agent})


def planned(request: dict[str, Any] | None = None, /, *, vectors: bool = False, **agent: Any) -> Plan:
    """The plan of a request for an agent with a model; arrays as the shell resolves them (R-CF-4)."""
    asked, configured = parsed(request, agent)
    arrays: dict[str, Any] = {}
    for kind in ("input", "output", "error"):
        own, over = (getattr(each, f"{kind}_processors") for each in (configured, asked))
        arrays[kind] = (own if over is None else over) or []
    return make_plan(
        asked, configured, arrays, make_registry(), {"api_base": "http://default", "vectors": vectors}
    )


def refused(request: dict[str, Any] | None = None, /, **agent: Any) -> tuple[str, str | None]:
    """Code and field of the refusal."""
    with pytest.raises(RefusedError) as caught:
        planned(request, **agent)
    return caught.value.failure.code, caught.value.failure.field


def order(placed: list[Placed]) -> list[str]:
    return [each.ref.instance for each in placed]


def opened(request: dict[str, Any], /, **agent: Any) -> tuple[OpenOp, Line | None]:
    """What a run of that request begins with, and where it takes its turn."""
    return opening(*parsed(request, agent))


def memory_of(request: dict[str, Any], /, **agent: Any) -> dict[str, Any]:
    """What memory processors read from the request context."""
    memory = opened(request, **agent)[0].memory
    assert memory is not None
    return memory


MEMORY = {"memory": {"thread": "t", "resource": "r"}}


class TestParsing:
    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "input"),
            ({"input": 5}, "input"),
            ({"input": ["a", 1]}, "input.1"),
            ({"input": "x", "unknown": 1}, "unknown"),
            ({"input": "x", "runId": "a b"}, "runId"),
            ({"input": "x", "runId": ""}, "runId"),
            ({"input": "x", "maxSteps": -1}, "maxSteps"),
            ({"input": "x", "maxProcessorRetries": "many"}, "maxProcessorRetries"),
            ({"input": "x", "maxRetries": -1}, "maxRetries"),
            ({"input": "x", "timeout": 0}, "timeout"),
            ({"input": "x", "stream": "no"}, "stream"),
            ({"input": "x", "stream": 0}, "stream"),
            ({"input": "x", "timeout": True}, "timeout"),
            ({"input": "x", "maxSteps": "5"}, "maxSteps"),
            ({"input": "x", "max_steps": "5"}, "max_steps"),
            ({"input": "x", "tools": [{"id": "t", "requireApproval": "yes"}]}, "tools.0.requireApproval"),
            ({"input": "x", "model": 5}, "model"),
            ({"input": "x", "model": [{"modle": "m"}]}, "model.0.model"),
            ({"input": "x", "model": [{"model": "m", "maxRetries": -1}]}, "model.0.maxRetries"),
            ({"input": "x", "inputProcessors": 5}, "inputProcessors"),
            ({"input": "x", "inputProcessors": [{"options": {}}]}, "inputProcessors.0.id"),
            ({"input": "x", "outputProcessors": ["a", {"id": ""}]}, "outputProcessors.1.id"),
            (
                {"input": "x", "errorProcessors": [{"id": "a", "onError": "hope"}]},
                "errorProcessors.0.onError",
            ),
            ({"input": "x", "outputProcessors": {"factry": "f"}}, "outputProcessors.factory"),
            ({"input": "x", "tools": [{"id": "t", "timeout": 0}]}, "tools.0.timeout"),
            ({"input": "x", "stopWhen": [{"id": ""}]}, "stopWhen.0.id"),
            ({"input": "x", "prepareStep": {}}, "prepareStep.id"),
            ({"input": "x", "toolChoice": "sometimes"}, "toolChoice"),
            ({"input": "x", "toolChoice": {"type": "tool"}}, "toolChoice.toolName"),
            ({"input": "x", "memory": {"thread": "t"}}, "memory.resource"),
            ({"input": "x", "memory": {"thread": "", "resource": "r"}}, "memory.thread"),
            ({"input": "x", "memory": {"thread": "a\0", "resource": "r"}}, "memory.thread"),
            ({"input": "x", "memory": {"thread": "t", "resource": "a\nb"}}, "memory.resource"),
            ({"input": "x", "agent": {"name": "a", "memory": {"thread": "\x7f"}}}, "agent.memory.thread"),
            ({"input": "x", "structuredOutput": {}}, "structuredOutput.schema"),
            ({"input": "x", "requestContext": []}, "requestContext"),
            ({"input": "x", "context": [1]}, "context.0"),
            ({"input": "x", "agent": {"name": "a b"}}, "agent.name"),
            ({"input": "x", "agent": {"name": "a", "tools": [{}]}}, "agent.tools.0.id"),
        ],
    )
    def test_a_wrong_field_is_named_as_the_sender_wrote_it(self, body, field):
        with pytest.raises(RefusedError) as caught:
            parse_request(orjson.dumps(body), LIMIT)
        failure = caught.value.failure
        assert (failure.code, failure.field) == ("INVALID_REQUEST", field)
        assert field in failure.message

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ('"timeout": NaN', "timeout"),
            ('"timeout": Infinity', "timeout"),
            ('"timeout": 1e400', "timeout"),
            ('"timeout": 1e308', "timeout"),
            ('"timeout": 1e12', "timeout"),
            ('"maxSteps": 1e400', "maxSteps"),
            ('"agent": {"name": "a", "timeout": 1e12}', "agent.timeout"),
            ('"tools": [{"id": "t", "timeout": NaN}]', "tools.0.timeout"),
        ],
    )
    def test_a_number_that_is_none_or_too_large_is_told_with_its_place(self, given, field):
        with pytest.raises(RefusedError, match=field) as caught:
            parse_request(f'{{"input": "x", {given}}}'.encode(), LIMIT)
        assert (caught.value.failure.code, caught.value.failure.field) == ("INVALID_REQUEST", field)

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ("1" + "0" * 20, "is an integer of more than 64 bits"),
            ("1e400", "is inf"),
            ("[" * 99 + "1" + "]" * 99, "is nested too deeply: 100 levels at most"),
        ],
        ids=["number", "infinity", "depth"],
    )
    def test_what_no_service_could_hand_on_is_told_with_its_place(self, given, told):
        with pytest.raises(RefusedError, match=told) as caught:
            parse_request(f'{{"input": "x", "requestContext": {{"a": {given}}}}}'.encode(), LIMIT)
        assert caught.value.failure.code == "INVALID_REQUEST"
        assert caught.value.failure.message.startswith("request['requestContext']['a']")
        assert (caught.value.failure.field or "").startswith("requestContext.a")

    def test_every_wrong_field_is_in_the_message(self):
        with pytest.raises(RefusedError) as caught:
            parse_request(b'{"input": "x", "maxSteps": -1, "timeout": 0}', LIMIT)
        assert "maxSteps: " in caught.value.failure.message
        assert "timeout: " in caught.value.failure.message

    @pytest.mark.parametrize("body", [b"", b'{"input":', b"\xff", b"hello"])
    def test_what_is_not_json_is_told_so(self, body):
        with pytest.raises(RefusedError) as caught:
            parse_request(body, LIMIT)
        assert (caught.value.failure.code, caught.value.failure.field) == ("INVALID_JSON", None)

    def test_json_that_is_no_object_is_told_so(self):
        with pytest.raises(RefusedError, match="request: Input should be an object"):
            parse_request(b"[]", LIMIT)

    @pytest.mark.parametrize(("spare", "accepted"), [(0, True), (-1, False)])
    def test_the_limit_counts_bytes(self, spare, accepted):
        body = '{"input": "ä"}'.encode()
        if accepted:
            assert parse_request(body, len(body) + spare).input == "ä"
            return
        with pytest.raises(
            RefusedError, match=f"{len(body)} bytes; at most {len(body) - 1} are accepted: mend"
        ) as caught:
            parse_request(body, len(body) + spare, "mend it")
        assert caught.value.failure.code == "REQUEST_TOO_LARGE"

    def test_both_spellings_are_read(self):
        assert parse_request(b'{"input": "x", "max_steps": 2}', LIMIT).max_steps == 2
        assert parse_request(b'{"input": "x", "timeout": 2}', LIMIT).timeout == 2.0


class TestFactories:
    def test_output_and_error_arrays_are_made_while_the_run_is_under_way(self):
        plan = planned(
            outputProcessors={"factory": "chain", "options": {"a": 1}}, errorProcessors={"factory": "chain"}
        )
        assert (plan.output, plan.error, plan.budget) == ([], [], None)
        assert {kind: ref.options for kind, ref in plan.factories.items()} == {
            "output": {"a": 1},
            "error": {},
        }

    @pytest.mark.parametrize("kind", ["output", "error"])
    def test_one_that_does_not_exist_is_refused_at_once(self, kind):
        told = refused(**{f"{kind}Processors": {"factory": "chian"}})
        assert told == ("UNKNOWN_COMPONENT", f"{kind}Processors.factory")


class TestRefusals:
    @pytest.mark.parametrize("base", ["localhost:8399/v1", "ftp://x/v1", "x"])
    def test_a_base_url_at_which_no_provider_can_be(self, base):
        assert refused(api_base=base) == ("INVALID_REQUEST", "apiBase")

    @pytest.mark.parametrize(
        ("request_", "agent", "code", "field"),
        [
            ({}, {"inputProcessors": ["both", "bth"]}, "UNKNOWN_COMPONENT", "inputProcessors.1.id"),
            ({"outputProcessors": ["bth"]}, {}, "UNKNOWN_COMPONENT", "outputProcessors.0.id"),
            ({"errorProcessors": ["bth"]}, {}, "UNKNOWN_COMPONENT", "errorProcessors.0.id"),
            (
                {},
                {"inputProcessors": [{"id": "both", "options": {"size": "big"}}]},
                "INVALID_OPTIONS",
                "inputProcessors.0.options.size",
            ),
            (
                {"outputProcessors": [{"id": "both", "options": {"colour": 1}}]},
                {},
                "INVALID_OPTIONS",
                "outputProcessors.0.options.colour",
            ),
            ({}, {"tools": ["serch"]}, "UNKNOWN_COMPONENT", "tools.0.id"),
            (
                {"tools": [{"id": "search", "options": {"size": "big"}}]},
                {},
                "INVALID_OPTIONS",
                "tools.0.options.size",
            ),
            ({}, {"tools": ["search", "search"]}, "INVALID_REQUEST", "tools.1.id"),
            ({}, {"tools": ["search", {"id": "search", "as": "search"}]}, "INVALID_REQUEST", "tools.1.id"),
            ({"stopWhen": ["enough", "enuff"]}, {}, "UNKNOWN_COMPONENT", "stopWhen.1.id"),
            (
                {"stopWhen": ["enough", {"id": "step-count-is", "options": {"count": "many"}}]},
                {},
                "INVALID_OPTIONS",
                "stopWhen.1.options.count",
            ),
            ({"inputProcessors": ["both", "broken"]}, {}, "COMPONENT_FAILED", "inputProcessors.1.id"),
            ({"inputProcessors": ["unsure"]}, {}, "COMPONENT_FAILED", "inputProcessors.0.id"),
            ({"prepareStep": "unsure"}, {}, "COMPONENT_FAILED", "prepareStep.id"),
            ({}, {"tools": ["broken-tool"]}, "COMPONENT_FAILED", "tools.0.id"),
            ({"prepareStep": "stper"}, {}, "UNKNOWN_COMPONENT", "prepareStep.id"),
            ({"prepareStep": "both"}, {}, "INVALID_REQUEST", "prepareStep.id"),
            (
                {"prepareStep": {"id": "stepper", "options": {"x": 1}}},
                {},
                "INVALID_OPTIONS",
                "prepareStep.options.x",
            ),
            ({}, {"model": None}, "INVALID_REQUEST", "model"),
            ({"model": []}, {}, "INVALID_REQUEST", "model"),
            ({"model": ""}, {}, "INVALID_REQUEST", "model"),
            ({"model": [{"model": "m/x", "enabled": False}]}, {}, "INVALID_REQUEST", "model"),
            ({"memory": {"thread": "t", "resource": "r"}}, {}, "INVALID_REQUEST", "memory"),
            ({}, {"memory": {"thread": "t"}}, "AGENT_MEMORY_MISSING_RESOURCE_ID", "memory.resource"),
            ({}, {"memory": {"resource": "r"}}, "AGENT_MEMORY_MISSING_RESOURCE_ID", "memory.thread"),
            (
                {"requestContext": {"mastra__threadId": "t"}},
                {"memory": {}},
                "AGENT_MEMORY_MISSING_RESOURCE_ID",
                "memory.resource",
            ),
            (
                {"requestContext": {"mastra__threadId": 5}},
                {"memory": {}},
                "INVALID_REQUEST",
                "requestContext.mastra__threadId",
            ),
            (
                {"requestContext": {"mastra__threadId": "a\0"}},
                {"memory": {"resource": "r"}},
                "INVALID_REQUEST",
                "requestContext.mastra__threadId",
            ),
            (
                {"requestContext": {"mastra__resourceId": ["r"]}},
                {"memory": {"thread": "t"}},
                "INVALID_REQUEST",
                "requestContext.mastra__resourceId",
            ),
            (
                {"memory": {"thread": "t", "resource": "r", "workingMemory": {"schema": {}}}},
                {"memory": {"workingMemory": {"template": "# User"}}},
                "INVALID_REQUEST",
                "memory.workingMemory",
            ),
            (
                {"memory": {"thread": "t", "resource": "r", "messageHistory": {"maxTokens": 3}}},
                {"memory": {"messageHistory": {"maxTokens": 10, "atMaxRemoveTokens": 5}}},
                "INVALID_REQUEST",
                "memory.messageHistory",
            ),
            (
                {"structuredOutput": {"schema": {"type": 1}, "model": "m/x"}},
                {},
                "INVALID_REQUEST",
                "structuredOutput.schema.type",
            ),
            ({}, {"outputProcessors": ["both", "elsewhere"]}, "UNSUPPORTED_HOST", "outputProcessors.1.id"),
            ({}, {"outputProcessors": ["tool-judge"]}, "UNSUPPORTED_HOST", "outputProcessors.0.id"),
            ({}, {"inputProcessors": ["nowhere"]}, "UNSUPPORTED_HOST", "inputProcessors.0.id"),
            ({}, {"prepareStep": "nowhere"}, "UNSUPPORTED_HOST", "prepareStep.id"),
            ({}, {"inputProcessors": ["both", "away"]}, "UNSAFE_PLACE", "inputProcessors.1.options"),
            (
                {"outputProcessors": [{"id": "holder", "onError": "skip"}]},
                {},
                "UNSAFE_PLACE",
                "outputProcessors.0.onError",
            ),
            ({"modelSettings": {"maxRetries": "3"}}, {}, "INVALID_REQUEST", "modelSettings.maxRetries"),
            ({"modelSettings": {"maxRetries": -1}}, {}, "INVALID_REQUEST", "modelSettings.maxRetries"),
            ({"modelSettings": {"maxRetries": True}}, {}, "INVALID_REQUEST", "modelSettings.maxRetries"),
            (
                {"model": [{"model": "m/x"}, {"model": "m/y", "modelSettings": {"maxRetries": "3"}}]},
                {},
                "INVALID_REQUEST",
                "model.1.modelSettings.maxRetries",
            ),
        ],
    )
    def test_each_names_its_field(self, request_, agent, code, field):
        assert refused(request_, **agent) == (code, field)

    def test_an_unknown_name_is_told_with_the_known_ones(self):
        with pytest.raises(RefusedError, match=r"unknown processor 'bth'.*both"):
            planned(inputProcessors=["bth"])

    def test_a_processor_for_streams_may_be_anywhere_on_the_input_side(self):
        """Only its stream hook needs the output processors."""
        (placed,) = planned(inputProcessors=["elsewhere"]).input
        assert (placed.host, placed.hooks) == ("memory", frozenset({Hook.INPUT}))

    @pytest.mark.parametrize("model", [{}, {"model": "openai/gpt-4o"}])
    @pytest.mark.parametrize(
        ("schema", "field"),
        [
            ({"type": "zzz"}, "structuredOutput.schema.type"),
            ({"properties": {"a": {"minimum": "one"}}}, "structuredOutput.schema.properties.a.minimum"),
            ({"required": 5}, "structuredOutput.schema.required"),
        ],
    )
    def test_a_schema_that_is_none_is_told_with_its_place(self, schema, field, model):
        with pytest.raises(RefusedError, match=f"^{field} is not a valid JSON Schema: ") as caught:
            planned(structuredOutput={"schema": schema, **model})
        assert (caught.value.failure.code, caught.value.failure.field) == ("INVALID_REQUEST", field)


class TestDefaults:
    def test_an_agent_with_a_model_is_enough(self):
        plan = planned()
        assert (plan.max_steps, plan.budget, plan.max_retries, plan.stop_when) == (5, None, 0, [])
        assert (plan.input, plan.output, plan.error) == ([], [], [])
        assert (plan.config.tool_choice, plan.config.active_tools, plan.config.tools) == ("auto", None, {})
        assert (plan.api_base, plan.stream, plan.data_parts) == ("http://default", True, False)
        assert (plan.require_tool_approval, plan.include_raw_chunks) == (False, False)
        assert opened({})[0].memory is None

    def test_the_plan_makes_a_run(self):
        assert Run(planned(inputProcessors=["both"])).to_end().result.status == "finished"

    @pytest.mark.parametrize(
        ("agent", "request_", "steps"),
        [
            ({}, {}, 5),
            ({"maxSteps": 3}, {}, 3),
            ({"maxSteps": 3}, {"maxSteps": 7}, 7),
            ({"maxSteps": 3}, {"maxSteps": 0}, 3),
            ({"maxSteps": 0}, {}, 5),
            ({}, {"maxSteps": 0}, 5),
            ({"stopWhen": ["enough"]}, {}, None),
            ({"stopWhen": ["enough"]}, {"stopWhen": []}, 5),
            ({"stopWhen": ["enough"], "maxSteps": 2}, {}, 2),
            ({}, {"stopWhen": ["enough"], "maxSteps": 0}, None),
        ],
    )
    def test_steps(self, agent, request_, steps):
        """R-LP-1, R-LP-2: 0 is as good as nothing."""
        assert planned(request_, **agent).max_steps == steps

    @pytest.mark.parametrize(
        ("agent", "request_", "budget"),
        [
            ({}, {}, None),
            ({"errorProcessors": ["rescuer"]}, {}, 10),
            ({}, {"errorProcessors": ["rescuer"]}, 10),
            ({"errorProcessors": ["rescuer"]}, {"errorProcessors": []}, None),
            ({"maxProcessorRetries": 2, "errorProcessors": ["rescuer"]}, {}, 2),
            ({"maxProcessorRetries": 0, "errorProcessors": ["rescuer"]}, {}, 0),
            ({"maxProcessorRetries": 2}, {"maxProcessorRetries": 0}, 0),
            ({}, {"maxProcessorRetries": 3}, 3),
        ],
    )
    def test_retries_of_processors(self, agent, request_, budget):
        """R-AB-22, R-CF-6, A-2."""
        assert planned(request_, **agent).budget == budget

    @pytest.mark.parametrize(
        ("agent", "request_", "retries"),
        [
            ({"maxRetries": 2}, {}, 2),
            ({"maxRetries": 2}, {"maxRetries": 0}, 0),
            ({"maxRetries": 2}, {"modelSettings": {"maxRetries": 4}}, 4),
            ({"maxRetries": 2}, {"modelSettings": {"maxRetries": 0}}, 0),
            ({"modelSettings": {"maxRetries": 1}}, {}, 1),
        ],
    )
    def test_retries_of_the_model(self, agent, request_, retries):
        """R-MS-3; the provider never gets to see the number (R-MS-1)."""
        plan = planned(request_, **agent)
        assert plan.max_retries == retries
        assert "maxRetries" not in plan.config.model_settings


class TestOverrides:
    def test_an_array_of_the_request_replaces_that_of_the_agent_and_no_other(self):
        """R-CF-4."""
        plan = planned({"inputProcessors": ["stepper"]}, inputProcessors=["both"], outputProcessors=["both"])
        assert (order(plan.input), order(plan.output)) == (["stepper"], ["both"])

    def test_an_empty_array_means_none(self):
        assert planned({"inputProcessors": []}, inputProcessors=["both"]).input == []

    def test_tools_of_the_request_replace_those_of_the_agent(self):
        plan = planned({"tools": [{"id": "search", "as": "find"}]}, tools=["search"])
        assert list(plan.config.tools) == ["find"]
        assert planned({"tools": []}, tools=["search"]).config.tools == {}

    def test_a_tool_tells_what_it_does_unless_the_agent_says_it(self):
        """R-TL-5: under the name that the model sees."""
        tools = [{"id": "search", "as": "find", "description": "Finds."}, "search"]
        found = planned(tools=tools).config.tools
        assert (found["find"].description, found["search"].description) == ("Finds.", "Searches.")
        assert found["find"].parameters == Search.parameters

    def test_model_settings_of_the_request_win_one_by_one(self):
        plan = planned({"modelSettings": {"temperature": 1}}, modelSettings={"temperature": 0, "topP": 1})
        assert plan.config.model_settings == {"temperature": 1, "topP": 1}

    def test_model_settings_are_merged_in_depth(self):
        """R-CF-7: a header or a time of the request costs none of the agent's."""
        agent = {"headers": {"x-a": "1", "x-b": "1"}, "timeout": {"totalMs": 9}, "maxRetries": 2}
        plan = planned(
            {"modelSettings": {"headers": {"x-b": "2"}, "timeout": {"stepMs": 5}}}, modelSettings=agent
        )
        assert plan.config.model_settings == {
            "headers": {"x-a": "1", "x-b": "2"},
            "timeout": {"totalMs": 9, "stepMs": 5},
        }
        assert plan.max_retries == 2

    def test_provider_options_are_merged_in_depth(self):
        """R-MS-2, R-CF-7."""
        agent = {"m": {"effort": "low", "cache": {"ttl": 5, "on": True}}, "n": {"x": 1}}
        plan = planned({"providerOptions": {"m": {"cache": {"ttl": 9}}, "n": 2}}, providerOptions=agent)
        assert plan.config.provider_options == {
            "m": {"effort": "low", "cache": {"ttl": 9, "on": True}},
            "n": 2,
        }

    @pytest.mark.parametrize(
        ("name", "agent", "request_"),
        [
            ("toolChoice", "auto", "none"),
            ("activeTools", ["search"], []),
            ("structuredOutput", {"schema": {"type": "object"}}, {"schema": {"type": "array"}}),
            ("requireToolApproval", True, False),
            ("includeRawChunks", True, False),
        ],
    )
    def test_the_request_wins(self, name, agent, request_):
        assert planned({name: request_}, **{name: agent}) == planned({name: request_})
        assert planned(**{name: agent}) == planned({name: agent})
        assert planned({name: request_}) != planned({name: agent})

    def test_an_empty_text_is_nothing(self):
        first, _ = opened({"input": "", "system": ""}, instructions="")
        assert (first.input, first.system, first.instructions) == ([], [], [])
        first, _ = opened({"input": [""]})
        assert first.input == [""]

    def test_instructions_of_the_request_win(self):
        first, _ = opened({"instructions": "Be long."}, instructions="Be brief.")
        assert first.instructions == ["Be long."]

    def test_a_demand_for_one_tool_travels_in_the_contracts_spelling(self):
        choice = planned({"toolChoice": {"type": "tool", "toolName": "search"}}).config.tool_choice
        assert choice == {"type": "tool", "toolName": "search"}

    def test_a_list_of_models_leaves_the_disabled_out(self):
        """R-FB-1."""
        models = [{"model": "m/x", "enabled": False}, {"model": "m/y", "maxRetries": 2}, {"model": "m/z"}]
        plan = planned({"model": models})
        assert [entry.model for entry in plan.models] == ["m/y", "m/z"]
        assert (plan.config.model, plan.models[0].max_retries) == ("m/y", 2)

    def test_the_request_becomes_the_first_operation(self):
        given = {
            "input": "hello",
            "system": "Now.",
            "context": ["before"],
            "requestContext": {"k": 1},
            "tracingContext": {"s": 2},
            "stream": False,
        }
        assert planned(given).stream is False
        first, _ = opened(given, instructions=["Be brief.", "Be kind."])
        assert first.to_dict() == {
            "op": "open",
            "instructions": ["Be brief.", "Be kind."],
            "system": ["Now."],
            "context": ["before"],
            "input": ["hello"],
            "requestContext": {"k": 1},
            "tracingContext": {"s": 2},
        }


class TestPlacing:
    def test_an_array_keeps_only_its_own_hooks(self):
        """R-PR-4, R-LC-3."""
        plan = planned(
            inputProcessors=["both"], outputProcessors=["both"], errorProcessors=["both", "rescuer"]
        )
        assert plan.input[0].hooks == {Hook.INPUT}
        assert plan.output[0].hooks == {Hook.OUTPUT_STREAM, Hook.OUTPUT_RESULT}
        assert [placed.hooks for placed in plan.error] == [set(), {Hook.API_ERROR}]
        assert [each.host for each in (*plan.input, *plan.output, *plan.error)] == [
            "input_processors",
            "output_processors",
            "error_recovery",
            "error_recovery",
        ]

    def test_a_processor_beside_the_model_has_only_its_other_hooks_in_the_array(self):
        waits = {"id": "beside", "options": {"parallel": False}}
        first, second, third = planned({"inputProcessors": ["both", "beside", waits]}).input
        assert (first.beside, second.beside, third.beside) == (False, True, False)
        assert second.hooks == {Hook.INPUT_STEP}
        assert third.hooks == {Hook.INPUT, Hook.INPUT_STEP}

    def test_nothing_runs_beside_the_model_in_other_arrays(self):
        [placed] = planned({"outputProcessors": ["beside"]}).output
        assert not placed.beside

    def test_prepare_step_comes_after_the_whole_input_array(self):
        """R-IS-11."""
        plan = planned({"prepareStep": "stepper"}, inputProcessors=["stepper", "both"])
        assert order(plan.input) == ["stepper", "both", "prepare-step"]
        assert plan.input[-1].hooks == {Hook.INPUT_STEP}

    @pytest.mark.parametrize(("processor", "wanted"), [("data", True), ("both", False)])
    def test_the_plan_knows_whether_the_output_chain_wants_data_parts(self, processor, wanted):
        assert planned(outputProcessors=[processor]).data_parts is wanted
        assert planned(inputProcessors=[processor]).data_parts is False

    def test_a_second_model_for_the_object_is_the_last_output_processor(self):
        """R-SO-4: the main model is not asked for JSON."""
        asked = {"schema": {"type": "object"}, "model": "m/two", "errorStrategy": "warn"}
        plan = planned({"structuredOutput": asked}, outputProcessors=["both"])
        assert order(plan.output) == ["both", "structured-output"]
        assert plan.output[-1].hooks == {Hook.OUTPUT_STREAM, Hook.OUTPUT_STEP}
        assert plan.output[-1].ref.options == {"jsonPromptInjection": False, **asked}
        assert plan.config.structured_output is None
        assert planned(structuredOutput={"schema": {}}).output == []


class TestMemory:
    def test_history_is_first_before_the_loop_and_last_after_it(self):
        """R-ME-2, R-LC-7."""
        plan = planned(MEMORY, memory={}, inputProcessors=["both"], outputProcessors=["both"])
        assert order(plan.input) == ["memory-input-filter", "message-history", "both"]
        assert order(plan.output) == ["both", "message-history"]
        assert plan.input[1].host == plan.output[1].host == "memory"
        assert (plan.input[1].hooks | plan.output[1].hooks) == {Hook.INPUT, Hook.OUTPUT_RESULT}

    def test_history_stays_when_the_request_replaces_the_arrays(self):
        """R-CF-5."""
        plan = planned({**MEMORY, "inputProcessors": [], "outputProcessors": []}, memory={})
        assert order(plan.input) == ["memory-input-filter", "message-history"]
        assert order(plan.output) == ["message-history"]

    @pytest.mark.parametrize("manual", ["message-history", {"id": "message-history", "as": "mine"}])
    def test_a_history_that_is_there_keeps_its_place_in_its_array_only(self, manual):
        """R-ME-3."""
        plan = planned(MEMORY, memory={}, inputProcessors=["both", manual], outputProcessors=["both"])
        assert [placed.ref.id for placed in plan.input] == ["memory-input-filter", "both", "message-history"]
        assert order(plan.output) == ["both", "message-history"]
        plan = planned(MEMORY, memory={}, outputProcessors=[manual, "both"])
        assert order(plan.input) == ["memory-input-filter", "message-history"]
        assert [placed.ref.id for placed in plan.output] == ["message-history", "both"]

    def test_prepare_step_comes_after_memory_too(self):
        plan = planned({**MEMORY, "prepareStep": "stepper"}, memory={})
        assert order(plan.input) == ["memory-input-filter", "message-history", "prepare-step"]

    def test_memory_without_a_thread_is_no_memory(self):
        plan = planned(memory={})
        assert (plan.input, plan.output, opened({}, memory={})[0].memory) == ([], [], None)

    @pytest.mark.parametrize(
        ("request_", "config", "thread", "resource"),
        [
            (MEMORY, {}, "t", "r"),
            ({}, {"thread": "at", "resource": "ar"}, "at", "ar"),
            (MEMORY, {"thread": "at", "resource": "ar"}, "t", "r"),
            (
                {"requestContext": {"mastra__threadId": "ct", "mastra__resourceId": "cr"}, **MEMORY},
                {},
                "ct",
                "cr",
            ),
            ({"requestContext": {"mastra__threadId": "ct"}, **MEMORY}, {}, "ct", "r"),
            ({"requestContext": {"mastra__threadId": "ct"}}, {"thread": "at", "resource": "ar"}, "ct", "ar"),
        ],
    )
    def test_whose_thread_it_is(self, request_, config, thread, resource):
        """R-RX-2: the request context overrides the options of the request, and these the agent's."""
        memory = memory_of(request_, memory=config)
        assert memory["thread"] == {"id": thread}
        assert memory["resourceId"] == resource

    @pytest.mark.parametrize(
        ("asked", "config", "last", "read_only"),
        [
            ({}, {}, 10, False),
            ({}, {"lastMessages": 3, "readOnly": True}, 3, True),
            ({"lastMessages": 5}, {"lastMessages": 3}, 5, False),
            ({"lastMessages": 0}, {"lastMessages": 3}, 0, False),
            ({"lastMessages": False, "readOnly": False}, {"readOnly": True}, False, False),
        ],
    )
    def test_how_much_is_recalled_and_whether_anything_is_saved(self, asked, config, last, read_only):
        request = {"memory": {**MEMORY["memory"], **asked}}
        plan, memory = planned(request, memory=config), memory_of(request, memory=config)
        assert memory["memoryConfig"] == {"lastMessages": last, "readOnly": read_only}
        assert [placed.ref.options for placed in plan.input if placed.ref.id == "message-history"] == (
            [{"lastMessages": last}] if last else []
        )
        assert type(memory["memoryConfig"]["lastMessages"]) is type(last)

    @pytest.mark.parametrize(
        ("own", "asked", "policy"),
        [({}, {}, "queue"), ({"concurrency": "reject"}, {}, "reject"),
         ({"concurrency": "reject"}, {"concurrency": "interrupt"}, "interrupt")],
    )  # fmt: skip
    def test_runs_on_a_thread_take_turns(self, own, asked, policy):
        request = {"memory": {"thread": "t", "resource": "r", **asked}}
        assert opened(request, memory=own)[1] == Line(resource="r", thread="t", policy=policy)

    def test_a_run_that_only_reads_takes_none(self):
        assert opened(MEMORY, memory={"readOnly": True})[1] is None
        assert opened({}, memory={})[1] is None

    def test_working_memory_brings_its_tool(self):
        """R-WIRE-7; a tool of the agent with that name stays."""
        plan = planned(MEMORY, memory={"workingMemory": {"template": "# Me", "scope": "thread"}})
        assert order(plan.input) == ["memory-input-filter", "working-memory", "message-history"]
        assert list(plan.config.tools) == ["updateWorkingMemory"]
        assert (plan.config.tools["updateWorkingMemory"].parameters or {})["required"] == ["memory"]
        for where, note in (
            (plan.input[1].ref, "template"),
            (plan.config.tools["updateWorkingMemory"], "scope"),
        ):
            assert note in where.options
        plan = planned(MEMORY, memory={"workingMemory": {"useStateSignals": True}})
        assert order(plan.input)[-1] == "working-memory-state"
        assert list(plan.config.tools) == ["setWorkingMemory"]
        assert planned(MEMORY, memory={"workingMemory": True, "readOnly": True}).config.tools == {}
        own = {"id": "search", "as": "updateWorkingMemory"}
        assert (
            planned(MEMORY, memory={"workingMemory": True}, tools=[own])
            .config.tools["updateWorkingMemory"]
            .id
            == "search"
        )

    def test_a_request_overrides_single_options(self):
        """R-WIRE-9."""
        config: dict[str, Any] = {"workingMemory": {"template": "# Me", "scope": "thread"}}
        asked: dict[str, Any] = {"memory": {**MEMORY["memory"], "workingMemory": {"scope": "resource"}}}
        plan = planned(asked, memory=config)
        assert plan.input[1].ref.options["scope"] == "resource"
        assert plan.input[1].ref.options["template"]["content"] == "# Me"
        asked = {"memory": {**MEMORY["memory"], "workingMemory": False}}
        assert "working-memory" not in order(planned(asked, memory=config).input)

    def test_semantic_recall_needs_a_vector_store(self):
        """R-WIRE-8."""
        assert refused(MEMORY, memory={"semanticRecall": True}) == (
            "NO_VECTOR_STORE",
            "memory.semanticRecall",
        )
        plan = planned(MEMORY, memory={"semanticRecall": {"topK": 2}, "lastMessages": False}, vectors=True)
        assert (order(plan.input), order(plan.output)) == (
            ["semantic-recall"],
            ["semantic-recall", "message-history"],
        )
        assert plan.input[0].ref.options == {"indexName": "messages", "topK": 2}

    def test_eager_saving_needs_the_hook_of_the_steps(self):
        plan = planned(MEMORY, memory={"save": "eager"})
        assert Hook.INPUT_STEP in plan.input[1].hooks
        assert Hook.INPUT_STEP not in planned(MEMORY, memory={}).input[1].hooks
