import textwrap
from typing import Any

import pytest

from procession_services.runtime.agents import read_agents
from procession_services.runtime.problems import ConfigurationError, suggestion


@pytest.fixture
def written(tmp_path):
    def write(text, name="agents.yaml"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write


def load_agents(path):
    file = read_agents(path)
    if file.problems:
        raise ConfigurationError(file.problems)
    return file.agents


def problems_of(path):
    with pytest.raises(ConfigurationError) as raised:
        load_agents(path)
    assert str(raised.value) == "\n".join(map(str, raised.value.problems))
    return {(problem.path, problem.message) for problem in raised.value.problems}


def test_agents_by_name(written):
    agents = load_agents(
        written("""
            agents:
              demo:
                model: openai/demo
                inputProcessors: [unicode-normalizer, {id: check, options: {maxLength: 3}}]
                max_steps: 3
                tools: [weather]
              other:
                model: [{model: openai/a}, {model: openai/b, maxRetries: 2}]
                outputProcessors: {factory: per-tenant}
        """)
    )
    assert list(agents) == ["demo", "other"]
    demo: Any = agents["demo"]
    other: Any = agents["other"]
    assert [ref.id for ref in demo.input_processors] == ["unicode-normalizer", "check"]
    assert demo.input_processors[1].options == {"maxLength": 3}
    assert (demo.name, demo.max_steps, demo.tools[0].name) == ("demo", 3, "weather")
    assert other.output_processors.factory == "per-tenant"


def test_agents_as_a_list(written):
    agents = load_agents(written("agents: [{name: a, model: m/x}, {name: b, model: m/x}]"))
    assert list(agents) == ["a", "b"]


@pytest.mark.parametrize(
    "code",
    [
        "from procession import Agent\nagents = [Agent(name='a', model='m/x')]",
        "agents = {'a': {'model': 'm/x'}}",
        "def agents():\n    return [{'name': 'a', 'model': 'm/x'}]",
    ],
)
def test_agents_from_python(written, code):
    assert load_agents(written(code, "agents.py"))["a"].model == "m/x"


def test_everything_that_is_wrong_is_told_at_once_with_its_place_and_remedy(written):
    path = written("""
        agents:
          demo:
            model: openai/demo
            inputProcesors: [unicode-normalizer]
            outputProcessors:
              - {id: redactor, option: {a: 1}}
              - idd: x
            error_processors: {factory: f, optons: {}}
            memory: {lastMessage: 4}
          second:
            model: 5
            max_steps: -1
            toolChoice: sometimes
          third!: {model: m/x}
        agent: 1
    """)
    choices = "should be 'auto', 'none' or 'required' or should be a mapping"
    assert problems_of(path) == {
        ("agent", "unknown key 'agent'; did you mean 'agents'?"),
        ("agents.demo.inputProcesors", "unknown key; did you mean 'inputProcessors'?"),
        ("agents.demo.outputProcessors.0.option", "unknown key; did you mean 'options'?"),
        ("agents.demo.outputProcessors.1.id", "is missing"),
        ("agents.demo.outputProcessors.1.idd", "unknown key; did you mean 'id'?"),
        ("agents.demo.error_processors.optons", "unknown key; did you mean 'options'?"),
        ("agents.demo.memory.lastMessage", "unknown key; did you mean 'lastMessages'?"),
        ("agents.second.model", "should be a valid string or should be a list, not 5"),
        ("agents.second.max_steps", "should be greater than or equal to 0, not -1"),
        ("agents.second.toolChoice", f"{choices}, not 'sometimes'"),
        ("agents.third!.name", "should have only letters, digits, '_' and '-', not 'third!'"),
    }


def test_what_other_libraries_write_is_told_as_it_is_written_here(written):
    path = written("""
        agents:
          demo:
            model: [openai/a]
            systemPrompt: Be brief.
            outputProcessors:
              - {id: pii-detector, strategy: redact}
              - regex-filter: {presets: [secrets]}
            tools: [{id: weather, unit: celsius}]
    """)
    own = "; what it takes itself belongs in `options`: `{id: ..., options: {...}}`"
    known = "unknown key; known: as, factory, id, onError, options, timeout"
    of_tools = "unknown key; known: as, description, id, options, parameters, requireApproval, timeout"
    assert problems_of(path) == {
        ("agents.demo.model.0", "should be a mapping, such as {model: openai/a}"),
        ("agents.demo.systemPrompt", "unknown key; it is `instructions` here"),
        ("agents.demo.outputProcessors.0.strategy", known + own),
        ("agents.demo.outputProcessors.1.id", "is missing"),
        ("agents.demo.outputProcessors.1.regex-filter", known + own),
        ("agents.demo.tools.0.unit", of_tools + own),
    }


def test_a_factory_among_processors_is_told_that_it_makes_the_whole_array(written):
    path = written("agents: {demo: {model: m/x, inputProcessors: [unicode-normalizer, {factory: f}]}}")
    assert problems_of(path) == {
        ("agents.demo.inputProcessors.1.id", "is missing"),
        (
            "agents.demo.inputProcessors.1.factory",
            "a factory takes the place of the whole array: `inputProcessors: {factory: ...}`",
        ),
    }


def test_a_setting_of_the_model_is_told_where_it_belongs(written):
    path = written("agents: {demo: {model: [{model: m/x, max_tokens: 5}], temperature: 1}}")
    assert problems_of(path) == {
        ("agents.demo.temperature", "unknown key; this belongs in `modelSettings`, as `temperature`"),
        (
            "agents.demo.model.0.max_tokens",
            "unknown key; this belongs in `modelSettings`, as `maxOutputTokens`",
        ),
    }


def test_what_a_rule_of_ours_says_is_told_as_it_is(written):
    path = written("agents: {a: {model: m/x, memory: {semanticRecall: {embedder: small}}}}")
    known = "auto, onnx, lexical, or provider/model as in openai/text-embedding-3-small"
    assert problems_of(path) == {
        ("agents.a.memory.semanticRecall.embedder", f"should be {known}, not 'small'")
    }


def test_what_no_message_holds_is_told(written):
    path = written("""
        agents:
          a:
            model: m/x
            inputProcessors:
              - {id: token-limiter, options: {limit: .inf, trim_mode: contiguous}}
              - {id: message-history, options: {lastMessages: 100000000000000000000}}
            tools: [{id: calculator, options: {most: [1, .nan]}}]
            providerOptions: {openai: &own {self: *own}}
          b: {model: m/x, inputProcessors: [{id: token-limiter, options: {limit: 18446744073709551615}}]}
    """)
    remedy = "; give another number, or leave it out"
    assert problems_of(path) == {
        (
            "agents.a.inputProcessors.0.options.limit",
            f"is inf, which is not valid JSON{remedy}",
        ),
        (
            "agents.a.inputProcessors.1.options.lastMessages",
            f"is an integer of more than 64 bits{remedy}",
        ),
        ("agents.a.tools.0.options.most.1", f"is nan, which is not valid JSON{remedy}"),
        ("agents.a.providerOptions.openai.self.self", "contains itself"),
    }


def test_a_value_of_which_several_kinds_are_taken_is_told_where_it_stands(written):
    path = written("agents: {a: {model: m/x, instructions: {role: system}}}")
    assert problems_of(path) == {("agents.a.instructions", "should be a valid string or should be a list")}


def test_known_keys_are_told_once(written):
    path = written("agents: {a: {model: m/x, inputProcessors: [{id: shouter, limit: 5}]}}")
    known = "unknown key; known: as, factory, id, onError, options, timeout; what it takes itself belongs in"
    [(field, told)] = problems_of(path)
    assert field == "agents.a.inputProcessors.0.limit"
    assert told.startswith(known)


def test_the_keys_of_what_a_key_is_in_are_known_and_no_others(written):
    path = written("agents: {a: {model: m/x, memory: {semanticRecall: {topKk: 3}}}}")
    assert problems_of(path) == {
        ("agents.a.memory.semanticRecall.topKk", "unknown key; did you mean 'topK'?")
    }


def test_a_problem_in_yaml_has_a_line(written):
    path = written("agents:\n  demo:\n    model: m/x\n    memory: {lastMesages: 2}\n")
    with pytest.raises(
        ConfigurationError, match=r"agents\.yaml:4: agents\.demo\.memory\.lastMesages: unknown key"
    ):
        load_agents(path)


def test_a_key_that_comes_twice_is_told_with_its_line(written):
    path = written("agents:\n  demo: {model: m/x}\n  other: {model: m/x}\n  demo: {model: m/y}\n")
    with pytest.raises(ConfigurationError, match=r"agents\.yaml:4: is not YAML: the key 'demo' appears"):
        load_agents(path)


def test_what_is_no_yaml_is_told_in_one_line(written):
    path = written("agents:\n  a:\n    model: m/x\n   tools: [x]\n")
    told = (
        "is not YAML: expected <block end>, but found '<block mapping start>', while parsing a block mapping, "
        "which begins on line 2"
    )
    with pytest.raises(ConfigurationError) as raised:
        load_agents(path)
    assert str(raised.value) == f"{path}:4: {told}"


def test_what_is_merged_may_be_written_over(written):
    text = "agents:\n  a: &a {model: m/x, maxSteps: 1}\n  b: &b {<<: *a, maxSteps: 2}\n  c: {<<: *b, maxSteps: 3}\n"
    assert [agent.max_steps for agent in load_agents(written(text)).values()] == [1, 2, 3]


def test_a_file_that_is_nested_too_deeply_is_told(written):
    assert problems_of(written("[" * 3_000)) == {("", "is not YAML: it is nested too deeply")}


def test_two_agents_of_one_name(written):
    path = written("agents: [{name: a, model: m/x}, {name: a, model: m/y}]")
    assert problems_of(path) == {("agents.1.name", "another agent is called 'a', too")}


OWN_CLASS = "from procession import Processor\nclass P(Processor):\n    id = 'p'\n"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("agents.yaml", "agents: [", "is not YAML"),
        ("agents.yaml", "", "must be a mapping with the key 'agents'"),
        ("agents.yaml", "agents: {}", "defines no agents"),
        (
            "agents.py",
            f"{OWN_CLASS}agents = {{'a': {{'model': 'm/x', 'inputProcessors': [P]}}}}",
            r"a\.inputProcessors\.0: name it by its id, such as 'my-guard'",
        ),
        (
            "agents.py",
            f"{OWN_CLASS}agents = {{'a': {{'model': 'm/x', 'outputProcessors': [P.build()]}}}}",
            r"a\.outputProcessors\.0: name it by its id",
        ),
        (
            "agents.py",
            "def f(): ...\nagents = {'a': {'model': 'm/x', 'tools': [f]}}",
            r"a\.tools\.0: name it by its id, .*`registry\.add_processor`, `add_tool`",
        ),
        ("agents.py", "x = 1", "defines no agents"),
        ("agents.py", "1 / 0", r"agents\.py:1: cannot be run: ZeroDivisionError"),
        ("agents.py", "def agents():\n    raise KeyError('k')", r"agents\.py:2: cannot be run: KeyError"),
        ("agents.py", "\nagents = (", r"agents\.py:2: cannot be run: SyntaxError"),
        ("agents.py", "import sys\nsys.exit(0)", r"agents\.py:2: cannot be run: SystemExit: 0"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole(written, name, text, told):
    with pytest.raises(ConfigurationError, match=told):
        load_agents(written(text, name))


def test_a_file_that_is_not_there(tmp_path):
    for name in ("missing.yaml", "missing.py"):
        with pytest.raises(ConfigurationError, match=r"cannot be read: No such file or directory$"):
            load_agents(tmp_path / name)


def test_suggestions():
    known = ["inputProcessors", "outputProcessors"]
    assert suggestion("inputprocessor", known) == "; did you mean 'inputProcessors'?"
    assert suggestion("zzz", known) == "; known: inputProcessors, outputProcessors"
    assert suggestion("zzz", []) == ""
    variables = ["OUR_NATS_USER", "OUR_NATS_URL", "OUR_TENANTS"]
    assert suggestion("OUR_NATS", variables, "OUR_") == "; did you mean 'OUR_NATS_URL'?"
    assert suggestion("chunk", ["chunk_delay", "chunks"]) == "; did you mean 'chunks'?"
    assert suggestion("zzz", map(str, range(50))) == "", "a list of all would hide what is wrong"
    assert suggestion("OUR_VERSION", ["OUR_TENANT", "OUR_MODEL"], "OUR_") == "; known: OUR_MODEL, OUR_TENANT"
    assert suggestion("OUR_MODLE", ["OUR_TENANT", "OUR_MODEL"], "OUR_") == "; did you mean 'OUR_MODEL'?"
