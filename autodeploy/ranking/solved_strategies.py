"""Every strategy that a search solved, in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.planset import SolvedStrategies
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.solver.outer.frontier import SearchState
    from autodeploy.solver.search_space import Searched


def solved_strategies(searched: Searched, frontier: SearchState, ratio: float) -> SolvedStrategies:
    """What a search found of each outer strategy that has a plan, in its own order.

    ratio : of a measured over its predicted step time, by which predictions are multiplied.
    """
    solved = frontier.found
    contexts = [searched.context_of(one.index) for one in solved]
    axes = [
        axes_asked(searched.candidates.axes_at(one.index), moe=context.model.is_moe)
        for one, context in zip(solved, contexts, strict=True)
    ]
    names = list(dict.fromkeys(name for row in axes for name in row))
    step_s = [ratio * one.step_s for one in solved]
    return SolvedStrategies(
        axes={name: tuple(row.get(name) for row in axes) for name in names},
        dp=tuple(int(searched.candidates.dp[one.index]) for one in solved),
        num_npus=tuple(context.num_npus for context in contexts),
        step_time_s=tuple(_short(seconds) for seconds in step_s),
        peak_memory_gib=tuple(_short(one.card_bytes / GIB) for one in solved),
        mfu=tuple(
            _short(mfu_of_a_second(context) / seconds) for context, seconds in zip(contexts, step_s, strict=True)
        ),
    )


def axes_asked(axes: dict[str, int | str | bool], *, moe: bool) -> dict[str, int | str]:
    """The axes of a candidate by which a question names it; without those that mean nothing for it."""
    names = ["tp", "pp", "vpp", "cp", "micro_batch_size", "schedule"]
    names += ["cp_algo"] if axes["cp"] != 1 else []
    names += ["ep", "etp", "moe_dispatcher"] if moe else []
    return {name: axes[name] for name in names}


def mfu_of_a_second(context: Context) -> float:
    """The MFU of a step that takes a second."""
    ranks = context.num_npus * context.machine.devices_per_npu
    tokens = context.global_batch * context.sample_tokens / ranks
    return context.mfu(tokens)


def _short(value: float) -> float:
    """Six digits: points of a picture, and thousands of them."""
    return float(f"{value:.6g}")
