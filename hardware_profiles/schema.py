"""The schema of a hardware profile: one YAML document a system, every number with unit, kind and source.

Bandwidths are one way. A field's unit is fixed and a number written in another unit is refused, never converted.
`profile.Profile` holds the same numbers as plain floats in SI units, which is what the formulas read.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from autodeploy.messages import Message
from hardware_profiles.covariance import Covariance
from hardware_profiles.efficiencies import EFFICIENCY_TERMS, EfficiencyTerm
from hardware_profiles.evidence import Evidence
from hardware_profiles.magnitudes import LEAST, MOST, Extent, ProfileNumber
from hardware_profiles.older_names import renewed, renewed_value

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["datasheet", "measured", "fitted", "assumed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the strongest to the weakest ground a number can rest on."""

TierKind = Literal["full_mesh", "switch", "p2p"]
Identifier = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
TierName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
Text = Annotated[str, Field(min_length=1, max_length=2000)]
FeatureName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z][a-z0-9_]*$")]
MeasuredAxis = Literal["m", "n", "k", "groups", "head_dim", "seq", "ranks", "bytes"]
Range = tuple[Extent, Extent]

RESERVED_TIER_NAMES = frozenset(
    {"devices", "tiers", "host", "fixed_costs", "efficiency", "release_factors", "memory", "covariance", "evidence"}
)
"""Sections of the document: a dotted path that starts with one of these does not mean a tier."""


FIELDS_ERROR = "fields"
"""Type of a pydantic error whose context lists, under `findings`, what a check over several fields found."""


class Finding(NamedTuple):
    """Fault of one field: its location below the model that checks, the message and a hint."""

    location: tuple[str | int, ...]
    message: str
    hint: str = ""


def _refuse(findings: list[Finding]) -> None:
    """Raise a pydantic error that carries the location of every finding; nothing when there is none."""
    if findings:
        text = "; ".join(finding.message for finding in findings)
        raise PydanticCustomError(FIELDS_ERROR, "{text}", {"text": text, "findings": findings})


class Document(BaseModel):
    """A frozen part of the profile that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class Quantity(Document):
    """One number with its unit, the ground it rests on and where it comes from.

    `source` holds keys of the profile's `sources`, or a text of several words. `prior_sigma` is the relative standard
    deviation before calibration (efficiencies only). `measured_over` says over which shapes or sizes the number, or the
    curve it belongs to, was measured: lowest and highest by axis (m, n, k, groups, head_dim, seq, ranks, bytes).
    """

    value: Annotated[float, Field(strict=True)]
    unit: Annotated[str, Field(min_length=1, max_length=32)]
    kind: Kind
    source: Annotated[tuple[Text, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=16)]
    note: Annotated[str, Field(max_length=2000)] = ""
    prior_sigma: Annotated[ProfileNumber, Field(le=5)] | None = None
    measured_over: dict[MeasuredAxis, Range] | None = None

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        for axis, (low, high) in (self.measured_over or {}).items():
            if low > high:
                raise ValueError(
                    Message(
                        "common.place",
                        place=f"measured_over {axis}",
                        message=Message("common.exceeds", one=f"{low:g}", other=f"{high:g}"),
                    )
                )
        return self


def _quantity_in(
    unit: str, *, low: float = LEAST, high: float = MOST, whole: bool = False
) -> Callable[[Quantity], Quantity]:
    """A validator: the quantity stands in `unit`, from `low` to `high`, whole if asked."""

    def check(quantity: Quantity) -> Quantity:
        if quantity.unit != unit:
            raise ValueError(Message("profiles.other_unit", given=repr(quantity.unit), wanted=repr(unit)))
        if not low <= quantity.value <= high:
            raise ValueError(
                Message("common.is_outside", value=f"{quantity.value:g}", range=f"[{low:g}, {high:g}] {unit}")
            )
        if whole and quantity.value != int(quantity.value):
            raise ValueError(Message("field_fault.is_no_whole_number", value=quantity.value))
        return quantity

    return check


Teraflops = Annotated[Quantity, AfterValidator(_quantity_in("TFLOPS"))]
Gibibytes = Annotated[Quantity, AfterValidator(_quantity_in("GiB"))]
Mebibytes = Annotated[Quantity, AfterValidator(_quantity_in("MiB", low=0.0))]
RuntimeGibibytes = Annotated[Quantity, AfterValidator(_quantity_in("GiB", low=0.0))]
GigabytesPerSecond = Annotated[Quantity, AfterValidator(_quantity_in("GB/s"))]
Microseconds = Annotated[Quantity, AfterValidator(_quantity_in("us", low=0.0))]
Fraction = Annotated[Quantity, AfterValidator(_quantity_in("fraction", high=1.0))]
SpareFraction = Annotated[Quantity, AfterValidator(_quantity_in("fraction", high=0.9, low=0.0))]
Ratio = Annotated[Quantity, AfterValidator(_quantity_in("ratio", low=1.0, high=1e3))]
PositiveRatio = Annotated[Quantity, AfterValidator(_quantity_in("ratio", high=1e2))]
Cores = Annotated[Quantity, AfterValidator(_quantity_in("cores", whole=True))]
Dies = Annotated[Quantity, AfterValidator(_quantity_in("dies", high=64, whole=True))]
Npus = Annotated[Quantity, AfterValidator(_quantity_in("NPU", high=4096, whole=True))]
Nodes = Annotated[Quantity, AfterValidator(_quantity_in("nodes", high=65536, whole=True))]


class Source(Document):
    """Source of numbers; `secondary`: read in notes or news about the original, not in the original."""

    title: Text
    url: Annotated[str, Field(max_length=2000)] | None = None
    note: Annotated[str, Field(max_length=2000)] | None = None
    secondary: bool = False


class PeakTflops(Document):
    """Peak of the matrix unit (cube, tensor core) by number format, dense; what the roofline uses."""

    bf16: Teraflops
    fp16: Teraflops
    fp32: Teraflops
    int8: Teraflops | None = None
    fp8: Teraflops | None = None


INFORMATIVE: Final = frozenset({"marketing_tflops", "vector_tflops", "l2_mib"})
"""Numbers of a device that no formula reads."""


class DeviceDocument(Document):
    """One chip grade, per rank: a card, or one die of a card with several.

    `marketing_tflops`, `vector_tflops` and `l2_mib` inform and are read by no formula: vector operators of a training
    step (norms, activations, softmax of the loss, Adam) do a few operations a byte, an order below what the vector
    units do while a byte arrives from memory, and are priced by their bytes.
    """

    peak_tflops: PeakTflops
    marketing_tflops: Teraflops | None = None
    vector_tflops: Teraflops
    hbm_gib: Gibibytes
    usable_hbm_gib: Gibibytes
    hbm_gb_per_s: GigabytesPerSecond
    cube_cores: Cores | None = None
    l2_mib: Mebibytes | None = None

    @model_validator(mode="after")
    def _usable_fits(self) -> Self:
        usable, whole = self.usable_hbm_gib.value, self.hbm_gib.value
        if usable > whole:
            _refuse(
                [
                    Finding(
                        ("usable_hbm_gib",),
                        Message("common.exceeds", one=f"{usable:g}", other=f"hbm_gib {whole:g}"),
                    )
                ]
            )
        return self


class TierDocument(Document):
    """One level of the interconnect. `span` says what one instance of it joins.

    `gb_per_s_per_npu`: wire rate of one card, one way, all its links of this tier in use; on a full mesh the sum of
    the links to all other ranks. `efficiency`: share of the wire that large collectives reach. `half_size_mib`:
    what a rank receives in one pass over all its links of the tier when half of that is reached, beyond the latency
    and the fixed cost of a collective. A reduce-scatter, an all-gather and a send are one pass, an all-reduce two; an
    All-to-All, which splits its message over the peers, one a step. Absent: 0. `latency_us`: per step of an algorithm.
    `oversubscription`: of the whole tier. `leaf_nodes` and `leaf_oversubscription`, on the outermost tier and together:
    nodes below one leaf switch reach each other at the full rate, and all of them share its uplinks, which carry
    1 / `leaf_oversubscription` of that. Absent: no leaf is narrower than what is below it.
    """

    name: TierName
    kind: TierKind
    span: Literal["npu", "node", "supernode", "cluster"]
    gb_per_s_per_npu: GigabytesPerSecond
    latency_us: Microseconds
    efficiency: Fraction
    half_size_mib: Mebibytes | None = None
    oversubscription: Ratio | None = None
    leaf_nodes: Nodes | None = None
    leaf_oversubscription: Ratio | None = None

    @model_validator(mode="after")
    def _leaf_is_whole(self) -> Self:
        if (self.leaf_nodes is None) != (self.leaf_oversubscription is None):
            raise ValueError(Message("profiles.leaf_together"))
        if self.leaf_nodes is None or self.leaf_oversubscription is None:
            return self
        if self.span != "cluster":
            raise ValueError(Message("profiles.tier_spans_no_leaf", span=self.span))
        if self.leaf_nodes.value < 1 or self.leaf_nodes.value % 1 or self.leaf_oversubscription.value < 1:
            raise ValueError(Message("profiles.leaf_numbers"))
        return self


class HostDocument(Document):
    """The host side. "Device" is a rank: a die where a card has several.

    `numa_nodes_per_node`: memory domains. `remote_memory_ratio`: latency of another domain's memory against the own
    one's. `issue_memory_share`: share of issuing an operator that waits for memory. Without all three, binding cores
    changes nothing. `issue_us_per_op`: on cores that are not bound. `memory_gb_per_s_per_node`: of the host's memory.
    `core_time_ratio`: time of one of its cores for a pass over arrays, against that of an x86 server core.
    `devices_per_host_link`: devices behind one switch, which share its bandwidth when all swap at once;
    `host_link_gb_per_s` is what one of them gets alone.
    """

    cores_per_device: Cores
    host_link_gb_per_s: GigabytesPerSecond
    host_memory_gib_per_node: Gibibytes
    issue_us_per_op: Microseconds
    sync_us: Microseconds
    numa_nodes_per_node: Nodes | None = None
    remote_memory_ratio: Ratio | None = None
    issue_memory_share: Fraction | None = None
    devices_per_host_link: Dies | None = None
    memory_gb_per_s_per_node: GigabytesPerSecond | None = None
    core_time_ratio: PositiveRatio | None = None


class FixedCostsDocument(Document):
    """Time an operator takes on the device before it does any work."""

    cube_op_us: Microseconds
    vector_op_us: Microseconds
    comm_op_us: Microseconds


class MemoryDocument(Document):
    """Bytes on the card beyond what the model accounts for.

    `runtime_gib`: driver and runtime, outside the framework's allocator. `fragmentation`: share of the allocator's
    peak; `fragmentation_fixed_segments`: the same where its segments do not grow (`expandable_segments:False`), absent:
    no other. `communicator_buffer_mib`: per communicator a rank is in.
    """

    runtime_gib: RuntimeGibibytes
    fragmentation: SpareFraction
    fragmentation_fixed_segments: SpareFraction | None = None
    communicator_buffer_mib: Mebibytes


class EnvironmentVariable(Document):
    """One variable that a launch on this chip sets; `when`: only for strategies that this condition holds for.

    `worth`: what it buys against leaving it unset, and by what right that is said.
    """

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Z][A-Z0-9_]*$")]
    value: Annotated[str, Field(max_length=500)]
    when: Annotated[str, Field(max_length=500)] = ""
    worth: Annotated[str, Field(max_length=200, pattern=r"^[^#\n]*$")] = ""


class JobSelector(Document):
    """Selectors of an AscendJob for nodes of this chip: label `ring-controller.atlas` and node selector."""

    label: Text
    accelerator_type: Text


class RecordNames(Document):
    """Names under which published runs know this system, as regular expressions on words joined by underscores.

    `same`: they mean it. `generation`, `maker`: other systems to which it is the nearest, by generation and by maker.
    `grades`, `nearest_grades`: the same of its chip grades.
    """

    same: tuple[Text, ...] = ()
    generation: tuple[Text, ...] = ()
    maker: tuple[Text, ...] = ()
    grades: dict[Identifier, tuple[Text, ...]] = {}
    nearest_grades: dict[Identifier, tuple[Text, ...]] = {}


class CalibrationOrigin(Document):
    """Source of the shipped efficiencies of a system.

    `fitted`: records of its own. `factors_of`: the profile whose fitted factors it takes over. `spread_of`: the family
    whose errors its predictions are given.
    """

    fitted: bool = False
    factors_of: Identifier | None = None
    spread_of: Identifier | None = None


def default_efficiency(term: EfficiencyTerm) -> Quantity:
    """The quantity that stands in for an efficiency a profile leaves out."""
    return Quantity(
        value=term.default,
        unit=term.unit,
        kind="assumed",
        source=("default of the schema",),
        prior_sigma=term.prior_sigma,
    )


def _complete_efficiencies(given: dict[str, Quantity]) -> dict[str, Quantity]:
    """Check the names, units and ranges given, and fill in the defaults of those that are not."""
    findings = []
    for older in [name for name in given if renewed(name) != name]:
        quantity = given.pop(older)
        value = renewed_value(older, quantity.value)
        given.setdefault(renewed(older), quantity.model_copy(update={"value": value, "prior_sigma": None}))
    for name, quantity in given.items():
        term = EFFICIENCY_TERMS.get(name)
        if term is None:
            close = get_close_matches(name, EFFICIENCY_TERMS, n=1)
            hint = (
                Message("common.did_you_mean", names=repr(close[0]))
                if close
                else Message("common.one_of", names=", ".join(EFFICIENCY_TERMS))
            )
            findings.append(Finding((name,), Message("common.unknown_key", name=repr(name)), hint))
            continue
        try:
            _quantity_in(term.unit, low=0.0 if term.may_be_zero else LEAST, high=term.upper)(quantity)
        except ValueError as error:
            findings.append(Finding((name,), str(error), term.meaning))
    _refuse(findings)
    complete = {}
    for name, term in EFFICIENCY_TERMS.items():
        quantity = given.get(name, default_efficiency(term))
        sigma = quantity.prior_sigma if quantity.prior_sigma is not None else term.prior_sigma
        complete[name] = quantity.model_copy(update={"prior_sigma": sigma})
    return complete


class ProfileDocument(Document):
    """A hardware profile as its YAML file says it.

    `generation`: of the chip, as its maker counts. `lacks`: features that the vendor's software has and this chip does
    not, each with the reason. `environment`: what a launch sets on it.
    """

    name: Identifier
    title: Text
    family: Identifier
    vendor: Text
    generation: Annotated[str, Field(max_length=64)] = ""
    lacks: Annotated[dict[FeatureName, Text], Field(max_length=64)] = {}
    environment: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=64)] = ()
    ascendjob: JobSelector | None = None
    record_names: RecordNames = RecordNames()
    calibration: CalibrationOrigin = CalibrationOrigin()
    default_device: Identifier
    mfu_peak_note: Annotated[str, Field(max_length=2000)] = ""
    devices_per_npu: Dies
    npus_per_node: Npus
    supernode_nodes: Nodes | None = None
    devices: Annotated[dict[Identifier, DeviceDocument], Field(min_length=1, max_length=32)]
    tiers: Annotated[tuple[TierDocument, ...], Field(min_length=1, max_length=8)]
    host: HostDocument
    fixed_costs: FixedCostsDocument
    efficiency: Annotated[dict[str, Quantity], AfterValidator(_complete_efficiencies)]
    release_factors: Annotated[dict[Identifier, PositiveRatio], Field(max_length=32)] = {}
    memory: MemoryDocument
    covariance: Covariance | None = None
    evidence: Evidence | None = None
    sources: Annotated[dict[Identifier, Source], Field(max_length=200)] = {}

    def ranks_spanned(self, span: str) -> int | None:
        """Ranks that one instance of a tier of this span joins; None for the whole cluster."""
        per_npu = int(self.devices_per_npu.value)
        per_node = per_npu * int(self.npus_per_node.value)
        match span:
            case "npu":
                return per_npu
            case "node":
                return per_node
            case "supernode" if self.supernode_nodes is not None:
                return per_node * int(self.supernode_nodes.value)
        return None

    @model_validator(mode="after")
    def _default_device_is_known(self) -> Self:
        if self.default_device not in self.devices:
            message = Message("field_fault.is_invalid", value=repr(self.default_device))
            _refuse([Finding(("default_device",), message, Message("common.one_of", names=", ".join(self.devices)))])
        return self

    @model_validator(mode="after")
    def _tiers_nest(self) -> Self:
        findings = []
        seen: set[str] = set()
        inner = 1
        for index, tier in enumerate(self.tiers):
            if tier.name in seen:
                findings.append(Finding(("tiers", index, "name"), Message("common.given_twice", name=repr(tier.name))))
            if tier.name in RESERVED_TIER_NAMES:
                findings.append(
                    Finding(("tiers", index, "name"), Message("profiles.is_section_of_profile", name=repr(tier.name)))
                )
            seen.add(tier.name)
            ranks = self.ranks_spanned(tier.span)
            if message := self._span_problem(tier.span, ranks, inner, last=index == len(self.tiers) - 1):
                findings.append(
                    Finding(("tiers", index, "span"), message, Message("profiles.tiers_stand_innermost_first"))
                )
            inner = ranks or inner
        _refuse(findings)
        return self

    def _span_problem(self, span: str, ranks: int | None, inner: int, *, last: bool) -> str:
        if last:
            return "" if span == "cluster" else Message("field_fault.is_invalid", value=repr(span))
        if span == "supernode" and self.supernode_nodes is None:
            return Message("common.it_needs_field", name="supernode_nodes")
        if ranks is None or ranks <= inner:
            return Message("field_fault.is_invalid", value=repr(span))
        return ""
