"""`structured-output`: what the second model is told, what the client gets, and every way to fail."""

import json

import pytest

from procession.errors import InvalidOptionsError, ProcessorError
from procession.services import ModelAnswer, ModelCallError
from procession.testing import ProcessorKit, ScriptedModels, check_processor, environment
from procession_services.processors.structured_output import StructuredOutput

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "number"}},
    "required": ["name", "age"],
}
ANN = '{"name": "Ann", "age": 30}'
HALF = '{"name": "Ann"}'


def make(*replies, **options):
    models = ScriptedModels(list(replies) or [ANN])
    given = {"schema": SCHEMA, "model": "m/second", **options}
    return ProcessorKit(StructuredOutput, given, environment=environment(models)), models


def objects(out):
    return [chunk for chunk in out.chunks if chunk["type"].startswith("object")]


def shown(out):
    return [(c["type"], c["object"]) for c in objects(out)]


def told(models):
    return models.requests[-1].prompt[-1]["content"]


class TestObject:
    async def test_the_text_streams_and_the_object_follows(self):
        kit, models = make()
        out = await kit.stream(["Ann is ", "30"])
        assert out.deltas == ["Ann is ", "30"]
        ann = {"name": "Ann", "age": 30}
        assert shown(out) == [("object", ann), ("object-result", ann)]
        assert {c["metadata"]["from"] for c in objects(out)} == {"structured-output"}
        assert kit.context.response["object"]["object"] == ann
        assert len(models.requests) == 1
        assert (await kit.output_step()).tripwire is None

    async def test_the_object_comes_before_finish(self):
        kit, _ = make()
        seen = []

        class Behind(StructuredOutput):
            id = "behind"

            def process_output_stream(self, args):
                seen.append(args.part["type"])
                return args.part

        behind = Behind.build({"schema": {}, "model": "m/x"})
        models = environment(ScriptedModels([ANN]))
        kit = ProcessorKit(
            StructuredOutput, {"schema": SCHEMA, "model": "m/x"}, then=[behind], environment=models
        )
        await kit.stream(["Ann is 30"])
        assert seen[-3:] == ["object", "object-result", "finish"]

    async def test_the_object_grows_as_the_second_model_wrote_it(self):
        pieces = ['{"name": "A', 'nn", ', '"age": 30}']
        chunks = [{"type": "text-delta", "payload": {"id": "1", "text": each}} for each in pieces]
        kit, _ = make(ModelAnswer(text=ANN, chunks=chunks))
        out = await kit.stream(["Ann is 30"])
        assert shown(out) == [
            ("object", {"name": "A"}),
            ("object", {"name": "Ann"}),
            ("object", {"name": "Ann", "age": 30}),
            ("object-result", {"name": "Ann", "age": 30}),
        ]

    async def test_a_long_answer_shows_a_bounded_number_of_partial_objects(self):
        text = json.dumps({"list": list(range(3000))})
        chunks = [{"type": "text-delta", "payload": {"id": "1", "text": each}} for each in text]
        kit, _ = make(ModelAnswer(text=text, chunks=chunks), schema={})
        assert len(objects(await kit.stream(["numbers"]))) <= 17

    async def test_tool_calls_do_not_end_an_answer(self):
        kit, models = make()
        await kit.stream(["let me see"], tool_calls=[{"toolName": "look"}])
        assert models.requests == []


class TestQuestion:
    async def test_the_model_gets_the_schema_and_the_request_settings(self):
        kit, models = make(providerOptions={"openai": {"seed": 1}}, jsonPromptInjection=True)
        await kit.stream(["Ann is 30"])
        (request,) = models.requests
        assert request.model == "m/second"
        assert request.schema == SCHEMA
        assert request.json_prompt_injection
        assert request.provider_options == {"openai": {"seed": 1}}
        assert '"age"' in request.prompt[0]["content"]

    async def test_instructions_replace_the_system_prompt(self):
        kit, models = make(instructions="Only names.")
        await kit.stream(["Ann"])
        assert models.requests[0].prompt[0] == {"role": "system", "content": "Only names."}

    async def test_sections_come_in_order_and_only_those_that_there_are(self):
        kit, models = make()
        await kit.stream(["Ann is 30"])
        assert "# Assistant Response\nAnn is 30" in told(models)
        assert [line for line in told(models).splitlines() if line.startswith("# ")] == [
            "# Assistant Response"
        ]

    async def test_steps_with_tools_are_part_of_the_answer(self):
        kit, models = make()
        call = {"toolCallId": "c", "toolName": "look", "args": {"at": "Ann"}}
        finish = {"stepResult": {"reason": "stop"}, "output": {"usage": {}}}
        await kit.stream(
            [
                {"type": "step-start", "payload": {}},
                {"type": "reasoning-delta", "payload": {"id": "r", "text": "who?"}},
                {"type": "tool-call", "payload": call},
                {"type": "tool-result", "payload": {**call, "result": {"age": 30}}},
                {"type": "step-finish", "payload": {"stepResult": {"reason": "tool-calls"}}},
                {"type": "step-start", "payload": {}},
                {"type": "text-delta", "payload": {"id": "1", "text": "She is 30"}},
                {"type": "finish", "payload": finish},
            ]
        )
        titles = [line for line in told(models).splitlines() if line.startswith("# ")]
        assert titles == ["# Assistant Reasoning", "# Tool Calls", "# Tool Results", "# Assistant Response"]
        assert 'look\n  input: {"at": "Ann"}' in told(models)
        assert 'look: {"age": 30}' in told(models)

    async def test_an_attempt_that_was_taken_back_is_not_part_of_it(self):
        kit, models = make(HALF, ANN)
        await kit.stream(["wrong"])
        assert (await kit.output_step()).blocked.retry
        out = await kit.stream(["Ann is 30"])
        assert "wrong" not in told(models)
        assert shown(out)[-1] == ("object-result", {"name": "Ann", "age": 30})
        assert (await kit.output_step()).tripwire is None

    async def test_an_attempt_that_failed_before_its_fallback_is_not_part_of_it(self):
        kit, models = make()
        finish = {"stepResult": {"reason": "stop"}, "output": {"usage": {}}}
        await kit.stream(
            [
                {"type": "step-start", "payload": {}},
                {"type": "text-delta", "payload": {"id": "1", "text": "half an"}},
                {"type": "step-start", "payload": {}},
                {"type": "text-delta", "payload": {"id": "1", "text": "Ann is 30"}},
                {"type": "finish", "payload": finish},
            ]
        )
        assert "half an" not in told(models)

    @pytest.mark.parametrize(("thread", "asked"), [({"thread": {"id": "t"}}, True), (None, False)])
    async def test_use_agent_shows_the_conversation_in_a_thread(self, thread, asked):
        models = ScriptedModels([ANN])
        context = {"MastraMemory": thread} if thread else {}
        given = {"schema": SCHEMA, "model": "m/x", "useAgent": True}
        kit = ProcessorKit(StructuredOutput, given, environment=environment(models), request_context=context)
        kit.message_list.add("How old is Ann?", "input")
        await kit.stream(["30"])
        assert ("How old is Ann?" in json.dumps(models.requests[0].prompt)) is asked


class TestFailure:
    @pytest.mark.parametrize("reply", [HALF, "no json", ModelCallError("down")])
    async def test_strict_asks_for_another_answer(self, reply):
        kit, _ = make(reply)
        out = await kit.stream(["Ann"])
        assert out.text == "Ann"
        assert "object-result" not in [kind for kind, _ in shown(out)]
        tripwire = (await kit.output_step()).blocked
        assert tripwire.retry
        assert tripwire.processor_id == "structured-output"
        assert tripwire.metadata["error"]["error"] in tripwire.reason

    async def test_a_partial_object_is_not_taken_back(self):
        kit, _ = make(HALF)
        assert shown(await kit.stream(["Ann"])) == [("object", {"name": "Ann"})]

    @pytest.mark.parametrize("reply", [HALF, ModelCallError("down")])
    async def test_warn_goes_on_without_an_object(self, reply):
        kit, _ = make(reply, errorStrategy="warn")
        out = await kit.stream(["Ann"])
        assert "object-result" not in [kind for kind, _ in shown(out)]
        assert (await kit.output_step()).tripwire is None
        assert [tally.warnings for tally in kit.calls.reports.values()] == [1, 0]

    @pytest.mark.parametrize("reply", [HALF, ModelCallError("down")])
    async def test_fallback_gives_its_value(self, reply):
        kit, _ = make(reply, errorStrategy="fallback", fallbackValue={"name": "none", "age": 0})
        last = objects(await kit.stream(["Ann"]))[-1]
        assert last == {
            "type": "object-result",
            "object": {"name": "none", "age": 0},
            "metadata": {"from": "structured-output", "fallback": True},
        }
        assert (await kit.output_step()).tripwire is None

    @pytest.mark.parametrize("strategy", [{}, {"errorStrategy": "strict"}])
    async def test_a_fallback_value_is_not_used_where_the_strategy_is_strict(self, strategy):
        kit, _ = make(HALF, fallbackValue={"name": "none", "age": 0}, **strategy)
        out = await kit.stream(["Ann"])
        assert "object-result" not in [kind for kind, _ in shown(out)]
        assert (await kit.output_step()).blocked.retry

    async def test_fallback_without_a_value_fails_the_run(self):
        kit, _ = make(ModelCallError("down"), errorStrategy="fallback")
        out = await kit.stream(["Ann"])
        assert out.text == "Ann"
        with pytest.raises(ProcessorError, match="down") as caught:
            await kit.output_step()
        assert (caught.value.processor_id, caught.value.code) == (
            "structured-output",
            "STRUCTURED_OUTPUT_FAILED",
        )

    async def test_a_failure_belongs_to_its_attempt(self):
        """Another processor rejected that attempt; the next one calls tools and so is not structured."""
        kit, _ = make(HALF)
        await kit.stream(["Ann"])
        kit._run.reject("retry")
        await kit.stream([], tool_calls=[{"toolName": "look"}])
        assert (await kit.output_step()).tripwire is None


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"model": "m/x"}, "STRUCTURED_OUTPUT_PROCESSOR_SCHEMA_REQUIRED"),
            ({"schema": {}}, "STRUCTURED_OUTPUT_PROCESSOR_MODEL_REQUIRED"),
            ({"schema": {}, "model": None}, "STRUCTURED_OUTPUT_PROCESSOR_MODEL_REQUIRED"),
            ({"schema": {"type": 5}, "model": "m/x"}, "type is not a valid JSON Schema"),
            ({"schema": {}, "model": "m/x", "errorStrategy": "hope"}, "errorStrategy"),
        ],
    )
    def test_what_is_missing_or_wrong_is_named(self, options, told):
        with pytest.raises(InvalidOptionsError, match=told):
            StructuredOutput.build(options)

    def test_a_schema_may_be_of_an_earlier_draft(self):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]}
        StructuredOutput.build({"schema": schema, "model": "m/x"})

    async def test_it_keeps_the_rules_of_every_processor(self):
        await check_processor(
            StructuredOutput,
            {"schema": SCHEMA, "model": "m/x", "errorStrategy": "warn"},
            chunk_safe=True,
        )
