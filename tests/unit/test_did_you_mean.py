"""Names that were nearly right."""

from __future__ import annotations

from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.presets import list_presets


def test_what_the_name_begins_comes_first() -> None:
    assert did_you_mean("qwen3-30b", [preset.name for preset in list_presets()]).startswith(
        "did you mean qwen3-30b-a3b"
    )
    assert did_you_mean("cloudmatrix", ["cloudmatrix-384", "nvidia-h100"]) == "did you mean cloudmatrix-384?"
    assert did_you_mean("num_npu", ["num_npus", "nodes"]) == "did you mean num_npus?"
    assert did_you_mean("q", [f"q{number}" for number in range(30)]).count(" or ") <= 2, "one letter begins too much"
