"""A plan of post-training as a launch: its numbers, the release it is for, and what its configuration may say."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.flag_effects import profile_of, release_of_spec
from autodeploy.formats.common.launch_script import GivenFlag, LaunchScript
from autodeploy.formats.megatron.arguments import LaunchArguments
from autodeploy.formats.megatron.launch import Launch, note_doubts, note_other_target
from autodeploy.formats.shell.values import Run, Value
from autodeploy.kit.errors import FieldError, SpecError, UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.specs.presets import load_preset, preset_names, preset_of
from autodeploy.specs.rl_facts import RlFacts, facts_of
from autodeploy.specs.spec import spec_of
from autodeploy.stack.frameworks import DEFAULT, title_of
from autodeploy.stack.launch_rules import broken_rules
from autodeploy.stack.releases import frameworks_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from autodeploy.specs.diagnostics import DiagnosticsLog
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from autodeploy.stack.flag_tables import RegisteredFlag
    from autodeploy.stack.releases import Release


# What readers of post-training launches share.
_MARK = re.compile(r"\brl_(prompt_mean|response_mean|response_cv|prompt_correlation|token_count)=([\w.+-]{1,40})")
_HOLE = re.compile(r"\$\{([\w.]+)\}")
NO_MEAN = Message("importers.longest_response_only")
SAME_SHAPE = {"deepseekr1": "deepseekv3"}
# Words of a name that leave its model's shape alone.
_TUNED = re.compile("instruct|base|thinking|chat|hf|mcore|bf16|zero|math|coder")


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

    Raises SpecError where neither is there.
    """
    from autodeploy.specs.hf_config import read_hf_config
    from autodeploy.specs.text_files import load_json, read_text

    named = [name.rstrip("/") for name in names if name]
    preset = preset_named(*named)
    lasts = [name.rpartition("/")[2] for name in named]
    places = [*named, *lasts, *([] if preset else [""])] if named else []  # one beside the file is of any model
    for folder in places if base_dir is not None else ():
        config = base_dir / folder / "config.json" if base_dir is not None else None
        if config is not None and not folder.startswith("/") and ".." not in folder and config.is_file():
            model, _ = read_hf_config(
                load_json(read_text(config), constants=True), (folder or named[0]).rpartition("/")[2]
            )
            log.take(place, "/model", folder or config.name)
            return model.model_dump(mode="json", exclude_unset=True)
    if preset is None:
        shown = ", ".join(name[:60] for name in named) or "none"
        near = get_close_matches(lasts[0].lower() if lasts else "", preset_names(), n=3, cutoff=0.5)
        put = Message("importers.put_config_beside")
        raise SpecError(
            Message("importers.no_preset_for", names=shown),
            path="/model",
            hint=joined((put, Message("importers.nearest_presets", names=", ".join(near))), "semicolon")
            if near
            else put,
        )
    log.take(place, "/model", preset)
    return load_preset(preset).model_dump(mode="json", exclude_unset=True)


def lines_of_keys(text: str) -> dict[str, int]:
    """Key -> the first line that it stands on."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        key, colon, _ = line.strip().partition(":")
        if colon and not key.startswith("#"):
            lines.setdefault(key, number)
    return lines


def flags_of_keys(
    keys: Mapping[str, Any], lines: Mapping[str, int], variables: Mapping[str, str] | None = None
) -> dict[str, GivenFlag]:
    """Keys as the flags that Megatron's parser reads: `a_b: 4` is `--a-b 4`; true is the flag alone, false is none.

    variables : values of `${NAME}` in texts; one that is not there stays unknown.
    """
    flags = {}
    for name, told in keys.items():
        hole = _HOLE.fullmatch(told) if isinstance(told, str) else None
        word = (variables or {}).get(hole[1], told) if hole else told
        value = {"true": True, "false": False}.get(word, told) if isinstance(word, str) else word
        if value is None or value is False:
            continue
        flag = f"--{name.removeprefix('--').replace('_', '-')}"
        given = [] if value is True else value if isinstance(value, list) else [value]
        words = tuple(_value(str(each), variables) for each in given)
        flags[flag] = GivenFlag(flag, words, lines.get(name, 1), 1)
    return flags


def _value(text: str, variables: Mapping[str, str] | None) -> Value:
    runs, end = list[Run](), 0
    for match in _HOLE.finditer(text) if variables is not None else ():
        known = (variables or {}).get(match[1])
        hole = Run(known or "", 0, "" if known is not None else f"${match[1][:60]}")
        runs, end = [*runs, Run(text[end : match.start()], 0), hole], match.end()
    return Value(tuple(run for run in (*runs, Run(text[end:], 0)) if run.text or run.unknown))


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


DAPO_CLIP = (0.2, 0.28)  # arXiv 2503.14476, section 3.1
DAPO_DROPS = Message("exporters.dapo_dropped_prompts")
MISSING = "???"  # what Hydra asks for before it starts
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass(frozen=True, slots=True)
class RlLaunch:
    """One launch: the plan's update as Megatron's arguments see it, what generates, and the numbers of both."""

    launch: Launch
    rl: RlTraining
    layout: RlStrategy
    facts: RlFacts
    vendor: str

    @property
    def arguments(self) -> LaunchArguments:
        """Flags that are handed on to Megatron-LM and MindSpeed, and notes."""
        return self.launch.arguments

    @property
    def release(self) -> Release:
        """The framework's release."""
        return self.launch.arguments.release

    @property
    def has_experts(self) -> bool:
        """Whether the model has experts."""
        return self.launch.spec.model.is_moe


def rl_launch(
    plan_set: PlanSet, plan: Plan, target: str, arguments: type[LaunchArguments] = LaunchArguments
) -> RlLaunch:
    """The plan as a launch of a framework of post-training.

    Raises UnsupportedError for a plan of pre-training, and where the framework's own validation would stop the launch.
    """
    spec = spec_of(plan_set.search)
    rl, layout, title = spec.training.rl, plan.strategy.rl, title_of(target)
    if rl is None or layout is None:
        profile = profile_of(spec)
        others = frameworks_for(DEFAULT, profile.vendor if profile is not None else None)
        raise UnsupportedError(
            Message("common.needs", one=title, other="training.kind: rl_post_training"),
            path="/to",
            hint=Message("exporters.export_to", names=joined(others, "or")),
        )
    given = arguments(release_of_spec(spec, target))
    note_doubts(given, spec)
    note_other_target(given, spec)
    profile = profile_of(spec)
    per_card, per_node = (profile.devices_per_npu, profile.ranks_per_node) if profile is not None else (1, 8)
    ranks = plan.num_npus_used * per_card
    facts = facts_of(rl, plan.strategy, layout, ranks=ranks, per_card=per_card, ranks_per_node=per_node)
    refuse_what_breaks(target, title, facts, layout.generation.engine)
    vendor = profile.vendor.lower() if profile is not None else ""
    return RlLaunch(Launch(spec, plan, given, {}, ranks), rl, layout, facts, vendor)


def refuse_what_breaks(framework: str, title: str, facts: RlFacts, engine: str) -> None:
    """Refuses a launch that the framework's own validation would stop.

    Raises UnsupportedError with every rule that it breaks, and where the framework says it.
    """
    broken = broken_rules(framework, asdict(facts), engine)
    if broken:
        raise UnsupportedError(
            errors=tuple(
                FieldError(
                    "/strategy/rl",
                    Message("common.cannot_launch_this_plan", release=title, reason=rule.text),
                    Message("common.see", source=rule.source),
                )
                for rule in broken
            )
        )


def key_fault(keys: dict[str, RegisteredFlag], name: str, value: Any) -> str | None:
    """Fault of a key with this value in a framework's configuration; None: nothing.

    What is asked for at the start, and what a shell fills in, is taken as it is.
    """
    registered = keys.get(name)
    if registered is None:
        return Message("common.unknown_key", name=name)
    if value == MISSING or (isinstance(value, str) and "$" in value):
        return None
    values = value if isinstance(value, list) else [value]
    kinds = _TYPES.get(registered.type)
    for each in values:
        if kinds is not None and (not isinstance(each, kinds) or (isinstance(each, bool) and bool not in kinds)):
            return Message("common.takes_not", name=name, kind=registered.type, value=repr(each))
        if registered.choices and str(each) not in registered.choices:
            return Message(
                "common.unknown_value", flag=name, value=repr(str(each)), names=", ".join(registered.choices)
            )
    return None


def refuse_bad_keys(release: Release, pairs: dict[str, Any]) -> None:
    """Refuses a configuration that the release would not read.

    Raises UnsupportedError with the first key that it does not have, or has another type.
    """
    keys = dict(release.keys)
    for name, value in pairs.items():
        if (fault := key_fault(keys, name, value)) is not None:
            raise UnsupportedError(
                Message("common.cannot_launch_this_plan", release=release.title, reason=fault), path="/to"
            )


def rl_marks(launch: RlLaunch) -> str:
    """Facts of model and lengths that no key says, as words of the comment that is read back."""
    rl = launch.rl
    values: dict[str, Any] = {
        "preset": preset_of(launch.launch.spec.model),
        "rl_prompt_mean": rl.prompt_length.mean,
        "rl_response_mean": rl.response_length.mean,
        "rl_response_cv": rl.response_length.cv,
        "rl_prompt_correlation": rl.prompt_correlation,
        "rl_token_count": rl.token_count,
    }
    return "".join(
        f" {name}={value:g}" if isinstance(value, float) else f" {name}={value}"
        for name, value in values.items()
        if value is not None
    )
