from functools import partial, wraps
from typing import Any

import pytest

from procession import InputArgs, Options, Processor, Registry, Tool, tool
from procession_schemas.agent import Agent
from procession_schemas.memory import OBSERVING_MODEL
from procession_services.demo import processors as demo
from procession_services.llm_gateway.providers.litellm_provider import LiteLLMProvider
from procession_services.runtime.check import check, check_agent, checked_agents, models_of
from procession_services.runtime.problems import ConfigurationError
from procession_services.runtime.settings import Settings


class Echo(Options):
    delay_ms: int = 0


class Shout(Options):
    volume: int = 3
    echo: Echo | None = None
    echoes: list[Echo] | None = None
    rooms: dict[str, Echo] | None = None


class Shouter(Processor[Shout]):
    id = "shouter"

    def process_input(self, args: InputArgs):
        return None


@tool
def dice(sides: int) -> int:
    """Rolls."""
    return sides


@pytest.fixture
def registry():
    registry = Registry()
    demo.register(registry)
    registry.add_processor(Shouter)
    registry.add_tool(dice)
    registry.factories["per-tenant"] = lambda context, options: []
    registry.stop_conditions["after-one"] = lambda steps, options: True
    return registry


def told(registry, model_problem=None, **fields):
    agent = Agent.model_validate({"name": "a", "model": "m/x", **fields})
    return [(p.path, p.message) for p in check_agent(agent, registry, model_problem)]


def test_a_good_agent_has_no_problems(registry):
    assert (
        told(
            registry,
            inputProcessors=["shouter", "question-check"],
            outputProcessors={"factory": "per-tenant"},
            errorProcessors=["retry-once"],
            stopWhen=["after-one"],
            tools=["dice"],
        )
        == []
    )


def test_unknown_names_are_told_with_the_nearest_known_one(registry):
    assert told(
        registry,
        inputProcessors=["shoutr"],
        outputProcessors={"factory": "per-tennant"},
        stopWhen=["after-on"],
        tools=["dicee"],
        prepareStep="shoutr",
    ) == [
        ("agents.a.inputProcessors.0.id", "unknown processor 'shoutr'; did you mean 'shouter'?"),
        ("agents.a.outputProcessors.factory", "unknown factory 'per-tennant'; did you mean 'per-tenant'?"),
        ("agents.a.prepareStep.id", "unknown processor 'shoutr'; did you mean 'shouter'?"),
        ("agents.a.stopWhen.0.id", "unknown stop condition 'after-on'; did you mean 'after-one'?"),
        ("agents.a.tools.0.id", "unknown tool 'dicee'; did you mean 'dice'?"),
    ]


def test_options_are_checked_by_the_processors_own_model(registry):
    wrong = {"id": "shouter", "options": {"volume": "loud", "volum": 1}}
    paths = dict(told(registry, inputProcessors=[wrong]))
    assert paths["agents.a.inputProcessors.0.options.volum"] == "unknown option; did you mean 'volume'?"
    assert "valid integer" in paths["agents.a.inputProcessors.0.options.volume"]
    assert told(registry, tools=[{"id": "dice", "options": {"colour": "red"}}])[0][0] == (
        "agents.a.tools.0.options.colour"
    )


def test_an_unknown_option_within_another_is_told_with_those_that_are_there(registry):
    options = {"echo": {"volum": 1}, "echoes": [{"delayms": 1}], "rooms": {"volume": {"delay": 1}}}
    paths = dict(told(registry, inputProcessors=[{"id": "shouter", "options": options}]))
    assert paths == {
        "agents.a.inputProcessors.0.options.echo.volum": "unknown option; known: delayMs",
        "agents.a.inputProcessors.0.options.echoes.0.delayms": "unknown option; did you mean 'delayMs'?",
        "agents.a.inputProcessors.0.options.rooms.volume.delay": "unknown option; did you mean 'delayMs'?",
    }


def test_options_of_stop_conditions_are_checked(registry):
    def after(steps, options: Shout):
        return True

    registry.stop_conditions["after"] = after
    registry.stop_conditions["unasked"] = lambda steps: True
    when = [
        {"id": "after", "options": {"volume": 2}},
        {"id": "after", "options": {"volume": "loud"}},
        "unasked",
    ]
    (path, message), (other, fails) = told(registry, stopWhen=when)
    assert path == "agents.a.stopWhen.1.options.volume"
    assert "valid integer" in message
    assert other == "agents.a.stopWhen.2.id"
    assert fails.startswith("stop condition unasked: TypeError: ")


class Disconnected(Shouter):
    id = "disconnected"

    def __init__(self, options: Shout):
        raise RuntimeError("no database")


class Hammer(Tool):
    id = "hammer"

    def __init__(self, options):
        raise RuntimeError("no handle")


class Misnamed(Shouter):
    id = "misnamed"

    @classmethod
    def hooks_for(cls, options):
        return {"process_inputs"}


def test_components_whose_own_code_fails_are_told_with_its_line(registry):
    registry.add_processor(Disconnected)
    registry.add_processor(Misnamed)
    registry.add_tool(Hammer)
    (path, first), (_, second), (tool_path, third) = told(
        registry, inputProcessors=["disconnected", "misnamed"], tools=["hammer"]
    )
    assert (path, tool_path) == ("agents.a.inputProcessors.0.id", "agents.a.tools.0.id")
    assert first.startswith(f"processor disconnected: RuntimeError: no database ({__file__}:")
    assert "misnamed: TypeError: hooks_for returned {'process_inputs'}; it should return a set of" in second
    assert third.startswith(f"tool hammer: RuntimeError: no handle ({__file__}:")


def test_a_processor_that_would_never_run_is_a_problem(registry):
    [(path, message)] = told(registry, outputProcessors=["shouter"])
    assert path == "agents.a.outputProcessors.0.id"
    assert "shouter would never run here: its hooks are processInput" in message


class Holder(Processor[Options]):
    id = "holder"
    on_error = "skip"

    def process_output_stream(self, args):
        return None

    def flush_stream(self, args):
        return None


def test_a_processor_that_holds_parts_of_a_stream_must_not_skip_its_failures(registry):
    registry.add_processor(Holder)
    refs = ["holder", {"id": "holder", "onError": "skip"}, {"id": "holder", "onError": "fail"}]
    problems = told(registry, outputProcessors=refs)
    assert [path for path, _ in problems] == [
        "agents.a.outputProcessors.0.onError",
        "agents.a.outputProcessors.1.onError",
    ]
    assert "could lose or reorder what it holds; use onError: fail" in problems[0][1]


class Beside(Processor[Options]):
    id = "beside"
    host = "memory"

    @classmethod
    def runs_parallel(cls, options):
        return True

    def process_input(self, args):
        return None


def test_a_processor_of_another_service_cannot_run_beside_the_model(registry):
    registry.add_processor(Beside)
    [(path, message)] = told(registry, inputProcessors=["beside"])
    assert path == "agents.a.inputProcessors.0.options"
    assert "runs in memory" in message


class Nowhere(Processor[Options]):
    id = "nowhere"
    host = "input-processors"

    def process_input_step(self, args):
        return None


class StreamsInMemory(Processor[Options]):
    id = "streams-in-memory"
    host = "memory"

    def process_output_stream(self, args):
        return args.part


def test_a_processor_whose_host_cannot_run_it_is_told(registry):
    registry.add_processor(Nowhere)
    registry.add_processor(StreamsInMemory)
    agent = {
        "inputProcessors": ["nowhere"],
        "outputProcessors": ["streams-in-memory"],
        "prepareStep": "nowhere",
    }
    problems = dict(told(registry, **agent))
    assert sorted(problems) == [
        "agents.a.inputProcessors.0.id",
        "agents.a.outputProcessors.0.id",
        "agents.a.prepareStep.id",
    ]
    assert (
        "not a service; use one of input_processors, llm_gateway" in problems["agents.a.inputProcessors.0.id"]
    )
    assert (
        "stream and tool-result hooks can only run in output_processors"
        in problems["agents.a.outputProcessors.0.id"]
    )


def test_models_are_checked_by_the_function_that_knows_them(registry):
    def model_problem(name):
        return None if name == "m/x" else f"unknown model {name!r}"

    assert told(registry, model_problem) == []
    assert told(registry, model_problem, model=[{"model": "m/x"}, {"model": "m/y"}]) == [
        ("agents.a.model.1.model", "unknown model 'm/y'")
    ]
    assert told(registry, model_problem, structured_output={"schema": {}, "model": "m/z"}) == [
        ("agents.a.structuredOutput.model", "unknown model 'm/z'")
    ]


def test_models_that_make_notes_are_checked_the_default_too(registry):
    def models_of_memory(observing):
        agent = Agent.model_validate({"name": "a", "memory": {"observationalMemory": observing}})
        return [use.model for use in models_of([agent], None)]

    assert models_of_memory(True) == [OBSERVING_MODEL]
    assert models_of_memory({"model": "m/x"}) == ["m/x"]
    assert models_of_memory({"observation": {"model": "m/y"}}) == [OBSERVING_MODEL, "m/y"]
    both = {"observation": {"model": "m/y"}, "reflection": {"model": "m/z"}}
    assert told(
        registry, lambda name: None if name == "m/x" else "no", memory={"observationalMemory": both}
    ) == [
        ("agents.a.memory.observationalMemory.observation.model", "no"),
        ("agents.a.memory.observationalMemory.reflection.model", "no"),
    ]


@pytest.mark.parametrize(
    ("embedder", "wrong"), [("m/x", False), ("m/y", True), ("lexical", False), (None, False)]
)
def test_the_embedder_of_an_agent_is_checked(registry, embedder, wrong):
    memory = {"semanticRecall": {"embedder": embedder}}
    found = told(registry, lambda name: None if name == "m/x" else "no", memory=memory)
    assert found == [("agents.a.memory.semanticRecall.embedder", "no")] * wrong


@pytest.mark.parametrize(("embedder", "wrong"), [("m/x", False), ("m/y", True), ("auto", False)])
def test_so_is_that_of_agents_that_name_none(tmp_path, embedder, wrong):
    file = tmp_path / "agents.yaml"
    file.write_text("agents: {a: {model: m/x, memory: {semanticRecall: true}}}")
    found = check(Settings(agents=file, embedder=embedder), lambda model: None if model == "m/x" else "no")
    assert [(each.where, each.message) for each in found] == [("PROCESSION_EMBEDDER", "no")] * wrong


def test_the_default_of_the_models_that_make_notes_is_one_that_there_is():
    assert LiteLLMProvider().knows(OBSERVING_MODEL)


@pytest.mark.parametrize("given", ["api.openai.com/v1", "ftp://x", "http://", "http://x:port/v1"])
def test_an_address_of_a_provider_that_is_none_is_told(registry, given):
    assert told(registry, apiBase=given) == [("agents.a.apiBase", "should be like https://api.openai.com/v1")]
    assert told(registry, apiBase="http://127.0.0.1:8399/v1") == []


def test_schemas_that_are_none_are_told_with_their_place(registry):
    wrong = {"type": "object", "properties": {"n": {"type": "nubmer"}}}
    paths = [
        path
        for path, _ in told(
            registry,
            tools=[{"id": "dice", "parameters": wrong}],
            structuredOutput={"schema": wrong},
            memory={"workingMemory": {"schema": wrong}},
        )
    ]
    assert paths == [
        "agents.a.tools.0.parameters.properties.n.type",
        "agents.a.structuredOutput.schema.properties.n.type",
        "agents.a.memory.workingMemory.schema.properties.n.type",
    ]


def test_an_agent_without_a_model_is_a_warning(registry):
    [problem] = check_agent(Agent(name="a"), registry)
    assert problem.warning
    assert str(problem) == "agents.a.model: warning: no model; every request must name one"


def test_the_whole_file_is_checked_with_the_plugins(tmp_path):
    path = tmp_path / "agents.yaml"
    path.write_text("agents: {a: {model: m/x, inputProcessors: [question-check, nonsense-processor]}}")
    settings = Settings(agents=path, plugins=("procession_services.demo.processors",))
    [problem] = check(settings)
    assert problem.path == "agents.a.inputProcessors.1.id"


def test_no_file_is_a_warning_and_a_wrong_plugin_a_problem():
    [problem] = check(Settings())
    assert problem.warning
    problems = check(Settings(plugins=("no_such_module", "no_such_other")))
    assert [(problem.where, problem.warning) for problem in problems] == [("PROCESSION_PLUGINS", False)] * 2
    assert "no_such_other" in problems[1].message


def test_models_are_listed_with_where_they_are_reached():
    ref = {"id": "moderation", "options": {"model": "m/judge"}}
    first = Agent.model_validate(
        {"name": "a", "model": [{"model": "m/x"}, {"model": "m/y"}], "outputProcessors": [ref]}
    )
    structured = {"schema": {"type": "object"}, "model": "m/structurer"}
    second = Agent.model_validate(
        {
            "name": "b",
            "model": "m/x",
            "apiBase": "http://own",
            "inputProcessors": [ref],
            "structuredOutput": structured,
        }
    )
    uses = [(use.model, use.api_base) for use in models_of([first, second], "http://all")]
    assert uses == [
        ("m/judge", "http://all"), ("m/structurer", "http://all"), ("m/x", "http://all"), ("m/x", "http://own"),
        ("m/y", "http://all"),
    ]  # fmt: skip


def test_a_component_whose_library_is_missing_is_a_problem(registry):
    def load():
        raise ModuleNotFoundError(name="presidio")

    registry.processors.add_unloaded("heavy", load)
    registry.tools.add_unloaded("saw", load)
    problems = told(registry, inputProcessors=["heavy"], tools=["saw"])
    assert [path for path, _ in problems] == ["agents.a.inputProcessors.0.id", "agents.a.tools.0.id"]
    assert all("needs the module presidio" in message for _, message in problems)


def test_agents_that_would_not_run_are_no_configuration(registry, tmp_path):
    file = tmp_path / "agents.yaml"
    file.write_text("agents: {a: {inputProcessors: [shouter]}, b: {model: m/x, tools: [dicee]}}")
    with pytest.raises(ConfigurationError, match="did you mean 'dice'"):
        checked_agents(file, registry=registry)
    file.write_text("agents: {a: {inputProcessors: [shouter]}}")  # without a model it is only a warning
    assert list(checked_agents(file, registry=registry)) == ["a"]


def test_everything_that_is_wrong_in_a_file_is_told_at_once_with_its_line(tmp_path):
    file = tmp_path / "agents.yaml"
    file.write_text(
        """agents:
  - name: a
    model: m/x
    maxStep: 3
    input_processors:
      - unicode-normaliser
      - {id: unicode-normalizer, timeout: -1, options: {from: NFKC}}
    tools:
      - wether
    memory: often
  - name: b
    model: m/x
    outputProcessors:
      - unicode-normalizer
"""
    )
    told = [(int(p.where.removeprefix(f"{file}:")), p.path) for p in check(Settings(agents=file))]
    assert told == [
        (4, "agents.0.maxStep"),
        (6, "agents.a.inputProcessors.0.id"),
        (7, "agents.0.input_processors.1.timeout"),
        (7, "agents.a.inputProcessors.1.options.from"),
        (9, "agents.a.tools.0.id"),
        (10, "agents.0.memory"),
        (14, "agents.b.outputProcessors.0.id"),
    ]
    file.write_text("agents: {a: {model: 5}}")
    assert [problem.path for problem in check(Settings(agents=file))] == ["agents.a.model"]


class _Optional(Shouter):
    id = "optional"

    @classmethod
    def hooks_for(cls, options):
        return super().hooks_for(options) if options.get("volume") else frozenset()


def test_a_processor_that_its_options_leave_nothing_to_do_is_fine_where_it_could_do_something(registry):
    registry.add_processor(_Optional)
    assert told(registry, inputProcessors=["optional"]) == []
    [(_, message)] = told(registry, outputProcessors=["optional"])
    assert "optional would never run here" in message


def test_two_tools_of_one_name_are_told(registry):
    assert told(registry, tools=["dice", {"id": "dice", "as": "coin"}]) == []
    assert told(registry, tools=["dice", "dice"]) == [
        ("agents.a.tools.1", "two tools are called 'dice'; rename one with `as`")
    ]


@pytest.mark.parametrize("model", ["[m/x, m/y]", "5"])
@pytest.mark.parametrize("agents", ["{{a: {{model: {}}}}}", "[{{name: a, model: {}}}]"])
def test_a_model_that_is_wrong_is_not_told_to_be_missing(tmp_path, model, agents):
    file = tmp_path / "agents.yaml"
    file.write_text(f"agents: {agents.format(model)}")
    problems = check(Settings(agents=file))
    assert problems
    assert not any(problem.warning for problem in problems)


def test_a_setting_that_is_not_sent_is_told(registry):
    entry = {"model": "m/x", "modelSettings": {"temprature": 1, "top_p": 1}}
    agent = Agent.model_validate(
        {"name": "a", "model": [entry], "modelSettings": {"max_tokens": 5, "max_output_tokens": 5, "seed": 1}}
    )
    found = list(check_agent(agent, registry))
    assert all(problem.warning for problem in found)
    assert [(problem.path, problem.message) for problem in found] == [
        (
            "agents.a.modelSettings.max_tokens",
            "unknown setting, which is not sent; did you mean 'maxOutputTokens'?",
        ),
        (
            "agents.a.model.0.modelSettings.temprature",
            "unknown setting, which is not sent; did you mean 'temperature'?",
        ),
    ]


def test_options_of_a_provider_that_no_model_has_are_told(registry):
    options: dict[str, Any] = {"gemini": {"thinking": {}}, "google": {"thinkingConfig": {}}}
    agent = {"name": "a", "model": "gemini/x", "providerOptions": options}
    [found] = check_agent(Agent.model_validate(agent), registry)
    assert (found.path, found.warning) == ("agents.a.providerOptions.google", True)
    assert found.message == "not sent: no model here is from 'google', only from gemini"
    both = [{"model": "gemini/x"}, {"model": "google/x"}]
    assert not list(check_agent(Agent.model_validate({**agent, "model": both}), registry))


def test_an_active_tool_that_there_is_not_is_told(registry):
    active = ["weather", "wether", "dice"]  # a processor may add the last one
    agent = {"name": "a", "model": "m/x", "tools": [{"id": "dice", "as": "weather"}], "activeTools": active}
    [found] = check_agent(Agent.model_validate(agent), registry)
    assert (found.path, found.warning) == ("agents.a.activeTools.1", True)
    assert found.message == "no tool is called 'wether'; did you mean 'weather'?"


class _Mastra(Processor[Options]):
    id = "as-in-mastra"

    def process_input(self, messages, abort):  # type: ignore[override] # as Mastra has it
        return None


class _Forgotten(Processor[Options]):
    id = "forgotten"

    def process_input():  # type: ignore[misc, override] # what an author forgets
        return None


class _Yields(Processor[Options]):
    id = "yields"

    async def process_input(self, args):
        yield args.messages


class _Bound(Processor[Options]):
    id = "bound"

    @staticmethod
    def process_input(args, more=None):
        return None

    @classmethod
    def process_input_step(cls, args):
        return None


def _with_log(hook):
    @wraps(hook)
    def wrapped(self, args):
        return hook(self, args, print)

    return wrapped


class _Wrapped(Processor[Options]):
    id = "wrapped"
    process_input_step = partial(lambda log, args: None, print)

    @_with_log
    def process_input(self, args, log):
        return None


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (_Mastra, ["process_input has the signature (self, messages, abort); a hook takes (self, args)"]),
        (_Forgotten, ["process_input has the signature (); a hook takes (self, args)"]),
        (_Yields, ["process_input uses yield; return the value instead, and several chunks as a list"]),
        (_Bound, []),
        (_Wrapped, []),
    ],
)
def test_a_hook_that_nobody_could_call_is_told(registry, kind, wrong):
    registry.add_processor(kind)
    assert told(registry, inputProcessors=[kind.id]) == [
        ("agents.a.inputProcessors.0.id", f"{kind.id}: {each}") for each in wrong
    ]


def test_a_method_whose_name_is_nearly_that_of_a_hook_is_told(registry):
    class Mastra(Processor[Options]):
        id = "mastra"

        def process_input(self, args: InputArgs):
            return None

        async def processAPIError(self, args):  # noqa: N802
            return None

        def process_image(self):
            return None

    registry.add_processor(Mastra)
    agent = Agent.model_validate({"name": "a", "model": "m/x", "inputProcessors": ["mastra"]})
    [problem] = check_agent(agent, registry)
    assert problem.warning
    assert problem.message == (
        "mastra has a method processAPIError, which is not a hook; did you mean process_api_error?"
    )
