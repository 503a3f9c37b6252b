from examples.processors.moderation_collector import ModerationCollector, ModerationNotice
from procession import Options, OutputStreamArgs, Processor
from procession.testing import ProcessorKit, check_processor
from tests.unit.examples.vectors import vectors


class Plain(Processor[Options]):
    """Does not ask for data chunks."""

    id = "plain"

    def process_output_stream(self, args: OutputStreamArgs):
        args.state.setdefault("seen", []).append(args.part["type"])
        return args.part


class Dropper(Processor[Options]):
    """Drops data chunks."""

    id = "dropper"
    process_data_parts = True

    def process_output_stream(self, args: OutputStreamArgs):
        return None if args.part["type"].startswith("data-") else args.part


BEHIND = {
    "data-part-seen-with-processDataParts": ModerationCollector,
    "data-part-hidden-without-processDataParts": Plain,
    "data-part-dropped-when-null-returned": Dropper,
}


@vectors("data-part")
async def test_recorded(vector):
    behind, wanted = BEHIND[vector["name"]], vector["expected"]
    kit = ProcessorKit(ModerationNotice, then=[behind])
    kit.message_list.add("this is urgent", "input")
    out = await kit.input_step()
    assert [chunk["type"] for chunk in out.written] == wanted["dataChunksReachingClient"]
    state = kit.context.state(behind.id)
    assert state.get("seen", []) == wanted["sink"].get("seen", [])
    levels = [{"level": warning["level"]} for warning in state.get("warnings", [])]
    assert levels == wanted["sink"].get("warnings", [])


async def test_a_notice_is_stored_with_the_answer():
    kit = ProcessorKit(ModerationNotice, then=[ModerationCollector])
    kit.message_list.add("urgent", "input")
    await kit.input_step()
    out = await kit.stream(["hello"])
    assert [p["type"] for p in out.messages[-1]["content"]["parts"]] == ["data-moderation", "text"]


async def test_words_can_be_chosen_and_harmless_messages_pass():
    kit = ProcessorKit(ModerationNotice, {"words": ["hurry"]})
    kit.message_list.add("urgent", "input")
    assert (await kit.input_step()).written == []
    kit.message_list.add("Hurry!", "input")
    assert [c["data"]["word"] for c in (await kit.input_step()).written] == ["hurry"]


async def test_conformance():
    await check_processor(ModerationNotice)
    await check_processor(ModerationCollector, chunk_safe=True)
