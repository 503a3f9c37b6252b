"""Tools in other processes and languages: a request on the subject that the tool's options name, and a reply.

The subject is `tool.` followed by tokens, such as `tool.geo.lookup`. It is outside of `procession.v1`, because a tool
belongs to its author.
"""

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from procession_schemas.base import JsonObject


class RemoteToolRequest(TypedDict):
    """One call. It may be repeated after a crash; run id and call id together identify it."""

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
    """Either the `result` of the tool, or an `error`."""

    result: NotRequired[Any]
    error: NotRequired[RemoteToolError]
