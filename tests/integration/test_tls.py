"""NATS with TLS: services and clients check its certificate against the authority that they are given."""

import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from procession.client import NotConnectedError, Procession
from procession_services.bus import Bus
from procession_services.runtime import embedded
from procession_services.runtime.access import Access

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="session")]


def certificate(directory, name):
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


class TlsNats(embedded._Nats):
    """The embedded server, with a certificate."""

    files: tuple[Path, ...] = ()

    def config(self, data, ports):
        cert, key = TlsNats.files
        return f'{super().config(data, ports)}tls {{ cert_file: "{cert}", key_file: "{key}" }}\n'


@pytest.fixture
async def server(tmp_path):
    TlsNats.files = certificate(tmp_path, "server")
    server = embedded._Server(TlsNats(), tmp_path)
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
