"""State signals: a snapshot, then what changed, as long as the snapshot is in sight (R-WM-16, R-WM-17)."""

from typing import Any, ClassVar

import pytest

from procession import StateSignal, StateSignalArgs, StateSignalProcessor
from procession.processor import Hook
from procession.signals import rendered
from procession.state_signals import SentState
from procession.testing import ProcessorKit


class Page(StateSignalProcessor[Any]):
    """Tells the page that the request context names."""

    id = "page"
    state_id = "page"
    seen: ClassVar[list[StateSignalArgs]] = []

    async def compute_state_signal(self, args: StateSignalArgs) -> StateSignal | None:
        self.seen.append(args)
        page = args.request_context.get("page")
        if page is None or (args.has_snapshot and args.current_cache_key == page):
            return None
        mode: Any = "delta" if args.has_snapshot else "snapshot"
        return {"mode": mode, "cacheKey": page, "contents": f"{mode} {page}", "value": {"page": page}}


def kit_at(page: str | None, **memory: Any) -> ProcessorKit:
    Page.seen.clear()
    return ProcessorKit(Page, request_context={"page": page, **memory})


async def test_it_is_a_hook_of_the_input_step():
    assert Page.hooks_for({}) == {Hook.INPUT_STEP}
    assert (await kit_at(None).input_step()).messages == []


async def test_snapshot_then_nothing_then_deltas():
    kit = kit_at("a")
    sent = []
    for page in ("a", "a", "b", "c", "c"):
        kit.request_context["page"] = page
        outcome = await kit.input_step()
        sent.append([rendered(message) for message in outcome.messages])
    first, second, third = "<page>snapshot a</page>", "<page>delta b</page>", "<page>delta c</page>"
    assert sent == [[first], [first], [first, second], *[[first, second, third]] * 2]
    last = Page.seen[-1]
    assert last.last_snapshot == SentState("snapshot a", "snapshot", "a", {"value": {"page": "a"}})
    assert [(each.cache_key, each.metadata) for each in last.deltas] == [
        ("b", {"value": {"page": "b"}}),
        ("c", {"value": {"page": "c"}}),
    ]


async def test_a_snapshot_out_of_sight_is_sent_again():
    kit = kit_at("a")
    await kit.input_step()
    kit.message_list.remove_by_ids([kit.messages[0]["id"]])
    outcome = await kit.input_step()
    assert [rendered(message) for message in outcome.messages] == ["<page>snapshot a</page>"]


async def test_a_delta_alone_does_not_count_as_seen():
    kit = kit_at("a")
    for page in ("a", "b"):
        kit.request_context["page"] = page
        await kit.input_step()
    kit.message_list.remove_by_ids([kit.messages[0]["id"]])
    await kit.input_step()
    assert (Page.seen[-1].has_snapshot, Page.seen[-1].current_cache_key) == (False, None)
    assert rendered(kit.messages[-1]) == "<page>snapshot b</page>"


@pytest.mark.parametrize("about", [{"metadata": "x"}, {"metadata": {"state": "page"}}, {"metadata": [1]}])
async def test_what_a_client_says_of_a_signal_may_be_anything(about: Any):
    kit = kit_at("a")
    kit.message_list.add({"role": "signal", "content": {"parts": [], "metadata": {"signal": about}}}, "input")
    await kit.input_step()
    assert rendered(kit.messages[-1]) == "<page>snapshot a</page>"


async def test_states_of_others_are_not_its_own():
    kit = kit_at("a")
    await kit.input_step()
    state = {"id": "another", "mode": "snapshot", "cacheKey": "z"}
    about = {"type": "state", "metadata": {"state": state}}
    content = {"format": 2, "parts": [{"type": "text", "text": "z"}], "metadata": {"signal": about}}
    kit.message_list.add({"role": "signal", "content": content}, "memory")
    await kit.input_step()
    assert Page.seen[-1].current_cache_key == "a"


async def test_thread_and_resource_come_with_the_request():
    memory = {"thread": {"id": "t"}, "resourceId": "r", "memoryConfig": {}}
    await kit_at("a", MastraMemory=memory).input_step()
    await kit_at("a").input_step()
    assert (Page.seen[-1].thread_id, Page.seen[-1].resource_id) == (None, None)
    kit = kit_at("a", MastraMemory=memory)
    await kit.input_step()
    assert (Page.seen[-1].thread_id, Page.seen[-1].resource_id) == ("t", "r")
    assert Page.seen[-1].step.step_number == 0
