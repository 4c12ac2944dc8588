"""The library answers what the command line does, shows it in notebooks and as tables; the notebook runs."""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import autodeploy
from autodeploy import library
from autodeploy.specs.plan_table import ROW_NAMES
from tests import factories

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


@cache
def namespace() -> dict[str, Any]:
    """What is defined after the notebook ran, and under `shown` what its cells show."""
    names: dict[str, Any] = {}
    shown = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [], "outputs are not committed"
        *body, last = ast.parse("".join(cell["source"])).body
        if not isinstance(last, ast.Expr):
            body.append(last)
        exec(compile(ast.Module(body, []), str(NOTEBOOK), "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names))
    return names | {"shown": shown}


def test_the_notebook_runs_and_shows_plans() -> None:
    names = namespace()
    html = names["shown"][0]._repr_html_()
    assert html.count("<table>") == 2
    assert names["found"].plans[0].plan_id in html
    assert names["steps"]["none"] < names["steps"]["full"]
    assert names["script"].text.startswith("#!")


def test_every_function_is_of_the_package() -> None:
    functions = {name for name in autodeploy.__all__ if name.islower() and not name.startswith("_")}
    assert {"plan", "why_not", "improve", "compare", "recommend", "export", "ablate", "validate"} <= functions
    assert all(getattr(autodeploy, name) is getattr(library, name) for name in functions)


def test_why_not_of_a_plan_set_and_of_a_spec_agree() -> None:
    found, spec = namespace()["found"], namespace()["spec"]
    of_plan = library.why_not(found, {"tp": 1, "pp": 1})
    of_spec = library.why_not(spec, {"tp": 1, "pp": 1})
    assert of_plan.step_time_s is not None
    assert of_plan.step_time_s == pytest.approx(of_spec.step_time_s)
    assert str(of_plan.message) in of_plan._repr_html_().replace("&#x27;", "'")


def test_comparison_is_a_column_a_plan() -> None:
    found = namespace()["found"]
    rows = library.compare((found, found.plans[0]), (found, found.plans[1])).to_rows()
    assert {"field", "unit", f"1 {found.plans[0].plan_id}", f"2 {found.plans[1].plan_id}"} == set(rows[0])
    for plans in ((found,), (found,) * 6):
        with pytest.raises(autodeploy.SpecError):
            library.compare(*plans)


def test_recommend_ablate_and_improve_are_tables() -> None:
    spec = namespace()["mine"] | {"search": namespace()["spec"]["search"]}
    cards = library.recommend({**spec, "strategy": None}, days=200, max_npus=32).to_rows()
    assert {"num_npus", "tokens_per_s", "days"} <= set(cards[0])
    assert {row["mode"] for row in library.ablate(spec).to_rows()} >= {"baseline", "alone"}
    report = library.improve(spec)
    assert "<table>" in report._repr_html_()
    assert [row["name"] for row in report.to_rows()] == [each.name for each in report.improvements]


def test_validate_reads_a_file_of_runs(tmp_path: Path) -> None:
    lines = (ROOT / "autodeploy/calibration/records/ascend.jsonl").read_text(encoding="utf-8").splitlines()
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(lines[:2]) + "\n")
    rows = library.validate(few).to_rows()
    assert len(rows) == 2
    assert all(row["predicted.step_time_s"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["time", "memory", "front"])
def test_pictures_are_figures(name: Any) -> None:
    figure = library.picture(namespace()["found"], name)
    assert type(figure).__name__ == "Figure"
    assert len(figure.data) > 0


def test_without_a_plan_there_is_nothing_to_export() -> None:
    with pytest.raises(autodeploy.SpecError):
        library.export(factories.infeasible_plan_set(), "json")
    assert "<div>" in str(factories.infeasible_plan_set()._repr_html_())


def test_rows_have_the_columns_of_the_csv_and_pandas_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = factories.plan_set(3)
    assert all(tuple(row) == ROW_NAMES for row in found.to_rows())
    stand_in = ModuleType("pandas")
    stand_in.DataFrame = list  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    assert found.to_frame() == found.to_rows()


def test_html_of_a_plan_is_escaped() -> None:
    spec = factories.spec(model=factories.DEEPSEEK_V3 | {"name": "<img src=x>"})
    shown = str(factories.plan_set(1, spec=spec)._repr_html_())
    assert "<img" not in shown
    assert "&lt;img" in shown
    assert "TP2 PP16" in str(factories.plan(1)._repr_html_())
