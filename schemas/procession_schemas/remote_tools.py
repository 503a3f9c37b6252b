"""Tools in other processes and languages: a request on the subject that the tool's options name, and a reply.

The subject is `tool.` and tokens, such as `tool.geo.lookup`. It lies outside `procession.v1`: a tool belongs to
whoever serves it.
"""

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject


class RemoteToolRequest(TypedDict):
    """One call. It may come again after a crash; run id and call id together recognise it."""

    toolCallId: str
    toolName: str
    args: Any
    requestContext: JsonObject
    runId: str
    tenant: str


class RemoteToolError(TypedDict):
    """What went wrong, for the model to read."""

    message: NotRequired[str]


class RemoteToolReply(TypedDict):
    """What the tool gave: `result`, or `error`."""

    result: NotRequired[Any]
    error: NotRequired[RemoteToolError]
