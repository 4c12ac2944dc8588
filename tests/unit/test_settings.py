"""Settings: from the environment, frozen, refused with the variable's name."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.kit.settings import Settings, load_settings

pytestmark = pytest.mark.unit


def test_by_default_one_persons_sqlite_on_loopback(monkeypatch, tmp_path):
    monkeypatch.delenv("AUTODEPLOY_DATABASE_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = load_settings()
    assert settings.database_url == f"sqlite:///{tmp_path}/autodeploy/autodeploy.db"
    assert (settings.is_sqlite, settings.is_loopback, settings.jobs) == (True, True, "embedded")
    settings.refuse_open_server()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1


def test_the_environment_is_read(monkeypatch):
    monkeypatch.setenv("AUTODEPLOY_PORT", "9000")
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", "postgresql://host/name")
    assert load_settings().port == 9000
    assert load_settings().database_url == "postgresql+psycopg://host/name"
    assert load_settings(port=1).port == 1


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"port": 70_000}, "AUTODEPLOY_PORT"),
        ({"jobs": "celery"}, "AUTODEPLOY_JOBS"),
        ({"database_url": "mysql://host/name"}, "AUTODEPLOY_DATABASE_URL"),
        ({"database_url": "sqlite://"}, "AUTODEPLOY_DATABASE_URL"),
        ({"database_url": "sqlite:///:memory:"}, "AUTODEPLOY_DATABASE_URL"),
        ({"workers": 0}, "AUTODEPLOY_WORKERS"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(values, name):
    with pytest.raises(SpecError) as caught:
        load_settings(**values)
    assert [error.path for error in caught.value.errors] == [name]


def test_what_docker_compose_leaves_empty_is_absent(monkeypatch):
    monkeypatch.setenv("AUTODEPLOY_KEEP_DAYS", "")
    monkeypatch.setenv("AUTODEPLOY_PATH_PREFIX", "")
    settings = load_settings()
    assert (settings.keep_days, settings.path_prefix) == (365, "")
    monkeypatch.setenv("AUTODEPLOY_KEEP_DAYS", "30")
    assert load_settings().keep_days == 30


def test_the_distributed_queue_needs_postgresql():
    with pytest.raises(SpecError, match="needs PostgreSQL"):
        load_settings(jobs="procrastinate", database_url="sqlite:///a.db")


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", False), ("localhost", False), ("::1", False), ("0.0.0.0", True), ("::", True), ("planner", True)],
)
def test_an_open_server_has_to_be_meant(host, is_open):
    settings = Settings(host=host)
    if is_open:
        with pytest.raises(SpecError, match="anyone"):
            settings.refuse_open_server()
    else:
        settings.refuse_open_server()
    Settings(host=host, auth="none").refuse_open_server()
