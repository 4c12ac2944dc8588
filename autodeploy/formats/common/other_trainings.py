"""Launches that are no pre-training of all parameters: recognised, and refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message, at_place
from autodeploy.specs.diagnostics import not_modelled
from autodeploy.specs.text_files import refuse_framework

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.formats.common.launch_script import LaunchScript


# Launches for the chip after today's, the Ascend 950 (A5).
# Number formats that no Ascend chip before the 950 multiplies, by the flag that says them.
FORMATS = {"--fp8-recipe": frozenset({"mxfp8", "mxfp8-32x32"}), "--fp8-format": frozenset({"hif8"})}
# Public scripts say the chip between the separators of their own name and of the log's: `_A5_`.
_NAMED = re.compile(r"(?<![A-Za-z0-9])A5(?![A-Za-z0-9+])|ascend[-_ ]?950", re.IGNORECASE)
_LOG = re.compile(r"(?:\btee\s+(?:-a\s+)?|>>?\s*)([^\s|;&<>]+)")


def refuse_next_chip(script: LaunchScript, text: str, name: str) -> None:
    """Refuses a launch that its file, its log or its number format says to be for the Ascend 950.

    Parameters
    ----------
    text : the script, for the names of its logs.
    name : the file's name, without its suffix.

    Raises
    ------
    UnsupportedError
        with the word that says so.
    """
    for flag, formats in FORMATS.items():
        given = script.flags.get(flag)
        if given is not None and given.text.strip().lower() in formats:
            _refuse(f"{flag} {given.text.strip()}", (given.line, given.column))
    for word in (name, *_LOG.findall(text)):
        refuse_name(word)


def refuse_name(word: str) -> None:
    """Refuses a launch whose file or log of this name says the Ascend 950."""
    if _NAMED.search(word):
        _refuse(word[:120])


def _refuse(by: str, place: tuple[int, int] | None = None) -> None:
    raise UnsupportedError(
        at_place(not_modelled("Ascend 950", by), place),
        path="/cluster",
        hint=Message("importers.give_launch_for_a2_or_a3"),
    )


LORA, SFT, RL, DPO, FSDP2 = "LoRA", "SFT", "RL", "DPO", "FSDP2"
INFERENCE, NO_TRAINING = "inference", frozenset({"inference", "quantization", "pruning", "evaluation"})
STAGES = {"sft": SFT, "dpo": DPO, "simpo": DPO, "orpo": "ORPO", "prm": "PRM"}


def _purposes(names: Mapping[str, str]) -> dict[str, str]:
    """What each name says that a launch does, of names by what they say."""
    return {name: what for what, listed in names.items() for name in listed.split()}


# A flag that is given says what the launch does; the first that is found is named.
FLAGS = _purposes(
    {
        LORA: "--lora-load --lu-lora-final-layer-index --qlora --qlora-save-dequantize",
        RL: "--perform-rl-step --grpo-group-size",
        "distillation": "--qad-enable",
        FSDP2: "--use-torch-fsdp2 --fsdp2-config-path",
        "evaluation": "--skip-train",
        INFERENCE: "--prompt-file",
        "RETRO": "--retro-add-retriever",
        "vision pre-training": "--vision-pretraining",
        "LayerZeRO": "--layerzero",
        "a search of MindSpeed for settings": "--auto-settings",
        "layerwise disaggregated training": "--layerwise-disaggregated-training",
    }
)
# Read in fine-tuning, those of pairs in preference tuning; elsewhere they too say what the launch does.
TUNING_FLAGS = _purposes(
    {LORA: "--lora-r --lora-alpha --lora-target-modules --lora-fusion", SFT: "--is-instruction-dataset"}
)
PREFERENCE_FLAGS = _purposes({DPO: "--is-pairwise-dataset --dpo-beta --dpo-loss-type --ref-model"})
READ_STAGES = frozenset({"sft", "dpo"})
TUNING_PROGRAM = "posttrain_gpt.py"
# Entry points of MindSpeed-LLM, MindSpeed-RL, Megatron-LM and verl that do something else.
PROGRAMS = _purposes(
    {
        FSDP2: "train_fsdp2.py",
        "fine-tuning": "posttrain_gpt.py finetune.py finetune_gpt.py",
        RL: "rlhf_gpt.py ray_gpt.py train_grpo.py train_rl.py main_ppo.py",
        INFERENCE: "inference.py inference_fsdp2.py inference_deepseek4.py evaluation.py generate_samples_gpt.py "
        "gpt_dynamic_inference.py gpt_static_inference.py run_text_generation_server.py "
        "run_hybrid_text_generation_server.py run_text_generation.py run_mamba_text_generation_server.py generate.py "
        "mmlu.py",
        "quantization": "quantize.py",
        "pruning": "prune.py",
        "training of BERT": "pretrain_bert.py",
        "training of T5": "pretrain_t5.py",
        "training of a retriever": "pretrain_ict.py",
        "RETRO": "pretrain_retro.py",
        "training of a vision language model": "pretrain_vlm.py",
        "vision pre-training": "pretrain_vision_classify.py pretrain_vision_inpaint.py pretrain_vision_dino.py",
        "training of state-space layers": "pretrain_mamba.py pretrain_hybrid.py",
    }
)
_RL_SECTIONS = ("rl_config", "actor_config", "actor_rollout_ref", "generate_config")
_FSDP2_KEYS = frozenset({"ep_fsdp_modules", "cp_fsdp_mode"})  # of other backends than MindSpeed-LLM's


def refuse_other_training(script: LaunchScript) -> None:
    """Refuses a launch that neither pre-trains nor fine-tunes, under supervision or by preferences.

    Raises
    ------
    UnsupportedError
        with the place and the name of what it does.
    """
    stage = script.flags.get("--stage")
    word = "" if stage is None else stage.text.strip().lower()
    tunes = word in READ_STAGES
    elsewhere = ({} if tunes else TUNING_FLAGS) | ({} if word == "dpo" else PREFERENCE_FLAGS)
    for flag, what in (elsewhere | FLAGS).items():
        if flag in script.flags:
            given = script.flags[flag]
            raise refused(what, flag, (given.line, given.column))
    if stage is not None and not tunes:
        what = STAGES.get(word) or (RL if word.startswith(("ray_", "trl_")) or "ppo" in word else "fine-tuning")
        raise refused(what, f"--stage {stage.text[:40]}", (stage.line, stage.column))
    if not (tunes and script.program.rpartition("/")[2] == TUNING_PROGRAM):
        refuse_program([script.program])


def refuse_program(words: Iterable[str]) -> None:
    """Refuses entry points that do something else than pre-training.

    Raises
    ------
    UnsupportedError
        with the name of what the program does.
    """
    for word in words:
        program = word.rpartition("/")[2]
        if program in PROGRAMS:
            raise refused(PROGRAMS[program], program)


def refuse_other_configuration(document: Mapping[str, Any]) -> None:
    """Refuses configurations of other trainings, other FSDP2 and reinforcement learning, and of other frameworks.

    Raises
    ------
    UnsupportedError
        with the JSON pointer of the key that says so.
    """
    parallel, training = document.get("parallel"), document.get("training")
    if isinstance(parallel, Mapping) and (keys := sorted(_FSDP2_KEYS & parallel.keys())):
        raise refused(FSDP2, keys[0], path=f"/parallel/{keys[0]}")
    if isinstance(training, Mapping) and isinstance(training.get("stage"), str) and "model" in document:
        stage = training["stage"].lower()
        raise refused(STAGES.get(stage, FSDP2), f"stage {stage[:40]}", path="/training/stage")
    for section in _RL_SECTIONS:
        if isinstance(document.get(section), Mapping):
            raise refused(RL, section, path=f"/{section}")
    refuse_framework(document)


def refused(what: str, by: str, place: tuple[int, int] | None = None, path: str = "/training/kind") -> UnsupportedError:
    """The error that names what a launch does, and the word of the file that says so."""
    nothing = Message("importers.trains_nothing", what=Message("common.text_and_numbers", text=what, numbers=by))
    message = at_place(nothing if what in NO_TRAINING else not_modelled(what, by), place)
    return UnsupportedError(message, path=path, hint=Message("importers.give_launch_of_pre_training_of_all_parameters"))
