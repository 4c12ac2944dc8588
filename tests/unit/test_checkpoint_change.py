"""What becomes of a checkpoint in another plan: the rules of Megatron-LM and MindSpeed-LLM, with bytes and commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.intake import with_checkpoints
from autodeploy.costs.training_run.checkpoints import Launched, checkpoint_change
from autodeploy.reports.comparison import checkpoint_lines, compare_plans
from autodeploy.specs.spec import Spec
from tests import factories

if TYPE_CHECKING:
    from autodeploy.specs.plan_details import CheckpointChange

DISTRIBUTED = {"run": {"checkpoint_format": "torch_dist"}}
H100 = {"cluster": {"profile": "nvidia-h100", "num_npus": 768}}


def launched(
    target: str = "mindspeed-llm", *changes: dict[str, Any], vendor: str = "huawei", **strategy: Any
) -> Launched:
    document = factories.spec_document() | {"search": {"target": target}}
    for change in changes:
        document |= change
    spec = Spec.model_validate(document)
    return Launched(spec, factories.plan(1, spec=spec, strategy=factories.strategy(1, **strategy), run=None), vendor)


def changed(before: Launched, after: Launched) -> CheckpointChange:
    found = checkpoint_change(before, after)
    assert (found.moved_gb is None) == (found.how in {"impossible", "unknown"})
    return found


def test_replicas_alone_keep_a_checkpoint() -> None:
    found = changed(launched(), launched(micro_batch_size=2, cp=2))
    assert (found.how, found.format) == ("loaded", "torch")


def test_legacy_checkpoints_are_converted_without_their_optimizer() -> None:
    found = changed(launched(), launched(tp=4, ep=32))
    assert found.how == "weights_converted"
    assert "--target-tensor-parallel-size 4" in found.commands[-1]
    assert "--target-pipeline-parallel-size 16 --target-expert-parallel-size 32" in found.commands[-1]


@pytest.mark.parametrize(
    ("target", "more", "vendor", "how"),
    [
        ("mindspeed-llm", (DISTRIBUTED,), "huawei", "resharded"),
        ("megatron", (), "huawei", "resharded"),
        ("megatron", (H100,), "nvidia", "weights_resharded"),
        ("mindformers", (), "huawei", "resharded"),
    ],
)
def test_distributed_checkpoints_are_resharded(target: str, more: Any, vendor: str, how: str) -> None:
    """Megatron-LM main saves an optimizer that replicas alone may reshard; core_v0.12.1 one in the model's space."""
    before, after = launched(target, *more, vendor=vendor), launched(target, *more, vendor=vendor, tp=4, ep=32)
    found = changed(before, after)
    assert found.how == how
    assert changed(before, launched(target, *more, vendor=vendor)).how == "loaded"
    whole = changed(after, after)
    assert (found.moved_gb or 0.0) < (whole.moved_gb or 0.0) or how == "resharded"


def test_states_of_another_format_are_left_behind() -> None:
    found = changed(launched(), launched(features=("quantized_optimizer",)))
    assert found.how == "weights_resharded"
    assert found.moved_gb == pytest.approx((changed(launched(), launched()).moved_gb or 0.0) - 12e-9 * parameters())


def parameters() -> float:
    return launched().spec.model.total_params(include_mtp=True)


def test_other_models_and_frameworks_have_no_use_for_it() -> None:
    other = launched("mindspeed-llm", {"model": factories.DEEPSEEK_V3 | {"num_hidden_layers": 60}})
    assert changed(launched(), other).how == "impossible"
    assert changed(launched(), launched("mindformers")).how == "unknown"
    assert changed(launched("mindspeed-llm", DISTRIBUTED), launched("mindspeed-llm", OLDER)).how == "impossible"


OLDER = {"search": {"target": "mindspeed-llm", "target_release": "mindspeed-llm-26.0.0"}}


def test_a_comparison_says_it_in_both_languages() -> None:
    first, second = launched(), launched(tp=4)
    pairs = [(factories.plan_set(1, spec=each.spec), each.plan) for each in (first, second)]
    comparison = with_checkpoints(compare_plans(pairs), pairs)
    assert [change.how for change in comparison.checkpoints] == ["weights_converted"]
    english, *commands = checkpoint_lines(comparison)
    assert "weights converted" in english
    assert len(commands) == 2
    assert "转换权重" in checkpoint_lines(comparison, "zh")[0]
