"""A profile of the machine this runs on, its processors as the devices: what a spec needs before anything is measured.

Cores and memory are the system's own words; rates are upper bounds from clock and vector width, and shares of them are
assumed with wide priors until `autodeploy calibrate` reads a probe. One rank is one process with its share of cores.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodeploy.kit.yaml_text import profile_text

# Multiply-adds in FP32 that a core can begin in a cycle, times two: two units as wide as the widest vectors it knows.
# Source: Intel 64 and IA-32 optimization manual, FP32 FMA throughput; Arm Neoverse V1 guide for Advanced SIMD.
FLOPS_PER_CYCLE = {"avx512f": 64.0, "avx2": 32.0, "asimd": 32.0}
PLAIN_FLOPS_PER_CYCLE = 8.0
CLOCK_MHZ = 3000.0  # where the system does not say
TURBO = 1.5  # of the clock that it says, which is often the base clock
BYTES_PER_S_PER_CORE = 40e9  # more than one core reads, caches included
# The heap keeps what a step frees; returned to the system, a twentieth of the next step goes into touching it again.
# Source: mallopt(3); PyTorch's performance tuning guide, which keeps memory by jemalloc's decay times.
ENVIRONMENT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30)}
FIXED_COSTS_US = {"cube_op_us": 5.0, "vector_op_us": 5.0, "comm_op_us": 50.0}
SHARES = {
    "gemm_peak_fraction": (0.4, "fraction"),
    "gemm_k_half": (30.0, "elements"),
    "gemm_mn_half": (15.0, "elements"),
    "attention_forward": (0.15, "fraction"),
    "attention_backward": (0.15, "fraction"),
    "attention_seq_half": (50.0, "tokens"),
    "hbm": (0.25, "fraction"),
    "permute": (0.1, "fraction"),
}
NAME = "own-cpu"
DEVICE = "CPU"


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """Facts of the system's processors. `flops_per_cycle` : FP32, of one core."""

    title: str
    cores: int
    memory_bytes: float
    clock_mhz: float
    flops_per_cycle: float


def facts() -> CpuFacts:
    """Of this machine."""
    lines: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    if path.is_file():
        pairs = (line.partition(":") for line in path.read_text(encoding="utf-8", errors="replace").splitlines())
        for name, _, value in pairs:
            lines.setdefault(name.strip(), value.strip())
    cpu_flags = set((lines.get("flags") or lines.get("Features") or "").split())
    wide = next((rate for name, rate in FLOPS_PER_CYCLE.items() if name in cpu_flags), PLAIN_FLOPS_PER_CYCLE)
    try:
        clock = float(lines.get("cpu MHz", CLOCK_MHZ))
    except ValueError:
        clock = CLOCK_MHZ
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    return CpuFacts(lines.get("model name") or platform.machine(), cores, memory, clock, wide)


def profile_yaml(cpu: CpuFacts, processes: int = 1) -> str:
    """`profile_document` as the text of a file."""
    heading = f"{cpu.title}: made by `autodeploy profiles this-machine`; rates are bounds until a probe is read."
    return profile_text(profile_document(cpu, processes), heading)


def profile_document(cpu: CpuFacts, processes: int = 1) -> dict[str, Any]:
    """The profile of a machine on which `processes` ranks share the cores and the memory, as its YAML says it."""
    cores = max(1, cpu.cores // processes)
    peak = cores * cpu.clock_mhz * 1e6 * TURBO * cpu.flops_per_cycle / 1e12
    memory = cpu.memory_bytes / processes / 2**30

    def assumed(value: float, unit: str, note: str = "") -> dict[str, Any]:
        notes = {"note": note} if note else {}
        return {"value": float(f"{value:.4g}"), "unit": unit, "kind": "assumed", "source": "own", **notes}

    def said(value: float, unit: str) -> dict[str, Any]:
        return {"value": float(f"{value:.4g}"), "unit": unit, "kind": "measured", "source": "the operating system"}

    bound = assumed(peak, "TFLOPS", "upper bound: clock with turbo, widest vectors, two units a core")
    return {
        "name": NAME,
        "title": f"{cpu.title}, {processes} x {cores} cores",
        "family": NAME,
        "vendor": "CPU",
        "default_device": DEVICE,
        "environment": [{"name": name, "value": value} for name, value in ENVIRONMENT.items()],
        "devices_per_npu": {**said(1, "dies"), "source": "a process is a rank"},
        "npus_per_node": {**said(processes, "NPU"), "source": "as asked for"},
        "devices": {
            DEVICE: {
                "peak_tflops": {number_format: dict(bound) for number_format in ("bf16", "fp16", "fp32")},
                "vector_tflops": bound,
                "hbm_gib": said(memory, "GiB"),
                "usable_hbm_gib": assumed(0.9 * memory, "GiB", "the rest is the system's"),
                "hbm_gb_per_s": assumed(cores * BYTES_PER_S_PER_CORE / 1e9, "GB/s", "upper bound, caches included"),
            }
        },
        "tiers": [
            {
                "name": "gloo",
                "kind": "switch",
                "span": "cluster",
                "gb_per_s_per_npu": assumed(10.0, "GB/s", "upper bound of sockets between processes"),
                "latency_us": assumed(50.0, "us"),
                "efficiency": assumed(0.2, "fraction"),
                "half_size_mib": assumed(0.25, "MiB"),
            }
        ],
        "host": {
            "cores_per_device": said(cores, "cores"),
            "host_link_gb_per_s": assumed(10.0, "GB/s", "host and device are one"),
            "host_memory_gib_per_node": said(cpu.memory_bytes / 2**30, "GiB"),
            "issue_us_per_op": assumed(0.0, "us", "the device issues its own operators: part of their fixed cost"),
            "sync_us": assumed(0.0, "us", "nothing runs beside the host"),
        },
        "fixed_costs": {name: assumed(value, "us") for name, value in FIXED_COSTS_US.items()},
        "efficiency": {name: {**assumed(*each), "prior_sigma": 1.0} for name, each in SHARES.items()},
        "memory": {
            "runtime_gib": assumed(0.03, "GiB"),
            "fragmentation": assumed(
                0.15, "fraction", "malloc of the C library, whose heap keeps what steps free in between"
            ),
            "communicator_buffer_mib": assumed(1.0, "MiB", "gloo has no buffers of its own beside a message"),
        },
        "sources": {"own": {"title": "Own judgement, or arithmetic on the other numbers"}},
    }
