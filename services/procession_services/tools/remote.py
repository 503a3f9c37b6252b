"""Tools that somebody else runs, in any language: a request on a NATS subject, a reply with the result.

Request: `{"toolCallId", "toolName", "args", "requestContext", "runId", "tenant"}`. Reply: `{"result": ...}`
or `{"error": {"message": ...}}`. A request may come again after a crash; run id and call id together
recognise it.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from pydantic import Field, field_validator

from procession.processor import Options
from procession.tools import Tool, ToolContext
from procession_schemas.base import JsonObject
from procession_services.bus import NoResponderError, RequestTimeoutError

Request = Callable[[str, bytes, float], Awaitable[bytes]]
"""Subject, body and seconds to the reply's body; raises NoResponderError or RequestTimeoutError."""
_SUBJECT: Final = re.compile(r"tool(\.[A-Za-z0-9_-]+)+")


class RemoteToolError(Exception):
    """A remote tool reported an error, did not answer, or answered something else than a reply."""


class RemoteToolOptions(Options):
    """Options of `remote`."""

    subject: str = Field(max_length=200, description="Where the tool listens, such as `tool.geo.lookup`.")
    timeout: float = Field(default=30, gt=0, description="Seconds to wait for the reply.")
    description: str = Field(default="", description="What the model reads.")
    parameters: JsonObject = Field(default={"type": "object"}, description="JSON Schema of the arguments.")

    @field_validator("subject")
    @classmethod
    def _only_tools(cls, subject: str) -> str:
        """Options may come with a request, which must not reach any other subject of the bus."""
        if not _SUBJECT.fullmatch(subject):
            raise ValueError(
                "must be `tool.` followed by tokens of letters, digits, '_' and '-', such as tool.geo.lookup"
            )
        return subject


class RemoteTool(Tool):
    """A tool behind a subject; several entries with different options and names (`as`) make several tools."""

    id = "remote"
    options_type = RemoteToolOptions

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.description = self.options.description
        self.parameters = self.options.parameters

    async def execute(self, args: Any, context: ToolContext) -> Any:
        """Asks and returns the result.

        Raises:
            RemoteToolError: The tool failed, nobody listens, the time is up, or the reply makes no sense.
        """
        subject, seconds = self.options.subject, self.options.timeout
        body = {
            "toolCallId": context.tool_call_id,
            "toolName": context.tool_name,
            "args": args,
            "requestContext": context.request_context,
            "runId": context.run_id,
            "tenant": context.tenant,
        }
        try:
            reply = await self._ask(subject, orjson.dumps(body), seconds)
        except NoResponderError as error:
            raise RemoteToolError(f"Nobody serves this tool: no subscriber on {subject}.") from error
        except RequestTimeoutError as error:
            raise RemoteToolError(f"The tool on {subject} did not answer within {seconds:g} s.") from error
        return _result(reply, subject)

    async def _ask(self, subject: str, body: bytes, seconds: float) -> bytes:  # noqa: ARG002 - for overriding
        raise RemoteToolError("remote tools run only in a tools service, which is connected to the bus")


def _result(reply: bytes, subject: str) -> Any:
    try:
        told = orjson.loads(reply)
    except ValueError as error:
        raise RemoteToolError(f"The tool on {subject} answered what is not JSON: {error}.") from error
    if isinstance(told, dict) and isinstance(told.get("error"), dict):
        raise RemoteToolError(str(told["error"].get("message") or "the remote tool failed without a message"))
    if not isinstance(told, dict) or "result" not in told:
        raise RemoteToolError(
            f"The tool on {subject} answered neither `result` nor `error` with a `message`."
        )
    return told["result"]


def remote_tool(request: Request) -> type[RemoteTool]:
    """The tool class `remote` that asks through `request`; register it in place of the unconnected one."""

    class ConnectedRemoteTool(RemoteTool):
        async def _ask(self, subject: str, body: bytes, seconds: float) -> bytes:
            return await request(subject, body, seconds)

    return ConnectedRemoteTool
