"""A launch script looks at the checkouts it is started in: another release stops it, what can't be read only warns."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autodeploy.formats.megatron.launch_script import release_check, release_lines
from autodeploy.stack.releases import release_named

MASTER = release_named("mindspeed-llm-master")


def git(folder, *words):
    """Runs git as somebody who has no settings of his own."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "init.defaultBranch=master")
    done = subprocess.run(["git", "-C", str(folder), *who, *words], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A checkout of a branch `26.0.0` with a commit after the one that the release is of, and a branch without it."""
    folder = tmp_path / "MindSpeed-LLM"
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    git(folder, "checkout", "-q", "-b", "26.0.0")
    git(folder, "commit", "-q", "--allow-empty", "-m", "release")
    git(folder, "commit", "-q", "--allow-empty", "-m", "after")
    git(folder, "checkout", "-q", "-b", "other", "master")
    git(folder, "commit", "-q", "--allow-empty", "-m", "elsewhere")
    return folder


def run(folder, commit, branch="26.0.0", **environment):
    """What the check of a MindSpeed-LLM at that commit says there; Megatron-LM and MindSpeed can't be read."""
    parts = dict(MASTER.components)
    parts["mindspeed-llm"] = replace(parts["mindspeed-llm"], commit=commit, branch=branch)
    script = "set -euo pipefail\n" + release_check(replace(MASTER, components=parts)) + "echo started\n"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "GIT_CEILING_DIRECTORIES": str(folder.parent),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def said_of_llm(done):
    return [line for line in done.stderr.splitlines() if "MindSpeed-LLM" in line]


@pytest.mark.parametrize("at", ["26.0.0~1", "26.0.0"])
def test_the_release_and_what_follows_it_start(repository, at):
    commit = git(repository, "rev-parse", "26.0.0~1")
    git(repository, "checkout", "-q", at)
    done = run(repository, commit)
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert len(said_of_llm(done)) == (at == "26.0.0")


def test_another_branch_stops_with_one_line_that_says_how_to_go_on(repository):
    commit = git(repository, "rev-parse", "26.0.0~1")
    done = run(repository, commit)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    head = git(repository, "rev-parse", "HEAD")
    for part in (str(repository.resolve()), head[:8], "(other)", commit[:8], "(26.0.0)", "ALLOW_OTHER_RELEASE=1"):
        assert part in line
    allowed = run(repository, commit, ALLOW_OTHER_RELEASE="1")
    assert (allowed.returncode, allowed.stdout) == (0, "started\n")
    assert said_of_llm(allowed)[0].startswith("warning: ")


def test_a_shallow_checkout_of_the_branch_starts(repository):
    """Without its history nobody can say what follows what: the branch's name counts."""
    git(repository, "checkout", "-q", "26.0.0")
    done = run(repository, "0" * 40)
    assert done.returncode == 0
    assert "(26.0.0)" in said_of_llm(done)[0]
    git(repository, "checkout", "-q", "other")
    git(repository, "update-ref", "refs/remotes/origin/26.0.0", "HEAD")
    assert run(repository, "0" * 40).returncode == 0
    assert run(repository, "0" * 40, branch="6.0.0").returncode == 2


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_that_is_no_checkout_of_its_own_warns_and_starts(repository, inside, tmp_path):
    """A copy may lie in somebody's own repository, whose commits say nothing."""
    folder = (repository if inside else tmp_path) / "copy"
    folder.mkdir()
    done = run(folder, "0" * 40)
    assert (done.returncode, done.stdout) == (0, "started\n")
    assert "can't be read" in said_of_llm(done)[0]


def test_mindspeed_is_looked_for_where_python_has_it(repository, tmp_path):
    package = repository / "mindspeed"
    package.mkdir()
    (package / "__init__.py").touch()
    work = tmp_path / "work"
    work.mkdir()
    done = run(work, "0" * 40, PYTHONPATH=str(repository))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"MindSpeed in {repository.resolve()} is at ")


def test_a_linked_megatron_is_read_and_a_copied_one_is_not(repository, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    (repository / "megatron").mkdir()
    (work / "megatron").symlink_to(repository / "megatron")
    done = run(work, "0" * 40)
    assert (done.returncode, done.stderr.splitlines()[-1].split(" in ")[0]) == (2, "Megatron-LM")
    (work / "megatron").unlink()
    (work / "megatron").mkdir()
    assert run(work, "0" * 40).returncode == 0


def test_comments_name_every_component():
    (line,) = release_lines(MASTER)
    assert line.startswith("For MindSpeed-LLM master of August 2026, mindspeed-llm-master: ")
    for part in MASTER.components.values():
        assert f"{part.repository} {part.commit[:12]} ({part.branch})" in line
