"""The address to listen on, found from the name of an interface."""

import fcntl
import ipaddress
import socket
import struct
from typing import Final

from psyche.errors import ConfigError

SIOCGIFADDR: Final = 0x8915
IFREQ_BYTES: Final = 256
ALL: Final = "0.0.0.0"  # noqa: S104 - a participant wants to be reached


def get_bind_ip(interface: str | None) -> str:
    """The IPv4 address of `interface`: an address, a name (`eth0`), a prefix (`eth*`), or None for all."""
    if interface is None or interface in ("", "all"):
        return ALL
    try:
        return str(ipaddress.IPv4Address(interface))
    except ValueError:
        pass
    names = [name for _, name in socket.if_nameindex()]
    wanted = [name for name in names if _is_meant(name, interface)]
    if not wanted:
        raise ConfigError(f"--bind-p2p-interface {interface!r}: no such interface; this machine has {', '.join(names)}")
    for name in wanted:
        address = get_address(name)
        if address is not None:
            return address
    raise ConfigError(f"--bind-p2p-interface {interface!r}: {', '.join(wanted)} has no IPv4 address")


def get_address(name: str) -> str | None:
    request = struct.pack(f"{IFREQ_BYTES}s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _is_meant(name: str, interface: str) -> bool:
    return name.startswith(interface[:-1]) if interface.endswith("*") else name == interface
