"""From a spec's documents to the context that the formulas read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.costs.inputs.context import Context, packs_of
from autodeploy.costs.inputs.expert_balance import Levelling, Loads, family_of
from autodeploy.costs.inputs.machine import NO_SOFTWARE, machine_of
from autodeploy.costs.workload.adapters import LOSS_BESIDE_BYTES, LOSS_KEPT_BYTES
from autodeploy.costs.workload.operators import OperatorFeatures
from autodeploy.kit.errors import FieldError, ProfileError, SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.space.facts import facts_of
from autodeploy.specs.expert_loads import FIELD as LOAD_FILE_FIELD
from autodeploy.specs.expert_loads import read_expert_loads
from autodeploy.specs.launched import unlaunched
from autodeploy.specs.software import run_of, software_for, stack_for
from autodeploy.specs.training import Precision, router_of
from autodeploy.stack.features import FEATURES, expand, launch_values, mechanisms
from autodeploy.stack.gradient_sums import PLAIN_APART, expert_sums_apart
from cost_models.compute import ADDED_BYTES
from cost_models.hbm import GIB, SOFTMAX_STATS_BYTES, OptimizerFormat
from cost_models.optimizers import OPTIMIZERS
from hardware_profiles.errors import ProfileError as BadProfile
from hardware_profiles.loader import load_profile, shipped_profiles
from hardware_profiles.topology import ClusterTopology, cluster_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.training import TrainingSpec
    from autodeploy.stack.host import HostSoftware
    from autodeploy.stack.releases import Release
    from cost_models.arrays import Number
    from hardware_profiles.profile import Device, Profile

# A kernel launched for each expert inside one operator, against the host's cost of a whole operator: no Python and no
# autograd around it. Source: Transformer Engine, nvte_multi_tensor_gemm over several streams; the share is assumed.
GROUP_LAUNCHES = 0.5
OWN = "/own"  # after the family of a profile that a user brought: its numbers were never calibrated


def profile_of(cluster: ClusterSpec, overlay: str | None = None, *, calibrated: bool = True) -> Profile:
    """The hardware profile of a cluster spec, with its overlay and overrides; `calibrated` as shipped, else its priors.

    overlay : file of an overlay that takes the place of the spec's own.

    Raises ProfileError if there is none of this name, or a number is not valid, with the path into the spec.
    """
    own = None if isinstance(cluster.overlay, str) else cluster.overlay
    leaf = None if cluster.leaf is None else (cluster.leaf.nodes, cluster.leaf.oversubscription)
    try:
        return load_profile(cluster.profile, cluster.overrides, overlay or own, calibrated=calibrated, leaf=leaf)
    except BadProfile as error:
        path = error.path or "/profile"
        if own is not None and overlay is None and "overlay" in str(error):
            where = "/cluster/overlay" + (error.path or "")
            raise ProfileError(str(error), errors=(FieldError(where, str(error), error.hint),)) from error
        inside = "/cluster/overrides" if cluster.overrides and "overrid" in str(error) else "/cluster/profile"
        raise ProfileError(
            str(error),
            errors=(FieldError(inside if path == "/profile" else "/cluster" + path, str(error), error.hint),),
        ) from error


def device_of(profile: Profile, cluster: ClusterSpec) -> Device:
    """The chip grade of a cluster spec."""
    try:
        return profile.device(cluster.device)
    except BadProfile as error:
        raise ProfileError(str(error), path="/cluster/device", hint=error.hint) from error


def topology_of(profile: Profile, cluster: ClusterSpec, num_npus: int) -> ClusterTopology:
    """The geometry of the cards in use."""
    blocks = [(b.supernode, b.nodes) for b in cluster.blocks] if cluster.blocks is not None else None
    try:
        if blocks is not None:
            return cluster_topology(profile, blocks=blocks, num_ranks=num_npus * profile.devices_per_npu)
        return cluster_topology(profile, num_npus=num_npus)
    except BadProfile as error:
        path = "/cluster/blocks" if blocks else "/cluster/num_npus"
        if cluster.leaf is not None and (error.path or "").endswith("/leaf_nodes"):
            path = "/cluster/leaf" if blocks else "/cluster/leaf/nodes"
        raise SpecError(str(error), path=path, hint=error.hint) from error


def healthy_npus(profile: Profile, cluster: ClusterSpec) -> int:
    """Cards that may be planned on: all of them, less spares."""
    total = (
        sum(b.nodes for b in cluster.blocks) * profile.npus_per_node
        if cluster.blocks is not None
        else int(cluster.num_npus or 0)
    )
    if total <= cluster.spare_npus:
        raise SpecError(Message("specs.no_card_left", spare=cluster.spare_npus, all=total), path="/cluster/spare_npus")
    return total - cluster.spare_npus


# Features that are switches of the operator table by the same name.
SWITCHES = (
    *("flash_attention", "fused_swiglu", "fused_rmsnorm", "fused_operators", "fused_router", "fused_ring_update"),
    *("fused_cross_entropy", "grouped_gemm", "rect_fa", "padded_heads"),
    *("vector_sort", "weighted_experts", "whole_vocabulary"),
    *("replicated_dispatch", "casts_router", "regathers_latents", "regathers_shared", "gathers_keys", "dropout"),
    "square_alibi",
)


def operator_features(
    model: ModelSpec,
    training: TrainingSpec,
    features: frozenset[str],
    vendor: str,
    release: Release | None,
    host: HostSoftware = NO_SOFTWARE,
) -> OperatorFeatures:
    """The switches of the operator table; `release`: what the plan is launched with."""
    ascend, features = vendor == "huawei", mechanisms(features)
    full = training.precision == "fp32"  # norms have nothing to cast
    kept, beside = loss_bytes(features, full=full)
    if training.has_reference:
        kept, beside = LOSS_KEPT_BYTES, LOSS_BESIDE_BYTES
    chunk = float(launch_values(features, "chunked_loss")["chunk_tokens"]) if "chunked_loss" in features else 0.0
    switches: dict[str, Any] = {name: name in features for name in SWITCHES}
    return OperatorFeatures(
        **switches,
        row_index="async_permutation" in features,
        sizes_stay="host_sync_free" in features,
        weighted_rows="graph_mode" in features,
        group_launches=0.0 if ascend else GROUP_LAUNCHES,
        attention_stats_bytes=SOFTMAX_STATS_BYTES["ascend" if ascend else "nvidia"],
        capacity_factor=model.capacity_factor,
        accumulation_bytes=_accumulation_bytes(training, features, apart=PLAIN_APART in features),
        expert_accumulation_bytes=_accumulation_bytes(training, features, apart=expert_sums_apart(features)),
        sums_bytes=_accumulation_bytes(training, features, apart=True),
        added_bytes=None if "torch_fsdp2" in features else ADDED_BYTES,
        weighted_activation=ascend and "graph_mode" not in features,
        input_bytes=1.0 if "narrow_inputs" in features else 2.0,
        keeps_gathered=bool({"graph_mode", "torch_fsdp2"} & features),
        norm_bytes=4.0 if training.norm_precision == "fp32" and not full else 2.0,
        element_bytes=4.0 if full else 2.0,
        logit_bytes=kept,
        loss_bytes=beside,
        loss_chunk=chunk,
        copies_heads=ascend,
        joins_heads=not {"graph_mode", "torch_fsdp2"} & features,
        slices_heads=not ascend and "torch_loss" not in features,  # torchtitan has three projections
        cuts_latents=release is not None and release.cuts_latents,
        torch_modules="torch_fsdp2" in features,
        torch_compiled="torch_compile" in features,
        fused_rotary="unfused_rotary" not in features,
        attention_dropout=not features.isdisjoint({"dropout", "attention_dropout"}),
        lora_rank=training.adapters[0],
        lora_targets=training.adapters[1],
        reference=training.has_reference,
        optimizer=OPTIMIZERS[training.optimizer],
        experts_apart=host.experts_apart,
        makes_angles=ascend and not {"graph_mode", "torch_fsdp2"} & features,
        joins_pieces=None if {"graph_mode", "torch_fsdp2"} & features else "between_steps" if ascend else "at_the_end",
        rotates_documents=host.rotates_documents,
        reads_of_packs=host.reads_of_packs,
        scored_loss=host.scores,
    )


def loads_of(model: ModelSpec, training: TrainingSpec, features: frozenset[str]) -> Loads:
    """Loads of the spec's router: its file of expert loads, else the families behind its two factors.

    Experts padded to a capacity all do the same work, whatever the router sends them.

    Raises SpecError if the file can't be read or is of a model with other experts.
    """
    experts, router = model.n_routed_experts or 1, router_of(model, training)
    even = model.capacity_factor is not None
    sustained, worst = (
        family_of(model, router, None if even else stated, training.seq_length)
        for stated in (training.imbalance, training.imbalance_peak)
    )
    capacity, levelling = None, Levelling.of(features)
    if "capacity_drop" in mechanisms(features) and not even:
        capacity = training.expert_capacity_factor
        capacity = float(launch_values(features, "capacity_drop")["capacity_factor"]) if capacity is None else capacity
    loads = Loads(experts, sustained, worst, router, capacity=capacity, levelling=levelling)
    if even or training.expert_load_file is None or not model.is_moe:
        return loads
    file = read_expert_loads(training.expert_load_file, training.expert_load_sha256)
    columns = file.series.experts
    if experts % columns if file.of_ranks else experts != columns:
        what = "ranks" if file.of_ranks else "experts"
        raise SpecError(
            Message("evaluation.loads_of_other_experts", columns=columns, what=what, experts=experts),
            path=LOAD_FILE_FIELD,
        )
    return replace(loads, series=file.series, of_ranks=file.of_ranks)


def loss_bytes(features: frozenset[str], *, full: bool = False) -> tuple[float, float]:
    """Bytes of a logit that the loss keeps for the backward pass, and beside them while it runs.

    Megatron's loss casts 16-bit logits to FP32 (2 + 4), works in place on the cast, and casts its gradient back
    (4 + 2); its fused one too (fusions/fused_cross_entropy.py). Before MindSpeed 2.2 the difference to the maximum was
    an array of its own (2 + 4 + 4, `copied_logits`): mindspeed/core/tensor_parallel/cross_entropy.py,
    calculate_predicted_logits, @2.1.0_core_r0.12.1 and @55859a22. Transformer Engine's kernel works in place on the
    16-bit logits (--cross-entropy-fusion-impl te; triton/cross_entropy.py). PyTorch's, also that of an FP32 run
    (`full`), keeps the FP32 log-softmax, and where its backward pass begins the loss's gradient and the logits' are
    there beside it (4 + 4 + 4, `torch_loss`; torch.nn.functional.cross_entropy, nll_loss of log_softmax). MindFormers'
    keeps the FP32 log-softmax and an FP32 one-hot label (mindformers/core/loss/loss.py, _NLLLoss). verl over FSDP takes
    log probabilities of 16-bit logits row by row: they and their gradient (`loss_by_rows`; verl
    utils/torch_functional.py, logprobs_from_logits_v2 and entropy_from_logits_with_chunking).
    """
    if "loss_by_rows" in features:
        return 2.0, 2.0
    if full or "torch_loss" in features:
        return 4.0, 8.0
    if "cross_entropy_in_place" in features:
        return 2.0, 0.0
    if "graph_mode" in features:
        return 8.0, 0.0
    return 4.0, 6.0 if "copied_logits" in features else 2.0


def _accumulation_bytes(training: TrainingSpec, features: frozenset[str], *, apart: bool) -> float:
    """Traffic of adding a micro batch's gradients beyond the product that makes them, bytes a parameter.

    For BF16 MindSpeed (matmul_add, on by default), NVIDIA's kernels and compiled graphs add into the FP32 sum in the
    product's epilogue. Without that, an operator of its own reads the 16-bit product and the sum and writes the sum:
    2 + 4 + 4 bytes with an FP32 sum, 4 + 4 + 4 where the product is FP32 too, 2 + 2 + 2 in FP16 runs, whose sums have
    16 bits. FSDP2 adds up reduced shards, of which there is next to nothing.
    """
    if "torch_fsdp2" in features:
        return 0.0
    if training.precision == "fp16" and not {"graph_mode", "fp32_gradients"} & features:
        return 6.0
    unfused = 12.0 if training.precision == "fp32" else 6.0 if "bf16_gradients" in features else 10.0
    return unfused if apart else 0.0


def _reduced_bytes(training: TrainingSpec, on: frozenset[str]) -> float:
    """Bytes of a gradient between replicas."""
    if "torch_fsdp2" in on:
        return 2.0 if "bf16_gradients" in on else 4.0
    half = training.precision == "fp16" and "fp32_gradients" not in on
    return 2.0 if half else OptimizerFormat.of(on).gradient


def _refuse_excluded(on: frozenset[str], training: TrainingSpec, *, moe: bool) -> None:
    for tuning in training.tunings:
        for name in on & {*tuning.excludes, *(tuning.excludes_experts if moe else ())}:
            message = Message("specs.not_modelled_with", one=tuning.title, other=name)
            raise UnsupportedError(message, path=tuning.path, hint=Message("specs.leave_out", names=name))


def spec_context(
    spec: Spec,
    profile: Profile,
    features: frozenset[str],
    *,
    num_npus: int | None = None,
    global_batch: int | None = None,
    distributed_optimizer: bool = True,
    release: str | None = None,
    efficiency: Mapping[str, Number] | None = None,
    host: HostSoftware | None = None,
) -> Context:
    """The context of a spec, on its own cards and batch unless others are given.

    release : band of the software; None is that of the spec's own.
    efficiency : values that replace the profile's. host : what the stack asks of it; None is what the spec's own does.

    Raises SpecError if the device has no peak for the precision, or the cluster's geometry is not possible.
    """
    model, cluster, training = spec.model, spec.cluster, spec.training
    run = run_of(model, training.precision, spec.strategy, features)
    software = software_for(spec.software, stack_for(spec.software, spec.search.target, profile.vendor), run)
    features |= (software.features - FEATURES.keys()) | (software.memory - mechanisms(features))
    features = features - OPTIMIZERS.keys() | ({training.optimizer} & FEATURES.keys())
    on = mechanisms(features)
    _refuse_excluded(on, training, moe=model.is_moe)
    fraction = None if spec.strategy is None else spec.strategy.optimizer_offload_fraction
    host = software.host.of_strategy(fraction) if host is None else host
    device = _device_with_peak(profile, cluster, training.precision)
    release = release or software.band
    cards = num_npus if num_npus is not None else healthy_npus(profile, cluster)
    topology = topology_of(profile, cluster, cards)
    world = cards * profile.devices_per_npu
    batch = global_batch if global_batch is not None else training.global_batch_size.value
    histogram = training.sequence_length_histogram
    packs = packs_of(histogram, training.seq_length, batch) if histogram else None
    stack = spec.search.release(profile.vendor)
    operators = operator_features(model, training, features, profile.vendor, stack, host)
    precision = training.precision
    machine = machine_of(
        profile, device, topology, precision, release=release, efficiency=efficiency, features=on, software=host
    )
    return Context(
        model=model,
        machine=machine,
        operators=operators if packs is None else replace(operators, mean_keys=packs.keys, documents=packs.documents),
        features=features,
        target=spec.search.target,
        stack=stack,
        world=world,
        num_npus=cards,
        seq_length=training.seq_length,
        global_batch=batch,
        loads=loads_of(model, training, features),
        slowest_device_factor=cluster.slowest_device_factor,
        limit_bytes=_limit_bytes(device, spec.search),
        host_bytes_per_device=_host_bytes_per_device(profile, spec.search),
        gradient_bytes=_reduced_bytes(training, on),
        distributed_optimizer=distributed_optimizer,
        packs=packs,
        precision=precision,
        profile=profile,
        host=host,
        release=release,
        family=profile.family if cluster.profile in shipped_profiles() else f"{profile.family}{OWN}",
        facts=_facts(spec, profile, features, world, batch, shards_states=distributed_optimizer),
    )


def choice_context(
    spec: Spec,
    profile: Profile,
    choice: FeatureChoice,
    *,
    num_npus: int | None = None,
    global_batch: int | None = None,
) -> Context:
    """The context of a spec under the features chosen for it, with those among which each candidate has its own."""
    context = spec_context(spec, profile, choice.on, num_npus=num_npus, global_batch=global_batch)
    return with_alternatives(context, choice, spec.training)


def with_alternatives(context: Context, choice: FeatureChoice, training: TrainingSpec) -> Context:
    """The context and, beside it, the same under the other features that were chosen for it.

    What is on in the context without being a choice stays on; copies of hot experts are none where experts are even.
    """
    even = context.loads.even
    others = [on for on in choice.alternatives if not (even and "mutual_routing" in mechanisms(on - choice.on))]
    beside = context.features - choice.on
    return replace(context, alternatives=tuple(_under(on | beside, context, training) for on in others))


def _under(features: frozenset[str], context: Context, training: TrainingSpec) -> Context:
    """The same context with other operators, exchanges and ways to level experts on; its machine stays as it is."""
    operators = operator_features(
        context.model, training, features, context.machine.vendor, context.stack, context.host
    )
    on_mechanisms = mechanisms(features)
    switches = {f"on_{name}": name in features or name in on_mechanisms for name in FEATURES}
    return replace(
        context,
        features=features,
        operators=replace(operators, mean_keys=context.operators.mean_keys, documents=context.operators.documents),
        loads=replace(context.loads, levelling=Levelling.of(features)),
        facts={**context.facts, **switches},
    )


def _device_with_peak(profile: Profile, cluster: ClusterSpec, precision: str) -> Device:
    """The chip grade of a cluster spec, which has to compute in this precision."""
    device = device_of(profile, cluster)
    if precision not in device.peak_flops:
        names = ", ".join(name for name in device.peak_flops if name in get_args(Precision))
        raise SpecError(
            Message("common.has_no_products_in", device=device.name, precision=precision),
            path="/training/precision",
            hint=Message("common.one_of", names=names),
        )
    return device


def _limit_bytes(device: Device, search: SearchSpec) -> float:
    """Bytes of a card that the framework may use: those that the driver leaves, or fewer where the spec says so."""
    usable = device.usable_hbm_bytes
    return min(search.memory_limit_gib * GIB, usable) if search.memory_limit_gib else usable


def _host_bytes_per_device(profile: Profile, search: SearchSpec) -> float:
    """A device's share of its host's memory, less what the spec keeps for other things."""
    host = profile.host.memory_bytes_per_node / profile.ranks_per_node
    return max(0.0, host - search.host_memory_reserved_gib * GIB / profile.ranks_per_node)


def _facts(
    spec: Spec, profile: Profile, features: frozenset[str], world: int, global_batch: int, *, shards_states: bool
) -> dict[str, Any]:
    """Facts of a spec for legality rules."""
    switches, release = spec.search.features.items(), spec.search.release(profile.vendor)
    return facts_of(
        spec.model,
        world=world,
        seq_length=spec.training.seq_length,
        global_batch=global_batch,
        node_ranks=profile.ranks_per_node,
        tp_limit=profile.ranks_per_node,
        features=set(features),
        exact_numerics=spec.search.numerics == "exact",
        deterministic=spec.search.deterministic_training,
        asked=frozenset(member for name, switch in switches if switch == "on" for member in expand(name)),
        precision=spec.training.precision,
        shards_states=shards_states,
        optimizer=OPTIMIZERS[spec.training.optimizer],
        tunings=spec.training.tunings,
        packed=spec.training.sequence_length_histogram is not None,
        unlaunched=unlaunched(spec.model, spec.training, release),
        release=release,
    )
