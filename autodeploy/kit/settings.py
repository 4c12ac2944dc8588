"""The operator's settings: environment variables that start with `AUTODEPLOY_`. Read once, then frozen."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault, fault_of

PREFIX = "AUTODEPLOY_"
_PATH_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]*[A-Za-z0-9_~-])+")  # never `.` or `..` alone
GIB = 1 << 30


def data_directory() -> Path:
    """Directory of one person's data: `$XDG_DATA_HOME/autodeploy`, by default `~/.local/share/autodeploy`."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "autodeploy"


def default_database_url() -> str:
    """SQLite in the data directory."""
    return f"sqlite:///{data_directory() / 'autodeploy.db'}"


class Settings(BaseSettings):
    """Frozen settings of one process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    database_url: Annotated[str, Field(description="SQLite file or PostgreSQL (postgresql+psycopg://)")] = Field(
        default_factory=default_database_url
    )
    database_connections: Annotated[
        int,
        Field(ge=4, le=1000, description="most connections of a server to PostgreSQL; a worker has 2 and 1 a search"),
    ] = 40
    jobs_listen: Annotated[
        bool,
        Field(description="a worker is told of new searches, by one more connection, rather than looking every poll"),
    ] = False
    host: Annotated[str, Field(description="address the server listens on")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8000
    path_prefix: Annotated[
        str, Field(description="path of the service on its site, as of a proxy that serves others too: /autodeploy")
    ] = ""
    trusted_proxies: Annotated[
        str | None,
        Field(
            description="addresses or networks of proxies, with commas between, whose X-Forwarded-For and "
            "X-Forwarded-Proto are believed; * for all; absent: none"
        ),
    ] = None
    max_connections: Annotated[
        int, Field(ge=8, le=1_000_000, description="connections at the same time; more are answered with 503")
    ] = 1000
    header_timeout_s: Annotated[
        float, Field(gt=0, le=600, description="time that a client gets for the line and the headers of a request")
    ] = 10.0
    body_timeout_s: Annotated[
        float, Field(gt=0, le=3600, description="time that it gets for the body, and to take a part of the answer")
    ] = 30.0
    auth: Annotated[
        Literal["none", "keys"] | None,
        Field(
            description="keys: every request needs an API key; none: open on every address, said on purpose; "
            "absent: open on loopback, refused elsewhere"
        ),
    ] = None
    key_searches: Annotated[
        int, Field(ge=1, le=10_000, description="searches of one API key that wait or run, where the key says nothing")
    ] = 8
    key_running: Annotated[
        int | None,
        Field(ge=1, le=10_000, description="searches of one API key that run, where the key says nothing; absent: any"),
    ] = None
    key_requests_per_s: Annotated[
        float,
        Field(gt=0, le=100_000, description="requests of one API key to one server; ten seconds' worth at once"),
    ] = 50.0
    login_attempts: Annotated[
        int, Field(ge=1, le=1000, description="failed log-ins a minute from one address; then 429 until one is older")
    ] = 10
    share_results: Annotated[
        bool,
        Field(description="a spec that another team planned is answered with a copy of its result, marked as cached"),
    ] = True
    key_guesses: Annotated[
        int,
        Field(ge=1, le=100_000, description="requests a minute from one address with keys that are none; then 429"),
    ] = 60
    session_s: Annotated[float, Field(gt=0, le=2_592_000, description="how long a browser stays logged in")] = 43_200.0
    jobs: Annotated[
        Literal["embedded", "procrastinate"],
        Field(description="embedded: processes of the server; procrastinate: workers on PostgreSQL"),
    ] = "embedded"
    workers: Annotated[int, Field(ge=1, le=256, description="searches that run at the same time")] = 1
    cores: Annotated[
        int | None,
        Field(
            ge=1, le=4096, description="most cores of one search, which uses two; absent: all that the process may use"
        ),
    ] = None
    call_processes: Annotated[
        int, Field(ge=1, le=64, description="processes for estimates, ablations and exports that a request waits for")
    ] = 1
    ask_ahead: Annotated[
        bool,
        Field(description="the changes next to a plan whose page is open are computed before they are asked for"),
    ] = True
    call_limit_s: Annotated[
        float, Field(gt=0, le=600, description="time of one of these, waiting for a process included")
    ] = 60.0
    search_memory_bytes: Annotated[
        int,
        Field(
            ge=GIB,
            le=1 << 50,
            description="address space of each process of a search; one that needs more fails and is not tried again",
        ),
    ] = 2 * GIB
    max_time_limit_s: Annotated[
        float, Field(gt=0, le=86_400, description="most that `search.time_limit_s` may ask of the server")
    ] = 3600.0
    max_effort: Annotated[float, Field(ge=1, le=10_000, description="most that `search.effort` may be as a number")] = (
        1000.0
    )
    max_cards: Annotated[int, Field(ge=1, le=200_000, description="most cards that a spec may be planned for")] = (
        200_000
    )
    max_attempts: Annotated[int, Field(ge=1, le=10, description="of a search that takes its process down")] = 2
    max_losses: Annotated[
        int, Field(ge=1, le=1000, description="of a search whose worker is lost, as on machines that may be taken away")
    ] = 10
    heartbeat_s: Annotated[float, Field(gt=0, le=60, description="a running search reports this often")] = 1.0
    stalled_after_s: Annotated[float, Field(gt=0, le=3600, description="a search silent for longer is retried")] = 30.0
    poll_s: Annotated[float, Field(gt=0, le=60, description="how often the queue is looked at without a wake-up")] = 1.0
    worker_alive_s: Annotated[
        float,
        Field(ge=1, le=3600, description="a worker that has not looked into the queue for longer does not count"),
    ] = 30.0
    worker_port: Annotated[
        int | None,
        Field(
            ge=0,
            le=65_535,
            description="a worker answers /livez and /metrics here, without a key, on AUTODEPLOY_HOST",
        ),
    ] = None
    body_limit_bytes: Annotated[int, Field(ge=1024)] = 1_048_576
    wait_limit_s: Annotated[float, Field(ge=0, le=600, description="longest `Prefer: wait`")] = 120.0
    stream_limit_s: Annotated[float, Field(gt=0, description="life of one event stream; clients resume")] = 600.0
    shutdown_grace_s: Annotated[float, Field(ge=0, le=600, description="time that open requests get on shutdown")] = 5.0
    webhook_targets: Annotated[
        str,
        Field(
            max_length=10_000,
            description="hosts that webhooks may go to, with commas between: `ci.example.com`, `*.example.com:8443`, "
            "`10.20.0.0/16:*`; private addresses only where the list has them as addresses; absent: no webhooks",
        ),
    ] = ""
    webhook_secret: Annotated[
        SecretStr | None,
        Field(min_length=32, description="the secrets that sign webhooks are made from this one; absent: no webhooks"),
    ] = None
    webhook_timeout_s: Annotated[float, Field(gt=0, le=60, description="of one attempt, everything together")] = 10.0
    webhook_attempts: Annotated[int, Field(ge=1, le=20, description="to deliver a webhook")] = 8
    webhook_retry_s: Annotated[
        float, Field(gt=0, le=3600, description="pause after the first attempt; each later one is three times as long")
    ] = 10.0
    keep_days: Annotated[
        int, Field(ge=0, le=36_500, description="searches that finished longer ago are deleted; 0: none is")
    ] = 365
    keep_tagged: Annotated[bool, Field(description="searches with a tag stay all the same")] = True
    keep_audit_days: Annotated[
        int, Field(ge=0, le=36_500, description="so long the audit log goes back; 0: to the beginning")
    ] = 730
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    @field_validator("path_prefix")
    @classmethod
    def _clean_prefix(cls, value: str) -> str:
        value = value.rstrip("/")
        if value and not _PATH_PREFIX.fullmatch(value):
            raise FieldFault(Message("planner.bad_root_path"), "/autodeploy")
        return value

    @field_validator("keep_days", "keep_audit_days", mode="before")
    @classmethod
    def _nothing_said(cls, value: object, info: ValidationInfo) -> object:
        # As docker compose says what is not set.
        return cls.model_fields[str(info.field_name)].default if value == "" else value

    @field_validator("trusted_proxies")
    @classmethod
    def _known_addresses(cls, value: str | None) -> str | None:
        for item in [] if value in {None, "", "*"} else [part.strip() for part in str(value).split(",")]:
            try:
                ipaddress.ip_network(item)
            except ValueError:
                raise FieldFault(Message("jobs.bad_network_entry", entry=item), "10.0.0.7,10.1.0.0/24") from None
        return value

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if value.startswith("postgresql://"):
            value = value.replace("postgresql://", "postgresql+psycopg://", 1)
        if value.startswith("sqlite://"):
            path = value.removeprefix("sqlite://").removeprefix("/").partition("?")[0]
            if path in {"", ":memory:"}:
                raise FieldFault(Message("planner.sqlite_needs_file"), "sqlite:////var/lib/autodeploy/autodeploy.db")
        elif not value.startswith("postgresql+psycopg://"):
            raise FieldFault(
                Message("planner.unsupported_database"),
                "sqlite:///file.db or postgresql+psycopg://host/name",
            )
        return value

    @model_validator(mode="after")
    def _queue_has_its_database(self) -> Self:
        if self.jobs == "procrastinate" and self.is_sqlite:
            raise FieldFault(
                Message("common.needs", one="AUTODEPLOY_JOBS=procrastinate", other="PostgreSQL"),
                "AUTODEPLOY_DATABASE_URL=postgresql://...",
            )
        return self

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is an SQLite file."""
        return self.database_url.startswith("sqlite")

    def has_database(self) -> bool:
        """Whether the database has been used before: an SQLite file that is there, or a server."""
        return not self.is_sqlite or Path(self.database_url.removeprefix("sqlite:///").partition("?")[0]).is_file()

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def refuse_open_server(self) -> None:
        """Raises unless the server is closed to others, or open on purpose.

        Raises SpecError naming the setting.
        """
        if self.auth is None and not self.is_loopback:
            raise SpecError(
                Message("planner.open_server", host=self.host),
                path=f"{PREFIX}AUTH",
                hint=Message("settings.listen_or_set_auth", setting=f"{PREFIX}AUTH"),
            )


def load_settings(**changes: Any) -> Settings:
    """Settings from the environment, `changes` first.

    Raises SpecError with the variable's name as path of each bad value.
    """
    try:
        return Settings(**changes)
    except ValidationError as error:
        raise SpecError(errors=tuple(_field_error(item) for item in error.errors(include_url=False))) from error


def _field_error(item: Any) -> FieldError:
    name = PREFIX + "_".join(str(part) for part in item["loc"]).upper() if item["loc"] else "environment"
    return FieldError(name, *fault_of(item))
