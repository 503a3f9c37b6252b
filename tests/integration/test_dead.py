"""What no service can handle ends in DEAD, and can be given another chance."""

import asyncio
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.js.errors import NoStreamResponseError

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.bus.dead import dead_letters, replay
from procession_services.bus.streams import stream_configs
from procession_services.orchestrator.app import start as start_orchestrator
from procession_services.processor_host.service import hosted
from procession_services.runtime.clock import new_token
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.settings import Settings
from procession_services.tools.app import start
from tests.support.servers import own_servers
from tests.support.waiting import eventually


async def test_a_body_that_nobody_understands_is_buried_with_its_reason_and_replayed(
    servers: Endpoints,
) -> None:
    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url, max_deliver=1)
    bus = await Bus.connect(servers.nats_url, "test")
    buried: asyncio.Queue[bytes] = asyncio.Queue()

    def on_dead(_subject: str, body: bytes, _reply: str) -> None:
        buried.put_nowait(body)

    await bus.subscribe(subjects.dead("WORK", "tools", "acme", "lost"), on_dead)
    subject = subjects.work("tools", "acme", "lost")
    async with asyncio.timeout(20), hosted("tools", settings, start):
        await bus.publish_stored(subject, b"{}", message_id="garbage-1")
        assert await buried.get() == b"{}"

        [letter] = [each for each in await dead_letters(bus) if each.subject == subject]
        assert "WorkCommand" in letter.reason
        assert await replay(bus, letter.sequence) == letter
        assert await buried.get() == b"{}"
        assert await replay(bus, letter.sequence) is None
    await bus.close()


async def test_none_or_one_with_other_characters_in_its_headers_can_be_listed(tmp_path: Path) -> None:
    async with own_servers(tmp_path) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        assert await dead_letters(bus) == []
        of_before = {"Procession-Subject": "procession.v1.run.té.demo", "Procession-Reason": "tenant 'té'"}
        subject = subjects.dead("RUNS", "run", "x", "demo")
        await bus.publish_stored(subject, b"{}", message_id="1", headers=of_before)
        [letter] = await dead_letters(bus)
        assert letter.subject.endswith(".demo")
        assert letter.reason.startswith("tenant 't")
        await bus.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "Invalid JSON"),
        ('{"type": "approve"}', "type: Input should be 'cancel' or 'resume'"),
        ('{"type": "resume", "toolCallId": 5}', "toolCallId: Input should be a valid string"),
        (
            '{"type": "resume", "toolCallId": "c", "approved": "yes"}',
            "approved: Input should be a valid boolean",
        ),
        ('{"type": "resume", "toolCallId": "c", "approved": 1}', "approved: Input should be a valid boolean"),
    ],
)
async def test_a_control_that_says_nothing_is_buried_at_once_and_logged(
    servers: Endpoints, caplog: pytest.LogCaptureFixture, body: str, why: str
) -> None:
    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url)
    bus = await Bus.connect(servers.nats_url, "test")
    run = new_token(8)
    buried: asyncio.Queue[bytes] = asyncio.Queue()
    await bus.subscribe(
        subjects.dead("WORK", "control", "acme", run), lambda _, body, __: buried.put_nowait(body)
    )
    async with asyncio.timeout(20), hosted("orchestrator", settings, start_orchestrator):
        await bus.publish_stored(subjects.control("acme", run), body.encode(), message_id=run)
        assert await buried.get() == body.encode()
    [letter] = [each for each in await dead_letters(bus) if each.subject == subjects.control("acme", run)]
    assert letter.reason.startswith("the control cannot be read: ")
    assert why in letter.reason
    assert why in caplog.text
    assert "delivery 1" not in caplog.text, "no further delivery can help"
    await bus.close()


WRONG = {
    "run.default": "run.default._",
    "run.default.a.b": "run.default.a_b",
    "run.*.demo": "run._.demo",
    "run.té.demo": "run.t_.demo",
    f"run.{'t' * 300}.demo": f"run.{'t' * 200}.demo",
    "control.default": "control.default._",
    "control.te$t.r": "control.te_t.r",
}
"""Wrong subjects, and where the message is buried."""


@pytest.mark.parametrize("before", [True, False], ids=["taken by streams of before", "as they are taken"])
async def test_what_is_on_a_wrong_subject_is_refused_or_buried_once(tmp_path: Path, before: bool) -> None:
    async with own_servers(tmp_path) as servers:
        connection = await nats.connect(servers.endpoints.nats_url)
        jetstream = connection.jetstream()
        for config in stream_configs():
            wide = ["procession.v1.work.>", "procession.v1.control.>"]
            of_before = {"RUNS": ["procession.v1.run.>"], "WORK": wide}.get(
                config.name or "", config.subjects
            )
            await jetstream.add_stream(replace(config, subjects=of_before) if before else config)
        buried, refused = {}, 0
        for tail, dead in WRONG.items():
            try:
                await jetstream.publish(f"procession.v1.{tail}", b'{"input": "x", "type": "cancel"}')
                buried[tail] = dead
            except NoStreamResponseError:
                refused += 1
        assert refused == (0 if before else 3)

        settings = Settings(nats_url=servers.endpoints.nats_url, redis_url=servers.endpoints.redis_url)
        async with hosted("orchestrator", settings, start_orchestrator):
            bus = await Bus.connect(servers.endpoints.nats_url, "test")

            async def all_settled() -> bool:
                states = [(await jetstream.stream_info(name)).state.messages for name in ("RUNS", "WORK")]
                return states == [0, 0]

            await eventually(all_settled)
            with pytest.raises(NoStreamResponseError):
                await jetstream.publish("procession.v1.run.default", b"{}")
            letters = await dead_letters(bus)
            assert len(letters) == len(buried)
            assert all("the subject must be procession.v1." in letter.reason for letter in letters)
            assert {letter.subject.encode().decode("unicode_escape") for letter in letters} == {
                f"procession.v1.{tail}" for tail in buried
            }
            places = {
                str((await jetstream.get_msg("DEAD", letter.sequence)).subject).split(".", 4)[4]
                for letter in letters
            }
            assert places == set(buried.values())
            await bus.close()
        await connection.close()
