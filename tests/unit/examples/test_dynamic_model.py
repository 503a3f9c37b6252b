from examples.processors.dynamic_model import DynamicModel
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import vectors


@vectors("dynamic-model")
async def test_recorded(vector):
    kit = ProcessorKit(DynamicModel, model="openai/agent")
    kit.context.step_number = vector["input"]["stepNumber"]
    kit.context.steps = vector["input"]["steps"]
    config = (await kit.input_step()).config
    wanted = vector["expected"]["result"]
    assert config.model == wanted.get("model", "openai/agent")
    assert config.tool_choice == wanted.get("toolChoice", "auto")


async def test_a_run_begins_fast_and_goes_on_strong_after_a_tool():
    kit = ProcessorKit(DynamicModel, {"fast": "a/small", "strong": "a/big"}, model="a/agent")
    assert (await kit.input_step()).config.model == "a/small"
    kit.answer(tool_calls=[{"toolName": "lookup"}])
    assert (await kit.input_step()).config.model == "a/big"
    kit.answer("done")
    assert (await kit.input_step()).config.model == "a/agent"


async def test_conformance():
    await check_processor(DynamicModel)
