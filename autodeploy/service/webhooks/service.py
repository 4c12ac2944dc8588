"""Webhooks: targets that may be called, and what is to be sent to them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from autodeploy.kit.errors import NotFoundError, SpecError
from autodeploy.messages import Message
from autodeploy.service.store.events import Deliveries
from autodeploy.service.webhooks.sending import WebhookSender, team_secret
from autodeploy.specs.resources import DeliveryDocument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Database


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
    """Target of one webhook. `url` is in its one spelling: host in small letters, a path."""

    url: str
    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> str:
        """Beginning of all addresses of that receiver."""
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

        Raises SpecError naming the entry that is none.
        """
        return cls(_entry(part.strip()) for part in text.split(",") if part.strip())

    def __bool__(self) -> bool:
        return bool(self._entries)

    def target(self, url: str) -> Target:
        """The target of an address that the list allows, as far as that can be told without asking for the name.

        Raises SpecError: saying what is wrong with it.
        """
        target = _target(url)
        address = _address(target.host)
        address = None if address is None else _unwrapped(address)
        if not any(entry.allows(target, address) for entry in self._entries):
            raise SpecError(
                Message("jobs.webhook_target_refused", host=target.host, port=target.port),
                path="webhook",
                hint=Message("jobs.operator_lists_targets", setting=SETTING),
            )
        if address is not None and not self.allows_address(address):
            raise SpecError(
                Message("jobs.private_address", host=target.host),
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
            Message("jobs.bad_network_entry", entry=repr(text[:100])),
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


OFF = Message("services.webhooks_are_off_here")
OFF_HINT = Message("services.enable_webhooks")


class WebhookService:
    """The operator's rules, and in a server or worker the thread that sends.

    Raises SpecError when the settings name no targets that can be read, or targets without a secret.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._targets = Targets.parse(settings.webhook_targets)
        if self._targets and settings.webhook_secret is None:
            raise SpecError(
                Message("services.webhook_needs_secret"),
                path="AUTODEPLOY_WEBHOOK_SECRET",
                hint=Message("services.generate_secret"),
            )
        self._secret = "" if settings.webhook_secret is None else settings.webhook_secret.get_secret_value()
        self._sender = WebhookSender(database, settings, self._targets, self._secret) if self.is_on else None

    @property
    def is_on(self) -> bool:
        """Whether the operator allows any."""
        return bool(self._targets) and bool(self._secret)

    def start(self) -> None:
        """Begins to send what is due, where the operator allows any."""
        if self._sender is not None:
            self._sender.start()

    def stop(self) -> None:
        """Sends no more; what is under way is cut off soon and sent again by another process."""
        if self._sender is not None:
            self._sender.stop()

    def checked(self, url: str) -> str:
        """The address in its one spelling. The name in it is not looked up: nobody waits for that here.

        Raises SpecError when webhooks are off, or may not go there.
        """
        if not self.is_on:
            raise SpecError(OFF, path="webhook", hint=OFF_HINT)
        return self._targets.target(url).url

    def secret_of(self, team: str) -> str:
        """Secret that signs the webhooks of that team.

        Raises NotFoundError when webhooks are off.
        """
        if not self.is_on:
            raise NotFoundError(OFF, hint=OFF_HINT)
        return team_secret(self._secret, team)

    def of_search(self, search_id: str) -> tuple[DeliveryDocument, ...]:
        """The webhooks of a search, the oldest first."""
        with self._database.read() as session:
            return tuple(DeliveryDocument.model_validate(row) for row in Deliveries(session).of_search(search_id))
