"""The release of a launch: asked for, named by its own line, or of the checkout that it lies in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.formats.common.checkout import launch_text
from autodeploy.formats.common.import_result import release_of_marks
from autodeploy.formats.import_document import import_file
from autodeploy.kit.errors import SpecError
from autodeploy.stack.releases import release_named

if TYPE_CHECKING:
    from pathlib import Path

LAUNCH = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 1024 --vocab-size 1000 --global-batch-size 8 --micro-batch-size 1 --bf16\n"
)
CORE = release_named("megatron-0.16").components["megatron"]


def script(folder: Path, text: str = LAUNCH) -> Path:
    path = folder / "examples" / "gpt" / "train.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def clone(folder: Path, head: str, commit: str = "", *, packed: bool = False) -> None:
    """A git directory whose HEAD is a commit, or a branch at a commit."""
    git = folder / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "HEAD").write_text(f"{head}\n")
    (git / "config").write_text('[remote "origin"]\n\turl = https://github.com/NVIDIA/Megatron-LM.git\n')
    if commit and packed:
        (git / "packed-refs").write_text(f"# pack-refs\n{commit} {head.removeprefix('ref: ')}\n")
    elif commit:
        (git / head.removeprefix("ref: ")).write_text(f"{commit}\n")


@pytest.mark.parametrize(
    ("head", "commit", "packed"),
    [
        (CORE.commit, "", False),
        ("ref: refs/heads/core_v0.16.1", "0" * 40, False),
        ("ref: refs/heads/own", CORE.commit, False),
        ("ref: refs/heads/own", CORE.commit, True),
    ],
)
def test_the_checkout_around_a_script_decides(tmp_path: Path, head: str, commit: str, packed: bool) -> None:
    clone(tmp_path, head, commit, packed=packed)
    imported = import_file(script(tmp_path), vendor="NVIDIA")
    assert imported.document["search"] == {"target": "megatron", "target_release": "megatron-0.16"}
    assert any("core_v0.16.1" in said for said in imported.diagnostics.assumptions)


def test_a_copy_without_git_is_known_by_its_version(tmp_path: Path) -> None:
    core = tmp_path / "megatron" / "core"
    core.mkdir(parents=True)
    (core / "package_info.py").write_text("MAJOR = 0\nMINOR = 18\nPATCH = 0\n")
    assert "release=megatron-mindspeed-0.18" in launch_text(script(tmp_path), vendor="Huawei").text
    assert launch_text(script(tmp_path), vendor="NVIDIA").text == LAUNCH  # core_v0.18.2 is another


def test_an_own_commit_is_told_and_changes_nothing(tmp_path: Path) -> None:
    clone(tmp_path, "ref: refs/heads/own", "1" * 40)
    imported = import_file(script(tmp_path), vendor="NVIDIA")
    assert "target_release" not in imported.document["search"]
    assert any("11111111" in said for said in imported.diagnostics.assumptions)


def test_a_release_by_name_comes_first_then_the_file_s_own(tmp_path: Path) -> None:
    clone(tmp_path, CORE.commit)
    own = script(tmp_path, f"# autodeploy: release=megatron-0.19 tp=1\n{LAUNCH}")
    assert release_of_marks(launch_text(own).text) is release_named("megatron-0.19")
    named = launch_text(own, "megatron-0.18").text
    assert named == f"# autodeploy: release=megatron-0.18 tp=1\n{LAUNCH}"
    assert import_file(own, release="megatron-0.18").document["search"]["target_release"] == "megatron-0.18"


@pytest.mark.parametrize("name", ["verl-main", "megatron-9"])
def test_a_release_that_reads_no_such_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError) as caught:
        import_file(script(tmp_path), release=name)
    assert caught.value.errors[0].path == "/search/target_release"
