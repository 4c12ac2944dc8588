"""The reference page of the error box: what is uncertain about a few specs, how far, and by what right."""

from __future__ import annotations

from typing import Any

from docs.schema_tables import code, table

SPECS: dict[str, dict[str, Any]] = {
    "Qwen3-235B-A22B on 128 cards of Atlas 800T A2": {
        "model": "qwen3-235b-a22b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 128},
        "training": {"seq_length": 4096, "global_batch_size": 1024},
    },
    "DeepSeek-V3 on 384 cards of CloudMatrix 384": {
        "model": "deepseek-v3",
        "cluster": {"profile": "cloudmatrix-384", "num_npus": 384},
        "training": {"seq_length": 4096, "global_batch_size": 15360},
    },
    "Llama 2 70B on 32 cards of Atlas 800T A2": {
        "model": "llama2-70b",
        "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
        "training": {"seq_length": 4096, "global_batch_size": 512},
    },
}


def error_box_page() -> str:
    """Tables of the numbers, one a spec."""
    from autodeploy.costs.inputs.build_context import profile_of, spec_context
    from autodeploy.costs.steps.scenarios import SHIFTED
    from autodeploy.search.ranking.uncertainty_set import uncertainty_set
    from autodeploy.specs.reading import read_spec_document

    text = """# Uncertain parameters (the error box)

The parameters that a risk-averse search treats as uncertain, for three specs. The range is from the 10th to the 90th
percentile, as a factor on the value in the profile or the spec (as a shift where a sign is shown). Efficiencies are
capped at 1. For any other spec, see `risk.box` in its PlanSet. Background:
[sources of uncertainty](../explanation/uncertainty.md).
"""
    for title, document in SPECS.items():
        spec = read_spec_document(document)
        profile = profile_of(spec.cluster)
        box = uncertainty_set(profile, spec_context(spec, profile, frozenset()))
        rows = []
        for number in (*box.numbers, *box.of_memory):
            form = "{:+.2f} to {:+.2f}" if SHIFTED.intersection(number.multiplies) else "{:.2f} to {:.2f}"
            of = " (memory alone)" if number in box.of_memory else ""
            rows.append((code(number.name), number.meaning + of, form.format(*box.factors(number)), number.basis))
        text += f"\n## {title}\n\n" + table(("number", "meaning", "80 %", "what the width rests on"), rows)
    return text
