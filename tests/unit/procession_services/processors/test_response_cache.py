"""Which requests count as the same, and which answers are kept."""

import pytest

from procession.errors import InvalidOptionsError, ProcessionError
from procession.processor import Options, Processor
from procession.testing import DictStore, ProcessorKit, check_processor, environment
from procession_services.processors.response_cache import CONTEXT_KEY, ResponseCache

QUESTION = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]


class Cache(ResponseCache):
    """The same under an id that the checker takes."""

    id = "response-cache"


class Broken(DictStore):
    """A store that cannot be read, or not be written."""

    def __init__(self, *failing):
        super().__init__()
        self.failing = failing

    async def get(self, key):
        if "get" in self.failing:
            raise ProcessionError("away")
        return await super().get(key)

    async def put(self, key, value, **options):
        if "put" in self.failing:
            raise ProcessionError("away")
        return await super().put(key, value, **options)


def setting(config):
    class Setting(Processor[Options]):
        """A processor behind the cache that changes how the model is called."""

        id = "setting"

        def process_input_step(self, args):
            return config

    return Setting


class World:
    """Runs that share a store and a clock."""

    def __init__(self, options=None, store=None, processor=ResponseCache):
        self.at = 0.0
        self.store = store or DictStore(lambda: self.at)
        self.options, self.processor = options, processor

    def kit(self, **more):
        made = environment(store=self.store, now=lambda: self.at)
        return ProcessorKit(self.processor, self.options, environment=made, **more)

    async def asked(self, prompt=QUESTION, *, answer="hey", config=None, step=0, **more):
        """Asks once, and answers where the cache has nothing; returns what the cache had."""
        kit = self.kit(then=[setting(config)], **more)
        await kit.input_step()
        kit.context.step_number = step
        out = await kit.llm_request([dict(entry) for entry in prompt])
        if out.response is None and answer is not None:
            await kit.llm_response([answer] if isinstance(answer, str) else answer)
        return out.response


def ending(reason):
    return {"type": "finish", "payload": {"stepResult": {"reason": reason}, "output": {"usage": {}}}}


def text(response):
    return "".join(c["payload"].get("text", "") for c in response["chunks"] if c["type"] == "text-delta")


class TestHits:
    async def test_the_same_request_is_answered_with_the_answer_of_then(self):
        world = World()
        assert await world.asked() is None
        assert text(await world.asked(answer=None)) == "hey"

    async def test_an_answer_is_kept_for_its_time(self):
        world = World({"ttl": 10})
        await world.asked()
        world.at = 9.9
        assert await world.asked(answer=None)
        world.at = 10
        assert await world.asked(answer=None) is None

    async def test_a_replayed_answer_is_not_kept_anew(self):
        world = World({"ttl": 10})
        await world.asked()
        world.at = 9
        kit = world.kit()
        assert (await kit.llm_request(list(QUESTION))).response
        await kit.llm_response(["hey"], from_cache=True)
        world.at = 11
        assert await world.asked(answer=None) is None

    async def test_bust_asks_and_keeps(self):
        world = World()
        await world.asked(answer="old")
        busting = {CONTEXT_KEY: {"bust": True}}
        assert await world.asked(answer="new", request_context=busting) is None
        assert text(await world.asked(answer=None)) == "new"


class TestKey:
    """D-23: whatever changes the answer makes another request."""

    @pytest.mark.parametrize(
        "config",
        [
            {"model_settings": {"temperature": 1}},
            {"tools": {"t": {"id": "echo", "description": "d", "parameters": {"type": "object"}}}},
            {"tool_choice": "none"},
            {"active_tools": []},
            {"provider_options": {"openai": {"seed": 1}}},
            {"structured_output": {"schema": {"type": "object"}}},
        ],
    )
    async def test_settings_and_tools_count_whoever_sets_them(self, config):
        world = World()
        await world.asked()
        assert await world.asked(answer="other", config=config) is None
        assert text(await world.asked(answer=None, config=config)) == "other"
        assert text(await world.asked(answer=None)) == "hey"

    async def test_what_the_model_does_not_see_does_not_count(self):
        world = World()
        await world.asked()
        assert await world.asked(answer=None, config={"model_settings": {"maxRetries": 3, "timeout": 5}})

    async def test_prompt_model_and_step_count(self):
        world = World()
        await world.asked()
        other = [{"role": "user", "content": [{"type": "text", "text": "hi!"}]}]
        assert await world.asked(other, answer=None) is None
        assert await world.asked(answer=None, model="test/other") is None
        assert await world.asked(answer=None, step=1) is None

    async def test_users_do_not_share_unless_told_to(self):
        ann, bob = ({"mastra__resourceId": name} for name in ("ann", "bob"))
        world = World()
        await world.asked(request_context=ann)
        assert await world.asked(answer=None, request_context=bob) is None
        assert await world.asked(answer=None, request_context=ann)
        remembered = {"MastraMemory": {"thread": {"id": "t"}, "resourceId": "ann"}}
        assert await world.asked(answer=None, request_context=remembered)
        shared = World({"scope": None})
        await shared.asked(request_context=ann)
        assert await shared.asked(answer=None, request_context=bob)

    async def test_a_given_key_is_one_key_for_each_step(self):
        """D-77: else the second step would get the tool call of the first one again."""
        world = World({"key": "pinned"})
        await world.asked(answer="first")
        assert await world.asked(answer="second", step=1) is None
        assert text(await world.asked(answer=None)) == "first"
        assert text(await world.asked(answer=None, step=1)) == "second"

    async def test_a_method_makes_keys_and_may_fail(self):
        class Keyed(ResponseCache):
            def key_for(self, inputs):
                if inputs.step_number:
                    raise RuntimeError("no")
                return "mine"

        world = World(processor=Keyed)
        await world.asked()
        other = [{"role": "user", "content": [{"type": "text", "text": "anything"}]}]
        assert await world.asked(other, answer=None)
        assert await world.asked(step=1) is None
        assert await world.asked(other, answer=None, step=1) is None
        assert await world.asked(answer=None, step=1)


class TestWhatIsKept:
    @pytest.mark.parametrize(
        "chunk",
        [
            {"type": "error", "payload": {}},
            {"type": "tripwire", "payload": {}},
            {
                "type": "finish",
                "payload": {"stepResult": {"reason": "content-filter"}, "output": {"usage": {}}},
            },
            {"type": "finish", "payload": {"finishReason": "error"}},
        ],
    )
    async def test_no_answer_that_failed(self, chunk):
        world = World()
        await world.asked(answer=[chunk])
        assert await world.asked(answer=None) is None

    async def test_a_cut_off_answer_and_a_tool_call(self):
        call = {"type": "tool-call", "payload": {"toolCallId": "c", "toolName": "t", "args": {}}}
        for chunk, reason in (("x", "length"), (call, "tool-calls")):
            world = World()
            await world.asked(answer=[chunk, ending(reason)])
            assert await world.asked(answer=None)

    async def test_no_tool_calls_that_a_replay_would_lose(self):
        """A call whose id the run has used before is not among the chunks."""
        world = World()
        await world.asked(answer=["x", ending("tool-calls")])
        assert await world.asked(answer=None) is None


class TestFailures:
    async def test_a_store_that_cannot_be_read_is_still_written(self):
        """D-23."""
        store = Broken("get")
        world = World(store=store)
        assert await world.asked() is None
        store.failing = ()
        assert text(await world.asked(answer=None)) == "hey"

    async def test_a_store_that_cannot_be_written_costs_a_call_and_a_warning(self):
        world = World(store=Broken("put"))
        kit = world.kit()
        assert (await kit.llm_request(list(QUESTION))).response is None
        await kit.llm_response(["hey"])
        assert sum(tally.warnings for tally in kit.calls.reports.values()) == 1
        assert await world.asked(answer=None) is None

    @pytest.mark.parametrize("kept", ["text", {"chunks": []}, [1]])
    async def test_what_is_no_answer_is_none(self, kept):
        world = World({"key": "k"})
        await world.store.put(f"{ResponseCache.id}:k", kept)
        assert await world.asked(answer=None) is None

    @pytest.mark.parametrize("options", [{"ttl": 0}, {"key": ""}, {"cache": {}}])
    def test_options_that_make_no_sense_are_refused(self, options):
        with pytest.raises(InvalidOptionsError):
            ResponseCache.build(options)


async def test_conformance():
    await check_processor(Cache)
