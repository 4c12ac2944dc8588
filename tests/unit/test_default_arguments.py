"""What a plan rests on stands in the script, whatever the release's own default."""

from __future__ import annotations

import pytest

from autodeploy.exporters import export
from autodeploy.specs.spec import Spec
from tests import factories

ASYNC = {"run": {"checkpoint": "asynchronous"}}
H100 = {"cluster": {"profile": "nvidia-h100", "num_npus": 768}}


def exported(to, *changes, **strategy):
    document = factories.spec_document()
    for change in changes:
        document |= change
    spec = Spec.model_validate(document)
    chosen = factories.strategy(4, **strategy)
    plan = factories.plan(4, spec=spec, strategy=chosen, stages=(), run=None)
    return export(factories.plan_set(1, spec=spec), plan, to).text


@pytest.mark.parametrize(
    ("to", "changes", "lines", "lacks"),
    [
        ("mindspeed-llm", (), {"--ckpt-format torch"}, {"--async-save"}),
        ("mindspeed-llm", (ASYNC,), {"--ckpt-format torch_dist", "--async-save"}, set()),
        ("megatron", (), {"--ckpt-format torch_dist"}, {"--async-save"}),
        ("megatron", (ASYNC,), {"--ckpt-format torch_dist", "--async-save"}, {"--use-persistent-ckpt-worker"}),
        ("megatron", (H100, ASYNC), {"--async-save", "--use-persistent-ckpt-worker"}, set()),
    ],
)
def test_checkpoints_are_saved_as_the_run_is_estimated(to, changes, lines, lacks):
    """Only distributed checkpoints are saved beside training; newer Megatron-LM does so with a worker of its own."""
    given = {line.strip() for line in exported(to, *changes).splitlines()}
    assert lines <= given
    assert not lacks & given


@pytest.mark.parametrize(
    ("to", "changes", "implementation"),
    [
        ("mindspeed-llm", (), "local"),
        ("megatron", (), "local"),
        ("megatron", (H100,), "transformer_engine"),
    ],
)
def test_layers_and_gradients_are_named(to, changes, implementation):
    given = {line.strip() for line in exported(to, *changes).splitlines()}
    assert {f"--transformer-impl {implementation}", "--accumulate-allreduce-grads-in-fp32"} <= given
    assert ("--no-masked-softmax-fusion" in given) == (implementation == "local")


def test_gradients_of_16_bit_are_not_asked_for_in_32():
    given = exported("mindspeed-llm", features=("quantized_optimizer",))
    assert "--quant-grads" in given
    assert "--accumulate-allreduce-grads-in-fp32" not in given
