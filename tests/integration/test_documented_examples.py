"""The Python examples of the documentation run as they are written, page by page; clients ask a server of the test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from api.app import create_app
from autodeploy.kit.settings import Settings
from autodeploy.service.runner.planning import PLANNER
from tests.ui.conftest import serving
from tests.unit.test_documentation import NAMES, PAGES, blocks, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
EXAMPLE = "examples/llama2_70b_32.yaml"
# Narrower than the example, which `tests/acceptance/test_examples.py` plans as it is.
SEARCH = "search: {effort: 0.02, risk: neutral, fix: {tp: 8, micro_batch_size: 1, vpp: 1, cp: 1, schedule: 1f1b}}\n"
# So is what a page asks the server for; which plans are best is tested elsewhere.
SEARCHED = """"search": {
    "effort": 0.02, "risk": "neutral",
    "fix": {"tp": 8, "micro_batch_size": 1, "vpp": 1, "cp": 1, "schedule": "1f1b"},
}"""
DOCUMENTED = "http://127.0.0.1:8000"
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(text_of(page)))]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with the real planner."""
    path = tmp_path_factory.mktemp("examples") / "autodeploy.db"
    app = create_app(Settings(database_url=f"sqlite:///{path}", poll_s=0.1), planner=PLANNER)
    with serving(app, at_once=True) as url:
        yield url


def test_examples_are_found() -> None:
    assert {"library", "rest_api"} <= {page.stem for page in WITH_PYTHON}


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[NAMES[PAGES.index(page)] for page in WITH_PYTHON])
def test_examples_run(
    page: Path, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / EXAMPLE).parent.mkdir()
    (tmp_path / EXAMPLE).write_text((ROOT / EXAMPLE).read_text(encoding="utf-8") + SEARCH, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(text_of(page)):
        if block.language == "python":
            text = block.text.replace(DOCUMENTED, server).replace('"search": {"effort": "fast"}', SEARCHED)
            exec(compile(text, str(page), "exec"), names)
    printed = capsys.readouterr().out
    if page.stem == "library":
        assert names["answer"].plans
        assert names["plan"].step_time_s > 0
        assert "MFU" in printed
        assert "/strategy/tp" in printed, "the refused field is named"
        assert any(line.startswith("True") for line in printed.splitlines()), "the check passed"
        assert printed.count("tokens/s") + printed.count("nothing fits") == 2, "both searches were answered"
    if page.stem == "rest_api":
        assert names["plan_set"].plans
        assert not names["is_genuine"](b"body", "t=1,v1=no", "secret")
