"""What a guard's service answers when it cannot give a verdict: always something, since a model's answer waits."""

import asyncio
from typing import Any

import pytest

from procession.message_list import MessageList
from procession.processor import Options, Processor
from procession.registry import Registry
from procession_schemas.agent import ProcessorRef
from procession_schemas.guard import GuardReply, GuardRequest
from procession_schemas.work import Guard, WorkCommand
from procession_services.bus import alive
from procession_services.input_processors.guards import GuardAnswers
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.instances import Instances
from tests.support.raising import panics

SUBJECT = "procession.v1.api.input_processors.acme.guard"
COMMAND = WorkCommand(
    run="r", tenant="other", agent="a", seq=1, service="s", version=0, out_seq=0, message_id="m", ops=[]
)


class Keeps(Processor[Options]):
    """Keeps something in its state."""

    id = "keeps"
    kept: Any = 1

    def process_input(self, args: Any) -> Any:
        args.state |= {"kept": type(self).kept, "tenant": args.services.tenant, "index": self.processor_index}


class KeepsSet(Keeps):
    id = "keeps-set"
    kept = {1}  # noqa: RUF012 - read only


class KeepsMuch(Keeps):
    id = "keeps-much"
    kept = "x" * 5000


class Waits(Keeps):
    id = "waits"
    until = asyncio.Event()

    async def process_input(self, args: Any) -> Any:
        await self.until.wait()


class Panics(Keeps):
    id = "panics"
    __init__ = panics


def answers(publish: Any = None) -> GuardAnswers:
    registry = Registry()
    for each in (Keeps, KeepsSet, KeepsMuch, Waits, Panics):
        registry.add_processor(each)
    nothing: Any = None  # no bus and no store is needed for a verdict
    return GuardAnswers(
        Executor("s", nothing, nothing, Instances(registry), nothing, max_deliver=5), publish, max_reply=5000
    )


async def ask(name: str, publish: Any = None, **fields: Any) -> GuardReply:
    messages = MessageList(new_id=lambda: "m1", now=lambda: "2026-01-01T00:00:00.000Z").add("hello", "input")
    request = GuardRequest(
        command=COMMAND,
        guard=Guard(processor=ProcessorRef(id=name), index=4),
        **{"messages": messages.serialize(), "state": {"old": 0}, **fields},
    )
    return GuardReply.model_validate_json(await answers(publish).answer(SUBJECT, request.to_json()))


async def test_the_state_goes_there_and_back_and_the_tenant_is_the_subjects():
    reply = await ask("keeps")
    assert reply.state == {"old": 0, "kept": 1, "tenant": "acme", "index": 4}
    assert (reply.tripwire, reply.error, reply.reports[0].calls) == (None, None, 1)


@pytest.mark.parametrize(
    ("name", "fields", "code", "told"),
    [
        ("keeps-set", {}, "STATE_NOT_JSON", "must be JSON"),
        ("keeps-much", {}, "INTERNAL", "NATS accepts at most 5000"),
        ("nobody", {}, "UNKNOWN_COMPONENT", "nobody"),
        ("keeps", {"messages": None, "messages_key": "gone"}, "INTERNAL", "keeps could not be run"),
        ("panics", {}, "COMPONENT_FAILED", "panics"),
    ],
)
async def test_what_cannot_be_judged_is_told(name, fields, code, told):
    reply = await ask(name, **fields)
    assert reply.error is not None
    assert reply.error.code == code
    assert told in reply.error.message


async def test_a_state_that_is_no_json_counts_as_an_error():
    [report] = (await ask("keeps-set")).reports
    assert (report.calls, report.errors) == (1, 1)


async def test_garbage_is_told_too():
    reply = GuardReply.model_validate_json(await answers().answer(SUBJECT, b"{}"))
    assert reply.error is not None
    assert "cannot be read: command: Field required; guard: " in reply.error.message


async def test_what_garbage_holds_is_not_told():
    body = (
        b'{"command": {"run": ["secret"], "ops": [{"op": "model"}]}, "guard": "secret", "messages": "secret"}'
    )
    reply = GuardReply.model_validate_json(await answers().answer(SUBJECT, body))
    assert reply.error is not None
    assert "command.run: " in reply.error.message
    assert "secret" not in reply.error.message


async def test_whoever_judges_goes_on_saying_so_after_one_time_that_it_could_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alive, "_BEAT_SECONDS", 0)
    beats = list[str]()

    async def publish(subject: str, _body: bytes) -> None:
        beats.append(subject)
        if len(beats) == 1:
            raise OSError
        Waits.until.set()

    async with asyncio.timeout(20):
        await ask("waits", publish, beats="beats")
    assert len(beats) >= 2
