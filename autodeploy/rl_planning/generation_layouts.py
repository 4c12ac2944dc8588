"""Layouts of generation: every degree that divides the cards, the heads and the experts."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from autodeploy.evaluation.inputs.build_context import device_of
from autodeploy.post_training.weights import GENERATED_BYTES, parameters_of
from autodeploy.rl_planning.axes import FRACTIONS, values_left
from autodeploy.specs.generation_layout import GenerationLayout
from autodeploy.stack.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.rl_planning.launchable import Launchable
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

MOST_TP = 32
LEAST_SEQS, MOST_SEQS = 16, 1024
# The engine of a search that names none, by the chip's vendor.
ENGINES_OF = {"huawei": "vllm-ascend"}
OTHER_ENGINE = "vllm"


def layouts_on(
    spec: Spec, profile: Profile, npus: int, launchable: Launchable, refused: dict[str, int]
) -> list[GenerationLayout]:
    """Layouts of the engine on `npus` cards, with as much memory as the spec allows, simplest first.

    refused : counts those whose weights alone are more than a device takes.
    """
    search, rl = spec.search, spec.training.rl
    assert rl is not None
    dies = npus * profile.devices_per_npu
    engine = ENGINES_OF.get(profile.vendor, OTHER_ENGINE)
    fractions = sorted(values_left(search, "rl.generation.memory_fraction", FRACTIONS))
    wide = FRAMEWORKS[search.target].generation_precisions
    precisions = values_left(search, "rl.generation.precision", [str(rl.generation_precision)])
    found = []
    dense, experts = parameters_of(spec.model)
    usable = device_of(profile, spec.cluster).usable_hbm_bytes
    for tp, dp, ep in _degrees(spec, dies):
        if min(GENERATED_BYTES[p] for p in precisions) * (dense / tp + experts / max(tp, ep)) > usable:
            refused["generation_weights"] = refused.get("generation_weights", 0) + 1
            continue
        per_rank = ceil(rl.samples * tp / dies)
        slots = min(MOST_SEQS, max(LEAST_SEQS, 1 << (per_rank - 1).bit_length()))
        for name in values_left(search, "rl.generation.engine", [engine]):
            for mode in values_left(search, "rl.generation.mode", ["eager", "graph"]):
                for precision in precisions:
                    if wide and precision not in wide:
                        continue
                    for most in values_left(search, "rl.generation.max_num_seqs", [slots]):
                        document = {"tp": tp, "dp": dp, "ep": ep, "engine": name, "mode": mode}
                        document |= {"precision": precision, "memory_fraction": fractions[-1], "max_num_seqs": most}
                        layout = GenerationLayout.model_validate(document)
                        if launchable.generation(layout, npus):
                            found.append(layout)
    return found


def thriftier(spec: Spec, layout: GenerationLayout) -> list[GenerationLayout]:
    """The layout with each smaller share of memory that the spec allows, the smallest first."""
    fractions = sorted(values_left(spec.search, "rl.generation.memory_fraction", FRACTIONS))
    return [layout.model_copy(update={"memory_fraction": each}) for each in fractions[:-1]]


def _degrees(spec: Spec, dies: int) -> Iterator[tuple[int, int, int]]:
    """(tp, dp, ep): powers of two that cut the heads; with experts, groups that divide cards and experts evenly."""
    search, model = spec.search, spec.model
    powers = [1 << k for k in range(MOST_TP.bit_length()) if model.num_attention_heads % (1 << k) == 0]
    for tp in values_left(search, "rl.generation.tp", powers):
        if dies % tp:
            continue
        for dp in values_left(search, "rl.generation.dp", _groups(model, dies, tp)):
            whole = tp * dp
            spread = [whole] if dp > 1 or tp == 1 else [whole, 1]
            for ep in values_left(search, "rl.generation.ep", spread if model.is_moe else [1]):
                if ep in (1, whole):
                    yield tp, dp, ep


def _groups(model: ModelSpec, dies: int, tp: int) -> list[int]:
    """Data-parallel ranks that share experts, in whole numbers; without experts each rank is a replica of its own."""
    experts = model.n_routed_experts or 0
    return [dp for dp in range(1, max(1, experts // tp) + 1) if dies % (tp * dp) == 0 and experts % (tp * dp) == 0] or [
        1
    ]
