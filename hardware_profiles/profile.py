"""A hardware profile as the formulas read it: plain floats in SI units, built once from the document.

Bytes, seconds, FLOP/s, bytes/s. "Rank" and "device" mean the same: a card, or a die of a card with several.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING

from autodeploy.messages import Message
from cost_models.collectives import Tier
from hardware_profiles.errors import ProfileError
from hardware_profiles.quantities import find_quantity, quantities

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hardware_profiles.covariance import Covariance
    from hardware_profiles.schema import (
        DeviceDocument,
        FixedCostsDocument,
        HostDocument,
        MemoryDocument,
        ProfileDocument,
        Quantity,
        TierDocument,
    )

TERA = 1e12
GIGA = 1e9
MICRO = 1e-6
MEMORY_BYTES_PER_S = 400e9  # of a host whose document does not say it; assumed
GIB = 2.0**30
MIB = 2.0**20


@dataclass(frozen=True)
class Device:
    """One chip grade, per rank. `peak_flops`: FLOP/s of the matrix unit by format (bf16, fp16, fp32, int8?, fp8?)."""

    name: str
    peak_flops: Mapping[str, float]
    marketing_flops: float | None
    vector_flops: float
    hbm_bytes: float
    usable_hbm_bytes: float
    hbm_bytes_per_s: float
    cube_cores: int | None
    l2_bytes: float | None

    @classmethod
    def of(cls, name: str, document: DeviceDocument) -> Device:
        """Convert the document's units to SI."""
        formats = type(document.peak_tflops).model_fields
        peaks = {number_format: getattr(document.peak_tflops, number_format) for number_format in formats}
        return cls(
            name=name,
            peak_flops={key: peak.value * TERA for key, peak in peaks.items() if peak is not None},
            marketing_flops=document.marketing_tflops.value * TERA if document.marketing_tflops else None,
            vector_flops=document.vector_tflops.value * TERA,
            hbm_bytes=document.hbm_gib.value * GIB,
            usable_hbm_bytes=document.usable_hbm_gib.value * GIB,
            hbm_bytes_per_s=document.hbm_gb_per_s.value * GIGA,
            cube_cores=int(document.cube_cores.value) if document.cube_cores else None,
            l2_bytes=document.l2_mib.value * MIB if document.l2_mib else None,
        )


MEMORY_BYTES_PER_S = 400e9  # of a host whose document does not say it; assumed


@dataclass(frozen=True)
class Host:
    """The host side: CPU cores and host link per device, memory per node, time to issue an operator and to wait."""

    cores_per_device: float
    link_bytes_per_s: float
    memory_bytes_per_node: float
    issue_s_per_op: float
    sync_s: float
    numa_nodes: float = 1.0
    remote_memory_ratio: float = 1.0
    issue_memory_share: float = 0.0
    memory_bytes_per_s: float = MEMORY_BYTES_PER_S
    core_time_ratio: float = 1.0

    @classmethod
    def of(cls, document: HostDocument) -> Host:
        """Convert the document's units to SI; every device swaps at once, so they share a link."""
        sharing = document.devices_per_host_link.value if document.devices_per_host_link else 1.0
        return cls(
            cores_per_device=document.cores_per_device.value,
            link_bytes_per_s=document.host_link_gb_per_s.value * GIGA / sharing,
            memory_bytes_per_node=document.host_memory_gib_per_node.value * GIB,
            issue_s_per_op=document.issue_us_per_op.value * MICRO,
            sync_s=document.sync_us.value * MICRO,
            numa_nodes=document.numa_nodes_per_node.value if document.numa_nodes_per_node else 1.0,
            remote_memory_ratio=document.remote_memory_ratio.value if document.remote_memory_ratio else 1.0,
            issue_memory_share=document.issue_memory_share.value if document.issue_memory_share else 0.0,
            memory_bytes_per_s=document.memory_gb_per_s_per_node.value * GIGA
            if document.memory_gb_per_s_per_node
            else MEMORY_BYTES_PER_S,
            core_time_ratio=document.core_time_ratio.value if document.core_time_ratio else 1.0,
        )


@dataclass(frozen=True)
class FixedCosts:
    """Seconds an operator takes on the device before it does any work."""

    cube_op_s: float
    vector_op_s: float
    comm_op_s: float

    @classmethod
    def of(cls, document: FixedCostsDocument) -> FixedCosts:
        """Convert the document's units to SI."""
        return cls(
            cube_op_s=document.cube_op_us.value * MICRO,
            vector_op_s=document.vector_op_us.value * MICRO,
            comm_op_s=document.comm_op_us.value * MICRO,
        )


@dataclass(frozen=True)
class MemoryOverheads:
    """Bytes on the card beside the model's; `fragmentation` is a share of the allocator's peak, with segments that grow
    or without.
    """

    runtime_bytes: float
    fragmentation: float
    fragmentation_fixed_segments: float
    communicator_buffer_bytes: float

    @classmethod
    def of(cls, document: MemoryDocument) -> MemoryOverheads:
        """Convert the document's units to SI."""
        return cls(
            runtime_bytes=document.runtime_gib.value * GIB,
            fragmentation=document.fragmentation.value,
            fragmentation_fixed_segments=(document.fragmentation_fixed_segments or document.fragmentation).value,
            communicator_buffer_bytes=document.communicator_buffer_mib.value * MIB,
        )


@dataclass(frozen=True, eq=False)
class Profile:
    """A hardware profile in SI units. Equal and hashed by content; `document` keeps unit, kind and source."""

    document: ProfileDocument

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Profile) and self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)

    @cached_property
    def content_hash(self) -> str:
        """sha256 of the canonical JSON of the document, overlays and overrides included."""
        content = self.document.model_dump(mode="json")
        if content["evidence"] is None:  # of runs; a profile without any has the name that it always had
            del content["evidence"]
        for tier in content["tiers"]:  # as above: one without leaf switches
            if tier["leaf_nodes"] is None:
                del tier["leaf_nodes"], tier["leaf_oversubscription"]
        return hashlib.sha256(
            json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        ).hexdigest()

    @property
    def name(self) -> str:
        """The name a spec gives."""
        return self.document.name

    @property
    def title(self) -> str:
        """The name a person reads."""
        return self.document.title

    @property
    def family(self) -> str:
        """The device family that shares calibrated efficiencies."""
        return self.document.family

    @property
    def vendor(self) -> str:
        """Vendor, in lower case."""
        return self.document.vendor.lower()

    @property
    def generation(self) -> str:
        """Generation of the chip, as its maker counts; empty where the profile doesn't say it."""
        return self.document.generation

    @property
    def lacks(self) -> Mapping[str, str]:
        """Features that its vendor's software has and this chip does not, with the reason."""
        return self.document.lacks

    @property
    def default_device(self) -> str:
        """The chip grade taken when the spec names none."""
        return self.document.default_device

    @property
    def mfu_peak_note(self) -> str:
        """Peak that MFU is counted against, and why."""
        return self.document.mfu_peak_note

    @cached_property
    def devices_per_npu(self) -> int:
        """Ranks of one card."""
        return int(self.document.devices_per_npu.value)

    @cached_property
    def npus_per_node(self) -> int:
        """Cards of one node."""
        return int(self.document.npus_per_node.value)

    @cached_property
    def ranks_per_node(self) -> int:
        """Ranks of one node."""
        return self.devices_per_npu * self.npus_per_node

    @cached_property
    def supernode_nodes(self) -> int | None:
        """Nodes of one full supernode; None where there are no supernodes."""
        nodes = self.document.supernode_nodes
        return None if nodes is None else int(nodes.value)

    @cached_property
    def devices(self) -> Mapping[str, Device]:
        """Chip grades by name."""
        return {name: Device.of(name, document) for name, document in self.document.devices.items()}

    def device(self, name: str | None = None) -> Device:
        """The named chip grade, or the default one; ProfileError lists the known ones."""
        wanted = self.default_device if name is None else name
        if wanted not in self.devices:
            close = get_close_matches(wanted.upper(), self.devices, n=1)
            names = ", ".join(self.devices)
            hint = Message("common.did_you_mean", names=close[0]) if close else Message("common.one_of", names=names)
            raise ProfileError(
                Message("common.there_is_no", what=Message("label.device"), name=repr(wanted)),
                path="/device",
                hint=hint,
            )
        return self.devices[wanted]

    @cached_property
    def tiers(self) -> tuple[Tier, ...]:
        """Levels of the interconnect, innermost first."""
        return tuple(self._tier(tier, self.document.ranks_spanned(tier.span)) for tier in self.document.tiers)

    def _tier(self, document: TierDocument, ranks: int | None) -> Tier:
        """The document's units in SI and its card rate as a rank's, oversubscription taken off."""
        oversubscription = document.oversubscription.value if document.oversubscription else 1.0
        links = 1 if ranks is None else ranks - 1
        return Tier(
            document.name,
            bytes_per_s=document.gb_per_s_per_npu.value * GIGA / self.devices_per_npu / oversubscription,
            links=links if document.kind == "full_mesh" else 0,
            latency_s=document.latency_us.value * MICRO,
            efficiency=document.efficiency.value,
            half_size_bytes=document.half_size_mib.value * MIB if document.half_size_mib else 0.0,
            ranks=ranks,
            leaf_nodes=int(document.leaf_nodes.value) if document.leaf_nodes else None,
            leaf_oversubscription=document.leaf_oversubscription.value if document.leaf_oversubscription else 1.0,
        )

    def tier(self, name: str) -> Tier:
        """The tier of this name; ProfileError lists the known ones."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        names = ", ".join(tier.name for tier in self.tiers)
        raise ProfileError(
            Message("field_fault.is_invalid", value=repr(name)),
            path="/tiers",
            hint=Message("common.one_of", names=names),
        )

    @cached_property
    def host(self) -> Host:
        """The host side."""
        return Host.of(self.document.host)

    @cached_property
    def fixed_costs(self) -> FixedCosts:
        """Fixed time of an operator by class."""
        return FixedCosts.of(self.document.fixed_costs)

    @cached_property
    def memory(self) -> MemoryOverheads:
        """Bytes beside the model's."""
        return MemoryOverheads.of(self.document.memory)

    @cached_property
    def efficiency(self) -> Mapping[str, float]:
        """Every efficiency of `efficiencies.EFFICIENCY_TERMS` by name."""
        return {name: quantity.value for name, quantity in self.document.efficiency.items()}

    @cached_property
    def release_factors(self) -> Mapping[str, float]:
        """Multiplier on compute time by software release band."""
        return {name: quantity.value for name, quantity in self.document.release_factors.items()}

    @property
    def covariance(self) -> Covariance | None:
        """Joint uncertainty of the fitted numbers; None where none were fitted."""
        return self.document.covariance

    @cached_property
    def quantities(self) -> Mapping[str, Quantity]:
        """Every number with unit, kind and source, by dotted path."""
        return quantities(self.document)

    def quantity(self, path: str) -> Quantity:
        """The number at a dotted path such as `scale_out.gb_per_s_per_npu`; ProfileError when there is none."""
        return find_quantity(self.quantities, path)
