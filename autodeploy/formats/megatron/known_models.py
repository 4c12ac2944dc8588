"""Facts that a launch script leaves to its tokenizer or to its reader: the vocabulary and the model's name.

A preset lends either only where the shapes agree, and its vocabulary only to a file that names its family.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.attention import SparseAttention
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import preset_names, presets_of_width, read_preset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.value_readers import FlagReader
    from autodeploy.specs.presets import Preset

# Tokenizers whose name stands for one vocabulary, and the families that use it; none: all.
VOCABULARIES: dict[str, tuple[int, tuple[str, ...]]] = {
    "GPT2BPETokenizer": (50_257, ()),
    "Llama2Tokenizer": (32_000, ("llama2", "llama-2", "llama_2", "codellama", "mixtral")),
}
NAMING = ("--tokenizer-name-or-path", "--tokenizer-model", "--load", "--model-type-hf", "--spec")
PARAMETER_TOLERANCE = 0.01
VOCABULARY_TOLERANCE = 0.003  # of the parameters: what another vocabulary of the family would change
_MODEL_NAME = re.compile(r"(?=.*[A-Za-z])(?=.*\d)[\w.+-]{3,100}")  # letters and digits, no blanks
_FAMILY = re.compile(r"[a-z]+")
_SERIES = re.compile(r"([a-z]+)-?(\d)")
_FIELD = "/model/vocab_size"


def read_vocabulary(reader: FlagReader, model: dict[str, Any], otherwise: str) -> int:
    """The vocabulary that the flags say, else that of a tokenizer or preset, which is told as a doubt.

    Raises SpecError where the script says nothing of it: it is asked for, never assumed.
    """
    exact = reader.number("--vocab-size", _FIELD)
    padded = reader.number("--padded-vocab-size", _FIELD)
    if exact or padded:
        return exact or padded or 0
    given = reader.script.given.get("VOCAB_SIZE", "")
    if given.isdigit() and int(given[:9]) > 0:
        reader.log.take("VOCAB_SIZE", _FIELD, given)
        return int(given[:9])
    named = _names(reader, otherwise)
    size_and_reason = _of_preset(model, named) or _of_tokenizer(reader, named) or _of_layers(model, named)
    size_and_reason = size_and_reason or _of_family(model, named)
    if size_and_reason is not None:
        size, reason = size_and_reason
        reader.log.default(_FIELD, size, reason)
        reader.log.doubt(_FIELD, size, reason)
        return size
    hint = Message("importers.set_it", option="--set VOCAB_SIZE=N")
    raise SpecError(Message("common.is_required", name="--vocab-size"), path=_FIELD, hint=hint)


def _of_preset(model: dict[str, Any], named: str) -> tuple[int, str] | None:
    """The vocabulary of the presets with this shape, where the file names their family and they agree."""
    alike = [
        preset
        for preset in _of_shape(model)
        if _family(preset) in named and _same_size(preset, {**model, "vocab_size": preset.model.vocab_size})
    ]
    agreed = _agreed(alike, named)
    return agreed and (agreed[0], Message("importers.follows_from", what=agreed[1]))


def _of_layers(model: dict[str, Any], named: str) -> tuple[int, str] | None:
    """The vocabulary of the presets that the file names with layers as wide, in a model of another depth."""
    widths = ("num_attention_heads", "intermediate_size", "n_routed_experts", "moe_intermediate_size")
    alike = [
        preset
        for preset in presets_of_width(model["hidden_size"])
        if _is_series(preset, named)
        and all((getattr(preset.model, key) or None) == (model.get(key) or None) for key in widths)
    ]
    agreed = _agreed(alike, named)
    return agreed and (agreed[0], Message("importers.follows_from", what=agreed[1]))


def _of_family(model: dict[str, Any], named: str) -> tuple[int, str] | None:
    """The largest vocabulary of the family or series that the file names, in a model so large that it hardly counts."""
    presets = [preset for name in preset_names() if _family(preset := read_preset(name)) in named]
    sizes = [preset.model.vocab_size for preset in presets]
    total = _total({**model, "vocab_size": min(sizes)}) if sizes else None
    if total is None or 2 * (max(sizes) - min(sizes)) * model["hidden_size"] > VOCABULARY_TOLERANCE * total:
        return None
    series = [preset for preset in presets if _is_series(preset, named)] or presets
    largest = max(series, key=lambda preset: preset.model.vocab_size)
    return largest.model.vocab_size, Message("importers.follows_from", what=largest.title)


def _agreed(presets: list[Preset], named: str) -> tuple[int, str] | None:
    """The one vocabulary of the presets, of those of the series that the file names where it names one."""
    series = [preset for preset in presets if _is_series(preset, named)]
    titles = {preset.model.vocab_size: preset.title for preset in series or presets}
    return titles.popitem() if len(titles) == 1 else None


def _of_tokenizer(reader: FlagReader, named: str) -> tuple[int, str] | None:
    tokenizer = reader.text("--tokenizer-type", _FIELD) if reader.has("--tokenizer-type") else None
    if tokenizer is None and reader.has("--merge-file"):
        tokenizer = "GPT2BPETokenizer"
    size, families = VOCABULARIES.get(tokenizer or "", (0, ()))
    if not size or (families and not any(family in named for family in families)):
        return None
    return size, Message("importers.follows_from", what=tokenizer)


def model_name(reader: FlagReader, model: dict[str, Any], otherwise: str) -> str:
    """A preset's name where parameters agree within 1 %, else what the script calls its model, else its file.

    A model of a preset's family, width, depth and heads that is not it is told as a doubt, with its real size.
    """
    near = _of_shape(model)
    same = [preset for preset in near if _same_size(preset, model)]
    if len(same) == 1:
        return same[0].model.name
    named = _names(reader, otherwise)
    if named_presets := [preset for preset in same if _is_named(preset, named)]:
        return max(named_presets, key=lambda preset: len(preset.title)).model.name
    written = _written_name(reader) or otherwise
    total = _total(model)
    claimed = [preset for preset in near if _family(preset) in named]
    if claimed and not same and total is not None:
        others = ", ".join(preset.title for preset in claimed)
        reason = Message("importers.shaped_like", names=others, count=total / 1000000000.0)
        reader.log.doubt("/model/name", written, reason)
        return f"{written[:150]} ({total / 1e9:,.1f} B)"
    return written


def _of_shape(model: dict[str, Any]) -> list[Preset]:
    """The presets with the same width, depth, heads and kinds of attention."""
    same = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    kinds = ("linear_attention", "sparse_attention", "attention_chunk_size", "compressed_attention")
    presets = presets_of_width(model["hidden_size"])
    return [
        preset
        for preset in presets
        if all(getattr(preset.model, key) == model[key] for key in same)
        and all((getattr(preset.model, key) is None) == (model.get(key) is None) for key in kinds)
        and _shares_keys(preset.model.sparse_attention) == _shares_keys(model.get("sparse_attention"))
    ]


def _shares_keys(indexer: SparseAttention | Mapping[str, Any] | None) -> int:
    """Layers that share the keys one of them chose."""
    if isinstance(indexer, SparseAttention):
        return indexer.index_topk_freq
    return (indexer or {}).get("index_topk_freq") or 1


def _same_size(preset: Preset, model: dict[str, Any]) -> bool:
    """Whether total and activated parameters are within 1 % of the preset's, the ends of the model counted alike."""
    ends = {"tie_word_embeddings": preset.model.tie_word_embeddings}
    try:
        read = ModelSpec.model_validate({"name": "read", **model, **ends})
    except ValidationError:
        return False
    pairs = ((read.total_params(), preset.model.total_params()), (read.active_params(), preset.model.active_params()))
    return all(abs(ours / theirs - 1) <= PARAMETER_TOLERANCE for ours, theirs in pairs)


def _total(model: dict[str, Any]) -> int | None:
    try:
        return ModelSpec.model_validate({"name": "read", **model}).total_params()
    except ValidationError:
        return None


def _family(preset: Preset) -> str:
    """`llama` of Llama-2 7B, `qwen` of Qwen3-8B."""
    match = _FAMILY.match(preset.title.lower())
    return match[0] if match else preset.title.lower()


def _names(reader: FlagReader, otherwise: str) -> str:
    """Everything in the script that may name its model, in lower case."""
    flags = reader.script.flags
    files = dict.fromkeys(flag.file for flag in flags.values())  # that the script reads or starts
    return " ".join([otherwise, *files, *(flags[flag].text for flag in NAMING if flag in flags)]).lower()


def _is_named(preset: Preset, named: str) -> bool:
    """Whether the first word of its title stands in the names, and no longer number: `llama3` is not in llama33."""
    title = "[^a-z0-9]*".join(re.escape(c) for c in _plain(preset.title.split()[0]))
    return re.search(title + r"(?!\d)", named) is not None


def _is_series(preset: Preset, named: str) -> bool:
    """Whether the names say the series by its first number: `llama2_70b`, `llama-2-70b` for Llama-2 70B."""
    match = _SERIES.match(preset.title.lower())
    if match is None:
        return False
    return re.search(rf"(?<![a-z]){match[1]}[-_ ]?{match[2]}(?!\d{{2}}|\d[a-z])", named) is not None


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def _written_name(reader: FlagReader) -> str | None:
    """The folder of the tokenizer or of the checkpoint to load, where that is named as a model: letters and digits."""
    for flag in ("--tokenizer-name-or-path", "--load"):
        given = reader.script.flags.get(flag)
        if given is None or given.unknown:
            continue
        last = given.text.rstrip("/").rpartition("/")[2]
        if _MODEL_NAME.fullmatch(last):
            reader.log.take(given.place, "/model/name", last)
            reader.has(flag)
            return last
    return None
