"""The shipped profiles hold the published numbers, each with unit, kind and source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from autodeploy.calibration.benchmarks import collective_s
from autodeploy.costs.inputs.machine import machine_of
from cost_models.compute import tiled_efficiency
from hardware_profiles import EFFICIENCY_TERMS, KINDS, Profile, ProfileError, list_profiles, load_profile
from hardware_profiles.topology import cluster_topology

if TYPE_CHECKING:
    from autodeploy.specs.measured_run import Collective

NAMES = (
    *("ascend-800t-a2", "cloudmatrix-384", "nvidia-a100-80g", "nvidia-a800-80g"),
    *("nvidia-b200", "nvidia-h100", "nvidia-h20", "nvidia-h800"),
)


def published(name: str) -> Profile:
    """The profile's own numbers, without what calibration fits over them."""
    return load_profile(name, calibrated=False)


def test_the_shipped_profiles() -> None:
    assert list_profiles() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_number_has_unit_kind_and_source(name: str) -> None:
    profile = published(name)
    assert profile.name == name
    assert len(profile.quantities) > 40
    for path, quantity in profile.quantities.items():
        assert quantity.unit, path
        assert quantity.kind in KINDS, path
        assert quantity.source, path
        # Nothing published is left to a default of the schema.
        assert quantity.source != ("default of the schema",), path


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_all_used(name: str) -> None:
    profile = published(name)
    used = {source for quantity in profile.quantities.values() for source in quantity.source}
    assert set(profile.document.sources) <= used


@pytest.mark.parametrize(
    ("name", "device", "number_format", "tflops"),
    [
        ("ascend-800t-a2", "910B1", "bf16", 363.7),
        ("ascend-800t-a2", "910B1", "int8", 727.0),
        ("ascend-800t-a2", "910B2", "bf16", 353.9),
        ("ascend-800t-a2", "910B2", "int8", 707.9),
        ("ascend-800t-a2", "910B3", "bf16", 294.9),
        ("ascend-800t-a2", "910B4", "bf16", 245.8),
        ("ascend-800t-a2", "910B4-1", "bf16", 245.8),
        ("cloudmatrix-384", None, "bf16", 353.9),
        ("cloudmatrix-384", "910C-560T", "bf16", 245.8),
        ("nvidia-a100-80g", None, "bf16", 312.0),
        ("nvidia-h100", None, "fp8", 1979.0),
        ("nvidia-h800", None, "bf16", 989.0),
        ("nvidia-b200", None, "bf16", 2250.0),
        ("nvidia-b200", None, "fp8", 4500.0),
    ],
)
def test_peaks(name: str, device: str | None, number_format: str, tflops: float) -> None:
    assert published(name).device(device).peak_flops[number_format] == pytest.approx(tflops * 1e12, rel=1e-12)


@pytest.mark.parametrize(
    ("device", "cores", "gigahertz"), [("910B1", 24, 1.85), ("910B2", 24, 1.8), ("910B3", 20, 1.8), ("910B4", 20, 1.5)]
)
def test_cube_peak_is_cores_times_clock(device: str, cores: int, gigahertz: float) -> None:
    """8192 FLOP a cycle and cube core; the roofline peak is the cube's alone, without the vector cores."""
    chip = published("ascend-800t-a2").device(device)
    assert chip.peak_flops["bf16"] == pytest.approx(cores * 8192 * gigahertz * 1e9, rel=5e-4)
    assert chip.vector_flops == pytest.approx(cores * 2 * 256 * gigahertz * 1e9, rel=1e-2)
    assert chip.cube_cores == cores


@pytest.mark.parametrize(("name", "device"), [("ascend-800t-a2", "910B2"), ("ascend-800t-a2", "910B3")])
def test_marketing_peak_is_cube_plus_vector(name: str, device: str) -> None:
    chip = published(name).device(device)
    assert chip.marketing_flops == pytest.approx(chip.peak_flops["bf16"] + chip.vector_flops, rel=1e-3)


def test_fp8_is_absent_where_the_chip_has_none() -> None:
    for name in ("ascend-800t-a2", "cloudmatrix-384", "nvidia-a100-80g"):
        assert all("fp8" not in device.peak_flops for device in published(name).devices.values())


def test_memory_in_bytes() -> None:
    a2 = published("ascend-800t-a2")
    assert a2.device().hbm_bytes == 64 * 2**30
    assert a2.device().usable_hbm_bytes == 61 * 2**30
    assert a2.device().hbm_bytes_per_s == 1.6e12
    assert a2.device("910B4").hbm_bytes == 32 * 2**30
    assert a2.device("910B4").hbm_bytes_per_s == 0.8e12
    assert a2.device("910B4-1").hbm_bytes == 64 * 2**30
    assert a2.memory.communicator_buffer_bytes == 400 * 2**20


def test_tiers_of_the_800t_a2() -> None:
    profile = published("ascend-800t-a2")
    hccs, scale_out = profile.tiers
    assert (hccs.ranks, hccs.links, scale_out.links) == (8, 7, 0)
    assert hccs.bytes_per_s / hccs.links == 28e9
    assert (scale_out.name, scale_out.ranks, scale_out.bytes_per_s) == ("scale_out", None, 25e9)
    assert hccs.latency_s == 0.5e-6
    assert profile.supernode_nodes is None


def test_tiers_of_the_cloudmatrix_are_per_die() -> None:
    profile = published("cloudmatrix-384")
    assert (profile.devices_per_npu, profile.ranks_per_node, profile.supernode_nodes) == (2, 16, 48)
    assert [(t.name, t.ranks, t.bytes_per_s) for t in profile.tiers] == [
        ("die_pair", 2, 224e9),
        ("ub", 768, 196e9),
        ("scale_out", None, 25e9),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_efficiencies_are_complete_and_physical(name: str) -> None:
    profile = published(name)
    assert set(profile.efficiency) == set(EFFICIENCY_TERMS)
    for term in EFFICIENCY_TERMS.values():
        quantity = profile.quantity(f"efficiency.{term.name}")
        assert quantity.unit == term.unit
        assert 0 <= quantity.value <= term.upper
        assert quantity.prior_sigma == term.prior_sigma


def test_gemm_curve_is_the_fit_to_the_measured_shapes() -> None:
    """1 / fraction = (1 + k_half/K + mn_half (1/M + 1/N)) / c is linear; least squares on relative errors."""
    shapes = np.array(
        [
            [6912, 16384, 2048, 291.6],
            [2304, 5120, 1536, 272.6],
            [6144, 17920, 2816, 301.3],
            [14336, 4096, 4096, 317.3],
        ]
    )
    m, n, k, tflops = shapes.T
    profile = published("ascend-800t-a2")
    fraction = tflops / (profile.device("910B2").peak_flops["bf16"] / 1e12)
    design = np.stack([np.ones_like(k), 1 / k, 1 / m + 1 / n], axis=1)
    coefficients, *_ = np.linalg.lstsq(design * fraction[:, None], np.ones_like(k), rcond=None)
    peak_fraction = 1 / coefficients[0]
    assert profile.efficiency["gemm_peak_fraction"] == pytest.approx(peak_fraction, abs=5e-4)
    assert profile.efficiency["gemm_k_half"] == pytest.approx(coefficients[1] * peak_fraction, abs=0.5)
    assert profile.efficiency["gemm_mn_half"] == pytest.approx(coefficients[2] * peak_fraction, abs=0.1)
    assert profile.quantity("efficiency.gemm_k_half").kind == "fitted"
    predicted = 1 / (design @ coefficients)
    assert np.abs(predicted / fraction - 1).max() < 0.01


@pytest.mark.parametrize(("name", "best", "mean"), [("nvidia-a100-80g", 0.803, 0.705), ("nvidia-b200", 0.655, 0.488)])
def test_gemm_curve_of_gpus_spans_the_measured_range(name: str, best: float, mean: float) -> None:
    """Large shapes come near the best measured fraction, K = 2048 near the mean."""
    eff = published(name).efficiency

    def fraction(size_mn: float, size_k: float) -> float:
        if eff["gemm_units"]:  # waves of tiles, over widths about this one
            sizes = size_mn * np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0])
            shares = tiled_efficiency(sizes[:, None], sizes, size_k, eff["gemm_k_half"], eff["gemm_units"])
            return eff["gemm_peak_fraction"] * float(shares.mean())
        denominator = 1 + eff["gemm_k_half"] / size_k + 2 * eff["gemm_mn_half"] / size_mn
        return eff["gemm_peak_fraction"] / denominator

    assert fraction(8192, 8192) == pytest.approx(best, rel=0.05)
    assert fraction(8192, 2048) == pytest.approx(mean, rel=0.05)


def _seconds(profile: Profile, ranks: int, op: Collective, size: int) -> float:
    nodes = -(-ranks // profile.ranks_per_node)
    machine = machine_of(
        profile, profile.device(), cluster_topology(profile, num_npus=nodes * profile.npus_per_node), "bf16"
    )
    return collective_s(op, size, machine.group(1, ranks), machine)


@pytest.mark.parametrize(
    ("name", "ranks", "op", "mib", "seconds", "tolerance"),
    [
        # aliyun/SimAI: 0.45 of 300 GB/s on the wire.
        ("nvidia-a100-80g", 8, "all_reduce", 16, 217e-6, 0.15),
        # NVIDIA/nccl issue 1531: 64 H800 of eight nodes, out of place and in place.
        ("nvidia-h800", 64, "all_to_all", 8, 317e-6, 0.10),
    ],
)
def test_small_messages_take_what_was_measured(
    name: str, ranks: int, op: Collective, mib: int, seconds: float, tolerance: float
) -> None:
    assert _seconds(published(name), ranks, op, mib * 2**20) == pytest.approx(seconds, rel=tolerance)


def test_unknown_device_tier_and_number_are_named() -> None:
    profile = published("ascend-800t-a2")
    with pytest.raises(ProfileError, match="no chip grade '910b2'") as device:
        profile.device("910b2")
    assert "did you mean 910B2?" in device.value.hint
    with pytest.raises(ProfileError, match="invalid value 'ub'") as tier:
        profile.tier("ub")
    assert "hccs, scale_out" in tier.value.hint
    with pytest.raises(ProfileError, match="unknown key") as number:
        profile.quantity("scale_out.gb_per_s")
    assert "scale_out.gb_per_s_per_npu" in number.value.hint
    assert number.value.path == "/scale_out/gb_per_s"
