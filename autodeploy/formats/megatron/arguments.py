"""Launch arguments as data: blocks of flags with values, checked against the release's parser as they are added."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.stack.expression import evaluate
from autodeploy.stack.features import FEATURES
from autodeploy.stack.gradient_sums import EXPERT_FUSION, EXPERTS_APART, NO_FUSION, PLAIN_APART, WORDS
from autodeploy.stack.software import unnamed_features

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.stack.features import Feature, LaunchFlag, Variant
    from autodeploy.stack.releases import Release


@dataclass(frozen=True, slots=True)
class ShellVariable:
    """A value that the script takes from a variable of its own."""

    name: str


Value = str | int | float | ShellVariable


@dataclass(slots=True)
class LaunchArguments:
    """Arguments of one launch of a release, in named blocks, and notes on what no flag can say.

    unsaid : fields of the model that matter to time or memory and that the release has no flag for.
    """

    release: Release
    blocks: dict[str, list[tuple[str, tuple[Value, ...]]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unsaid: list[str] = field(default_factory=list)

    @property
    def target(self) -> str:
        """The framework."""
        return self.release.framework

    def knows(self, flag: str, value: str | None = None) -> bool:
        """Whether the release's parser has the flag, with that value."""
        return self.release.registers(flag, value)

    def add(self, block: str, flag: str, *values: Value) -> None:
        """Adds a flag once.

        Raises UnsupportedError when the release's parser does not have the flag, or refuses the values.
        """
        registered = self.release.flags.get(flag)
        fault = (
            Message("common.unknown_key", name=flag)
            if registered is None
            else registered.fault([_plain(value) for value in values])
        )
        if fault is not None:
            raise UnsupportedError(
                Message("common.cannot_launch_this_plan", release=self.release.title, reason=fault),
                path="/to",
                hint=f"search.target: {self.target}, search.target_release: {self.release.name}",
            )
        if not self.has(flag):
            self.blocks.setdefault(block, []).append((flag, values))

    def variables(self) -> set[str]:
        """Names of the script's variables that some flag takes its value from."""
        values = (value for lines in self.blocks.values() for _, given in lines for value in given)
        return {value.name for value in values if isinstance(value, ShellVariable)}

    def has(self, flag: str) -> bool:
        """Whether the flag is given in any block."""
        return any(flag == given for lines in self.blocks.values() for given, _ in lines)

    def numbers(self, flag: str) -> list[int]:
        """The whole numbers that a flag lists; none where it isn't given."""
        values = [
            value for lines in self.blocks.values() for given, values in lines if given == flag for value in values
        ]
        return [int(word) for value in values for word in str(value).split(",")]

    def drop(self, flag: str) -> None:
        """Takes a flag out again."""
        for name, lines in self.blocks.items():
            self.blocks[name] = [line for line in lines if line[0] != flag]

    def note(self, text: str) -> None:
        """Says once what the launch can't express or what has to be checked."""
        if text not in self.notes:
            self.notes.append(text)

    def lacks(self, what: str, framework: str = "") -> None:
        """Notes what a framework, unless named the release, has no flag for."""
        self.note(Message("exporters.has_no_flag_in", name=what, framework=framework or self.release.title))

    def leaves_to_code(self, what: str) -> None:
        """Notes what has to be set in the model's code."""
        self.note(Message("exporters.set_in_model_code", what=what))

    def flags(self) -> list[str]:
        """Names of all flags given, in order."""
        return [flag for lines in self.blocks.values() for flag, _ in lines]


def shell_value(value: Value) -> str:
    """The value as one word of a shell command."""
    if isinstance(value, ShellVariable):
        return f'"{_plain(value)}"'
    return shlex.quote(_plain(value))


def _plain(value: Value) -> str:
    if isinstance(value, ShellVariable):
        return f"${{{value.name}}}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def shell_array(name: str, lines: list[tuple[str, tuple[Value, ...]]]) -> str:
    """A bash array: one flag with its values a line."""
    body = "\n".join("    " + " ".join([flag, *map(shell_value, values)]) for flag, values in lines)
    return f"{name}=(\n{body}\n)"


# Features of a plan in launch flags, as their records say it.
OPTIMIZE, MOE, OPERATORS = "OPTIMIZE_ARGS", "MOE_ARGS", "OPERATOR_ARGS"


def features_without_flags(strategy: Strategy, release: Release) -> list[str]:
    """Features of the plan that no flag or key of the release says: they come with it, the data or the layout.

    What the release does not have at all is not among them: whoever reads the file back must not count on it.
    """
    features = (FEATURES[name] for name in strategy.features if name in FEATURES)
    return sorted({feature.name for feature in features if _is_unsaid(feature, release)})


def _is_unsaid(feature: Feature, release: Release) -> bool:
    variant = feature.variant(release)
    if variant is None:
        return bool(feature.unreleased)
    return variant.marked or not (variant.flags or variant.keys or variant.by)


def flags_of_features() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Feature -> the flags of each way to launch it, the one that says it first."""
    return {
        name: tuple(tuple(each.flag for each in variant.flags) for variant in feature.launch if _is_own(variant))
        for name, feature in FEATURES.items()
    }


def _is_own(variant: Variant) -> bool:
    """Whether a feature is said by flags of its own."""
    return bool(variant.flags) and not variant.by


def add_features(arguments: LaunchArguments, spec: Spec, strategy: Strategy) -> None:
    """Flags of every feature of the plan; a feature without one becomes a note, never silence."""
    for name in strategy.features:
        if name not in WORDS:
            add_feature(arguments, spec, strategy, name)
    _resolve_conflicts(arguments, strategy)
    _add_gradient_sums(arguments, strategy)


def add_feature(arguments: LaunchArguments, spec: Spec, strategy: Strategy, name: str) -> None:
    """Flags of one feature, or a note; none of what the framework does by itself."""
    feature = FEATURES.get(name)
    if feature is None and name in unnamed_features(arguments.release.framework, None):
        return
    variant = None if feature is None else feature.variant(arguments.release)
    if feature is None or (variant is None and not feature.unreleased):
        arguments.lacks(name)
    elif variant is None:
        arguments.note(Message("exporters.has_no_flag_it", name=name, reason=feature.unreleased))
    elif _is_own(variant):
        values = launch_names(spec, strategy) | dict(feature.values)
        if spec.training.expert_capacity_factor is not None:
            values["capacity_factor"] = spec.training.expert_capacity_factor
        for flag in variant.flags:
            if spec.model.is_moe or flag.block != MOE:
                arguments.add(flag.block, flag.flag, *values_of(flag, values))
    elif variant.reason:
        arguments.note(Message("exporters.has_no_flag_it", name=name, reason=variant.reason))
    elif not variant.by:
        arguments.lacks(name)


def launch_names(spec: Spec, strategy: Strategy) -> dict[str, Any]:
    """Names in expressions of launch values: degrees of the strategy, and sizes of the model."""
    axes = {axis: getattr(strategy, axis) for axis in ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")}
    sizes = {"experts": spec.model.n_routed_experts or 1, "layers": spec.model.num_hidden_layers}
    return {**axes, "etp": strategy.etp or 1, "dp": strategy.dp or 1, **sizes}


def values_of(flag: LaunchFlag, names: Mapping[str, Any]) -> list[Value]:
    """The values of a flag; an expression is computed."""
    values: list[Value] = []
    for value in flag.values:
        if isinstance(value, str) and value.startswith("="):
            number = float(evaluate(value[1:], names))
            values.append(int(number) if number.is_integer() else number)
        else:
            values.append(value)
    return values


def _add_gradient_sums(arguments: LaunchArguments, strategy: Strategy) -> None:
    """Flags of the sums of gradients: of those that a launch said itself, and of experts grouped for another flag."""
    if arguments.has("--moe-grouped-gemm") and arguments.knows(EXPERT_FUSION) and not arguments.has(NO_FUSION):
        arguments.add(OPERATORS, EXPERT_FUSION)
    for word in WORDS.intersection(strategy.features) if not arguments.knows(NO_FUSION) else ():
        arguments.lacks(word)
    if PLAIN_APART in strategy.features and arguments.knows(NO_FUSION):
        arguments.add(OPERATORS, NO_FUSION)
    if EXPERTS_APART in strategy.features:
        arguments.drop(EXPERT_FUSION)


def _resolve_conflicts(arguments: LaunchArguments, strategy: Strategy) -> None:
    """Combinations that the frameworks refuse (validity rules of MindSpeed and Megatron-LM)."""
    overlapped = arguments.has("--moe-fb-overlap")
    if overlapped:
        arguments.add(MOE, "--moe-grouped-gemm")
    for flag in ("--overlap-grad-reduce", "--overlap-param-gather", "--moe-alltoall-overlap-comm"):
        if overlapped and arguments.has(flag):
            arguments.drop(flag)
            arguments.note(Message("exporters.overlap_excludes_flag", flag=flag))
    if arguments.has("--moe-alltoall-overlap-comm"):
        if strategy.moe_dispatcher == "allgather":
            arguments.drop("--moe-alltoall-overlap-comm")
            arguments.add(MOE, "--moe-allgather-overlap-comm")
        arguments.add(MOE, "--moe-grouped-gemm")
        if not arguments.knows("--moe-token-dispatcher-type", "alltoall_seq"):
            arguments.add(MOE, "--moe-permutation-async-comm")  # MindSpeed arguments.py at 2.0.0_core_r0.8.0
    if arguments.release.has("mindspeed") and strategy.moe_dispatcher == "allgather":
        arguments.drop("--moe-permute-fusion")  # MindSpeed fused_moe_permute.py refuses it
    if not arguments.has("--multi-latent-attention"):
        arguments.drop("--mla-fa-without-pad")
    if arguments.has("--overlap-param-gather") and not arguments.has("--overlap-grad-reduce"):
        arguments.add(OPTIMIZE, "--overlap-grad-reduce")
    if arguments.has(EXPERT_FUSION) and arguments.has(NO_FUSION):
        arguments.drop(EXPERT_FUSION)
    if overlapped and (arguments.has("--moe-tp-extend-ep") or strategy.moe_dispatcher in {"hierarchical", "allgather"}):
        arguments.note(Message("exporters.overlap_excludes_dispatcher"))
