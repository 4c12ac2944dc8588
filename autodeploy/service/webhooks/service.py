"""Webhooks from the outside: whether one may be asked for, how it is signed, what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.kit.errors import NotFoundError, SpecError
from autodeploy.messages import Message
from autodeploy.service.store.deliveries import Deliveries
from autodeploy.service.webhooks.sending import WebhookSender, team_secret
from autodeploy.service.webhooks.targets import Targets

if TYPE_CHECKING:
    from datetime import datetime

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Database

OFF = Message("services.webhooks_are_off_here")
OFF_HINT = Message("services.operator_sets_autodeploy_webhook_targets_and_autodeploy_webhook")


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A webhook of a search and what became of it. `next_at`: when it is tried again, or for the first time."""

    id: str
    search_id: str
    url: str
    status: str
    created_at: datetime
    next_at: datetime | None
    attempts: int
    last_error: str | None


class WebhookService:
    """The operator's rules, and in a server or worker the thread that sends.

    Raises
    ------
    SpecError
        when the settings name no targets that can be read, or targets without a secret.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._targets = Targets.parse(settings.webhook_targets)
        if self._targets and settings.webhook_secret is None:
            raise SpecError(
                Message("services.webhooks_are_signed_which_takes_secret"),
                path="AUTODEPLOY_WEBHOOK_SECRET",
                hint=Message("services.openssl_rand_hex_32_makes_one_same_for"),
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

        Raises
        ------
        SpecError
            when webhooks are off, or may not go there.
        """
        if not self.is_on:
            raise SpecError(OFF, path="webhook", hint=OFF_HINT)
        return self._targets.target(url).url

    def secret_of(self, team: str) -> str:
        """What the webhooks of that team are signed with.

        Raises
        ------
        NotFoundError
            when webhooks are off.
        """
        if not self.is_on:
            raise NotFoundError(OFF, hint=OFF_HINT)
        return team_secret(self._secret, team)

    def of_search(self, search_id: str) -> tuple[DeliveryView, ...]:
        """The webhooks of a search, the oldest first."""
        with self._database.read() as session:
            rows = Deliveries(session).of_search(search_id)
            return tuple(
                DeliveryView(**{name: getattr(row, name) for name in DeliveryView.__dataclass_fields__}) for row in rows
            )
