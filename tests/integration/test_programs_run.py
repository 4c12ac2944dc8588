"""Programs that no command starts run: benchmarks, soak tests, pages, calibration. Each once, cut to its least."""

from __future__ import annotations

import importlib
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import factories

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests/benchmarks", "tests/soak", "docs")
SMALL_SPEC = ROOT / "tests" / "benchmarks" / "small.yaml"


class Cut:
    """One program with what makes it small: names of its module replaced, arguments, files in a folder of its own."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module, self.folder, self._monkeypatch = importlib.import_module(name), folder, monkeypatch
        monkeypatch.setattr(sys, "argv", [name])

    def set(self, **names: Any) -> None:
        """Names of the module."""
        for name, value in names.items():
            self._monkeypatch.setattr(self.module, name, value)

    def arguments(self, *words: str) -> None:
        """Words of the command line."""
        self._monkeypatch.setattr(sys, "argv", [self.module.__name__, *words])

    def environment(self, name: str, value: str) -> None:
        """A variable of the environment."""
        self._monkeypatch.setenv(name, value)

    def main(self, *arguments: Any, **named: Any) -> None:
        """Runs it, to an end without complaint."""
        try:
            self.module.main(*arguments, **named)
        except SystemExit as end:
            assert not end.code  # noqa: PT017


def scale_out(cut: Cut) -> None:
    cut.set(WORKERS=(), server_binaries=lambda: None)
    cut.main()


def pretended(cut: Cut) -> None:
    """A worker needs PostgreSQL, which not every machine has: its planner alone."""
    cut.set(SHORT_S=0.01)
    assert cut.module.plan(factories.spec(), search_id="srch_1", created_at=factories.CREATED_AT).plans


def probe(cut: Cut) -> None:
    class Alive(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Alive) as server:
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        cut.main(f"http://127.0.0.1:{server.server_port}", 0.05, 0.01)
        server.shutdown()
        thread.join()


def real_training(cut: Cut) -> None:
    """Without torch: the file of measurements that it reads is compared as usual."""
    found = cut.module.Outcome
    assert found is not None
    cut.set(steadiest=lambda *_: None)
    cut.arguments("--python", sys.executable, "--sizes", "--processes")
    cut.main()


def notice(cut: Cut) -> None:
    cut.set(NOTICE=cut.folder / "NOTICE")
    cut.main()
    assert (cut.folder / "NOTICE").read_text(encoding="utf-8")


def generate(cut: Cut) -> None:
    name, page = next(iter(cut.module.PAGES.items()))
    cut.set(DOCS=cut.folder, generated=lambda: {name: page()})
    cut.main()
    assert any(path.is_file() for path in cut.folder.rglob("*"))


def readme(cut: Cut) -> None:
    shutil.copy(ROOT / "README.md", cut.folder)
    # The table of accuracy is made in another test.
    cut.set(READMES={"en": cut.folder / "README.md"}, EXAMPLE=SMALL_SPEC, validated=dict, accuracy=lambda _: {"en": {}})
    cut.main()
    assert "hidden" not in (cut.folder / "README.md").read_text(encoding="utf-8")


def public_scripts(cut: Cut) -> None:
    page = cut.folder / "page.md"
    files = str(ROOT / "tests" / "launch_files")
    cut.arguments(files, "--repo", "owner/name", "--commit", "abc123", "--files", "*.sh", "-o", str(page))
    cut.main()
    assert "owner/name" in page.read_text(encoding="utf-8")


def public_recipes(cut: Cut) -> None:
    file = Path(shutil.copy(cut.module.FILE, cut.folder))
    cut.set(FILE=file)
    cut.arguments(str(cut.folder), "--repo", "owner/name")
    cut.main()
    assert "recipes:" in file.read_text(encoding="utf-8")


def search_comparison(cut: Cut) -> None:
    (cut.folder / "explanation" / "figures").mkdir(parents=True)
    cut.set(DOCS=cut.folder, PAGE=cut.folder / "search.md", EXAMPLES=SMALL_SPEC.parent)
    cut.set(SCRIPTS=(), SPECS=("small",), DRAWN="small")
    cut.main()
    assert "small" in (cut.folder / "search.md").read_text(encoding="utf-8")


LEAST: dict[str, Callable[[Cut], None]] = {
    "tests.benchmarks.__main__": lambda cut: cut.main(small=True),
    "tests.benchmarks.scale_out": scale_out,
    "tests.soak.pretended": pretended,
    "tests.soak.probe": probe,
    "tests.soak.real_training": real_training,
    "docs.notice": notice,
    "docs.generate": generate,
    "docs.readme": readme,
    "docs.public_scripts": public_scripts,
    "docs.public_recipes": public_recipes,
    "docs.search_comparison": search_comparison,
}


# Programs that take minutes however they are cut, with the test of what they are made of.
PARTS_TESTED = {
    "docs.accuracy": "tests/unit/test_calibration_accuracy.py",
    "docs.backtest": "tests/unit/test_backtest.py",
    "docs.generation_accuracy": "tests/acceptance/test_generation_accuracy.py",
    "docs.rl_accuracy": "tests/acceptance/test_rl_accuracy.py",
    "docs.scoreboard": "tests/unit/test_calibration_scoreboard.py",
    "docs.shipped_calibration.__main__": "tests/unit/test_calibration_calibrate.py",
    "docs.recommendations": "tests/unit/test_objections.py",
    "docs.stability": "tests/unit/test_stability_page.py",
    "tests.benchmarks.rehearsals": "tests/acceptance/test_rehearsal_moves_plan.py",
    "tests.soak.__main__": "tests/faults/test_faults.py",
    "tests.soak.small_training": "tests/unit/test_probe_fit.py",
}


def test_every_program_of_these_folders_is_run_or_its_parts_are():
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8"):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert found == LEAST.keys() | PARTS_TESTED.keys()
    assert not LEAST.keys() & PARTS_TESTED.keys()
    assert [test for test in PARTS_TESTED.values() if not (ROOT / test).is_file()] == []


@pytest.mark.parametrize("name", LEAST)
def test_a_program_runs_cut_to_its_least(name, tmp_path, monkeypatch):
    LEAST[name](Cut(name, tmp_path, monkeypatch))
