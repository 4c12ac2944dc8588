"""What readers of post-training launches share: models by name, keys as Megatron's flags, lengths in a comment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autodeploy.errors import SpecError
from autodeploy.importers.launch_script import GivenFlag, LaunchScript
from autodeploy.importers.shell_values import Run, Value
from autodeploy.messages import Message
from autodeploy.specs.presets import load_preset, preset_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from autodeploy.importers.diagnostics import DiagnosticsLog

_MARK = re.compile(r"\brl_(prompt_mean|response_mean|response_cv|prompt_correlation|token_count)=([\w.+-]{1,40})")
NO_MEAN = Message("importers.file_says_longest_responses_alone_all_are_taken")
SAME_SHAPE = {"deepseekr1": "deepseekv3"}
# Words of a name that leave its model's shape alone.
_TUNED = re.compile("instruct|base|thinking|chat|hf|bf16|zero|math|coder")


def preset_named(*names: str) -> str | None:
    """The preset that the last part of one of the names begins with, the longest first; None where there is none.

    What follows may only say a size or a date: a vision model is no preset of its language model.
    """
    longest_first = sorted(preset_names(), key=len, reverse=True)
    for name in names:
        written = _TUNED.sub("", _plain(name.rstrip("/").rpartition("/")[2]))
        written = next(
            (written.replace(other, same) for other, same in SAME_SHAPE.items() if other in written), written
        )
        for preset in longest_first:
            start = _plain(preset)
            if written.startswith(start) and _says_nothing(written.removeprefix(start), start):
                return preset
    return None


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def _says_nothing(rest: str, before: str) -> bool:
    """Whether what follows a preset's name leaves the shape as it is; digits after digits would be another model."""
    if re.search(r"[a-ac-z]", rest):
        return False
    dated = re.fullmatch(r"\d{4}", rest) is not None
    return dated or not (before[-1:].isdigit() and rest[:1].isdigit() and "b" not in rest)


def model_of(names: Iterable[str], base_dir: Path | None, log: DiagnosticsLog, place: str) -> dict[str, Any]:
    """The `model` of a spec: of a `config.json` beside the file, else the preset that one of the names means.

    Raises
    ------
    SpecError
        where neither is there.
    """
    from autodeploy.importers.documents import load_json, read_text
    from autodeploy.importers.hf_config import read_hf_config

    named = [name for name in names if name]
    for name in named if base_dir is not None else ():
        config = base_dir / name / "config.json" if base_dir is not None else None
        if config is not None and not name.startswith("/") and ".." not in name and config.is_file():
            model, _ = read_hf_config(load_json(read_text(config)), name.rstrip("/").rpartition("/")[2])
            log.take(place, "/model", name)
            return model.model_dump(mode="json", exclude_unset=True)
    preset = preset_named(*named)
    if preset is None:
        shown = ", ".join(name[:60] for name in named) or "none"
        raise SpecError(
            Message("importers.no_preset_for", names=shown),
            path="/model",
            hint=Message("importers.set_it", option="--name qwen3-8b"),
        )
    log.take(place, "/model", preset)
    return load_preset(preset).model_dump(mode="json", exclude_unset=True)


def flags_of_keys(keys: Mapping[str, Any], lines: Mapping[str, int]) -> dict[str, GivenFlag]:
    """Keys as the flags that Megatron's parser reads: `a_b: 4` is `--a-b 4`; true is the flag alone, false is none."""
    flags = {}
    for name, value in keys.items():
        if value is None or value is False:
            continue
        flag, line = f"--{name.replace('_', '-')}", lines.get(name, 1)
        given = [] if value is True else value if isinstance(value, list) else [value]
        words = tuple(Value((Run(str(each), 0),)) for each in given)
        flags[flag] = GivenFlag(flag, words, line, 1)
    return flags


def script_of(program: str, keys: Mapping[str, Any], lines: Mapping[str, int], ranks: int | None) -> LaunchScript:
    """A launch with these keys as flags."""
    launcher = {} if ranks is None else {"ranks": ranks}
    return LaunchScript(program, flags_of_keys(keys, lines), launcher=launcher)


def take_rl_marks(text: str, rl: dict[str, Any], log: DiagnosticsLog) -> None:
    """Puts what the file's own comment says of the lengths into `training.rl`; without a mean, that is a doubt."""
    marks = dict(_MARK.findall(next((line for line in text.splitlines() if line.startswith("# autodeploy:")), "")))
    for word, value in marks.items():
        part, _, name = word.partition("_")
        if word == "token_count":
            rl[word] = value
        elif _number(value) is None:
            continue
        elif word == "prompt_correlation":
            rl[word] = _number(value)
        else:
            rl[f"{part}_length"][name] = _number(value)
        log.take("# autodeploy:", f"/training/rl/{word}", value)
    if "mean" not in rl["response_length"]:
        log.doubt("/training/rl/response_length", rl["response_length"]["max"], NO_MEAN)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def whole_updates(prompts: int, mini_batch: int, log: DiagnosticsLog, place: str) -> int:
    """Updates of a step; a mini batch that does not divide it leaves one."""
    if 0 < mini_batch <= prompts and prompts % mini_batch == 0:
        return prompts // mini_batch
    log.contradict(
        place,
        "/training/rl/updates_per_step",
        mini_batch,
        Message("common.does_not_divide", part=mini_batch, whole=prompts),
    )
    return 1
