"""Free parameters of each device family: at most ten, each with a physical meaning, none per model or record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.calibration.fit import FitParameter

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMMON = (
    FitParameter("gemm", ("gemm_peak_fraction",), 0.20, "rate of large matrix multiplications"),
    FitParameter("attention", ("attention_forward", "attention_backward"), 0.35, "rate of flash attention"),
    FitParameter("hbm", ("hbm",), 0.30, "streaming rate of vector operators"),
)

# A network that no run has measured: rate of collectives on each of its tiers.
LINK_SIGMA = 0.30

PARAMETERS: dict[str, tuple[FitParameter, ...]] = {
    "ascend-910b": (
        *_COMMON,
        FitParameter("mesh", ("link_hccs",), 0.30, "rate of collectives on the full mesh of a node"),
        FitParameter("roce", ("link_scale_out",), 0.30, "rate of collectives between nodes"),
        FitParameter("grouped", ("grouped_gemm",), 0.35, "grouped against plain matrix multiplication"),
        FitParameter("permute", ("permute",), 0.60, "rate of gather and scatter"),
        FitParameter(
            "operator",
            ("vector_op",),
            0.50,
            "fixed cost of a vector operator, with the small ones around it that the table does not list",
        ),
        FitParameter(
            "software_2024",
            ("release_early_2024", "release_mid_2024", "release_mindformers"),
            0.20,
            "time of the software of 2024: MindSpeed-LLM before 1.0.0 and MindFormers before 1.5",
        ),
        FitParameter(
            "nodes_2024",
            ("release_early_2024_per_doubling", "release_mid_2024_per_doubling"),
            0.03,
            "what every doubling of the nodes costs MindSpeed-LLM's release candidates, before 1.0.0",
        ),
    ),
    # Priors of streams and of links inside a node are measurements of the sibling A800 and simulators' ranges.
    "nvidia-a100": (
        *_COMMON[:2],
        FitParameter("hbm", ("hbm",), 0.10, "streaming rate of vector operators"),
        FitParameter("nvlink", ("link_nvlink",), 0.10, "rate of collectives inside a node"),
        FitParameter("nic", ("link_scale_out",), 0.30, "rate of collectives between nodes"),
        FitParameter(
            "gemm_depth", ("gemm_k_half",), 0.50, "depth at which a matrix multiplication loses half its rate"
        ),
    ),
    "nvidia-h100": (
        *_COMMON,
        FitParameter("grouped", ("grouped_gemm",), 0.35, "grouped against plain matrix multiplication"),
    ),
}


def known_parameters(family: str) -> tuple[FitParameter, ...]:
    """Free parameters of a family; of one that was never fitted, those that all devices have."""
    return PARAMETERS.get(family, _COMMON)


def link_parameters(tiers: Iterable[str]) -> tuple[FitParameter, ...]:
    """One factor for each of these tiers, as uncertain as where nothing measured it."""
    return tuple(
        FitParameter(f"link_{tier}", (f"link_{tier}",), LINK_SIGMA, "rate of collectives on this tier")
        for tier in tiers
    )
