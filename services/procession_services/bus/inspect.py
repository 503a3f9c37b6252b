"""What a NATS server and its streams must be, and what of that they are not."""

from collections.abc import Iterator
from typing import Final

import nats.errors
from nats.js.api import StreamConfig, StreamInfo

from procession_services.bus.operator import Operator
from procession_services.bus.streams import is_ours, stream_configs
from procession_services.runtime.problems import Problem
from procession_services.runtime.settings import Settings
from procession_services.runtime.words import number_of

__all__ = ["longest_request", "nats_problems"]

_WHERE: Final = "NATS"
_OLDEST: Final = (2, 15)
_COMMAND_ROOM: Final = 128 * 1024
"""Bytes of a command that are not its request's own."""


def longest_request(settings: Settings, max_payload: int) -> tuple[int, str]:
    """Bytes of the longest request, 0 where there is room for none, and how to have longer ones.

    It must fit into a command beside the agent's configuration.
    """
    room = max_payload - _COMMAND_ROOM
    if settings.max_request_bytes <= room:
        return (
            settings.max_request_bytes,
            "to allow more, raise PROCESSION_MAX_REQUEST_BYTES of the orchestrator",
        )
    told = f"NATS takes messages of {max_payload:,} bytes, and Procession needs {_COMMAND_ROOM:,} besides the request"
    return max(0, room), f"{told}; set `max_payload: 8MB` in nats.conf"


async def nats_problems(operator: Operator, settings: Settings) -> list[Problem]:
    """Looks at the server and at every stream."""
    found = list(_server(operator, settings))
    if not await operator.has_jetstream():
        told = "not available to this user: enable `jetstream` in nats.conf, and connect as the operator"
        return [*found, Problem(_WHERE, "jetstream", told)]
    for config in stream_configs(settings.stream_replicas):
        try:
            info = await operator.stream(config.name or "")
        except (TimeoutError, nats.errors.Error) as error:
            found.append(Problem(_WHERE, f"stream {config.name}", f"does not answer: {error!r}"))
            continue
        found += [
            Problem(_WHERE, f"stream {config.name}", told, warning=warning)
            for told, warning in _stream(config, info, settings, clustered="cluster" in operator.server)
        ]
    return found


def _server(operator: Operator, settings: Settings) -> Iterator[Problem]:
    version, size = str(operator.server.get("version", "0")), int(operator.server.get("max_payload", 0))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        told = f"{version} is older than {oldest}, the oldest version that Procession is tested with"
        yield Problem(_WHERE, "version", told, warning=True)
    if size < settings.max_request_bytes + _COMMAND_ROOM:
        told = (
            f"{size:,} bytes are too few for the longest request (PROCESSION_MAX_REQUEST_BYTES, "
            f"{settings.max_request_bytes:,}) and what travels with it; set `max_payload: 8MB` in nats.conf"
        )
        yield Problem(_WHERE, "max_payload", told)


def _stream(
    wanted: StreamConfig, info: StreamInfo | None, settings: Settings, *, clustered: bool
) -> Iterator[tuple[str, bool]]:
    """What is wrong with a stream, and whether that is only a warning."""
    if info is None:
        yield "is missing: a running orchestrator creates it within seconds", False
        return
    have = info.config
    if not is_ours(have):
        subjects = ", ".join(have.subjects or ("none",))
        yield (
            f"does not belong to Procession (its subjects: {subjects}): give Procession its own NATS account",
            False,
        )
        return
    for name, is_, should in (
        ("storage", have.storage, wanted.storage),
        ("retention", have.retention, wanted.retention),
        ("subjects", sorted(have.subjects or []), sorted(wanted.subjects or [])),
        ("max_age", have.max_age, wanted.max_age),
    ):
        if is_ != should:
            shown, meant = (getattr(each, "value", each) for each in (is_, should))
            mend = (
                "delete the stream once it is empty, and restart the orchestrator"
                if name in ("storage", "retention")
                else "restart the orchestrator, which updates it"
            )
            yield f"{name} is {shown}, not {meant}: {mend}", False
    copies = have.num_replicas or 1
    if "stream_replicas" in settings.model_fields_set and copies != settings.stream_replicas:
        told = f"the number of copies is {copies}, not {settings.stream_replicas}: restart the orchestrator"
        yield f"{told} with PROCESSION_STREAM_REPLICAS={settings.stream_replicas}", False
    elif clustered and copies == 1:
        yield "is on only one server of the cluster; set PROCESSION_STREAM_REPLICAS=3", True
    for peer in (info.cluster and info.cluster.replicas) or []:
        if peer.offline or not peer.current:
            yield f"its copy on {peer.name} is {'offline' if peer.offline else 'behind'}", True
    if wanted.name == "DEAD" and info.state.messages:
        yield (
            f"{number_of(info.state.messages, 'message')} could not be handled: see `procession dead list`",
            True,
        )
