"""The numbers of a post-training launch: ranks that train and generate, their degrees, batches and lengths.

Cards are as profiles count them; a rank is a die, as the frameworks count them (`num_npus` of MindSpeed-RL, `n_gpus` of
verl).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.specs.rl import GenerationLayout, RlStrategy, RlTraining
    from autodeploy.specs.strategy import Strategy


@dataclass(frozen=True, slots=True)
class RlFacts:
    """Facts that rules of launches name (`autodeploy/stack/launch_rules.yaml`).

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

    ranks : of the whole launch. per_card : dies of a card.

    Raises UnsupportedError where a split is not published, or nodes would be shared by training and generation.
    """
    generating = ranks
    if layout.placement != "colocated":
        if layout.generation_npus is None:
            raise UnsupportedError(
                Message("common.is_required", name="generation_npus"), path="/strategy/rl/generation_npus"
            )
        generating = layout.generation_npus * per_card
    training = ranks if generating == ranks else ranks - generating
    return RlFacts(
        nodes=nodes_of(ranks, ranks_per_node),
        ranks_per_node=min(ranks_per_node, ranks),
        partial_rollout=layout.partial_rollout,
        **step_facts(rl),
        **update_facts(strategy, layout.pack_tokens, ranks=training),
        **generation_facts(layout.generation, ranks=generating, ranks_per_node=ranks_per_node),
    )


def step_facts(rl: RlTraining) -> dict[str, Any]:
    """Facts of a step's samples for rules of its launch."""
    prompt, response = rl.prompt_length.max_tokens, rl.response_length.max_tokens
    return {
        "prompts": rl.prompts_per_step,
        "responses": rl.responses_per_prompt,
        "mini_batch_prompts": rl.prompts_per_step // rl.updates_per_step,
        "prompt_tokens": prompt,
        "response_tokens": response,
        "longest_tokens": prompt + response,
    }


def update_facts(strategy: Strategy, pack_tokens: int | None, *, ranks: int) -> dict[str, Any]:
    """Facts of the update on so many ranks for rules of its launch."""
    return {
        "training_ranks": ranks,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "vpp": strategy.vpp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "dp": strategy.replicas(ranks),
        "micro_batch_size": strategy.micro_batch_size,
        "packed": pack_tokens is not None,
        "pack_tokens": pack_tokens or 0,
    }


def generation_facts(layout: GenerationLayout, *, ranks: int, ranks_per_node: int) -> dict[str, Any]:
    """Facts of generation on so many ranks for rules of its launch.

    Raises UnsupportedError as of `on_nodes`.
    """
    return {
        "generation_ranks": ranks,
        "generation_ranks_per_node": on_nodes(ranks, ranks_per_node)[1],
        "generation_tp": layout.tp,
        "generation_dp": layout.dp,
        "generation_ep": layout.ep,
    }


def nodes_of(ranks: int, ranks_per_node: int) -> int:
    """Nodes that so many ranks are on."""
    return -(-ranks // ranks_per_node)


def on_nodes(ranks: int, ranks_per_node: int) -> tuple[int, int]:
    """Nodes, and ranks of each: whole nodes, or some of the ranks of one.

    Raises UnsupportedError where it would be some whole nodes and a part of another.
    """
    if ranks % ranks_per_node == 0:
        return ranks // ranks_per_node, ranks_per_node
    if ranks < ranks_per_node:
        return 1, ranks
    raise UnsupportedError(
        Message("common.partial_nodes", ranks=ranks, size=ranks_per_node),
        path="/strategy/rl/generation_npus",
        hint=Message("common.multiple_of", whole=ranks_per_node),
    )
