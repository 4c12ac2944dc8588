"""The numbers of a hardware profile that the formulas read, for one device and number format."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.stack.host import HostSoftware
from cost_models.collectives import Group, Tier, nested
from cost_models.compute import ComputeRates
from cost_models.host_bound import bound_issue_factor, issue_s, slowest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Floats, Ints, Number
    from hardware_profiles.profile import Device, Profile
    from hardware_profiles.topology import ClusterTopology


# Of an element that layers compute with; 8-bit operands are cast from 16 bits.
ELEMENT_BYTES = {"fp32": 4.0}
NO_SOFTWARE = HostSoftware()
FAST = 1e30  # bytes a second of a link that takes no time


@dataclass(frozen=True, slots=True)
class HostRates:
    """The host's part: seconds to issue one operator, of one synchronisation, and bytes per second of its link.

    new_size_s : longer for an operator on routed rows, whose number is another in every micro batch. scatter : of the
    hosts' time where their work differs [fraction]. memory_bytes_per_s : a device's share of the bandwidth of the
    host's memory. core_ratio : time of a core against a measured one.
    """

    issue_s: Number
    new_size_s: Number
    sync_s: Number
    link_bytes_per_s: Number
    scatter: float
    memory_bytes_per_s: float
    core_ratio: Number


@dataclass(frozen=True)
class Machine:
    """One device and the network around it, in SI units. Numbers may be arrays (candidate first)."""

    name: str
    vendor: str
    rates: ComputeRates
    tiers: tuple[Tier, ...]
    topology: ClusterTopology
    comm_op_s: Number
    host: HostRates
    software_factor: Number  # time against the release that the efficiencies describe
    routing_factor: Number  # beyond it, of the software that routes tokens to experts and runs them
    dispatch_loss: Number  # by how much a dispatch slows per doubling of a tier's ranks beyond 8
    combine_loss: Number
    contention: Number  # a collective beside computation takes this much longer
    exchange_beside: Number  # rate of an expert exchange beside computation, against its rate alone
    overlap: Number  # share of a pass that data-parallel collectives can run beside
    runtime_bytes: float
    communicator_bytes: float
    fragmentation: float
    peak_flops: float
    devices_per_npu: int

    def group(self, stride: Number, size: Number) -> Group:
        """The communication group of `size` ranks, `stride` apart, on the tiers of this machine."""
        placed = self.topology.place(np.asarray(stride).astype(np.int64), np.asarray(size).astype(np.int64))
        fan_out = placed.fan_out.astype(np.float64)
        near = self.topology.below_one_leaf(placed)
        return Group(
            placed.size.astype(np.float64),
            tuple(fan_out[..., t] for t in range(fan_out.shape[-1])),
            None if near is None else near.astype(np.float64),
        )

    def groups(self, ways: Iterable[tuple[Floats, Floats]]) -> Group:
        """`group` for every (stride, size) [n], together [ways, n]."""
        strides, sizes = zip(*ways, strict=True)
        return self.group(np.stack(strides), np.stack(sizes))

    @cached_property
    def with_one_tier(self) -> tuple[Machine, ...]:
        """For each tier, the machine on whose network it alone takes time."""
        fast = [replace(tier, bytes_per_s=FAST, latency_s=0.0) for tier in self.tiers]
        return tuple(
            replace(self, tiers=(*fast[:number], tier, *fast[number + 1 :]), comm_op_s=0.0)
            for number, tier in enumerate(self.tiers)
        )

    def tier_of(self, stride: int) -> Tier:
        """The innermost tier that joins two ranks `stride` apart."""
        return self.tiers[int(self.topology.place(stride, 2).outermost_tier)]


def machine_of(
    profile: Profile,
    device: Device,
    topology: ClusterTopology,
    precision: str,
    *,
    release: str | None = None,
    efficiency: Mapping[str, Number] | None = None,
    features: frozenset[str] = frozenset(),
    software: HostSoftware = NO_SOFTWARE,
) -> Machine:
    """The machine that a profile describes.

    release : band of the framework release, for its software factor; None is the current one.
    efficiency : values that replace the profile's, scalars or arrays: a fit varies them here.
    features : those of kernels, host and allocator that are on. software : what the stack asks of the host.
    """
    value: dict[str, Number] = {**profile.efficiency, **(efficiency or {})}
    return Machine(
        name=device.name,
        vendor=profile.vendor,
        rates=_compute_rates(profile, device, precision, value, features),
        tiers=tuple(_tier(tier, value) for tier in profile.tiers),
        topology=topology,
        comm_op_s=profile.fixed_costs.comm_op_s,
        host=_host_rates(profile, value, features, software),
        software_factor=_software_factor(profile, topology, value, release or "current", software.operator_factor),
        routing_factor=_release_factor(profile, value, f"experts_{release or 'current'}") / value["expert_rate"],
        dispatch_loss=value["dispatch_loss"],
        combine_loss=value["combine_loss"],
        contention=1.0 + np.asarray(value["link_overlap_contention"]),
        exchange_beside=value["exchange_beside"],
        overlap=value.get("overlap", 1.0),
        runtime_bytes=profile.memory.runtime_bytes,
        communicator_bytes=profile.memory.communicator_buffer_bytes,
        fragmentation=(
            profile.memory.fragmentation_fixed_segments
            if "fixed_segments" in features
            else profile.memory.fragmentation
        ),
        peak_flops=device.peak_flops[precision],
        devices_per_npu=profile.devices_per_npu,
    )


def _software_factor(
    profile: Profile, topology: ClusterTopology, value: Mapping[str, Number], release: str, own: float | None = None
) -> Number:
    """Time of a release against the one that the efficiencies describe, on the devices of a cluster: f d.

    f : its factor on one node, that of the current release where it has none. d : by how much the slowest of all
    devices is behind the slowest of a node, on which rates are measured (`slowest_of`); a release that has a factor of
    its own for every doubling of the nodes goes by that. own : f of the stack itself, instead. A late host (garbage
    collection, other processes) holds up all ranks that wait for its own. A compiled graph has no host between its
    operators.
    """
    ranks, inside = max(topology.num_ranks, profile.ranks_per_node), profile.ranks_per_node
    factors, of_its_own = profile.release_factors, f"{release}_per_doubling"
    if of_its_own in factors or f"release_{of_its_own}" in value:
        later = _release_factor(profile, value, of_its_own) ** math.log2(ranks / inside)
    else:
        scatter = value["device_scatter"]
        later = 1.0 + slowest_of(ranks, scatter) - slowest_of(inside, scatter)
    current = _release_factor(profile, value, "current")
    other = 1.0 if own is None else own / factors.get(release, factors.get("current", 1.0))
    return np.asarray(_release_factor(profile, value, release, current) * other * later)


def _release_factor(profile: Profile, value: Mapping[str, Number], name: str, absent: Number = 1.0) -> Floats:
    """A factor of the profile's releases, `absent` where it has none of this name."""
    return np.asarray(value.get(f"release_{name}", profile.release_factors.get(name, absent)))


def _compute_rates(
    profile: Profile, device: Device, precision: str, value: Mapping[str, Number], features: frozenset[str]
) -> ComputeRates:
    """Rates of a device in this precision: operations and bytes in a second."""
    fixed = profile.fixed_costs
    attention = np.asarray(value["attention_of_torch"] if "torch_attention" in features else 1.0)
    return ComputeRates(
        peak_flops=device.peak_flops[precision],
        hbm_bytes_per_s=device.hbm_bytes_per_s,
        gemm_fraction=value["gemm_peak_fraction"],
        gemm_k_half=value["gemm_k_half"],
        gemm_mn_half=value["gemm_mn_half"],
        grouped_gemm=value["grouped_gemm"],
        grouped_gemm_exposed=value["grouped_gemm_exposed"],
        gemm_added_exposed=value["gemm_added_exposed"],
        operand_fraction=value["hbm_operands"],
        attention_forward=value["attention_forward"] * attention,
        attention_backward=value["attention_backward"] * attention,
        attention_head_dim_half=value["attention_head_dim_half"],
        attention_seq_half=value["attention_seq_half"],
        hbm_fraction=value["hbm"],
        movement_fraction=value["permute"],
        whole_rows_fraction=value["permute_fused"],
        cube_op_s=fixed.cube_op_s,
        vector_op_s=fixed.vector_op_s * np.asarray(value.get("vector_op", 1.0)),
        cube_cores=float(device.cube_cores or 1),
        pipelined_tiles="ascendp_mm" in features,
        gemm_units=profile.efficiency["gemm_units"],
        wide_peak_flops=device.peak_flops["bf16"] if precision == "fp8" else None,
        element_bytes=ELEMENT_BYTES.get(precision, 2.0),
        casts_weights="weight_casts" in features,
    )


def _host_rates(
    profile: Profile, value: Mapping[str, Number], features: frozenset[str], software: HostSoftware
) -> HostRates:
    """The host's part of a device, whose threads keep to cores of their own where that is on."""
    host = profile.host
    bound = (
        bound_issue_factor(host.cores_per_device, host.numa_nodes, host.remote_memory_ratio, host.issue_memory_share)
        if "host_core_binding" in features
        else 1.0
    )
    issued = host.issue_s_per_op if software.issue_s_per_op is None else software.issue_s_per_op
    python = issued * bound * np.asarray(value["host_issue"])
    new = software.new_shape_s * bound * np.asarray(value.get("new_shape", 1.0))
    each = issue_s(python, new if software.changing_shapes else 0.0, software.task_queue)
    return HostRates(
        issue_s=each,
        new_size_s=np.maximum(0.0, issue_s(python, new, software.task_queue) - each),
        sync_s=(host.sync_s if software.sync_s is None else software.sync_s) * np.asarray(value["host_sync"]),
        link_bytes_per_s=host.link_bytes_per_s * value.get("host_link", 1.0),
        scatter=software.scatter,
        memory_bytes_per_s=host.memory_bytes_per_s / profile.ranks_per_node,
        core_ratio=host.core_time_ratio * value.get("host_core", 1.0),
    )


def _tier(tier: Tier, value: Mapping[str, Number]) -> Tier:
    """A tier of the profile: `link_<tier>` scales what it reaches, `exchange_<tier>` an All-to-All's share of that,
    `message_half_size` the half sizes of all tiers.
    """
    return replace(
        tier,
        efficiency=tier.efficiency * np.asarray(value.get(f"link_{tier.name}", 1.0)),
        half_size_bytes=tier.half_size_bytes * np.asarray(value["message_half_size"]),
        exchange=value.get(f"exchange_{tier.name}", 1.0),
    )


# Where ranks of pipelines and replicas lie.
def stage_stride(candidates: Candidates, world: int) -> Ints:
    """Ranks from one stage of a pipeline to the next [n]."""
    return np.where(candidates.tp_pp_dp_mapping, candidates.tp * candidates.cp, world // candidates.pp)


def replica_groups(candidates: Candidates, machine: Machine, world: int, parts: Ints | int = 1) -> tuple[Group, Group]:
    """The dp x cp ranks that hold the same dense parameters, and the ranks that hold the same experts.

    Where replicas lie outside the stages a context-parallel group is in one piece, and the next replica's is a
    pipeline away.

    parts : the first of so many equal parts of each group [n]: a divisor of dp where replicas lie outside the stages.
    """
    c = candidates
    tp, cp, dp, holders = (x.astype(np.float64) for x in (c.tp, c.cp, c.dp / parts, c.etp * c.ep))
    copies = np.maximum(1.0, world / (holders * c.pp)) / parts
    outside = c.tp_pp_dp_mapping & (c.pp > 1)
    if not outside.any():
        both = machine.groups([(tp, cp * dp), (holders, copies)])
        return both.take(0), both.take(1)
    together = machine.group(tp, np.where(outside, cp, cp * dp))
    apart = machine.group(np.where(outside, tp * cp * c.pp, 1.0), np.where(outside, dp, 1.0))
    return nested(together, apart), machine.group(np.where(outside, holders * c.pp, holders), copies)


def copy_groups(candidates: Candidates, machine: Machine, world: int) -> tuple[Group, Group]:
    """The ranks that hold the same shard of dense parameters, and of experts: one of each part of their groups."""
    c, parts = candidates, candidates.dp_replicate.astype(np.float64)
    outside = np.where(c.tp_pp_dp_mapping, c.pp, 1)
    dense = c.tp * c.cp * c.dp * outside / parts
    expert = np.maximum(1.0, world / (c.etp * c.ep * c.pp)) * c.etp * c.ep * outside / parts
    both = machine.groups([(dense, parts), (expert, parts)])
    return both.take(0), both.take(1)
