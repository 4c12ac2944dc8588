"""Fine-tuning in MindSpeed-LLM's flags: its stage, the loss over pairs, and adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message, at_place
from autodeploy.specs.diagnostics import NO_EFFECT
from autodeploy.specs.tuning import TARGETS, DpoSpec, LoraSpec, unmodelled_with_adapters, unmodelled_with_reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.formats.megatron.arguments import LaunchArguments
    from autodeploy.specs.spec import Spec


OF_PAIRS = {"beta": "--dpo-beta", "loss": "--dpo-loss-type"}
UNPADDED = "--no-pad-to-seq-lengths"
SINGLE = frozenset({"--is-instruction-dataset", "--is-pairwise-dataset"})
# Samples of several, which fill the sequence; modelled where lengths are told.
PACKED = ("--reset-attention-mask", "--reset-position-ids", "--neat-pack")


def read_tuning(reader: FlagReader, model: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and adapters of a training of a model; nothing of pre-training.

    Raises SpecError with line and column where adapters are of a model for which none are modelled (UnsupportedError),
    or beside other matrices than are modelled.
    """
    stage = reader.text("--stage", "/training/kind")
    if stage is None:
        return {"kind": "sft"} if reader.switch("--sft", "/training/kind") else {}
    reader.switch("--is-instruction-dataset", "/training/kind")
    training: dict[str, Any] = {"kind": stage.strip().lower()}
    training |= _read_padding(reader)
    if training["kind"] == "dpo":
        training |= _read_pairs(reader, model)
    targets = reader.words("--lora-target-modules", "/training/lora/target_modules")
    if not targets:
        reader.ignore(("--lora-r", "--lora-alpha", "--lora-fusion"), NO_EFFECT)
        return training
    unknown = [name for name in targets if name not in TARGETS]
    if unknown:
        reader.fail(
            "--lora-target-modules",
            Message("common.is_not_modelled_yet", what=unknown[0][:40]),
            ", ".join(TARGETS),
        )
    problem = unmodelled_with_adapters(model.get, targets)
    if problem is not None:
        given = reader.script.flags["--lora-target-modules"]
        raise UnsupportedError(at_place(problem, given.at), path="/training/lora")
    sizes = {}
    for field, (flag, default) in LoraSpec.flags.items():
        number = reader.number(flag, f"/training/lora/{field}")
        if number is None:
            reader.assume(f"/training/lora/{field}", default, "MindSpeed-LLM")
        sizes[field] = default if number is None else number
    if not reader.switch("--lora-fusion", "/training/lora"):
        reader.log.default("/training/lora", "fused", Message("importers.predicted_as", what="--lora-fusion"))
    return training | {"lora": sizes | {"target_modules": list(targets)}}


def _read_padding(reader: FlagReader) -> dict[str, bool]:
    """Samples of their own lengths: each alone in its row, and the rows of a micro batch as long as its longest.

    Longer ones are cut at the sequence length. Source: MindSpeed-LLM @c77308a1 legacy/data/data_samplers.py,
    tasks/preprocess/decoder_packed_mtf_dataset.py (_cut_instruction_token).
    """
    given = reader.script.flags.keys()
    if UNPADDED not in given or given & {*PACKED, "--pack"} or not (given & SINGLE or reader.script.is_spelled):
        return {}
    return {"pads_samples": not reader.switch(UNPADDED, "/training/pads_samples")}


def _read_pairs(reader: FlagReader, model: Mapping[str, Any]) -> dict[str, Any]:
    """The loss over pairs. A global batch counts pairs.

    Raises UnsupportedError with line and column for a model beside which no reference is modelled.
    """
    problem = unmodelled_with_reference(model.get)
    if problem is not None:
        given = reader.script.flags["--stage"]
        raise UnsupportedError(at_place(problem, given.at), path="/training/kind")
    reader.switch("--is-pairwise-dataset", "/training/kind")
    reader.text("--ref-model", "/training/dpo")
    fields = {
        "beta": reader.decimal(OF_PAIRS["beta"], "/training/dpo/beta"),
        "loss": reader.text(OF_PAIRS["loss"], "/training/dpo/loss"),
    }
    loss = {field: value for field, value in fields.items() if value is not None}
    return {"dpo": loss} if loss else {}


# Fine-tuning in flags.
TRAINER = "posttrain_gpt.py"
_BLOCK = "TUNE_ARGS"


def add_tuning(arguments: LaunchArguments, spec: Spec) -> None:
    """TUNE_ARGS of fine-tuning under supervision or by preferences; nothing of pre-training.

    Source: MindSpeed-LLM features_manager/finetune and features_manager/dpo; Megatron-LM @d98e8a64 pretrain_gpt.py and
    training/datasets/sft_dataset.py, which packs always and asserts that there is no mask.
    """
    training, add = spec.training, arguments.add
    if training.kind not in {"sft", "dpo"}:
        return
    add(_BLOCK, "--finetune")
    if not arguments.knows("--stage", training.kind):
        add(_BLOCK, "--sft")
        add(_BLOCK, "--sft-tokenizer-prompt-format", "default")
        add(_BLOCK, "--no-create-attention-mask-in-dataloader")
        if not training.pads_samples:
            arguments.lacks("pads_samples: false", "Megatron-LM")
        return
    add(_BLOCK, "--stage", training.kind)
    add(_BLOCK, "--is-instruction-dataset")
    if not training.pads_samples:
        add(_BLOCK, UNPADDED)
    if training.kind == "dpo":
        loss = training.dpo or DpoSpec()
        add(_BLOCK, "--is-pairwise-dataset")
        for field, flag in OF_PAIRS.items():
            add(_BLOCK, flag, getattr(loss, field))
        arguments.note(Message("exporters.reference_model_default"))
    add(_BLOCK, "--prompt-type", "default")
    arguments.note(Message("exporters.prompt_type"))
    if training.sequence_length_histogram is not None:
        add(_BLOCK, "--reset-attention-mask")
        add(_BLOCK, "--neat-pack")
    if training.lora is not None:
        add(_BLOCK, "--lora-r", training.lora.rank)
        add(_BLOCK, "--lora-alpha", training.lora.told_alpha)
        add(_BLOCK, "--lora-target-modules", *training.lora.target_modules)
        add(_BLOCK, "--lora-fusion")
