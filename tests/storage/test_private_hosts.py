"""B21: who names a place cannot make a client ask inside its own network, whatever the name resolves to."""

import datetime as dt
import socket
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from kits.clocks import SteadyClock
from kits.storage.faults import FaultyWay, open_way
from kits.storage.servers import CONTENT

from psyche.errors import StorageError, StorageRefused
from psyche.storage import dialing
from psyche.storage.judging import is_public
from psyche.storage.port import StorageOptions
from psyche.storage.urls import open_urls

NAME = "data.example"  # a name that nobody has


class Names(trio.abc.HostnameResolver):
    """What names resolve to, one answer after the other; the last one stays."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = {name.replace("_", "."): texts for name, texts in answers.items()}

    async def getaddrinfo(self, host: Any, port: Any, *_: Any, **__: Any) -> Any:
        answers = self.answers[host.decode() if isinstance(host, bytes) else host]
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def getnameinfo(self, *_: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The server's side for NAME and two others, which clients accept."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    names = [x509.DNSName(name) for name in (NAME, "other.example", "localhost")]
    who = x509.Name([])
    builder = x509.CertificateBuilder(who, who, key.public_key(), 1, now, now + dt.timedelta(days=1))
    certificate = builder.add_extension(x509.SubjectAlternativeName(names), critical=True).sign(key, hashes.SHA256())
    path = tmp_path / "server.pem"
    pem = serialization.Encoding.PEM
    raw = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(raw + certificate.public_bytes(pem))
    clients = ssl.create_default_context(cafile=str(path))
    monkeypatch.setattr(dialing, "_make_ssl_context", lambda: clients)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    return server


@pytest.fixture
async def way(served: str, tls: ssl.SSLContext) -> AsyncGenerator[FaultyWay]:
    async with open_way(served, tls) as way:
        yield way


@pytest.fixture
def loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1, where the server is, stands for an address of the open internet; all others stay what they are."""
    monkeypatch.setattr(dialing, "is_public", lambda address: address == "127.0.0.1" or is_public(address))


async def read(url: str) -> bytes:
    storage = open_urls([url], StorageOptions())
    try:
        (file,) = await storage.list_files()
        return await storage.read(file, 0, 100)
    finally:
        await storage.aclose()


def get_port(way: FaultyWay) -> str:
    return way.address.rpartition(":")[2]


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_of_the_open_internet_is_private(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_an_address_of_the_open_internet_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://a.example/x", "must be an https address"),
        ("file:///etc/passwd", "is no address"),
        ("ftp://a.example/x", "must be an https address"),
        ("https://user:word@a.example/x", "without user and password"),
        ("https://a.example/x y", "is no address"),
        ("https://a.example/x\r\nhost: b", "is no address"),
        ("https://a.example:port/x", "is no address"),
        ("https:///x", "is no address"),
        ("https://[x/y", "is no address"),
        ("https://a..example/x", "is no address"),
        ("a.example/x", "is no address"),
    ],
)
def test_what_is_no_address_of_https_is_refused_at_once(url: str, reason: str) -> None:
    with pytest.raises(StorageRefused, match=reason):
        open_urls([url], StorageOptions())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]"])
async def test_a_private_host_is_not_even_connected_to(way: FaultyWay, host: str) -> None:
    with pytest.raises(StorageRefused, match="is not a public address"):
        await read(f"https://{host}:{get_port(way)}/a.bin")
    assert way.connections == 0


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"]])
async def test_a_name_is_refused_if_one_of_its_addresses_is_private(way: FaultyWay, addresses: list[str]) -> None:
    trio.socket.set_custom_hostname_resolver(Names(data_example=[addresses]))
    with pytest.raises(StorageRefused, match=f"{NAME} is not a public address"):
        await read(f"https://{NAME}:{get_port(way)}/a.bin")
    assert way.connections == 0


@pytest.mark.usefixtures("loopback_is_public")
async def test_the_judged_address_is_dialed_and_the_certificate_is_the_name_s(way: FaultyWay) -> None:
    trio.socket.set_custom_hostname_resolver(Names(data_example=[["127.0.0.1"]]))
    port = get_port(way)
    assert await read(f"https://{NAME}:{port}/a.bin") == CONTENT["a.bin"][:100]
    assert [one.headers["host"] for one in way.asked] == [f"{NAME}:{port}"] * 2


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_name_that_moves_to_a_private_address_is_refused_from_then_on(way: FaultyWay) -> None:
    trio.socket.set_custom_hostname_resolver(Names(data_example=[["127.0.0.1"], ["127.0.0.2"]]))
    with pytest.raises(StorageRefused, match=f"{NAME} is not a public address"):
        await read(f"https://{NAME}:{get_port(way)}/a.bin")
    assert [one.method for one in way.asked] == ["HEAD"]


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_host_without_the_name_s_certificate_is_not_read(way: FaultyWay, quick_clock: SteadyClock) -> None:
    trio.socket.set_custom_hostname_resolver(Names(third_example=[["127.0.0.1"]]))
    with pytest.raises(StorageError, match="certificate"):
        await read(f"https://third.example:{get_port(way)}/a.bin")
    assert not way.asked


@pytest.mark.usefixtures("loopback_is_public")
@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("https://127.0.0.2:{port}/x", "127.0.0.2 is not a public address"),
        ("https://169.254.169.254/latest", "169.254.169.254 is not a public address"),
        ("https://other.example/x", "other.example is not a public address"),
        ("//other.example/x", "other.example is not a public address"),
        (f"http://{NAME}:{{port}}/a.bin", "must be an https address"),
        ("file:///etc/passwd", "is no address"),
        ("https://[x/a.bin", "a redirect to no address"),
        ("https://a..example/a.bin", "is no address"),
        (f"https://{NAME}:{{port}}/more", "more than 5 redirects"),
    ],
)  # fmt: skip
async def test_a_redirect_is_judged_as_the_first_address_was(way: FaultyWay, location: str, reason: str) -> None:
    trio.socket.set_custom_hostname_resolver(Names(data_example=[["127.0.0.1"]], other_example=[["192.168.1.1"]]))
    port = get_port(way)
    way.spoil("redirect", location=location.replace("{port}", port))
    with pytest.raises(StorageRefused, match=reason):
        await read(f"https://{NAME}:{port}/a.bin")
    assert len(way.asked) <= 6


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_redirect_to_another_public_host_is_followed(way: FaultyWay) -> None:
    trio.socket.set_custom_hostname_resolver(Names(data_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]]))
    port = get_port(way)
    way.spoil("redirect", 2, location=f"https://other.example:{port}{{}}")
    assert await read(f"https://{NAME}:{port}/a.bin") == CONTENT["a.bin"][:100]
