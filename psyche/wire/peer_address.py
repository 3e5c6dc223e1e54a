"""Peer addresses as people and the record write them, with the key to prove: `/ip4/192.0.2.7/tcp/4001/p2p/KEY`."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

import base58

from psyche.core.state.state import ZERO32
from psyche.errors import WireError

MAX_PEER_ADDRESS_BYTES: Final = 128  # as on record
EXAMPLE: Final = "/ip4/192.0.2.7/tcp/4001/p2p/KEY"
_ED25519_PEER_ID: Final = b"\x00\x24\x08\x01\x12\x20"  # the bytes before the key: its kind and sizes
_IP_VERSIONS: Final = {"ip4": 4, "ip6": 6}
_DNS: Final = frozenset({"dns", "dns4", "dns6"})
_HOST_NAME: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*\.?")
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A node's 32-byte p2p key, and the multiaddr without it."""

    key: bytes
    address: str


def parse_peer_address(text: str) -> PeerAddress:
    """Parse an address that ends with the node's key, as a libp2p peer id or 64 hex digits.

    Raises:
        WireError: the address is invalid; the message says which part breaks which rule.
    """
    if not text.isascii() or len(text) > MAX_PEER_ADDRESS_BYTES:
        raise WireError(f"must be ASCII of at most {MAX_PEER_ADDRESS_BYTES} bytes")
    parts = text.split("/")
    if len(parts) == 5:
        raise WireError(f"names no key: must end with /p2p/KEY, as in {EXAMPLE}")
    if len(parts) != 7 or (parts[0], parts[3], parts[5]) != ("", "tcp", "p2p"):
        raise WireError(f"must be like {EXAMPLE}, or begin with /ip6/, /dns/, /dns4/ or /dns6/")
    _check_host(parts[1], parts[2])
    if _PORT.fullmatch(parts[4]) is None or int(parts[4]) > 65_535:
        raise WireError(f"port {parts[4]!r} must be 1 to 65535")
    return PeerAddress(_parse_key(parts[6]), "/".join(parts[:5]))


def _check_host(kind: str, host: str) -> None:
    if kind in _DNS:
        if _HOST_NAME.fullmatch(host) is None:
            raise WireError(f"{host!r} is not a host name")
        return
    version = _IP_VERSIONS.get(kind)
    if version is None:
        raise WireError(f"must begin with /ip4/, /ip6/, /dns/, /dns4/ or /dns6/, not /{kind}/")
    try:
        found = ipaddress.ip_address(host)
    except ValueError as error:
        raise WireError(f"{host!r} is not an IP address") from error
    if found.version != version:
        raise WireError(f"{host} is of IP version {found.version}, /{kind}/ takes version {version}")
    if found.is_unspecified or found.is_multicast:
        raise WireError(f"{host} is not the address of one machine")


def _parse_key(text: str) -> bytes:
    if len(text) == 2 * len(ZERO32):
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise WireError(f"key {text!r} is not 64 hex digits") from error
    try:
        raw = base58.b58decode(text)
    except ValueError as error:
        raise WireError(f"key {text!r} is neither a libp2p peer id nor 64 hex digits") from error
    if len(raw) != len(_ED25519_PEER_ID) + len(ZERO32) or not raw.startswith(_ED25519_PEER_ID):
        raise WireError(f"key {text!r} is not the peer id of an Ed25519 key")
    return raw[len(_ED25519_PEER_ID) :]
