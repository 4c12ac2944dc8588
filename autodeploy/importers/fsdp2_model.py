"""The model of a launch of MindSpeed-LLM's FSDP2 backend: a configuration beside the file, or the series it names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import UnsupportedError
from autodeploy.importers.diagnostics import not_modelled
from autodeploy.importers.marks import marked_preset
from autodeploy.importers.rl_common import model_of, preset_named
from autodeploy.messages import Message

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.importers.key_reader import KeyReader

PATH: Final = "model.model_name_or_path"
# Classes of the backend (models/model_registry.py) of which no layer is modelled.
UNMODELLED: Final = {
    "mamba3": Message("mechanism.recurrent_layers"),
    "longcat_flash_ngram": Message("importers.n_gram_embeddings"),
    "deepseek_v4": Message("mechanism.compressed_attention"),
}
# How checkpoints of a series are called for short.
SERIES: Final = {
    "qwen3-235b": "qwen3-235b-a22b",
    "qwen3-30b": "qwen3-30b-a3b",
    "qwen3-next": "qwen3-next-80b-a3b",
    "minimax-m2": "minimax-m2",
    "glm52": "glm-5",
    "step-3.5": "step-3.5-flash",
}
_WORDS: Final = re.compile(r"[A-Za-z0-9.]+")
_LENGTH: Final = re.compile(r"\d+k", re.IGNORECASE)
_POINT: Final = re.compile(r"(?<=\d)(?:point|p)(?=\d)")
_STAGES: Final = frozenset({"pretrain", "tune"})


def read_model(reader: KeyReader, text: str, name: str | None, otherwise: str, base_dir: Path | None) -> dict[str, Any]:
    """The `model` of a spec; a doubt where only the series is named.

    Raises
    ------
    UnsupportedError
        for a class of the backend that is not modelled, and for formats of the next chip.
    SpecError
        where nothing names a model that is known.
    """
    kind = reader.take("/model", "model.model_id")
    if kind in UNMODELLED:
        raise UnsupportedError(not_modelled(kind, UNMODELLED[kind]), path="/model/model_id")
    if recipe := reader.raw("model.quant_recipe_name"):
        raise UnsupportedError(
            not_modelled("Ascend 950", recipe),
            path="/model/quant_recipe_name",
            hint=Message("importers.give_launch_for_a2_or_a3"),
        )
    path = str(reader.raw(PATH) or "").rstrip("/")
    path = "" if "$" in path else path
    exact = [name or "", marked_preset(text) or "", path]
    series = [each for each in (_series(path), _series(otherwise)) if preset_named(each)]
    guessed = series[0] if series and not preset_named(*exact) else ""
    model = model_of([*exact, guessed], base_dir, reader.log, "/model/model_name_or_path")
    if guessed:
        reader.log.doubt("/model", guessed, Message("importers.file_names_series_alone_and_has_no_config"))
    return model


def _series(name: str) -> str:
    """The series and size at the head of a name such as `pretrain_qwen3_1point7b_4k_fsdp2_A2`, as presets write it."""
    words = [word.lower() for word in _WORDS.findall(name.rpartition("/")[2]) if word.lower() not in _STAGES]
    head = []
    for word in words:
        if _LENGTH.fullmatch(word):
            break
        head.append(_POINT.sub(".", word))
    joined = "-".join(head)
    return next((preset for short, preset in SERIES.items() if joined.startswith(short)), joined)
