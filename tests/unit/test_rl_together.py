"""What planning of post-training computes together, against each of it alone."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.post_training.generation import Case, GenerationPart, generation_part, generations
from autodeploy.costs.post_training.rl_step import kept_update
from autodeploy.costs.post_training.samples import InfeasibleRlError
from autodeploy.costs.post_training.update import UpdatePart, update_part, update_parts
from autodeploy.kit.deadline import Deadline
from autodeploy.kit.errors import SpecError
from autodeploy.search.plan_search import UpdateSearch
from autodeploy.search.planner import plan
from autodeploy.search.post_training.update_layouts import update_spec
from autodeploy.specs.rl import GenerationLayout
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.stack.features import FEATURES
from autodeploy.stack.features import registered as registered_feature
from tests.unit.test_rl_planning import QUICK, RL, spec_of

pytestmark = pytest.mark.unit

SPEC = spec_of(fix=QUICK)
PROFILE = profile_of(SPEC.cluster)
TRAINING = SPEC.training.rl
FULL = Recompute(granularity="full")
ASKED = [
    (Strategy(tp=2, pp=2, recompute=FULL), 3072),
    (Strategy(tp=2, pp=2, swap_optimizer=True), 3072),  # another way to keep states, on the same sequences
    (Strategy(tp=1, pp=4, recompute=FULL), 6144),
    (Strategy(tp=1, pp=1, distributed_optimizer=False), 3072),  # too large
    (Strategy(tp=3, pp=1), 3072),  # not a multiple of the replica size
    (Strategy(tp=2, pp=2), 1024),  # packs that are too short
]


def alone(strategy: Strategy, pack: int) -> UpdatePart | SpecError:
    try:
        return update_part(SPEC.model, PROFILE, SPEC.cluster, TRAINING, strategy, npus=16, pack_tokens=pack)
    except SpecError as error:
        return error


def test_updates_together_are_each_of_them_alone() -> None:
    found = update_parts(SPEC.model, PROFILE, SPEC.cluster, TRAINING, ASKED, npus=16, within_memory=True)
    kinds = set()
    for asked, part in zip(ASKED, found, strict=True):
        other = alone(*asked)
        kinds.add(type(part).__name__ if not isinstance(part, InfeasibleRlError) else part.rule)
        if isinstance(part, UpdatePart):
            assert isinstance(other, UpdatePart)
            assert part.training_s == pytest.approx(other.training_s, rel=1e-12)
            assert part.peak_bytes == pytest.approx(other.peak_bytes, rel=1e-12)
            assert part.trained.candidate.axes_at(0) == other.trained.candidate.axes_at(0)
        elif isinstance(part, InfeasibleRlError) and part.rule == "update_memory":
            assert isinstance(other, UpdatePart)
            assert other.peak_bytes > other.limit_bytes
        else:
            assert str(part) == str(other)
    assert kinds == {"UpdatePart", "update_memory", "SpecError", "pack_tokens"}


def test_generations_together_are_each_of_them_alone() -> None:
    layouts = [GenerationLayout(tp=2, mode="graph", engine="vllm-ascend", max_num_seqs=most) for most in (16, 64)]
    cases = [Case(8, 0.0, 1), Case(16), Case(15), Case(16, 2.0**34, 0, True)]
    asked = [(layout, case) for layout in layouts for case in cases]
    for (layout, case), part in zip(
        asked, generations(SPEC.model, PROFILE, SPEC.cluster, TRAINING, asked), strict=True
    ):
        if isinstance(part, InfeasibleRlError):
            with pytest.raises(InfeasibleRlError, match="not a multiple of the replica size"):
                generation_part(SPEC.model, PROFILE, SPEC.cluster, TRAINING, layout, case)
            assert case.npus == 15
            continue
        other = generation_part(SPEC.model, PROFILE, SPEC.cluster, TRAINING, layout, case)
        assert isinstance(part, GenerationPart)
        assert (part.layout, part.case) == (layout, case)
        assert part.generation_s == pytest.approx(other.generation_s, rel=1e-12)
        assert (part.ahead_s or 0.0) == pytest.approx(other.ahead_s or 0.0, rel=1e-12)


def test_layouts_of_a_search_are_those_of_its_plans() -> None:
    update = update_spec(SPEC, 16)
    found = UpdateSearch(Deadline(None, time.monotonic(), 600.0)).layouts(update)
    result = plan(update, alone=True)
    assert found.strategies == tuple(each.strategy for each in result.plans)
    assert found.gap == pytest.approx(result.optimality.gap, rel=1e-12)
    assert found.enumerated == result.counts.enumerated


def test_an_update_is_kept_until_what_it_rests_on_changes() -> None:
    def kept(**changes: object) -> UpdatePart:
        rl = spec_of(rl={**RL, **changes}).training.rl
        return kept_update(SPEC.model, PROFILE, SPEC.cluster, rl, ASKED[0][0], 16, 3072, None)

    first = kept()
    assert kept() is first
    assert kept(prompts_per_step=32) is not first
    other = replace(FEATURES["flash_attention"], name="another")
    with registered_feature(other):
        assert kept() is not first
    assert kept() is first


def test_an_update_under_fsdp_holds_shards_of_its_states() -> None:
    parts = [
        update_part(SPEC.model, PROFILE, SPEC.cluster, TRAINING, Strategy(fsdp=sharded, recompute=FULL), npus=16)
        for sharded in (False, True)
    ]
    weights = [float(part.states["parameters"].max()) for part in parts]
    assert weights[0] == pytest.approx(16 * weights[1], rel=1e-3)
    assert parts[1].peak_bytes < 0.5 * parts[0].peak_bytes
