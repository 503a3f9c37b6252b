"""Tools behind a subject: what is asked, what a reply means, and what a request may reach."""

import json
from typing import Any

import pytest

from procession.errors import InvalidOptionsError
from procession_schemas.agent import ToolRef
from procession_schemas.work import ToolsOp
from procession_services.bus import NoResponderError, RequestTimeoutError
from procession_services.tools.execute import run_tools
from procession_services.tools.execution import Executions
from procession_services.tools.remote import RemoteTool, RemoteToolError, remote_tool
from tests.unit.procession_services.tools.jobs import FakeJob, call

OPTIONS = {
    "subject": "tool.geo.lookup",
    "timeout": 2.5,
    "description": "Finds a place.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}

FOREIGN = [
    "$JS.API.STREAM.DELETE.RUNS",
    "procession.v1.work.tools.a.b",
    "tool.*",
    "tool.>",
    "tool",
    "tool.a b",
    "tool.a\n",
    "tool..a",
    "x.y",
    "",
]


class Peer:
    """The other end of the bus."""

    def __init__(self, reply: bytes | Exception) -> None:
        self.reply = reply
        self.asked: list[tuple[str, dict[str, Any], float]] = []

    async def request(self, subject: str, body: bytes, seconds: float) -> bytes:
        self.asked.append((subject, json.loads(body), seconds))
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    async def outcome(self, **args: Any) -> dict[str, Any]:
        ref = ToolRef.checked({"id": "remote", "as": "geo", "options": OPTIONS})
        job = FakeJob([remote_tool(self.request)], [call("c1", "geo", **args)], refs=[ref])
        job.ctx.request_context["user"] = "u1"
        await run_tools(ToolsOp(), job, Executions())
        return job.outcomes[0]


async def test_a_request_tells_the_call_and_its_reply_is_the_result() -> None:
    peer = Peer(b'{"result": {"lat": 1}, "more": 1}')
    assert (await peer.outcome(q="Paris"))["result"] == {"lat": 1}
    asked = {
        "toolCallId": "c1",
        "toolName": "geo",
        "args": {"q": "Paris"},
        "requestContext": {"user": "u1"},
        "runId": "run-1",
        "tenant": "acme",
    }
    assert peer.asked == [("tool.geo.lookup", asked, 2.5)]


async def test_the_schema_of_the_options_is_checked_before_anybody_is_asked() -> None:
    peer = Peer(b'{"result": 1}')
    assert "- q: 1 is not of type 'string'" in (await peer.outcome(q=1))["error"]["message"]
    assert peer.asked == []


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (b'{"error": {"message": "no such place"}}', "no such place"),
        (b'{"error": {}}', "failed without a message"),
        (b'{"result": 1, "error": {"message": "half"}}', "half"),
        (b"not json", "tool.geo.lookup answered what is not JSON"),
        (b'{"answer": 1}', "neither `result` nor `error`"),
        (b'{"error": "text"}', "neither `result` nor `error`"),
        (b"[1]", "neither `result` nor `error`"),
        (NoResponderError("x"), "no subscriber on tool.geo.lookup"),
        (RequestTimeoutError("x"), "did not answer within 2.5 s"),
    ],
)
async def test_what_goes_wrong_is_told(reply: bytes | Exception, told: str) -> None:
    error = (await Peer(reply).outcome())["error"]
    assert error["name"] == "RemoteToolError"
    assert told in error["message"]


async def test_a_null_result_is_a_result() -> None:
    assert (await Peer(b'{"result": null}').outcome())["result"] is None


def test_the_options_make_the_tool() -> None:
    made = RemoteTool(OPTIONS)
    assert (made.description, made.parameters) == ("Finds a place.", OPTIONS["parameters"])
    bare = RemoteTool({"subject": "tool.x"})
    assert (bare.description, bare.parameters) == ("", {"type": "object"})


async def test_without_a_bus_it_can_be_described_but_not_run() -> None:
    with pytest.raises(RemoteToolError, match="connected to the bus"):
        await RemoteTool(OPTIONS)._ask("tool.x", b"", 1)


@pytest.mark.parametrize("subject", FOREIGN)
def test_options_reach_no_other_subject(subject: str) -> None:
    with pytest.raises(InvalidOptionsError, match="subject: "):
        RemoteTool({"subject": subject})


def test_wrong_options_are_named() -> None:
    with pytest.raises(InvalidOptionsError) as caught:
        RemoteTool({"timeout": 0, "colour": 1})
    assert set(caught.value.fields) == {"subject", "timeout", "colour"}
