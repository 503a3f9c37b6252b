"""What docs/operations.md says about backups, word by word, and what is there again afterwards."""

import asyncio
import json
from dataclasses import dataclass

from procession.client import Procession
from procession_schemas.agent import Agent
from tests.e2e.load import TENANTS, Figures, remembering
from tests.e2e.stack import Stack, documented

__all__ = ["backed_up_and_restored"]

TENANT = TENANTS[0]
MEMORY = {"thread": "dogs", "resource": "ann"}
_SCRIPT = """
import json, sys, urllib.request
def ask(path, body=None):
    url = f"http://127.0.0.1:8399/mock/script{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode() if body else None)) as answer:
        return answer.read().decode()
if sys.argv[1] == "set":
    ask("", {"id": "recall", "calls": [{"chunks": ["noted"]}]})
else:
    print(ask("/recall"))
"""


@dataclass(frozen=True, slots=True)
class Before:
    """What there was when the backup was made."""

    finished: str
    text: str
    suspended: str
    call: str
    messages: str


async def backed_up_and_restored(stack: Stack, figures: Figures) -> None:
    """Fills, backs up, destroys, restores without Chroma's volume, and looks whether it is all there."""
    async with stack.client(TENANT) as procession:
        before = await _filled(stack, procession)
    backup, restore = documented("Back up and restore")
    await stack.shell(backup)
    await stack.shell(restore.replace(" chroma;", ";"))
    async with stack.client(TENANT) as procession:
        await _there_again(procession, before, figures)
        await _recalled(stack, procession, figures)


async def _filled(stack: Stack, procession: Procession) -> Before:
    handle = await procession.start("My dog is called Rex", agent=remembering(stack), memory=MEMORY)
    finished = await handle.result(timeout=60)
    await handle.close()
    careful = {"name": "careful", "model": "openai/demo", "apiBase": stack.api_base, "tools": ["weather"]}
    agent = Agent.model_validate({**careful, "requireToolApproval": True})
    waiting = await procession.start("What is the weather in Paris?", agent=agent)
    suspended = await waiting.result(timeout=60)
    await waiting.close()
    (call,) = (suspended.suspend_payload or {})["calls"]
    while await procession.memory.index_waiting():  # noqa: ASYNC110 - another process changes it
        await asyncio.sleep(0.2)
    told = await procession.memory.messages(MEMORY["thread"], MEMORY["resource"])
    return Before(
        finished.run_id, finished.text, suspended.run_id, call["toolCallId"], json.dumps(told["messages"])
    )


async def _there_again(procession: Procession, before: Before, figures: Figures) -> None:
    handle = await procession.attach(before.finished)
    figures.expect((await handle.result(timeout=60)).text == before.text, "a finished run has another result")
    await handle.close()
    told = await procession.memory.messages(MEMORY["thread"], MEMORY["resource"])
    figures.expect(json.dumps(told["messages"]) == before.messages, "messages are lost")
    threads = await procession.memory.threads(MEMORY["resource"])
    figures.expect([each["id"] for each in threads["threads"]] == [MEMORY["thread"]], "a thread is lost")
    waiting = await procession.attach(before.suspended)
    await waiting.approve(before.call)
    result = await waiting.result(timeout=60)
    figures.expect(
        result.status == "finished" and bool(result.tool_results), f"a suspended run does not go on: {result}"
    )
    await waiting.close()


async def _recalled(stack: Stack, procession: Procession, figures: Figures) -> None:
    """Embeddings are made anew from Redis: another thread is told what this one said."""
    await stack.procession(TENANT, "memory", "reindex")
    await stack.python("demo-model", _SCRIPT, "set")
    agent = remembering(stack, "openai/script:recall")
    memory = {"thread": "other", "resource": MEMORY["resource"]}
    handle = await procession.start("What is my dog called?", agent=agent, memory=memory)
    await handle.result(timeout=60)
    await handle.close()
    asked = await stack.python("demo-model", _SCRIPT, "tell")
    figures.expect("Rex" in asked, f"nothing is recalled after reindex: {asked}")
