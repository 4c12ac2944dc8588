"""Rules of the target's own validation, judged as soon as what they are about is known."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message, joined
from autodeploy.specs.diagnostics import BrokenRule
from autodeploy.specs.rl_facts import facts_of, generation_facts, nodes_of, on_nodes, step_facts, update_facts
from autodeploy.stack.frameworks import title_of
from autodeploy.stack.launch_rules import LaunchRule, broken_rules, launch_rules, launched_values

if TYPE_CHECKING:
    from autodeploy.specs.rl import GenerationLayout, RlStrategy
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile

WHOLE_NODES = "whole_nodes"


class Launchable:
    """The rules of a spec's target, of which a plan for no framework has none.

    refused : layouts by the rule that they break first. texts : of rules, by their name.
    """

    def __init__(self, spec: Spec, profile: Profile, cards: int, refused: dict[str, int]) -> None:
        assert spec.training.rl is not None
        self._rl, self._target, self._profile = spec.training.rl, spec.search.target, profile
        self._ranks = cards * profile.devices_per_npu
        self._refused = refused
        self._known: dict[str, Any] = {
            **step_facts(self._rl),
            "nodes": nodes_of(self._ranks, profile.ranks_per_node),
            "ranks_per_node": min(profile.ranks_per_node, self._ranks),
        }
        self._has_rules = bool(launch_rules(self._target))

    def step(self) -> list[SpecError]:
        """Rules that stop every launch of the spec's step on its cards, whatever the layout."""
        broken = broken_rules(self._target, self._known)
        return [self.error(rule) for rule in broken if not self._passes([rule])]

    def error(self, rule: LaunchRule) -> SpecError:
        """Text of a broken rule, and the nearest numbers of prompts of a step that breaks none."""
        text = Message("common.cannot_launch_this_plan", release=title_of(self._target), reason=rule.text)
        near = self._near_prompts()
        hint = (
            Message("common.place", place="prompts_per_step", message=joined(map(str, near), "or"))
            if near
            else Message("common.see", source=rule.source)
        )
        return SpecError(text, path="/training/rl/prompts_per_step" if near else "/training/rl", hint=hint)

    def _near_prompts(self) -> list[int]:
        """The next fewer and the next more prompts of a step with which it breaks no rule, whatever the layout."""
        prompts, near = self._rl.prompts_per_step, []
        unit = self._rl.updates_per_step
        for counts in (range(prompts - unit, 0, -unit), range(prompts + unit, 2 * prompts + self._ranks + 1, unit)):
            for count in counts:
                facts = step_facts(self._rl.model_copy(update={"prompts_per_step": count}))
                if not broken_rules(self._target, self._known | facts):
                    near.append(count)
                    break
        return near

    def replicas(self, npus: int) -> tuple[int, ...]:
        """Data-parallel sizes of the update over which the step's prompts and responses can be dealt."""
        return launched_values(self._target, "dp", self._known, npus * self._profile.devices_per_npu)

    def any_replicas(self, npus: int) -> bool:
        """Whether the update may have every data-parallel size that divides its ranks."""
        ranks, launched = npus * self._profile.devices_per_npu, set(self.replicas(npus))
        return all(dp in launched for dp in range(1, ranks + 1) if ranks % dp == 0)

    def count_replicas(self, npus: int) -> None:
        """Counts the data-parallel sizes that divide the update's ranks and that `replicas` leaves out."""
        ranks = npus * self._profile.devices_per_npu
        for dp in range(1, ranks + 1):
            if ranks % dp == 0:
                self._passes(broken_rules(self._target, self._known | {"dp": dp}))

    def split(self, generating: int) -> bool:
        """Whether so many cards may generate beside the others: nodes are not shared."""
        if self.divides_nodes(generating):
            return True
        self._count(WHOLE_NODES)
        return False

    def divides_nodes(self, generating: int) -> bool:
        """Whether generation and training have nodes of their own, where the target asks for that."""
        if not self._has_rules:
            return True
        per_card, per_node = self._profile.devices_per_npu, self._profile.ranks_per_node
        try:
            on_nodes(generating * per_card, per_node)
            on_nodes(self._ranks - generating * per_card, per_node)
        except UnsupportedError:
            return False
        return True

    def update(self, strategy: Strategy, pack_tokens: int | None, npus: int) -> bool:
        """Whether a layout of the update can be launched on its cards."""
        ranks = npus * self._profile.devices_per_npu
        facts = self._known | update_facts(strategy, pack_tokens, ranks=ranks)
        return self._passes(broken_rules(self._target, facts))

    def generation(self, layout: GenerationLayout, npus: int) -> bool:
        """Whether a layout of generation can be launched on its cards."""
        if not self._has_rules:
            return True
        ranks = npus * self._profile.devices_per_npu
        facts = self._known | generation_facts(layout, ranks=ranks, ranks_per_node=self._profile.ranks_per_node)
        return self._passes(broken_rules(self._target, facts, layout.engine))

    def whole(self, strategy: Strategy, layout: RlStrategy) -> bool:
        """Whether both together can be launched."""
        if not self._has_rules:
            return True
        facts = facts_of(
            self._rl,
            strategy,
            layout,
            ranks=self._ranks,
            per_card=self._profile.devices_per_npu,
            ranks_per_node=self._profile.ranks_per_node,
        )
        return self._passes(broken_rules(self._target, asdict(facts), layout.generation.engine))

    def _passes(self, broken: list[LaunchRule]) -> bool:
        if broken:
            self._count(broken[0].name)
        return not broken

    def _count(self, rule: str) -> None:
        self._refused[rule] = self._refused.get(rule, 0) + 1


def broken_by(spec: Spec, profile: Profile, cards: int) -> tuple[BrokenRule, ...]:
    """Rules of the spec's target about update and generation together that its strategy breaks.

    Where the strategy doesn't say how many cards generate, nothing is held against it.
    """
    strategy, rl = spec.strategy, spec.training.rl
    assert strategy is not None
    assert rl is not None
    how = strategy.rl
    if how is None or (how.placement != "colocated" and how.generation_npus is None):
        return ()
    per_card, per_node = profile.devices_per_npu, profile.ranks_per_node
    if not launch_rules(spec.search.target):
        return ()
    try:
        facts = facts_of(rl, strategy, how, ranks=cards * per_card, per_card=per_card, ranks_per_node=per_node)
    except UnsupportedError as error:
        return (BrokenRule(rule=WHOLE_NODES, text=error.errors[0].message),)
    values = asdict(facts)
    broken = broken_rules(spec.search.target, values, how.generation.engine)
    return tuple(
        BrokenRule(rule=rule.name, text=rule.text, values={name: values[name] for name in sorted(rule.reads)})
        for rule in broken
    )


def rule_texts(target: str) -> dict[str, str]:
    """Texts of a target's rules, by their name."""
    return {rule.name: rule.text for rule in launch_rules(target)}
