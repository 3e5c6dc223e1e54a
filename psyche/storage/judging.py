"""Which addresses may be asked (B21)."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


class HostRefused(Exception):
    """An address that must not be asked."""


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet, also the IPv4 address within one of IPv6."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def check_url(url: str, *, allow_private_hosts: bool) -> tuple[str, str, int | None]:
    """Check that an address is one of https, and return its origin.

    Raises:
        HostRefused: it is not; http is allowed on private hosts.
    """
    try:
        parts = urlsplit(url)
        origin = parts.scheme, parts.hostname or "", parts.port
        origin[1].encode("idna")  # a name that no resolver takes
    except ValueError:
        raise HostRefused("is no address") from None
    if not (url.isascii() and url.isprintable() and " " not in url and origin[1]) or "@" in parts.netloc:
        raise HostRefused("is no address: must be https://host/path, in ASCII, without user and password")
    if origin[0] != "https" and not (allow_private_hosts and origin[0] == "http"):
        raise HostRefused("must be an https address")
    return origin


def hide_query(url: str) -> str:
    """An address, also a broken one, as messages may name it: what follows `?` may be a signature."""
    return re.sub(r"//[^/]*@", "//", re.split(r"[?#]", url, maxsplit=1)[0])
