"""Who a request is from, where a trusted proxy passed it on: X-Forwarded-For, -Proto and -Host of its addresses alone.

Every proxy appends to X-Forwarded-For the address that it was called from. So the list is read from its right end, as
long as its entries are trusted themselves: the first that is not is the client, and what stands left of it is the
client's own claim. The header ``Forwarded`` (RFC 7239) is not read: a proxy that sets the others passes a client's
``Forwarded`` on unchanged.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.types import Scope

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_MOST_HOPS: Final = 32
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_PORT: Final = re.compile(r"(?:\[(?P<six>[^\]]*)\](?::[0-9]{1,5})?|(?P<four>[0-9.]+):[0-9]{1,5})")
_DROPPED: Final = (b"forwarded", b"x-real-ip")


def address_of(text: str) -> Address | None:
    """An address, perhaps with a port; None for anything else. One of IPv4 may be written as one of IPv6."""
    text = text.strip()
    stated = _PORT.fullmatch(text)
    if stated is not None:
        text = stated["six"] or stated["four"] or ""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return None if found.scope_id else found.ipv4_mapped or found
    return found


def peer_of(text: str) -> str:
    """What counts as one client: an address of IPv4, or the network of 64 bits that one of IPv6 lies in."""
    found = address_of(text)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return text if found is None else str(found)


class Proxies:
    """The addresses whose forwarded headers are trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]

    def __contains__(self, address: object) -> bool:
        found = address_of(str(address))
        return found is not None and any(
            found in network for network in self._networks if network.version == found.version
        )

    def seen_through(self, scope: Scope) -> tuple[Scope, bool]:
        """The request as the client sent it, and True where a trusted proxy passed it on.

        Forwarded headers of all others are taken out, so that nothing further in can read them.
        """
        peer = scope["client"][0] if scope.get("client") else ""
        headers = [(name, value) for name, value in scope["headers"] if not _is_forwarded(name)]
        if peer not in self:
            return {**scope, "headers": headers}, False
        client, hops = self._client(peer, _listed(scope, b"x-forwarded-for"))
        changed: dict[str, Any] = {"headers": headers, "client": (client, 0)}
        scheme = _at_hop(_listed(scope, b"x-forwarded-proto"), hops).lower()
        if scheme in ("http", "https"):
            changed["scheme"] = scheme
        host = _at_hop(_listed(scope, b"x-forwarded-host"), hops)
        if _HOST.fullmatch(host):
            changed["headers"] = [(b"host", host.encode()), *(one for one in headers if one[0] != b"host")]
        return {**scope, **changed}, True

    def _client(self, peer: str, chain: Sequence[str]) -> tuple[str, int]:
        """The client's address, and how many trusted proxies its request came through."""
        client, hops = peer, 1
        for entry in reversed(chain[-_MOST_HOPS:]):
            found = address_of(entry)
            if found is None:  # who passed it on is the last that is known
                break
            client = str(found)
            if client not in self:
                break
            hops += 1
        return client, hops


def _is_forwarded(name: bytes) -> bool:
    return name.startswith(b"x-forwarded-") or name in _DROPPED


def _listed(scope: Scope, name: bytes) -> list[str]:
    """The entries of a header that may stand more than once (RFC 9110, 5.3)."""
    lines = [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    return [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]


def _at_hop(entries: Sequence[str], hops: int) -> str:
    """What the outermost trusted proxy said: so many from the right, or the first where inner ones replace it."""
    return entries[-min(hops, len(entries))] if entries else ""
