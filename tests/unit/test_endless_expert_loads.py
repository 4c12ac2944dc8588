"""Tables of the tokens of experts have finite numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.specs.expert_loads import read_expert_loads

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("row", ["0,0,1e999,5", "0,0,nan,5", "0,0,0,inf", "0,0,-inf,1", "0,0," + "9" * 400 + ",1"])
def test_a_number_without_end_is_refused_with_its_line(row: str, tmp_path: Path) -> None:
    file = tmp_path / "loads.csv"
    file.write_text("step,layer,expert,tokens\n0,0,0,10\n" + row + "\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"line 3|at least 0"):
        read_expert_loads(str(file))


@pytest.mark.parametrize("step", ["1e999", "-1e999"])
def test_a_step_without_end_is_refused(step: str, tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    file.write_text('[{"step": ' + step + ', "layer": 0, "loads": [1, 2]}]', encoding="utf-8")
    with pytest.raises(SpecError):
        read_expert_loads(str(file))
