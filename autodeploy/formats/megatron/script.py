"""Launch scripts of MindSpeed-LLM and Megatron-LM: read, never run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.flag_effects import framework_of_flags
from autodeploy.formats.common.import_result import (
    ImportResult,
    plan_id_of,
    release_of_marks,
    take_marks,
)
from autodeploy.formats.common.key_table import EVENLY_ROUTED
from autodeploy.formats.common.launch_script import read_launch_script, refuse_other_training, refuse_program
from autodeploy.formats.common.source import Source
from autodeploy.formats.common.value_readers import FlagReader
from autodeploy.formats.megatron.keyed_launch import is_keyed, keyed_launch, program_of, with_experiment
from autodeploy.formats.megatron.launch import NO_MASK
from autodeploy.formats.megatron.model import CAPACITY, DETERMINISTIC, EIGHT_BITS, HALF, read_model
from autodeploy.formats.megatron.post_training_launch import model_of
from autodeploy.formats.megatron.recipe import FORCED_ROUTING, read_training_recipe
from autodeploy.formats.megatron.strategy import (
    ALLOCATORS,
    ASYNC_PERMUTATION,
    read_gradient_sums,
    read_optimizer,
    read_strategy,
)
from autodeploy.formats.megatron.swift import is_longest_of_model, is_swift, model_named, spelled
from autodeploy.formats.megatron.tuning import PACKED, read_tuning
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import DiagnosticsLog
from autodeploy.specs.tuning import SEQUENCES_OF_A_PAIR
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.stack.releases import releases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autodeploy.formats.common.launch_script import LaunchScript
    from autodeploy.stack.releases import Release

LEAST_MASK_GIB = 1 / 64  # of a micro batch, that is worth a word: 4,096 tokens
MASKLESS = frozenset({NO_MASK, "--dataloader-inter-document-masking"})


def detects(source: Source) -> bool:
    """Whether a text is a script, or keys of a document say the shape of a model in Megatron's words.

    Raises UnsupportedError where an experiment starts another program than a training.
    """
    refuse_program([program_of(source.experiment)])
    return source.syntax == "script" or is_keyed(source.document)


def reads(source: Source) -> ImportResult:
    """The spec that a launch runs."""
    text = source.text
    script, named = read_megatron_launch(source)
    refuse_other_training(script)
    reader = FlagReader(script)
    strategy, layers = read_strategy(reader)
    model = dict(named) if named else read_model(reader, layers, source.name, source.otherwise)
    ranks = _ranks(reader, strategy)
    document: dict[str, Any] = {"model": model, "training": _training(reader, strategy, ranks, model)}
    take_marks(text, document, strategy, reader.log)
    if "sequence_length_histogram" in document["training"]:
        reader.ignore(PACKED, Message("importers.predicted_as", what="sequence_length_histogram"))
        document["training"].pop("pads_samples", None)  # the lengths are those of documents in full sequences
    release = release_of_marks(text)
    patched = release is not None and FEATURES["async_permutation"].variant(release) is not None
    if patched and reader.has(ASYNC_PERMUTATION) and strategy.get("moe_dispatcher") == "allgather":
        strategy["features"] = sorted({*strategy["features"], "async_permutation"})
    target = release.framework if release is not None else framework_of_flags(script.flags)
    could_be = [release] if release is not None else [each for each in releases() if each.framework == target]
    adapted = all(each.has("mindspeed") for each in could_be)
    sums = read_gradient_sums(reader, strategy, adapted=adapted)
    strategy["features"] = sorted({*strategy["features"], *sums})
    search = {"target": UNRESTRICTED if script.is_spelled else target} | _search(reader)
    if release is not None and not release.is_default:
        search["target_release"] = release.name
    document |= {"search": search, "strategy": strategy} | _run(reader)
    _doubt_mask(reader, strategy["micro_batch_size"], document["training"].get("seq_length"), could_be)
    for variable, value in script.environment.items():
        if variable not in ALLOCATORS and (variable != "CPU_AFFINITY_CONF" or value[:1] == "0"):
            reader.log.ignore(variable, value, Message("importers.no_field_of_spec"))
    kept = reader.note_rest()
    return ImportResult(
        "launch-script",
        document,
        reader.log.finish(),
        ranks=ranks,
        target=target,
        environment=script.environment,
        kept=kept,
        plan_id=plan_id_of(text),
        flags={flag.name: flag.text for flag in script.flags.values()},
        script=script,
        replica_batch=0 if reader.has("--global-batch-size") else strategy["micro_batch_size"],
    )


def read_megatron_launch(source: Source) -> tuple[LaunchScript, Mapping[str, Any]]:
    """The launch in Megatron's flags, and its model where that is named alone."""
    if source.syntax != "script":
        return keyed_launch(source), {}
    script = read_launch_script(source.text, source.variables, source.base_dir)
    if not is_swift(script):
        return script, {}
    at = model_named(script)
    model = model_of([source.name or "", at.text], source.base_dir, DiagnosticsLog(), at.place)
    return spelled(script, model), model


def read_launch(text: str, variables: Mapping[str, str] | None = None, base_dir: Path | None = None) -> LaunchScript:
    """The launch of a script, or of Megatron's settings as keys, in Megatron's flags."""
    source = Source(text, "launch.yaml", variables, base_dir=base_dir)
    try:
        source = with_experiment(source)
        is_script = not is_keyed(source.document)
    except SpecError:
        is_script = True
    return read_megatron_launch(replace(source, filename="launch.sh") if is_script else source)[0]


def _doubt_mask(reader: FlagReader, samples: int, sequence: int | None, could_be: Sequence[Release]) -> None:
    """Says what the data set's mask takes: a Boolean a pair of tokens on first and last stage, a float on the host.

    MindSpeed switches it off, so that a launch with a flag of its own makes none. Source: Megatron-LM @d98e8a64,
    gpt_dataset.py, _get_ltor_masks_and_position_ids; MindSpeed @028de58c, generate_mask_feature.py.
    """
    given = reader.script.flags.keys()
    adapted = any(flag.registered_in == "mindspeed" for each in could_be for flag in map(each.flags.get, given) if flag)
    if sequence is None or adapted or given & MASKLESS or all(each.has("mindspeed") for each in could_be):
        return
    pairs_gib = sequence**2 / 2**30
    if samples * pairs_gib >= LEAST_MASK_GIB:
        reason = Message("importers.mask_of_data_set", gib=samples * pairs_gib, host=4 * pairs_gib)
        reader.log.unmodelled("data", f"without {NO_MASK}", reason)


def _ranks(reader: FlagReader, strategy: dict[str, Any]) -> int | None:
    """Processes of the launch; None where it has fewer than the degrees need, as scripts to be completed have."""
    ranks = reader.script.ranks
    if ranks is None:
        return None
    reader.log.take("launcher", "/cluster/num_npus", ranks)
    needed = strategy["tp"] * strategy["pp"] * strategy["cp"]
    if ranks % needed:
        reason = Message("common.does_not_divide", part=f"tp x pp x cp = {needed}", whole=ranks)
        reader.log.contradict("launcher", "/cluster/num_npus", ranks, reason)
        return None
    return ranks


def _search(reader: FlagReader) -> dict[str, Any]:
    """Search settings of a launch: whether its operators have to be deterministic."""
    given = [reader.switch(flag, "/search/deterministic_training") for flag in DETERMINISTIC]
    return {"deterministic_training": True} if any(given) else {}


def _run(reader: FlagReader) -> dict[str, Any]:
    """Checkpoints of a launch: where they are distributed, and whether they are asynchronous."""
    if not (reader.is_told("--ckpt-format") and reader.script.flags["--ckpt-format"].text.strip() == "torch_dist"):
        return {}
    run = {"checkpoint_format": reader.text("--ckpt-format", "/run/checkpoint_format")}
    if reader.switch("--async-save", "/run/checkpoint"):
        run["checkpoint"] = "asynchronous"
    return {"run": run}


def _training(reader: FlagReader, strategy: dict[str, Any], ranks: int | None, model: dict[str, Any]) -> dict[str, Any]:
    sequence = reader.number("--seq-length", "/training/seq_length")
    training: dict[str, Any] = {} if sequence is None else {"seq_length": sequence}
    if sequence and is_longest_of_model(reader.script):
        reader.log.doubt("/training/seq_length", sequence, Message("importers.longest_of_model"))
    batch = reader.number("--global-batch-size", "/training/global_batch_size")
    if batch is None and ranks is not None:
        degrees = strategy["tp"] * strategy["pp"] * strategy["cp"]
        batch = reader.assume("/training/global_batch_size", strategy["micro_batch_size"] * (ranks // degrees))
    training |= {} if batch is None else {"global_batch_size": batch}
    if "capacity_drop" in strategy["features"]:
        training["expert_capacity_factor"] = reader.decimal(CAPACITY, "/training/expert_capacity_factor")
    half = reader.switch(HALF["bf16"], "/training/precision")
    single = not reader.switch(HALF["fp16"], "/training/precision") and not half
    eight = reader.text(EIGHT_BITS, "/training/precision")
    training["precision"] = "fp8" if eight else "bf16" if half else "fp32" if single else "fp16"
    if single and not eight:
        reader.assume("/training/precision", "fp32")
    for flag in FORCED_ROUTING:
        if reader.switch(flag, "/training/routing_imbalance"):
            training |= EVENLY_ROUTED
            reader.log.default("/training/routing_imbalance", 1.0, Message("importers.follows_from", what=flag))
    steps = reader.number("--train-iters", "/training/tokens") if _is_known(reader, "--train-iters") else None
    samples = reader.number("--train-samples", "/training/tokens") if _is_known(reader, "--train-samples") else None
    total = samples if samples is not None else (steps * batch if steps and batch else None)
    if total and sequence:
        training["tokens"] = float(total * sequence)
    training |= {} if (optimizer := read_optimizer(reader)) is None else {"optimizer": optimizer}
    training |= read_tuning(reader, model)
    if training.get("kind") == "dpo" and "tokens" in training:
        training["tokens"] *= SEQUENCES_OF_A_PAIR
    recipe = read_training_recipe(reader)
    return training | ({"recipe": recipe} if recipe else {})


def _is_known(reader: FlagReader, flag: str) -> bool:
    """Length of training where it is known: it is often left to the environment, and a plan needs no answer."""
    return flag in reader.script.flags and not reader.script.flags[flag].unknown
