"""Layouts of generation: every degree that divides the cards, the heads and the experts."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, TypeVar

from autodeploy.costs.inputs.build_context import device_of
from autodeploy.costs.post_training.generator import PEAKS
from autodeploy.costs.post_training.weights import GENERATED_BYTES, parameters_of
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.rl import GenerationLayout
from autodeploy.specs.search import NOTHING_OFFLOADED, offloaded
from autodeploy.stack.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.search.post_training.launchable import Launchable
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import Offload, Placement
    from autodeploy.specs.search import RlAxis, SearchSpec
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile


# The values that a search over generation tries of each axis, under what the spec pins, allows and forbids.
T = TypeVar("T", bound=float | str)

PLACEMENTS: tuple[Placement, ...] = ("colocated", "separate", "async")
OFFLOADS = (NOTHING_OFFLOADED, "optimizer", "optimizer+gradients", "optimizer+gradients+parameters")
STALENESS = (1,)  # Updates that an asynchronous search is behind unless told: accuracy is the price of more.
FRACTIONS = (0.6, 0.75, 0.9)  # of a device's memory, that an engine takes


def values_left(search: SearchSpec, axis: RlAxis, values: Sequence[T]) -> list[T]:
    """The values of an axis under the spec; one that is asked for is looked at wherever it lies."""
    left: list[T] = list(values)
    if axis in search.fix:
        left = [search.fix[axis]]  # type: ignore[list-item]
    if axis in search.allow:
        allowed = search.allow[axis]
        left = [v for v in left if v in allowed] or list(allowed)  # type: ignore[arg-type]
    if axis in search.forbid:
        forbidden = search.forbid[axis]
        left = [v for v in left if v not in forbidden]
    return left


def placements(search: SearchSpec) -> list[Placement]:
    """Placements of both: those that the target sets up, and that pinned axes leave room for."""
    launchable: Sequence[Placement] = PLACEMENTS if FRAMEWORKS[search.target].generates_beside else PLACEMENTS[:1]
    if not search.asks_off_policy:
        launchable = tuple(each for each in launchable if each != "async")
    allowed = [each for each in values_left(search, "rl.placement", launchable) if each in launchable]
    if search.fix.get("rl.generation_npus") is not None:
        allowed = [each for each in allowed if each != "colocated"]
    if search.fix.get("rl.staleness"):
        allowed = [each for each in allowed if each == "async"]
    return allowed


def offloads(search: SearchSpec) -> list[tuple[Offload, ...]]:
    """States that may leave the device while it generates."""
    words = values_left(search, "rl.offload", OFFLOADS)
    return [offloaded(word) for word in words]


def stalenesses(search: SearchSpec, placement: Placement) -> list[int]:
    """Updates that generation may be ahead, by placement; 0 is that of `separate`."""
    if placement != "async":
        return [0]
    return [int(value) for value in values_left(search, "rl.staleness", STALENESS)]


def partials(search: SearchSpec) -> list[bool]:
    """Whether unfinished responses go on in the next step: only where asked for, since two policies write them then."""
    return [bool(value) for value in values_left(search, "rl.partial_rollout", [False])]


AXIS_PRECISION: Final = "rl.generation.precision"
NO_DEGREE: Final = "generation_cards"  # the rule that cards break which no degrees of generation divide
MOST_TP = 32
LEAST_SEQS, MOST_SEQS = 16, 1024
# The engine of a search that names none, by the chip's vendor.
ENGINES_OF = {"huawei": "vllm-ascend"}
OTHER_ENGINE = "vllm"


def layouts_on(
    spec: Spec, profile: Profile, npus: int, launchable: Launchable, refused: dict[str, int]
) -> list[GenerationLayout]:
    """Layouts of the engine on `npus` cards, with as much memory as the spec allows, simplest first.

    refused : counts those whose weights alone are more than a device takes, and cards that no degree divides.
    """
    search, rl = spec.search, spec.training.rl
    assert rl is not None
    dies = npus * profile.devices_per_npu
    engine = ENGINES_OF.get(profile.vendor, OTHER_ENGINE)
    fractions = sorted(values_left(search, "rl.generation.memory_fraction", FRACTIONS))
    wide = FRAMEWORKS[search.target].generation_precisions
    precisions = values_left(search, AXIS_PRECISION, [str(rl.generation_precision)])
    layouts = []
    dense, experts = parameters_of(spec.model)
    device = device_of(profile, spec.cluster)
    usable = device.usable_hbm_bytes
    degrees = list(_degrees(spec, dies))
    if not degrees:
        refused[NO_DEGREE] = refused.get(NO_DEGREE, 0) + 1
    for tp, dp, ep in degrees:
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
                            layouts.append(layout)
    return layouts


def refuse_unknown_precision(spec: Spec, profile: Profile) -> None:
    """Raises where the device multiplies in none of the precisions that are left.

    Raises UnsupportedError: that names those which it has.
    """
    assert spec.training.rl is not None
    device = device_of(profile, spec.cluster)
    left = values_left(spec.search, AXIS_PRECISION, [str(spec.training.rl.generation_precision)])
    if any(PEAKS[each] in device.peak_flops for each in left):
        return
    names = ", ".join(name for name, of in PEAKS.items() if of in device.peak_flops)
    pinned = AXIS_PRECISION in spec.search.fix or AXIS_PRECISION in spec.search.allow
    path = f"/search/fix/{AXIS_PRECISION}" if pinned else "/training/rl/generation_precision"
    raise UnsupportedError(
        Message("common.has_no_products_in", device=device.name, precision=left[0]),
        path=path,
        hint=Message("common.one_of", names=names),
    )


def near_cards(spec: Spec, profile: Profile, npus: int, most: int, allowed: Callable[[int], bool]) -> list[int]:
    """The next fewer and the next more cards that some degrees of generation divide, at most `most`, if `allowed`."""

    def divided(count: int) -> bool:
        return allowed(count) and next(_degrees(spec, count * profile.devices_per_npu), None) is not None

    below = next((count for count in range(npus - 1, 0, -1) if divided(count)), None)
    above = next((count for count in range(npus + 1, most + 1) if divided(count)), None)
    return [count for count in (below, above) if count is not None]


def thriftier(spec: Spec, layout: GenerationLayout) -> list[GenerationLayout]:
    """The layout with each smaller share of memory that the spec allows, the smallest first."""
    fractions = sorted(values_left(spec.search, "rl.generation.memory_fraction", FRACTIONS))
    return [layout.model_copy(update={"memory_fraction": each}) for each in fractions[:-1]]


def _degrees(spec: Spec, dies: int) -> Iterator[tuple[int, int, int]]:
    """(tp, dp, ep): powers of two that cut the heads; with experts, groups that divide cards and experts evenly."""
    search, model = spec.search, spec.model
    powers = [1 << k for k in range(MOST_TP.bit_length()) if model.common_heads % (1 << k) == 0]
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
