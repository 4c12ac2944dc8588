"""Own spec files: YAML or JSON, with references to other files next to them; common slips in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from autodeploy.kit.errors import FieldError, SpecError
from autodeploy.messages import Message
from autodeploy.specs.diagnostics import MAX_DOUBTS, one_line
from autodeploy.specs.expert_loads import content_hash
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.hf_config import read_hf_config
from autodeploy.specs.spec import Spec, parse_spec
from autodeploy.specs.text_files import read_document, refuse_framework
from autodeploy.stack.software import stack_named, stack_of_document
from hardware_profiles import ProfileError, apply_overrides, load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.diagnostics import Diagnostics
    from autodeploy.specs.model import ModelSpec
    from autodeploy.stack.software import Stack
    from hardware_profiles import Profile


MANY_TOKENS: Final = 500e6
"""Of a step: published trainings have up to about 100 million."""


@dataclass(frozen=True, slots=True)
class CommonMistake:
    """Likely mistake at a place of the spec."""

    path: str
    message: str


def refuse_impossible(spec: Spec) -> list[FieldError]:
    """Reject impossible specs: a step that trains more than the run."""
    of_phases = sum(phase.tokens for phase in spec.run.phases) if spec.run is not None else 0.0
    total, step = spec.training.tokens or of_phases, _step_tokens(spec)
    if not total or step <= total or spec.training.global_batch_size.value < spec.training.seq_length:
        return []
    message = Message("importers.step_exceeds_run", tokens=step, total=total)
    return [FieldError("/training/global_batch_size", message, Message("importers.counts_sequences"))]


def common_mistakes(spec: Spec) -> tuple[CommonMistake, ...]:
    """Likely mistakes in a valid spec."""
    try:
        profile = load_profile(spec.cluster.profile, overrides=spec.cluster.overrides)
    except ProfileError:  # told elsewhere
        return tuple(_batch_in_tokens(spec))
    return (*_batch_in_tokens(spec), *_part_of_a_node(spec, profile), *_dies_as_cards(spec, profile))


def _step_tokens(spec: Spec) -> float:
    return float(spec.training.global_batch_size.value) * spec.training.seq_length


def _batch_in_tokens(spec: Spec) -> Iterator[CommonMistake]:
    batch, seq = spec.training.global_batch_size.value, spec.training.seq_length
    if _step_tokens(spec) >= MANY_TOKENS and batch >= seq:
        yield CommonMistake(
            "/training/global_batch_size",
            Message(
                "importers.batch_perhaps_tokens",
                batch=batch,
                tokens=_step_tokens(spec),
                sequences=max(1, round(batch / seq)),
            ),
        )


def _part_of_a_node(spec: Spec, profile: Profile) -> Iterator[CommonMistake]:
    cards, per_node = spec.cluster.num_npus, profile.npus_per_node
    if cards is None or cards <= per_node or cards % per_node == 0 or spec.cluster.use == "at_most":
        return
    lower = cards // per_node * per_node
    yield CommonMistake(
        "/cluster/num_npus",
        Message("importers.partial_nodes_of_cards", cards=cards, node=per_node, lower=lower, upper=lower + per_node),
    )


def _dies_as_cards(spec: Spec, profile: Profile) -> Iterator[CommonMistake]:
    cards, dies = spec.cluster.num_npus, profile.devices_per_npu
    if cards is None or dies == 1 or cards % dies:
        return
    strategy = spec.strategy
    ranks = 0 if strategy is None else strategy.tp * strategy.pp * strategy.cp * (strategy.dp or 0)
    whole = None if profile.supernode_nodes is None else profile.supernode_nodes * profile.npus_per_node
    if ranks == cards:
        yield CommonMistake(
            "/cluster/num_npus",
            Message("importers.ranks_perhaps_dies", ranks=ranks, cards=cards, dies=dies, fewer=cards // dies),
        )
    elif whole is not None and cards == dies * whole:
        yield CommonMistake(
            "/cluster/num_npus",
            Message("importers.cards_perhaps_dies", cards=cards, count=dies, dies=cards, fewer=whole),
        )


# Amounts as people write them in a spec.
AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?(?:e\d{1,2})?)\s*([kmbt]?)", re.IGNORECASE)
NODES = re.compile(r"(\d{1,6})\s*(?:x\s*)?(?:nodes?|节点|个节点)", re.IGNORECASE)
# Lengths, batches and cards come in powers of two, so that a k of them is 1,024; tokens of a run are counted by tens.
BINARY = {"": 1, "k": 1024, "m": 1024**2}
DECIMAL = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def token_amount(text: str) -> float | None:
    """`13T`, `500B` or `1.5e12` as a number; None for what is none."""
    return _amount(text, DECIMAL)


def whole_amount(text: str) -> int | None:
    """`4k` as 4096 and `1.5k` as 1536; None for what is no whole number."""
    value = _amount(text, BINARY)
    return int(value) if value is not None and value == int(value) else None


def _amount(text: str, units: Mapping[str, float]) -> float | None:
    match = AMOUNT.fullmatch(text.strip())
    unit = None if match is None else units.get(match[2].lower())
    return None if match is None or unit is None else float(match[1]) * unit


TOKENS_OF_A_STEP = re.compile(r"(.+?)[\s-]*(?:tokens?|个\s*tokens?)", re.IGNORECASE)


def sequences_of(text: str, seq_length: Any) -> int | None:
    """`4M tokens` as sequences of that length, the nearest whole number of them; None for what is no such amount.

    A k is 1,024 as in lengths, unless 1,000 alone gives whole sequences.
    """
    match = TOKENS_OF_A_STEP.fullmatch(text.strip())
    length = whole_amount(seq_length) if isinstance(seq_length, str) else seq_length
    if match is None or not isinstance(length, int | float) or length < 1:
        return None
    amounts = [amount for units in (BINARY, DECIMAL) if (amount := _amount(match[1], units)) is not None]
    if not amounts:
        return None
    return max(1, round(next((each for each in amounts if each % length == 0), amounts[0]) / length))


FIELDS: Mapping[str, Callable[[str], float | None]] = {
    "seq_length": whole_amount,
    "global_batch_size": whole_amount,
    "tokens": token_amount,
}


def card_count(text: str, profile: Any) -> int | None:
    """`384`, `4k` or, with the name of a profile, `16 nodes` as cards; None for what is none.

    Of a profile that can't be read nobody knows the cards of a node.
    """
    match = NODES.fullmatch(text.strip())
    if match is None:
        return whole_amount(text)
    per_node = _cards_of_a_node(profile)
    return None if per_node is None else int(match[1]) * per_node


def _cards_of_a_node(profile: Any) -> int | None:
    try:
        return load_profile(profile).npus_per_node if isinstance(profile, str) else None
    except ProfileError:
        return None


RECOMPUTE_WORDS = ("none", "selective", "full")
FILE_SUFFIXES = (".yaml", ".yml", ".json")


def read_spec_file(path: Path | str, doubt: Callable[[str], None] | None = None) -> Spec:
    """The validated spec in a YAML or JSON file; file names in it are relative to it. As `read_spec_document`.

    Raises SpecError with every bad field at once, or the line and column where the file is not well formed.
    """
    path = Path(path)
    return read_spec_document(read_document(path), base_dir=path.parent, doubt=doubt)


def read_spec_document(document: Any, base_dir: Path | None = None, doubt: Callable[[str], None] | None = None) -> Spec:
    """The validated spec in a mapping.

    document : mapping as read from YAML, JSON or a request body.
    base_dir : where `hf_config` and an own hardware profile are looked for. Absent, for documents that come over the
        network, files can't be named: the model's configuration stands in the document itself.
    doubt : told what should be checked: the spec's own doubts, and those of the model's configuration, such as an
        unknown architecture. They are in the spec that is returned, too.

    Raises SpecError with every bad field at once: JSON pointer, message and hint.
    """
    errors: list[FieldError] = []
    diagnostics: list[Diagnostics] = []
    if isinstance(document, Mapping):
        _refuse_other_documents(document)
        document = resolved(document, base_dir)
        errors += _profile_errors(document)
    try:
        spec = parse_spec(document, read_hf_model=lambda value: _read_hf_model(value, base_dir, diagnostics))
    except SpecError as error:
        refused_paths = {e.path for e in error.errors}
        raise SpecError(errors=(*error.errors, *(e for e in errors if e.path not in refused_paths))) from error
    errors += refuse_impossible(spec) if not errors else []
    if errors:
        raise SpecError(errors=tuple(errors))
    unmodelled = [setting for notes in diagnostics for setting in notes.doubts]
    doubts = [
        *(text for notes in diagnostics for text in notes.assumptions),
        *(each.message for each in common_mistakes(spec)),
    ]
    if doubt is not None:
        of_model = [text for notes in diagnostics for text in notes.to_check]
        for text in dict.fromkeys((*spec.to_check, *of_model, *doubts)):
            doubt(text)
    said = {"unmodelled": _with_further(spec.unmodelled, unmodelled), "doubts": _with_further(spec.doubts, doubts)}
    return spec.model_copy(update=said)


def _with_further(texts: tuple[str, ...], more: list[str]) -> tuple[str, ...]:
    """Both, each text once and as one line."""
    return tuple(dict.fromkeys((*texts, *map(one_line, more))))[:MAX_DOUBTS]


def _refuse_other_documents(document: Mapping[Any, Any]) -> None:
    refuse_framework(document)
    keys = {str(key) for key in document}
    if "model" not in keys and keys & {"architectures", "model_type", "hidden_size"}:
        raise SpecError(
            Message("importers.not_a_spec", what="config.json"),
            hint=Message("importers.write_spec_with_model"),
        )
    if "plans" in keys and "search" in keys:
        raise SpecError(Message("importers.not_a_spec", what="PlanSet"), hint="/search/spec")


def resolved(document: Mapping[str, Any], base_dir: Path | None = None) -> dict[str, Any]:
    """A spec's document as its type takes it: amounts as numbers, whole nodes as cards, files by path or content.

    What can't be read stays as it is, so that the validation of the spec names it. A bare number in quotes stays a
    text, which a spec refuses.
    """
    return {**document, **{name: read(document[name], base_dir) for name, read in SECTIONS.items() if name in document}}


def _cluster(cluster: Any, base_dir: Path | None) -> Any:
    """A profile that is a file is looked for next to the spec; an overlay that is one is read into it."""
    if not isinstance(cluster, Mapping):
        return cluster
    changed = {**cluster}
    profile, overlay = cluster.get("profile"), cluster.get("overlay")
    if _is_file(profile):
        if base_dir is None:
            raise SpecError(
                Message("importers.no_file_here", name=profile[:100]),
                path="/cluster/profile",
                hint=Message("importers.use_built_in_profile"),
            )
        changed["profile"] = str(base_dir / profile)
    if _is_file(overlay):
        changed["overlay"] = _content(overlay, base_dir, "/cluster/overlay")
    return _with_cards(changed)


def _with_cards(cluster: dict[str, Any]) -> dict[str, Any]:
    """A cluster with `num_npus` where it says `nodes: 16`, or `num_npus: 16 nodes`."""
    nodes, said, profile = cluster.get("nodes"), cluster.get("num_npus"), cluster.get("profile")
    if isinstance(said, str) and said.strip()[-1:].isalpha():
        cards = card_count(said, profile)
        return cluster if cards is None else {**cluster, "num_npus": cards}
    if not isinstance(nodes, int) or isinstance(nodes, bool) or said is not None or cluster.get("blocks") is not None:
        return cluster
    per_node = _cards_of_a_node(profile)
    if per_node is None:
        return cluster
    return {**{name: value for name, value in cluster.items() if name != "nodes"}, "num_npus": nodes * per_node}


def _software(software: Any, base_dir: Path | None) -> Any:
    """A software stack that is a file is read into the spec."""
    stack = software.get("stack") if isinstance(software, Mapping) else software
    if not _is_file(stack):
        return software
    content = _content(stack, base_dir, "/software/stack")
    return {**(software if isinstance(software, Mapping) else {}), "stack": content}


def _training(training: Any, base_dir: Path | None) -> Any:
    """A file of expert loads is looked for next to the spec; its hash makes the spec say what it holds."""
    if not isinstance(training, Mapping):
        return training
    changed, name = _with_numbers(training), training.get("expert_load_file")
    if isinstance(name, str) and base_dir is not None:
        path = base_dir / name
        changed |= {"expert_load_file": str(path), "expert_load_sha256": content_hash(path)}
    return changed


def _run(run: Any, _: Path | None) -> Any:
    if not isinstance(run, Mapping) or not isinstance(phases := run.get("phases"), list):
        return run
    return {**run, "phases": [_with_numbers(each) if isinstance(each, Mapping) else each for each in phases]}


def _with_numbers(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with its lengths, batches and tokens as numbers."""
    changed = {**section}
    for name, read in FIELDS.items():
        value = section.get(name)
        if isinstance(value, str) and value.strip()[-1:].isalpha():
            changed[name] = value if (amount := read(value)) is None else amount
    batch, length = changed.get("global_batch_size"), changed.get("seq_length")
    if isinstance(batch, str):
        changed["global_batch_size"] = sequences_of(batch, length) or batch
    elif isinstance(batch, Mapping) and isinstance(value := batch.get("value"), str):
        changed["global_batch_size"] = {**batch, "value": sequences_of(value, length) or whole_amount(value) or value}
    return changed


def recompute_document(recompute: Any) -> Any:
    """`none`, `selective` or `full` as the mapping they stand for, all else as it is.

    `selective` alone recomputes attention's core, as Megatron-LM does by default.
    """
    if not isinstance(recompute, str) or recompute not in RECOMPUTE_WORDS:
        return recompute
    return {"granularity": recompute} | ({"modules": ["core_attn"]} if recompute == "selective" else {})


def _strategy(strategy: Any, _: Path | None) -> Any:
    """A strategy whose recomputation may be a word, and whose schedule is interleaved where chunks alone are said."""
    if not isinstance(strategy, Mapping):
        return strategy
    changed, chunks = {**strategy}, strategy.get("vpp")
    if "recompute" in strategy:
        changed["recompute"] = recompute_document(strategy["recompute"])
    if "schedule" not in strategy and isinstance(chunks, int) and chunks > 1:
        changed["schedule"] = "interleaved"
    return changed


SECTIONS: Final[Mapping[str, Callable[[Any, Path | None], Any]]] = {
    "cluster": _cluster,
    "software": _software,
    "training": _training,
    "strategy": _strategy,
    "run": _run,
}


def _is_file(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and name.lower().endswith(FILE_SUFFIXES)


def _content(name: str, base_dir: Path | None, pointer: str) -> Any:
    """Content of a file that the spec names at `pointer`; the file lies next to the spec."""
    if base_dir is None:
        hint = Message("importers.put_content_here")
        raise SpecError(Message("importers.no_file_here", name=name[:100]), path=pointer, hint=hint)
    path = base_dir / name
    try:
        return read_document(path / "config.json" if path.is_dir() else path)
    except SpecError as error:
        raise SpecError(str(error), path=pointer, hint=error.hint) from error


def read_stack(name: str) -> Stack:
    """The stack of a name or a YAML file.

    Raises SpecError when there is none, or the file is no stack.
    """
    return stack_of_document(read_document(Path(name))) if _is_file(name) else stack_named(name)


def _profile_errors(document: Mapping[str, Any]) -> list[FieldError]:
    """Faults of the hardware profile, the chip grade or an overridden number, each under its own field."""
    cluster = document.get("cluster")
    name = cluster.get("profile") if isinstance(cluster, Mapping) else None
    if not isinstance(cluster, Mapping) or not isinstance(name, str):
        return []
    try:
        profile = load_profile(name)
    except ProfileError as error:
        return [
            FieldError("/cluster/profile", _profile_message(error, problem), problem.hint) for problem in error.problems
        ]
    errors = []
    device, overrides = cluster.get("device"), cluster.get("overrides")
    if isinstance(device, str) and device not in profile.devices:
        hint = did_you_mean(device, profile.devices)
        errors.append(
            FieldError(
                "/cluster/device",
                Message("common.there_is_no", what=Message("label.device"), name=repr(device)),
                hint,
            )
        )
    numbers = {
        str(path): float(value)
        for path, value in (overrides.items() if isinstance(overrides, Mapping) else ())
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    known = {path: value for path, value in numbers.items() if path in profile.quantities}
    for each in (known, {path: value for path, value in numbers.items() if path not in known}):
        try:
            apply_overrides(profile, each)
        except ProfileError as error:
            errors += [replace(p, path=f"/cluster/overrides{p.path}") for p in error.problems]
    return errors


def _profile_message(error: ProfileError, problem: FieldError) -> str:
    return Message("common.place", place=problem.path, message=problem.message) if problem.path else str(error)


def _read_hf_model(value: Mapping[str, Any], base_dir: Path | None, notes: list[Diagnostics]) -> ModelSpec:
    """The model of {hf_config: path or mapping, name: optional}; what it says about the reading is added to `notes`."""
    unknown = [str(key) for key in value if key not in {"hf_config", "name"}]
    if unknown:
        errors = [
            FieldError(
                f"/{key}", Message("common.unknown_key", name=repr(key)), did_you_mean(key, ["hf_config", "name"])
            )
            for key in unknown
        ]
        raise SpecError(errors=tuple(errors))
    config, name = value["hf_config"], value.get("name")
    if name is not None and not isinstance(name, str):
        raise SpecError(Message("field_fault.is_no_text", value=repr(name)[:40]), path="/name")
    if isinstance(config, str):
        config = _content(config, base_dir, "/hf_config")
    if not isinstance(config, Mapping):
        raise SpecError(
            Message("field_fault.is_invalid", value=repr(config)[:40]),
            path="/hf_config",
            hint="hf_config: ./config.json",
        )
    try:
        model, diagnostics = read_hf_config(config, name)
    except SpecError as error:
        raise type(error)(
            errors=tuple(FieldError("/hf_config" + e.path, e.message, e.hint) for e in error.errors)
        ) from error
    notes.append(diagnostics)
    return model
