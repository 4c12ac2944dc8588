"""What a plan rests on stands in the script, whatever the release's own default."""

from __future__ import annotations

import pytest

from autodeploy.formats.common.source import Source
from autodeploy.formats.megatron.launch_script import asked_for
from autodeploy.formats.megatron.script import reads
from autodeploy.formats.registry import export
from autodeploy.kit.errors import SpecError
from autodeploy.search import planner
from autodeploy.specs.software import SoftwareSpec
from autodeploy.specs.spec import Spec
from tests import factories

ASYNC = {"run": {"checkpoint": "asynchronous"}}
DISTRIBUTED = {"run": {"checkpoint_format": "torch_dist"}}
OLDER = {"search": {"target_release": "mindspeed-llm-26.0.0"}}
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
        ("mindspeed-llm", (DISTRIBUTED,), {"--ckpt-format torch_dist"}, {"--async-save"}),
        ("mindspeed-llm", (OLDER,), {"--ckpt-format torch"}, {"--async-save"}),
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
    ("asked", "path"), [(ASYNC, "/run/checkpoint"), (DISTRIBUTED, "/run/checkpoint_format")], ids=["beside", "format"]
)
def test_what_a_release_does_not_save_is_refused_before_the_search(asked, path):
    """MindSpeed-LLM 26.0.0 sets args.ckpt_format to torch after its validation, and dies at the first such save."""
    spec = Spec.model_validate(factories.spec_document() | OLDER | asked)
    with pytest.raises(SpecError) as refused:
        planner.check_space(spec)
    assert refused.value.errors[0].path == path


@pytest.mark.parametrize(
    ("asked", "path"), [(ASYNC, "/run/checkpoint"), (DISTRIBUTED, "/run/checkpoint_format")], ids=["beside", "format"]
)
def test_high_availability_of_a_given_strategy_refuses_distributed_checkpoints(asked, path):
    """MindSpeed-LLM's high_availability.py raises on them, whoever switched it on; torch checkpoints are saved."""
    copied = {"features": ("high_availability",)}
    document = factories.spec_document() | asked
    given = document | {"strategy": factories.strategy(4, **copied).model_dump(mode="json")}
    with pytest.raises(SpecError, match="requires torch checkpoints") as refused:
        planner.check_space(Spec.model_validate(given))
    assert refused.value.errors[0].path == path
    with pytest.raises(SpecError, match="requires torch checkpoints") as unwritten:
        exported("mindspeed-llm", asked, **copied)
    assert unwritten.value.errors[0].path == path
    assert "--ckpt-format torch\n" in exported("mindspeed-llm", **copied).replace(" \\\n", "\n")


def test_an_asynchronous_torch_checkpoint_contradicts_itself():
    run = {"checkpoint": "asynchronous", "checkpoint_format": "torch"}
    with pytest.raises(ValueError, match="torch_dist"):
        Spec.model_validate(factories.spec_document() | {"run": run})


def test_a_script_says_its_distributed_checkpoints_back():
    text = exported("mindspeed-llm", ASYNC)
    run = reads(Source(text, "run.sh", dict.fromkeys(asked_for(text), "1"))).document["run"]
    assert run == {"checkpoint": "asynchronous", "checkpoint_format": "torch_dist"}


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


def test_sums_of_fp16_gradients_in_32_bits_are_written_and_read_back():
    """FP16 runs hold 18 bytes a parameter with them: Korthikanti et al., arXiv:2205.05198."""
    flag, half = "--accumulate-allreduce-grads-in-fp32", factories.spec_document()["training"] | {"precision": "fp16"}
    summed = {"stack": "megatron-lm", "overrides": {"formats.gradients": "fp32"}}
    plain, text = (
        exported("megatron", H100, {"training": half}),
        exported("megatron", H100, {"training": half, "software": summed}),
    )
    assert flag not in plain
    assert flag in text
    for script, software in ((plain, None), (text, SoftwareSpec.model_validate(summed))):
        result = reads(Source(script, "run.sh", dict.fromkeys(asked_for(script), "1")))
        assert result.spec(cluster="nvidia-h100", num_npus=16).software == software


def test_high_availability_is_launched_and_read_back():
    text = exported("mindspeed-llm", features=("high_availability", "worker_reboot"))
    assert {"--enable-high-availability", "--enable-worker-reboot"} <= {line.strip() for line in text.splitlines()}
    read = reads(Source(text, "run.sh", dict.fromkeys(asked_for(text), "1")))
    assert {"high_availability", "worker_reboot"} <= set(read.document["strategy"]["features"])


@pytest.mark.parametrize("asked", [ASYNC, DISTRIBUTED], ids=["beside", "format"])
def test_high_availability_refuses_distributed_checkpoints(asked):
    """MindSpeed-LLM, high_availability.py: use_dist_ckpt is refused beside it."""
    search = {"search": {"features": {"high_availability": "on"}}}
    with pytest.raises(SpecError, match="requires torch checkpoints"):
        planner.check_space(Spec.model_validate(factories.spec_document() | search | asked))
