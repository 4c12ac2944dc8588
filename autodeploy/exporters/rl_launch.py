"""A plan of post-training as a launch: its numbers, the release it is for, and what its configuration may say."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.errors import FieldError, UnsupportedError
from autodeploy.exporters.arguments import LaunchArguments
from autodeploy.exporters.launch_arguments import Launch, note_doubts, note_other_target
from autodeploy.exporters.target_release import profile_of, release_of_spec
from autodeploy.messages import Message, joined
from autodeploy.specs.presets import preset_of
from autodeploy.specs.rl_facts import RlFacts, facts_of
from autodeploy.specs.spec import Spec
from autodeploy.stack.frameworks import DEFAULT, title_of
from autodeploy.stack.launch_rules import broken_rules
from autodeploy.stack.releases import frameworks_for

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from autodeploy.stack.flag_tables import RegisteredFlag
    from autodeploy.stack.releases import Release

DAPO_CLIP = (0.2, 0.28)  # arXiv 2503.14476, section 3.1
DAPO_DROPS = Message("exporters.dapo_drops_prompts_whose_answers_are_all_alike")
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

    Raises
    ------
    UnsupportedError
        for a plan of pre-training, and where the framework's own validation would stop the launch.
    """
    spec = Spec.model_validate(plan_set.search.spec)
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

    Raises
    ------
    UnsupportedError
        with every rule that it breaks, and where the framework says it.
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
    """What a framework's configuration has against a key with this value; None: nothing.

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
                "common.has_no_value_one_of", flag=name, value=repr(str(each)), names=", ".join(registered.choices)
            )
    return None


def refuse_bad_keys(release: Release, pairs: dict[str, Any]) -> None:
    """Refuses a configuration that the release would not read.

    Raises
    ------
    UnsupportedError
        with the first key that it does not have, or has another type.
    """
    keys = dict(release.keys)
    for name, value in pairs.items():
        if (fault := key_fault(keys, name, value)) is not None:
            raise UnsupportedError(
                Message("common.cannot_launch_this_plan", release=release.title, reason=fault), path="/to"
            )


def rl_marks(launch: RlLaunch) -> str:
    """What no key says of model and lengths, as words of the comment that is read back."""
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
