"""`autodeploy keys`: a key is shown once, stored as a hash, listed without itself, and ended for good."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from autodeploy.cli import main
from autodeploy.cli.administration import read_age
from autodeploy.kit.errors import NotFoundError, UnknownCallerError
from autodeploy.service.requests.callers import ANYONE, KEY, SCOPES, AccessService, Principal
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.database import Database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    found = tmp_path / "keys.db"
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{found}")
    return found


@pytest.fixture
def command(path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the program; gives stdout, or stderr where it is to fail."""

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["autodeploy", "keys", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        captured = capsys.readouterr()
        assert (caught.value.code or 0) == code, captured.err
        return captured.err if code else captured.out

    return run


@pytest.fixture
def access(path: Path, command: Callable[..., str]) -> Iterator[AccessService]:
    """What a server on the same database knows of keys."""
    command("ls")  # brings the file to its newest revision
    database = Database(f"sqlite:///{path}", pool_size=1)
    yield AccessService(database)
    database.close()


def test_a_new_key_is_all_that_is_printed_and_is_recognised(command, access, path):
    key = command("create", "ci", "--scope", "write", "--max-searches", "4", "--max-spec-bytes", "2048").strip()
    assert KEY.fullmatch(key)
    principal = access.recognise(key)
    assert (principal.name, principal.scope) == ("ci", "write")
    assert (principal.max_searches, principal.max_spec_bytes) == (4, 2048)
    files = [found for found in path.parent.iterdir() if found.name.startswith(path.name)]
    assert files
    assert all(key.encode() not in found.read_bytes() for found in files)


def test_a_script_reads_the_key_alone_from_stdout(path):
    command = [sys.executable, "-m", "autodeploy", "keys", "create", "ci"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert KEY.fullmatch(printed.strip())


def test_the_least_scope_is_what_nobody_asked_for(command, access):
    assert access.recognise(command("create", "looker").strip()).scope == "read"


def test_a_key_has_a_team_and_its_own_limits(command, access):
    args = ("--team", "vision", "--scope", "calibrate", "--max-running", "2", "--max-time-limit-s", "600")
    principal = access.recognise(command("create", "fit", *args).strip())
    assert (principal.team, principal.scope, principal.max_running, principal.max_time_limit_s) == (
        "vision",
        "calibrate",
        2,
        600.0,
    )
    assert access.recognise(command("create", "anybody").strip()).team == "default"
    assert [found["team"] for found in json.loads(command("ls", "--format", "json"))] == ["vision", "default"]
    assert "vision" in command("ls")


@pytest.mark.parametrize(
    ("principal", "own_team", "sees_b"),
    [
        (Principal(key_id="k", scope="calibrate", team="a"), "a", False),
        (Principal(key_id="k", scope="write", team="b"), "b", True),
        (Principal(key_id="k", scope="admin", team="a"), None, True),
        (ANYONE, None, True),
    ],
)
def test_a_caller_sees_its_team_and_an_admin_all(principal, own_team, sees_b):
    assert principal.own_team == own_team
    assert principal.sees("b") is sees_b
    if sees_b:
        principal.require_team("b", NotFoundError("there is no search x"))
    else:
        with pytest.raises(NotFoundError, match="there is no search x"):
            principal.require_team("b", NotFoundError("there is no search x"))


def test_scopes_include_those_before_them():
    allowed = {scope: [other for other in SCOPES if Principal(scope=scope).may(other)] for scope in SCOPES}
    assert allowed == {scope: list(SCOPES[: place + 1]) for place, scope in enumerate(SCOPES)}


def test_the_list_shows_everything_but_the_key(command, access):
    key = command("create", "ci", "--scope", "admin").strip()
    (before,) = json.loads(command("ls", "--format", "json"))
    assert (before["name"], before["scope"], before["last_used_at"], before["revoked_at"]) == (
        "ci",
        "admin",
        None,
        None,
    )
    access.recognise(key)
    (after,) = json.loads(command("ls", "--format", "json"))
    assert after["last_used_at"] is not None
    table = command("ls")
    assert before["id"] in table
    assert "admin" in table
    assert key not in table + json.dumps([before, after])


def test_a_revoked_key_is_nobodys_and_stays_in_the_list(command, access):
    key, other = command("create", "leaver").strip(), command("create", "other").strip()
    leaver = next(found for found in json.loads(command("ls", "--format", "json")) if found["name"] == "leaver")
    command("revoke", leaver["id"])
    with pytest.raises(UnknownCallerError):
        access.recognise(key)
    assert access.recognise(other).name == "other"
    command("revoke", leaver["id"])  # twice is no error, and does not move the moment
    revoked = {found["name"]: found["revoked_at"] for found in json.loads(command("ls", "--format", "json"))}
    assert revoked["leaver"] is not None
    assert revoked["other"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("revoke", "key_0"), "there is no API key key_0"),
        (("create", ""), "1 to 100 printable characters"),
        (("create", "x" * 101), "1 to 100 printable characters"),
        (("create", "a", "--scope", "root"), "--scope"),
        (("create", "a", "--team", "Two Words"), "'Two Words' is not a valid team name"),
        (("create", "a", "--max-searches", "0"), "--max-searches"),
    ],
)
def test_what_cannot_be_is_refused(command, arguments, said):
    assert said in command(*arguments, code=2)


def test_a_refused_name_makes_no_key(command):
    command("create", "two\nlines", code=2)
    assert json.loads(command("ls", "--format", "json")) == []


@pytest.mark.parametrize("age", ["1h", "90d", "2w"])
def test_a_key_that_expires_is_nobodys_afterwards_and_neither_are_its_sessions(command, access, monkeypatch, age):
    key = command("create", "ci", "--expires", age).strip()
    forever = command("create", "me").strip()
    token, _ = access.begin_session(key)
    assert access.recognise(key).name == access.of_session(token, 1e9).name == "ci"
    later = utc_now() + read_age(age)
    monkeypatch.setattr(Database, "_now_in", lambda self, session: later + timedelta(seconds=60))
    for recognise in (lambda: access.recognise(key), lambda: access.of_session(token, 1e9)):
        with pytest.raises(UnknownCallerError):
            recognise()
    assert access.recognise(forever).name == "me"
    expires, never = (each["expires_at"] for each in json.loads(command("ls", "--format", "json")))
    assert never is None
    assert abs(datetime.fromisoformat(expires) - later) < timedelta(seconds=60)


def test_an_age_that_is_none_makes_no_key(command, access):
    assert "--expires" in command("create", "ci", "--expires", "soon", code=2)
    assert access.list() == ()
