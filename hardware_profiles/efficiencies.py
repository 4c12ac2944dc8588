"""The efficiencies that the formulas read: every name, its meaning, unit, default and prior, in one place.

A profile may leave any of them out; the default then stands in with kind "assumed". `prior_sigma` is the relative
standard deviation that calibration gives the number before it has seen a record.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EfficiencyTerm:
    """Meaning of one named efficiency.

    `unit` is "fraction" (of the peak named in `meaning`, 0 < value <= `upper`), a count, a "ratio" to another number of
    the profile, or the unit of a half-saturation size: the size x_half in 1 / (1 + x_half / x), at which half of the
    peak is reached.
    """

    name: str
    meaning: str
    unit: str
    default: float
    prior_sigma: float
    upper: float = 1.0
    may_be_zero: bool = False


_HALF_SIZE_LIMIT = 1e6
_LONGEST = 1e2  # times a host number of the profile

EFFICIENCY_TERMS: dict[str, EfficiencyTerm] = {
    term.name: term
    for term in (
        EfficiencyTerm(
            "gemm_peak_fraction",
            "c of the GEMM curve c / (1 + k_half/K + mn_half/M + mn_half/N): share of the matrix peak that an "
            "unboundedly large GEMM reaches",
            "fraction",
            0.90,
            0.08,
        ),
        EfficiencyTerm(
            "gemm_k_half",
            "k_half of the GEMM curve: reduction length K at which the term halves the rate",
            "elements",
            420.0,
            0.40,
            upper=_HALF_SIZE_LIMIT,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "gemm_mn_half",
            "mn_half of the GEMM curve: output rows M or columns N at which the term halves the rate",
            "elements",
            30.0,
            0.60,
            upper=_HALF_SIZE_LIMIT,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "gemm_units",
            "matrix units of a device that compute output tiles of a plain GEMM in waves, for which the GEMM curve's "
            "mn_half then does not count; 0: waves are not modelled",
            "units",
            0.0,
            0.01,
            upper=_HALF_SIZE_LIMIT,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "grouped_gemm",
            "rate of a grouped expert GEMM relative to plain GEMMs of its groups' shape",
            "fraction",
            1.0,
            0.15,
        ),
        EfficiencyTerm(
            "grouped_gemm_exposed",
            "share of the time to store results, or to add them to sums in memory, that a grouped GEMM does not hide "
            "behind its products, where there are many groups",
            "fraction",
            0.4,
            0.60,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "expert_rate",
            "rate of the operators that route tokens to experts and run them, under the newest release, against what "
            "their shapes give",
            "ratio",
            1.0,
            0.20,
            upper=4.0,
        ),
        EfficiencyTerm(
            "attention_forward",
            "flash attention forward: share of the matrix peak on the FLOPs executed (causal: the lower triangle), at "
            "head dimension 128 and long sequences",
            "fraction",
            0.60,
            0.15,
        ),
        EfficiencyTerm(
            "attention_backward",
            "flash attention backward: the same share, on the FLOPs executed, its recomputed scores included",
            "fraction",
            0.50,
            0.15,
        ),
        EfficiencyTerm(
            "attention_of_torch",
            "rate of the flash attention that PyTorch's scaled_dot_product_attention runs, against the kernels that "
            "the other two numbers are of",
            "fraction",
            1.0,
            0.10,
        ),
        EfficiencyTerm(
            "attention_head_dim_half",
            "head dimension d_half in (1 + d_half/128) / (1 + d_half/d), which scales attention away from head "
            "dimension 128",
            "elements",
            64.0,
            0.50,
            upper=_HALF_SIZE_LIMIT,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "attention_seq_half",
            "sequence length s_half in 1 / (1 + s_half/s), which scales attention on short sequences",
            "tokens",
            512.0,
            0.70,
            upper=_HALF_SIZE_LIMIT,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "hbm", "share of the HBM bandwidth that streaming vector operators reach", "fraction", 0.80, 0.10
        ),
        EfficiencyTerm(
            "hbm_operands",
            "share of the HBM bandwidth at which matrix kernels stream operands and results",
            "fraction",
            0.90,
            0.08,
        ),
        EfficiencyTerm(
            "permute",
            "share of the HBM bandwidth that token permute and unpermute (gather, scatter) reach",
            "fraction",
            0.20,
            0.50,
        ),
        EfficiencyTerm("permute_fused", "the same of one kernel that permutes whole rows", "fraction", 0.20, 0.50),
        EfficiencyTerm(
            "dispatch_loss",
            "by how much the dispatch of tokens to experts slows per doubling of a tier's ranks beyond 8: its "
            "rate falls to 1 / (1 + this log2(ranks / 8))",
            "fraction",
            0.0,
            0.70,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "combine_loss",
            "the same of the combine, which returns the experts' rows",
            "fraction",
            0.0,
            0.70,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "device_scatter",
            "standard deviation of one device's speed around the mean of its kind, hosts included: all wait for the "
            "slowest, so that computation takes 1 + this (m(devices) - m(devices of a node)) times as long, m the "
            "expected largest of so many standard normal variables; releases with a factor of their own go by that",
            "fraction",
            0.015,
            0.45,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "message_half_size",
            "times the half size of every tier: the bytes a rank receives in one pass over the tier when half of the "
            "rate of large messages is reached",
            "ratio",
            1.0,
            0.70,
            upper=_HALF_SIZE_LIMIT,
            may_be_zero=True,
        ),
        EfficiencyTerm(
            "host_issue",
            "time in which the host issues an operator, against host.issue_us_per_op",
            "ratio",
            1.0,
            0.40,
            upper=_LONGEST,
        ),
        EfficiencyTerm(
            "host_sync",
            "round trip of a synchronisation of host and device, against host.sync_us",
            "ratio",
            1.0,
            0.90,
            upper=_LONGEST,
        ),
        EfficiencyTerm(
            "exchange_beside",
            "rate of an expert exchange that runs beside computation against its rate alone (cores and HBM are shared)",
            "fraction",
            1.0,
            0.20,
        ),
        EfficiencyTerm(
            "link_overlap_contention",
            "a collective that runs beside computation takes 1 + this times as long (cores and HBM are shared)",
            "fraction",
            0.05,
            0.50,
            may_be_zero=True,
        ),
    )
}


def limited(name: str, value: float) -> float:
    """A number under this name, no higher than the efficiency's limit where it is one."""
    return min(value, EFFICIENCY_TERMS[name].upper) if name in EFFICIENCY_TERMS else value
