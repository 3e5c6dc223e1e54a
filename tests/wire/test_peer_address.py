"""Addresses that name the key of their node: what is read, and what is refused and why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.peer.id import ID

from psyche.errors import WireError
from psyche.wire.crypto import Identity
from psyche.wire.peer_address import PeerAddress, parse_peer_address

KEY = Identity(b"\x07" * 32).public
AT = "/ip4/192.0.2.7/tcp/4001"


@given(st.binary(min_size=32, max_size=32))
def test_the_peer_id_that_libp2p_writes_and_the_digits_of_the_key_are_the_same_key(seed: bytes) -> None:
    key = Identity(seed).public
    peer_id = ID.from_pubkey(Ed25519PublicKey.from_bytes(key))
    assert parse_peer_address(f"{AT}/p2p/{peer_id}") == PeerAddress(key, AT)
    assert parse_peer_address(f"{AT}/p2p/{key.hex()}") == PeerAddress(key, AT)


@pytest.mark.parametrize(
    "place", ["/ip6/2001:db8::1/tcp/1", "/dns/a.example/tcp/65535", "/dns4/a-b.example/tcp/80", "/dns6/localhost/tcp/9"]
)
def test_names_and_both_versions_of_ip_are_read(place: str) -> None:
    assert parse_peer_address(f"{place}/p2p/{KEY.hex()}") == PeerAddress(KEY, place)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (AT, "names no key: must end with /p2p/KEY"),
        ("192.0.2.7:4001", "must be like /ip4/192.0.2.7/tcp/4001/p2p/KEY"),
        (f"{AT}/p2p/{KEY.hex()}/p2p-circuit", "must be like"),
        (f"/ip4/192.0.2.7/udp/4001/p2p/{KEY.hex()}", "must be like"),
        (f"/unix/192.0.2.7/tcp/4001/p2p/{KEY.hex()}", "not /unix/"),
        (f"/ip4/192.0.2/tcp/4001/p2p/{KEY.hex()}", "'192.0.2' is not an IP address"),
        (f"/ip4/::1/tcp/4001/p2p/{KEY.hex()}", "/ip4/ takes version 4"),
        (f"/ip4/0.0.0.0/tcp/4001/p2p/{KEY.hex()}", "not the address of one machine"),
        (f"/dns4/-a.example/tcp/4001/p2p/{KEY.hex()}", "'-a.example' is not a host name"),
        (f"/ip4/192.0.2.7/tcp/0/p2p/{KEY.hex()}", "port '0' must be 1 to 65535"),
        (f"/ip4/192.0.2.7/tcp/65536/p2p/{KEY.hex()}", "port '65536'"),
        (f"{AT}/p2p/{'x' * 64}", "is not 64 hex digits"),
        (f"{AT}/p2p/0OIl", "neither a libp2p peer id nor 64 hex digits"),
        (f"{AT}/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N", "not the peer id of an Ed25519 key"),
        (f"/dns4/{'a' * 60}.{'b' * 60}/tcp/1/p2p/{KEY.hex()}", "at most 128 bytes"),
        (f"/dns4/ä.example/tcp/1/p2p/{KEY.hex()}", "ASCII"),
    ],
)
def test_what_cannot_be_dialed_is_refused_with_the_rule(text: str, reason: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_peer_address(text)
    assert reason in str(caught.value)


@given(st.text(max_size=200))
def test_other_text_is_refused_cleanly(text: str) -> None:
    for address in (text, f"{AT}/p2p/{text}", f"/dns/{text}/tcp/1/p2p/{KEY.hex()}"):
        try:
            parse_peer_address(address)
        except WireError:
            continue
