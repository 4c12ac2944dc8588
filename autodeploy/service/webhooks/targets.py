"""Where webhooks may go: the operator's list, and no address of the own network that is not on it.

What a name resolves to is judged when it is connected to, at every attempt, and the connection is made to that very
address: a name that changes its mind in between (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Iterable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SETTING = "AUTODEPLOY_WEBHOOK_TARGETS"
MAX_URL_LENGTH = 2000
DEFAULT_PORTS = {"https": 443, "http": 80}
# Addresses of IPv6 that stand for one of IPv4, behind which anything may be.
_STANDS_FOR_IPV4 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"))
# Reserved, though Python calls them public: old site-local addresses, documentation, relays of 6to4.
_RESERVED = tuple(ipaddress.ip_network(text) for text in ("fec0::/10", "3fff::/20", "192.88.99.0/24"))
_VISIBLE = re.compile(r"[!-~]+")
_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where one webhook goes. `url` is in its one spelling: host in small letters, a path."""

    url: str
    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """What all addresses of that receiver begin with."""
        return self.url[: len(self.url) - len(self.path) + 1]

    @property
    def authority(self) -> str:
        """The Host header."""
        return self.origin.removeprefix(f"{self.scheme}://").removesuffix("/")


@dataclass(frozen=True, slots=True)
class _Entry:
    host: str
    network: Network | None
    port: int | None  # None: the scheme's own
    any_port: bool

    def allows(self, target: Target, address: Address | None) -> bool:
        port_fits = self.any_port or target.port == (DEFAULT_PORTS[target.scheme] if self.port is None else self.port)
        if self.network is not None:
            return port_fits and address is not None and address in self.network
        if self.host.startswith("*."):
            return port_fits and address is None and target.host.endswith(self.host[1:])
        return port_fits and (self.host == "*" or self.host == target.host)


class Targets:
    """The operator's list: `host`, `*.domain`, `*`, an address or a network, each perhaps with `:port` or `:*`."""

    def __init__(self, entries: Iterable[_Entry] = ()) -> None:
        self._entries = tuple(entries)

    @classmethod
    def parse(cls, text: str) -> Targets:
        """From the setting: entries with commas between.

        Raises
        ------
        SpecError
            naming the entry that is none.
        """
        return cls(_entry(part.strip()) for part in text.split(",") if part.strip())

    def __bool__(self) -> bool:
        return bool(self._entries)

    def target(self, url: str) -> Target:
        """The target of an address that the list allows, as far as that can be told without asking for the name.

        Raises
        ------
        SpecError
            saying what is wrong with it.
        """
        target = _target(url)
        address = _address(target.host)
        address = None if address is None else _unwrapped(address)
        if not any(entry.allows(target, address) for entry in self._entries):
            raise SpecError(
                Message("jobs.webhooks_to_are_not_allowed_here", host=target.host, port=target.port),
                path="webhook",
                hint=Message("jobs.operator_lists_targets", setting=SETTING),
            )
        if address is not None and not self.allows_address(address):
            raise SpecError(
                Message("jobs.is_address_of_private_network", host=target.host),
                path="webhook",
                hint=Message("jobs.operator_lists_targets", setting=SETTING),
            )
        return target

    def allows_address(self, address: Address) -> bool:
        """Whether a connection may be made to it: a public one, or one that the list has as an address."""
        plain = _unwrapped(address)
        return _is_public(plain) or any(e.network is not None and plain in e.network for e in self._entries)


def _target(url: str) -> Target:
    wrong = SpecError(
        Message("jobs.not_url_of_webhook", limit=MAX_URL_LENGTH),
        path="webhook",
        hint=Message("common.such_as", example="https://ci.example.com/hooks/autodeploy"),
    )
    if len(url) > MAX_URL_LENGTH or _VISIBLE.fullmatch(url) is None:
        raise wrong
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise wrong
    if parts.username is not None or parts.password is not None or "#" in url or "\\" in url:
        raise wrong
    host = parts.hostname.removesuffix(".")
    if _address(host) is None and (_HOST.fullmatch(host) is None or "*" in host):
        raise wrong
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port is None else f"{shown}:{port}"
    path = (parts.path if parts.path.startswith("/") else "/" + parts.path) + (f"?{parts.query}" if parts.query else "")
    target = f"{parts.scheme}://{authority}{path}"
    return Target(target, parts.scheme, host, DEFAULT_PORTS[parts.scheme] if port is None else port, path)


def _entry(text: str) -> _Entry:
    host, port_text = text.lower(), ""
    network = _network(host)
    if network is None and ":" in host:
        host, _, port_text = host.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        network = _network(host)
    port_known = port_text in {"", "*"} or (port_text.isdigit() and 0 < int(port_text) < 65_536)
    if not port_known or (network is None and _HOST.fullmatch(host) is None):
        raise SpecError(
            Message("jobs.is_no_host_address_or_network", entry=repr(text[:100])),
            path=SETTING,
            hint="ci.example.com,*.hooks.example.com:8443,10.20.0.0/16:*",
        )
    return _Entry(host, network, int(port_text) if port_text.isdigit() else None, port_text == "*")


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.removeprefix("[").removesuffix("]"), strict=False)
    except ValueError:
        return None


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _unwrapped(address: Address) -> Address:
    """An address of IPv4 that is written as one of IPv6 is the one of IPv4."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _is_public(address: Address) -> bool:
    if any(address in network for network in (*_STANDS_FOR_IPV4, *_RESERVED)):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
