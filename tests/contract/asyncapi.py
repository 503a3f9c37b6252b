"""The AsyncAPI document of the whole system, made from the catalog."""

import re
from typing import Any

from procession_schemas.catalog import CATALOG, Row


def document() -> dict[str, Any]:
    """AsyncAPI 3.0.0: a channel for every message, and an operation for everyone who sends or receives it."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Procession",
            "version": "1",
            "description": "Messages between clients and the services of Procession, on NATS. A channel with an "
            "`x-stream` is stored in that JetStream stream; the others are core NATS.",
        },
        "defaultContentType": "application/json",
        "servers": {"nats": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": {row.name: _channel(row) for row in CATALOG},
        "operations": {
            f"{who}.{action}.{row.name}".replace(" ", "-"): _operation(row, who, action)
            for row in CATALOG
            for action, parties in (("send", row.producers), ("receive", row.consumers))
            for who in parties
        },
        "components": {"messages": {row.name: _message(row) for row in CATALOG}},
    }


def _channel(row: Row) -> dict[str, Any]:
    channel: dict[str, Any] = {
        "address": None if row.reply else row.subject,  # the requester's inbox, known only at run time
        "messages": {row.name: {"$ref": f"#/components/messages/{row.name}"}},
    }
    parameters = re.findall(r"{(\w+)}", row.subject)
    if parameters and not row.reply:
        channel["parameters"] = {name: {} for name in parameters}
    if row.stream:
        channel["x-stream"] = row.stream
    return channel


def _operation(row: Row, who: str, action: str) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{row.name}"},
        "tags": [{"name": who}],
    }


def _message(row: Row) -> dict[str, Any]:
    message: dict[str, Any] = {"name": row.name, "summary": row.meaning}
    if row.body is not None:
        message["payload"] = {"$ref": f"./json-schema/{row.name}.json"}
    return message
