"""What no service can handle ends in DEAD, and can be given another chance."""

import asyncio
import itertools
import json
import sys
import tracemalloc
from asyncio.subprocess import PIPE
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.errors import NoStreamResponseError

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.bus.dead import (
    DeadLetter,
    NotReplayableError,
    dead_letter,
    dead_letters,
    drop,
    replay,
)
from procession_services.bus.streams import ensure_streams, stream_configs
from procession_services.orchestrator.app import start as start_orchestrator
from procession_services.processor_host.service import hosted
from procession_services.runtime.clock import new_token
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.settings import Settings
from procession_services.tools.app import start
from tests.support.servers import own_servers
from tests.support.waiting import eventually


async def test_what_is_too_long_for_dead_is_buried_in_part_and_closes_no_connection(
    servers: Endpoints,
) -> None:
    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url, max_deliver=1)
    bus = await Bus.connect(servers.nats_url, "test")
    buried: asyncio.Queue[bytes] = asyncio.Queue()
    for run in ("long", "short"):
        subject = subjects.dead("WORK", "tools", "acme", run)
        await bus.subscribe(subject, lambda _, body, __: buried.put_nowait(body))
    body = b"x" * (bus.max_payload - 200)
    async with asyncio.timeout(20), hosted("tools", settings, start):
        subject = subjects.work("tools", "acme", "long")
        await bus.client.store(subject, body, seconds=5, headers={"Nats-Msg-Id": "long"})
        assert body.startswith(await buried.get())
        [letter] = [each for each in await all_letters(bus.js) if each.subject == subject]
        assert len(letter.body) < letter.length == len(body)
        assert f"of {len(body)} bytes" in letter.reason
        with pytest.raises(NotReplayableError, match="too long for DEAD"):
            await replay(bus.js, letter)
        await bus.publish_stored(subjects.work("tools", "acme", "short"), b"{}", message_id="short")
        assert await buried.get() == b"{}"
    await bus.close()


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

        [letter] = [each for each in await all_letters(bus.js) if each.subject == subject]
        assert "WorkCommand" in letter.reason
        assert await replay(bus.js, letter) == "lost"
        assert await buried.get() == b"{}"
        assert await dead_letter(bus.js, letter.sequence) is None
    await bus.close()


_numbers = itertools.count(1)


async def store(bus: Bus, subject: str, body: dict[str, Any], **headers: str) -> DeadLetter:
    """Puts a letter into DEAD; gives it as it is read."""
    given = {"Procession-Subject": subject, "Procession-Reason": "tired", **headers}
    number = next(_numbers)
    place = subjects.dead("RUNS", "run", "acme", "demo")
    await bus.publish_stored(
        place, json.dumps(body).encode(), message_id=f"dead:RUNS:{number}", headers=given
    )
    letter = (await all_letters(bus.js))[-1]
    assert letter.subject == subject
    return letter


async def test_a_request_is_replayed_under_its_id_or_where_its_run_has_ended_as_another_run(
    tmp_path: Path,
) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        subject = subjects.run("acme", "demo")
        await bus.subscribe(subject, lambda _, body, __: requests.put_nowait(json.loads(body)))

        async def replayed(body: dict[str, Any], **headers: str) -> tuple[str, dict[str, Any]]:
            run = await replay(bus.js, await store(bus, subject, body, **headers))
            assert await all_letters(bus.js) == []
            return run, await requests.get()

        named = {"Procession-Message-Id": "order-17"}
        assert await replayed({"input": "x"}, **named) == ("order-17", {"input": "x", "runId": "order-17"})
        spelled = {"input": "x", "run_id": "mine"}
        assert await replayed(spelled) == ("mine", spelled), "other bytes would be another request"
        run, _ = await replayed({"input": "x"})
        assert run.startswith("run-")  # its place in RUNS
        for body, headers in (
            ({"input": "x"}, {"Procession-Message-Id": "order 17"}),
            ({"input": "x", "runId": "order 17"}, {}),
        ):
            run, request = await replayed(body, **headers)
            assert (run.startswith("run-"), request["runId"]) == (
                True,
                run,
            )  # as the orchestrator has called it

        await bus.publish_stored(subjects.event("acme", "mine", "run.finished"), b"{}", message_id="end")
        run, request = await replayed({"input": "x", "runId": "mine"})
        assert (run.startswith("mine-replay-"), request["runId"]) == (True, run)
        await bus.close()


async def test_what_is_no_request_is_not_replayed_to_a_run_that_has_ended(tmp_path: Path) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        await bus.publish_stored(subjects.event("acme", "r", "run.finished"), b"{}", message_id="end")
        letter = await store(bus, subjects.work("tools", "acme", "r"), {"seq": 3})
        with pytest.raises(NotReplayableError, match="run r has ended since; send its request again"):
            await replay(bus.js, letter)
        nobody = await store(bus, "procession.v1.run.default", {"input": "x"})
        with pytest.raises(NotReplayableError, match="does not say which run it belongs to"):
            await replay(bus.js, nobody)
        nothing = await store(bus, "", {"input": "x"})
        with pytest.raises(NotReplayableError, match="does not say which run it belongs to"):
            await replay(bus.js, nothing)
        await drop(bus.js, nothing)
        assert await all_letters(bus.js) == [letter, nobody]
        await drop(bus.js, letter)
        assert await all_letters(bus.js) == [nobody]
        await bus.close()


async def test_a_letter_of_a_new_dead_stream_is_not_taken_for_one_of_the_old(tmp_path: Path) -> None:
    """A stream that is gone is made anew, and counts from 1 again."""
    async with own_servers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        subject = subjects.run("acme", "demo")
        await bus.subscribe(subject, lambda _, body, __: requests.put_nowait(json.loads(body)))
        for at in ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00"):
            letter = replace(await store(bus, subject, {"input": "x", "runId": at[17:19]}), at=at)
            assert letter.sequence == 1
            await replay(bus.js, letter)
            assert (await requests.get())["runId"] == at[17:19]
            await bus.js.delete_stream("DEAD")
            await ensure_streams(bus.js)
        assert (await bus.js.stream_info("RUNS")).state.messages == 2
        await bus.close()


async def test_a_letter_that_was_put_back_and_not_taken_out_of_dead_is_not_put_back_twice(
    tmp_path: Path,
) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        letter = await store(bus, subjects.run("acme", "demo"), {"input": "x", "runId": "mine"})

        async def dies(*_: Any) -> None:
            raise TimeoutError

        js = bus.js
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(js, "delete_msg", dies)
            with pytest.raises(TimeoutError):
                await replay(js, letter)
        with pytest.raises(NotReplayableError, match="was replayed within the last two minutes"):
            await replay(js, letter)
        assert await all_letters(js) == [letter]
        await bus.close()


async def test_letters_are_listed_without_a_question_for_each_that_is_gone(tmp_path: Path) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        letters = [await store(bus, subjects.run("acme", "demo"), {"input": str(n)}) for n in range(9)]
        for letter in letters[1:-1]:
            await drop(bus.js, letter)
        asked, js = 0, bus.js
        get_msg = js.get_msg

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return await get_msg(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(js, "get_msg", counted)
            assert await all_letters(js) == [letters[0], letters[-1]]
        assert asked <= 3
        await bus.close()


async def all_letters(js: Any) -> list[DeadLetter]:
    return [letter async for letter in dead_letters(js)]


async def test_who_reads_many_long_letters_has_one_at_a_time(tmp_path: Path) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        place = subjects.dead("RUNS", "run", "acme", "demo")
        for number in range(20):
            await bus.publish_stored(place, b"x" * 2_000_000, message_id=f"long:{number}")
        tracemalloc.start()
        numbers = [letter.sequence async for letter in dead_letters(bus.js)]
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert numbers == list(range(1, 21))
        assert most < 30_000_000
        await bus.close()


async def procession(*arguments: str) -> tuple[int, str, str]:
    """Runs the command line; exit code, stdout and stderr."""
    command = Path(sys.executable).with_name("procession")
    process = await asyncio.create_subprocess_exec(command, *arguments, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_commands(tmp_path: Path) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        url = ("--nats-url", servers.endpoints.nats_url)
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        assert await procession("dead", "list", *url) == (0, "no dead letters\n", "")
        letter = await store(bus, subjects.run("acme", "demo"), {"input": "x", "runId": "mine"})
        number = str(letter.sequence)
        code, listed, _ = await procession("dead", "list", *url)
        assert (code, all(word in listed for word in (number, letter.subject, "tired"))) == (0, True)
        code, shown, _ = await procession("dead", "show", number, *url)
        assert (code, "run: mine" in shown, '{"input": "x", "runId": "mine"}' in shown) == (0, True, True)
        code, _, told = await procession("dead", "replay", number, *url)
        assert (code, "will be delivered again, as run mine" in told) == (0, True)
        code, _, told = await procession("dead", "drop", number, *url)
        assert (code, f"procession: there is no dead letter {number}; " in told) == (1, True)
        code, _, told = await procession("dead", "show", "-5", *url)
        assert (code, "Traceback" in told) == (2, False)
        code, _, told = await procession("dead", "list", "--nats-url", "nats://127.0.0.1:1")
        assert (code, "cannot reach NATS" in told) == (1, True)
        await bus.close()


async def test_a_letter_that_is_not_there_or_goes_nowhere_keeps_no_other_from_its_turn(
    tmp_path: Path,
) -> None:
    async with own_servers(tmp_path, redis=False) as servers:
        url = ("--nats-url", servers.endpoints.nats_url)
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        subject = subjects.run("acme", "demo")
        for run in ("one", "two", "three"):
            await store(bus, subject, {"input": "x", "runId": run})
        await store(bus, "procession.v1.run.a b.demo", {"input": "x"})

        code, _, told = await procession("dead", "drop", "1", "99", "2", *url)
        assert (code, told.splitlines()) == (
            1,
            [
                f"{subject} was dropped",
                "procession: there is no dead letter 99; `procession dead list` lists all",
                f"{subject} was dropped",
            ],
        )
        code, shown, told = await procession("dead", "show", "99", "3", *url)
        assert (code, "run: three" in shown, "no dead letter 99" in told) == (1, True, True)
        code, _, told = await procession("dead", "replay", "4", "99", "3", *url)
        nowhere, missing, again = told.splitlines()
        assert (code, "no dead letter 99" in missing) == (1, True)
        assert again == f"{subject} will be delivered again, as run three"
        assert nowhere.endswith("does not say which run it belongs to; `procession dead drop 4` deletes it")
        assert [letter.sequence for letter in await all_letters(bus.js)] == [4]
        await bus.close()


async def test_none_or_one_with_other_characters_in_its_headers_can_be_listed(tmp_path: Path) -> None:
    async with own_servers(tmp_path) as servers:
        bus = await Bus.connect(servers.endpoints.nats_url, "test")
        assert await all_letters(bus.js) == []
        of_before = {"Procession-Subject": "procession.v1.run.té.demo", "Procession-Reason": "tenant 'té'"}
        subject = subjects.dead("RUNS", "run", "x", "demo")
        await bus.publish_stored(subject, b"{}", message_id="1", headers=of_before)
        [letter] = await all_letters(bus.js)
        assert letter.subject.endswith(".demo")
        assert letter.reason.startswith("tenant 't")
        await bus.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("{", "is not JSON"),
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
    [letter] = [each for each in await all_letters(bus.js) if each.subject == subjects.control("acme", run)]
    assert letter.reason.startswith("the control message cannot be read: ")
    assert why in letter.reason
    assert why in caplog.text
    assert "delivery 1" not in caplog.text, "no further delivery can help"
    await bus.close()


async def test_what_has_a_long_message_id_is_buried_too(tmp_path: Path) -> None:
    async with own_servers(tmp_path) as servers:
        settings = Settings(nats_url=servers.endpoints.nats_url, redis_url=servers.endpoints.redis_url)
        async with hosted("orchestrator", settings, start_orchestrator) as host:
            js = host.bus.js
            await host.bus.publish_stored(subjects.control("acme", "r"), b"{", message_id="é" * 20_000)

            async def is_settled() -> bool:
                return bool((await js.stream_info("WORK")).state.messages == 0)

            await eventually(is_settled)
            [letter] = await all_letters(js)
            assert letter.name == "run-1"


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
            letters = await all_letters(bus.js)
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


ODD = {
    b"PUB procession.v1.control.odd.a\xff 17": b"",
    b"PUB procession.v1.control.odd.a\x0b9 17": b"",
    b"PUB procession.v1.control.odd.a\x0cb 17": b"",
    b"HPUB procession.v1.control.odd.a 8 25": b"NATS/1.0",
    b"HPUB procession.v1.control.odd.b 14 31": b"NATS/1.0 \xff\r\n\r\n",
    b"HPUB procession.v1.control.odd.c 1 18": b"\xff",
}
"""What any client can send, and JetStream takes: lines, and what stands before the body."""


async def test_what_is_no_text_comes_once_and_ends_no_connection(tmp_path: Path) -> None:
    async with own_servers(tmp_path) as servers:
        settings = Settings(nats_url=servers.endpoints.nats_url, redis_url=servers.endpoints.redis_url)
        async with hosted("orchestrator", settings, start_orchestrator) as host:
            port = int(servers.endpoints.nats_url.rpartition(":")[2])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b'CONNECT {"verbose": false, "headers": true}\r\n')
            for line, headers in ODD.items():
                writer.write(line + b"\r\n" + headers + b'{"type":"cancel"}\r\n')
            writer.write(b"PING\r\n")
            async with asyncio.timeout(10):
                await reader.readuntil(b"PONG")

            async def all_settled() -> bool:
                state = (await host.bus.js.stream_info("WORK")).state
                return (state.last_seq, state.messages) == (len(ODD), 0)

            await eventually(all_settled)
            told = [
                letter.subject.removeprefix("procession.v1.control.odd.")
                for letter in await all_letters(host.bus.js)
            ]
            assert told == [r"a\xff", "a\x0b9", "a\x0cb"]
            assert host.bus.disconnects == 0
            writer.close()
