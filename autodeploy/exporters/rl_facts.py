"""The numbers of a post-training launch: ranks that train and generate, their degrees, batches and lengths.

Cards are as profiles count them; a rank is a die, as the frameworks count them (`num_npus` of MindSpeed-RL, `n_gpus` of
verl).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from autodeploy.errors import FieldError, UnsupportedError
from autodeploy.stack.launch_rules import broken_rules

if TYPE_CHECKING:
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True, slots=True)
class RlFacts:
    """What rules of launches name (`autodeploy/stack/launch_rules.yaml`).

    training_ranks, generation_ranks : the same ranks where both share their cards. ranks_per_node : of the machine.
    generation_ranks_per_node : of them, those that generate. nodes : all. prompts, responses : of a step, and of a
    prompt. packed : micro batches are filled with tokens instead of counted.
    """

    training_ranks: int
    generation_ranks: int
    ranks_per_node: int
    generation_ranks_per_node: int
    nodes: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    dp: int
    micro_batch_size: int
    prompts: int
    responses: int
    mini_batch_prompts: int
    packed: bool
    pack_tokens: int
    prompt_tokens: int
    response_tokens: int
    longest_tokens: int
    generation_tp: int
    generation_dp: int
    generation_ep: int
    partial_rollout: bool


def facts_of(
    rl: RlTraining, strategy: Strategy, layout: RlStrategy, *, ranks: int, per_card: int, ranks_per_node: int
) -> RlFacts:
    """The numbers of a launch.

    Parameters
    ----------
    ranks : of the whole launch. per_card : dies of a card.

    Raises
    ------
    UnsupportedError
        where a split is not published, or nodes would be shared by training and generation.
    """
    generating = ranks
    if layout.placement != "colocated":
        if layout.generation_npus is None:
            raise UnsupportedError(
                "how many cards generate is not said", path="/strategy/rl/generation_npus", hint="give generation_npus"
            )
        generating = layout.generation_npus * per_card
    training = ranks if generating == ranks else ranks - generating
    degrees = strategy.tp * strategy.pp * strategy.cp
    generation = layout.generation
    prompt, response = rl.prompt_length.max_tokens, rl.response_length.max_tokens
    return RlFacts(
        training_ranks=training,
        generation_ranks=generating,
        ranks_per_node=min(ranks_per_node, ranks),
        generation_ranks_per_node=on_nodes(generating, ranks_per_node)[1],
        nodes=-(-ranks // ranks_per_node),
        tp=strategy.tp,
        pp=strategy.pp,
        vpp=strategy.vpp,
        cp=strategy.cp,
        ep=strategy.ep,
        dp=strategy.dp or max(1, training // degrees),
        micro_batch_size=strategy.micro_batch_size,
        prompts=rl.prompts_per_step,
        responses=rl.responses_per_prompt,
        mini_batch_prompts=rl.prompts_per_step // rl.updates_per_step,
        packed=layout.pack_tokens is not None,
        pack_tokens=layout.pack_tokens or 0,
        prompt_tokens=prompt,
        response_tokens=response,
        longest_tokens=prompt + response,
        generation_tp=generation.tp,
        generation_dp=generation.dp,
        generation_ep=generation.ep,
        partial_rollout=layout.partial_rollout,
    )


def on_nodes(ranks: int, ranks_per_node: int) -> tuple[int, int]:
    """Nodes, and ranks of each: whole nodes, or some of the ranks of one.

    Raises
    ------
    UnsupportedError
        where it would be some whole nodes and a part of another.
    """
    if ranks % ranks_per_node == 0:
        return ranks // ranks_per_node, ranks_per_node
    if ranks < ranks_per_node:
        return 1, ranks
    raise UnsupportedError(
        f"{ranks} ranks are no whole number of nodes of {ranks_per_node}",
        path="/strategy/rl/generation_npus",
        hint=f"a multiple of {ranks_per_node} ranks",
    )


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
                FieldError("/strategy/rl", f"{title} can't launch this plan: {rule.text}", f"see {rule.source}")
                for rule in broken
            )
        )
