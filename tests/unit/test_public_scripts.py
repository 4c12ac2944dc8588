"""The page of public scripts: counts of a checkout, one section a repository."""

from __future__ import annotations

import shutil
from pathlib import Path

from docs.public_scripts import PAGE, read_script, section, with_section

FILES = Path(__file__).parent.parent / "launch_files"


def test_a_checkout_is_counted_and_what_is_refused_has_a_reason(tmp_path):
    shutil.copytree(FILES, tmp_path / "examples")
    (tmp_path / "examples" / "prepare.sh").write_text("echo prepares\n")
    reads = [read_script(path, tmp_path) for path in sorted((tmp_path / "examples").glob("*.*"))]
    by_name = {Path(read.path).name: read for read in reads}
    assert by_name["mindspeed_moe.sh"].kept == ("--some-flag-of-ours",)
    assert by_name["mindspeed_moe.sh"].taken > 35
    assert "missing" in by_name["prepare.sh"].refused
    text = section("owner/name", "abc123", reads)
    assert [Path(read.path).name for read in reads if read.refused] == ["official_model_flags.yaml", "prepare.sh"]
    assert f"Commit `abc123`: {len(reads) - 2} of {len(reads)} files are read." in text
    assert "[examples/mindspeed_moe.sh](https://github.com/owner/name/blob/abc123/examples/mindspeed_moe.sh)" in text


def test_a_section_is_replaced_and_others_stay():
    page = with_section(with_section("", "b/b", "## b/b\n\nold\n"), "a/a", "## a/a\n\nfirst\n")
    again = with_section(page, "b/b", "## b/b\n\nnew\n")
    assert again.index("## a/a") < again.index("## b/b")
    assert "\nold\n" not in again
    assert again.count("first") == again.count("new") == 1


def test_the_page_lists_thirty_public_scripts_that_are_read():
    text = PAGE.read_text(encoding="utf-8")
    refused = "Refused by name"
    read = sum(part.split(refused)[0].count("](https://github.com/") for part in text.split("\n## ")[1:])
    assert read >= 30
