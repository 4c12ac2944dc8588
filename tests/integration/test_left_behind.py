"""What processes leave on the machine: folders of the killed go, files that hold keys are their owner's."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import pytest

from autodeploy.cli.output import replacing
from autodeploy.service.runner import fork_server
from autodeploy.service.runner.owner import Owner
from tests.support.programs import lives

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration


def named(folder: Path, owner: Owner) -> Path:
    made = folder / f"{fork_server.FOLDER}{str(owner).rpartition('/')[2]}-abc_defg"
    made.mkdir()
    (made / "listener").touch()
    return made


def test_folders_of_the_dead_are_removed_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    dead = [named(tmp_path, Owner(pid=gone.pid, token=""))]
    gone.wait()
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        kept = [
            named(tmp_path, Owner(pid=living.pid, token="")),
            named(tmp_path, Owner(space="another/1", pid=gone.pid, token="")),
            tmp_path / f"{fork_server.FOLDER}of a user",
            tmp_path / "pymp-abc",
        ]
        for folder in kept[2:]:
            folder.mkdir()
        earlier = tmp_path / kept[0].name.replace("@", "@1")  # its number was another process's before
        earlier.mkdir()
        fork_server.remove_left_folders()
        assert [each.exists() for each in (*dead, earlier)] == [False, False]
        assert [each.exists() for each in kept] == [True] * 4
    finally:
        living.communicate(b"\n")


def test_the_fork_server_ends_before_its_process_though_it_still_imports():
    program = (
        "from multiprocessing import forkserver\n"
        "from autodeploy.service.runner.fork_server import start_early\n"
        "start_early('tests.quick_planner')\n"
        "print(forkserver._forkserver._forkserver_pid)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not lives(int(said.stdout))


@pytest.mark.parametrize("mode", [0o000, 0o022, 0o002, 0o077, 0o027])
@pytest.mark.parametrize("before", [None, 0o644])
def test_a_private_file_is_its_owner_s_whatever_the_umask(tmp_path, mode, before):
    path = tmp_path / "backup.jsonl"
    if before is not None:
        path.touch(before)
    old = os.umask(mode)
    try:
        with replacing(path, private=True) as stream:
            stream.write("{}\n")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == "{}\n"
