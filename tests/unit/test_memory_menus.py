"""Which memory choices a search decides about: the same for every class of layers where a flag switches all of them."""

from __future__ import annotations

import pytest

from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.build_problem import build_problem
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.search.branch_and_bound.search_space import legal_candidates
from autodeploy.search.choices.memory_options import memory_choices, possible_choices
from autodeploy.search.planner import prepare
from autodeploy.specs.reading import read_spec_document

# One dense layer before 26 with experts: a class of few layers.
SPEC = {
    "model": "deepseek-v2-lite",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 256},
}
STRATEGY = {"tp": 1, "pp": 4, "vpp": 6, "ep": 1, "micro_batch_size": 2, "schedule": "interleaved"}


def options_by_class(target: str) -> dict[int, set[str]]:
    prepared = prepare(read_spec_document(SPEC | {"search": {"target": target, "fix": STRATEGY}}))
    legal, _ = legal_candidates(prepared.spec.search, prepared.context, prepared.profile, prepared.choice)
    one = legal.take(slice(0, 1))
    classes = step_classes(unit_costs(prepared.context, one), one, prepared.context)
    choices = memory_choices(one, prepared.context)
    problem = build_problem(Priced(classes, one, prepared.context), choices=choices)
    every = build_problem(Priced(classes, one, prepared.context), choices=choices, menu=False)
    chosen = {option.name for option in problem.options}
    found: dict[int, set[str]] = {}
    for option in every.options:
        if option.name in chosen:
            found.setdefault(option.layer_class, set()).add(option.name)
    for option in problem.options:
        found[option.layer_class].discard(option.name)
    return found


def test_a_flag_for_all_layers_is_an_option_of_every_class_where_it_frees_memory() -> None:
    left_out = options_by_class("mindspeed-llm")
    assert len(left_out) == 2
    assert not any(left_out.values()), left_out


@pytest.mark.parametrize("target", ["mindspeed-llm", "megatron"])
def test_whole_layers_are_always_among_the_options(target: str) -> None:
    prepared = prepare(read_spec_document(SPEC | {"search": {"target": target, "fix": STRATEGY}}))
    legal, _ = legal_candidates(prepared.spec.search, prepared.context, prepared.profile, prepared.choice)
    one = legal.take(slice(0, 1))
    classes = step_classes(unit_costs(prepared.context, one), one, prepared.context)
    problem = build_problem(Priced(classes, one, prepared.context), choices=memory_choices(one, prepared.context))
    assert {option.layer_class for option in problem.options if option.name == "full"} == {0, 1}


@pytest.mark.parametrize("target", ["mindspeed-llm", "mindformers", "any"])
@pytest.mark.parametrize(
    "switches", [("selective_swap", "swap_attention"), ("selective_recompute",), ("selective_swap",)]
)
def test_a_switch_that_is_off_leaves_none_of_its_choices(target: str, switches: tuple[str, ...]) -> None:
    search = {"target": target, "features": dict.fromkeys(switches, "off")}
    left = possible_choices(prepare(read_spec_document(SPEC | {"search": search})).context)
    assert "full" in left
    kinds = {(CHOICES[name].kind, name == "swap_attention") for name in left - {"full"}}
    gone = {
        "selective_swap": ("swap", False),
        "swap_attention": ("swap", True),
        "selective_recompute": ("recompute", False),
    }
    assert not kinds & {gone[name] for name in switches}
