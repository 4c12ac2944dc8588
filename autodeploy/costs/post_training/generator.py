"""A model as a replica on given hardware generates with it: workload, profile and numbers of generation together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from autodeploy.costs.inputs.machine import machine_of
from autodeploy.costs.workload.generation import BYTE, HALF_WORD, rank_work
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.stack.frameworks import ENGINES
from cost_models.generation import Generation, GenerationRates, RankWork
from hardware_profiles.generation import generation_numbers
from hardware_profiles.topology import cluster_topology

if TYPE_CHECKING:
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import GenerationLayout
    from hardware_profiles.generation import GenerationNumbers, Mode
    from hardware_profiles.profile import Device, Profile

Assumed = Literal["mode_assumed", "numbers_of_another", "experts"]
MICRO = 1e-6
# Peak by which products run, by precision; weights of 8 bits meet operands of 8 bits.
PEAKS = {"bf16": "bf16", "fp8": "fp8", "int8": "int8", "w8a8": "int8"}


@dataclass(frozen=True)
class Generator:
    """A model on its hardware, and what the prediction rests on.

    mode : in which the engine decodes, `mode_is_assumed` where nobody said it. own_numbers : of this system, else of
    one like it, `numbers_of`. half_width : relative, of the 80 % interval of a time per output token.
    """

    model: Generation
    mode: Mode
    mode_is_assumed: bool
    own_numbers: bool
    numbers_of: str
    half_width: float

    def assumed(self) -> dict[Assumed, Message]:
        """Assumptions of a prediction for its reader, by what they are about."""
        assumptions: dict[Assumed, Message] = {}
        if self.mode_is_assumed:
            assumptions["mode_assumed"] = Message("evaluation.engine_mode_assumed", mode=self.mode)
        if not self.own_numbers:
            assumptions["numbers_of_another"] = Message("evaluation.generation_numbers_of", profile=self.numbers_of)
        if self.model.expert_layers:
            assumptions["experts"] = Message("evaluation.experts_barely_measured", share=100.0 * self.half_width)
        return assumptions


def generator_of(
    model: ModelSpec,
    profile: Profile,
    device: Device,
    layout: GenerationLayout,
    *,
    numbers: GenerationNumbers | None = None,
    taken_bytes: float = 0.0,
) -> Generator:
    """The model as each replica of a layout generates with it.

    numbers : of generation; absent: those of the profile as shipped.
    taken_bytes : of each device, by what training leaves on it.

    Raises UnsupportedError if the device has no peak for the precision.
    """
    numbers = numbers or generation_numbers(profile)
    peak = PEAKS[layout.precision]
    if peak not in device.peak_flops:
        names = ", ".join(name for name, of in PEAKS.items() if of in device.peak_flops)
        raise UnsupportedError(
            Message("common.has_no_products_in", device=device.name, precision=layout.precision),
            path="/generation/precision",
            hint=Message("common.one_of", names=names),
        )
    machine = _machine(profile, device, layout, peak)
    weight_bytes = HALF_WORD if peak == "bf16" else BYTE
    work = rank_work(model, layout.tp, layout.dp, layout.ep, weight_bytes=weight_bytes)
    mode = numbers.mode(layout.engine, layout.mode)
    wide = numbers.value("half_width_experts" if model.is_moe else "half_width")
    engine = ENGINES[layout.engine]
    fraction = engine.memory_fraction if layout.memory_fraction is None else layout.memory_fraction
    space = fraction * device.usable_hbm_bytes - machine.runtime_bytes - machine.communicator_bytes - taken_bytes
    return Generator(
        model=Generation(
            **vars(work),
            rates=_rates(machine, numbers, layout, mode, wide),
            tensor_group=machine.group(1, layout.tp),
            expert_group=machine.group(1, max(layout.ep, 1)),
            tiers=machine.tiers,
            hidden_size=float(model.hidden_size),
            choices=float(model.num_experts_per_tok or 0),
            exchanges=model.is_moe and layout.ep > 1 and layout.dp > 1,
            dispatch_bytes=weight_bytes,
            cache_space_bytes=space - _workspace_bytes(model, work) - work.weights_bytes,
        ),
        mode=mode,
        mode_is_assumed=layout.mode is None,
        own_numbers=numbers.own,
        numbers_of=numbers.document.profile,
        half_width=wide,
    )


def _machine(profile: Profile, device: Device, layout: GenerationLayout, peak: str) -> Machine:
    cards = -(-max(layout.tp * layout.dp, layout.ep) // profile.devices_per_npu)
    machine = machine_of(profile, device, cluster_topology(profile, num_npus=cards), peak)
    wide = None if peak == "bf16" else device.peak_flops["bf16"]
    free = replace(machine.rates, cube_op_s=0.0, vector_op_s=0.0, wide_peak_flops=wide)
    return replace(machine, rates=free)


def _rates(
    machine: Machine, numbers: GenerationNumbers, layout: GenerationLayout, mode: Mode, half_width: float
) -> GenerationRates:
    return GenerationRates(
        compute=replace(machine.rates, operand_fraction=numbers.value("weights")),
        expert_fraction=numbers.value("expert_weights"),
        cache_fraction=numbers.value("cache"),
        reduce_fraction=numbers.value("all_reduce"),
        prefill=numbers.value("prefill"),
        layer_s=numbers.layer(layout.engine, mode, layout.tp).value * MICRO,
        expert_layer=numbers.value("expert_layer"),
        issue_s=numbers.value("issue_us") * MICRO,
        exchange_s=numbers.value("exchange_us") * MICRO,
        dispatch_loss=machine.dispatch_loss,
        combine_loss=machine.combine_loss,
        half_width=half_width,
    )


WORKSPACE_TOKENS = 8192.0  # of prompts in one pass, the default limit of engines


def _workspace_bytes(model: ModelSpec, work: RankWork) -> float:
    """Bytes of one pass's activations: hidden states in and out, and the widest product's result, in 16 bits."""
    widest = max(p.columns * (p.rows_per_token if p.experts else 1.0) for p in work.products if not p.last_only)
    return float(np.ceil(WORKSPACE_TOKENS * HALF_WORD * (4.0 * model.hidden_size + 2.0 * widest)))
