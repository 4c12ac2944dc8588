"""A folder of the Ascend profiler: what each table says, the page beside a plan, and how broken tables are refused.

The tables are made after CANN 8's "Timeline and Summary Data" (kernel_details.csv, operator_memory.csv), with the
trailing tab behind start times that real files have, and after the structure of communication.json in the tests of
msprof-analyze (mstt): sizes in MB, times in ms.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.trace_comparison import compare_trace, trace_page
from autodeploy.cli import main
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.formats.measurements.profiler_tables import (
    class_of,
    read_communication,
    read_kernel_details,
    read_operator_memory,
    read_profiler_output,
)
from autodeploy.kit.errors import SpecError
from cost_models.compute import gemm_s
from hardware_profiles import cluster_topology, load_profile
from tests import factories
from tests.support.pace import at_most

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KERNEL_TITLES = (
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),"
    "Wait Time(us),Block Dim,Mix Block Dim,HF32 Eligible,Input Shapes,Input Data Types,Input Formats,Output Shapes,"
    "Output Data Types,Output Formats,Context ID"
)
MEMORY_TITLES = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Duration(us),Active Duration(us),"
    "Allocation Total Allocated(MB),Allocation Total Reserved(MB),Allocation Total Active(MB),"
    "Release Total Allocated(MB),Release Total Reserved(MB),Release Total Active(MB),Stream Ptr,Device Type"
)
STEP_TRACE = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing\n"
    "0,1,900000,200000,100000,300000,50000,1000000,80000,120000,3\n"
)


def kernel(
    name: str,
    kind: str,
    us: float | str,
    inputs: str = "",
    outputs: str = "",
    *,
    types: str = "DT_BF16;DT_BF16",
    core: str = "AI_CORE",
    step: int = 1,
) -> str:
    return (
        f"{step},0,4294967295,5,2,{name},{kind},dynamic,{core},1750000000000000.027\t,{us},0,24,0,NO,"
        f'"""{inputs}""","{types}","ND;ND","""{outputs}""",DT_BF16,ND,N/A'
    )


def kernels(*rows: str) -> str:
    return "\n".join([KERNEL_TITLES, *rows]) + "\n"


LINEAR = kernel("aclnnMatmul_MatMulCommon_MatMulV2", "MatMulV2", 600, "4096,8192;8192,2048", "4096,2048")
TRANSPOSED = kernel("aclnnMatmul_MatMulCommon_MatMulV2", "MatMulV2", 600, "4096,8192;2048,8192", "4096,2048")
GROUPED = kernel("aclnnGroupedMatmulV4", "GroupedMatmul", 500, "1024,512;8,512,256", "1024,256")
BATCHED = kernel("aclnnBatchMatMul", "BatchMatMulV2", 500, "4,128,64;4,64,32", "4,128,32")
NORM = kernel("aclnnRmsNorm", "RmsNorm", 10, "4096,8192", "4096,8192", types="DT_BF16", core="AI_VECTOR_CORE")
EXCHANGE = kernel("hcom_allReduce__844_1_1", "hcom_allReduce_", 2000, core="HCCL", types="")


def exchange(size_mb: float, transit_ms: float, wait_ms: float = 1.0) -> dict[str, Any]:
    none = {
        "Transit Size(MB)": 0,
        "Transit Time(ms)": 0,
        "Bandwidth(GB/s)": 0,
        "Large Packet Ratio": 0,
        "Size Distribution": {},
    }
    used = none | {"Transit Size(MB)": size_mb, "Transit Time(ms)": transit_ms, "Size Distribution": {"16": [4, 1.0]}}
    return {
        "Communication Time Info": {
            "Start Timestamp(us)": 1713174287407957.0,
            "Elapse Time(ms)": transit_ms + wait_ms,
            "Transit Time(ms)": transit_ms,
            "Wait Time(ms)": wait_ms,
            "Synchronization Time(ms)": 0.5 * wait_ms,
            "Idle Time(ms)": 0.0,
            "Wait Time Ratio": 0.5,
            "Synchronization Time Ratio": 0.3,
        },
        "Communication Bandwidth Info": {"RDMA": none, "HCCS": used, "PCIE": none, "SDMA": used, "SIO": none},
    }


COMMUNICATION = {
    "step1": {
        "collective": {
            "hcom_allReduce__844_1_1@13681369207305868844": exchange(64.0, 2.0),
            "hcom_allReduce__844_2_1@13681369207305868844": exchange(64.01, 2.0, 3.0),
            "hcom_alltoallv__105_1_1@17209": exchange(8.0, 1.0),
            "Total Op Info": exchange(136.0, 5.0),
        },
        "p2p": {"hcom_send__310_3_1@9041": exchange(4.0, 0.2, 0.0)},
    }
}


def memory(*rows: str) -> str:
    return "\n".join([MEMORY_TITLES, *rows]) + "\n"


ALLOCATED = "aten::empty,1048576,1.5\t,2.5\t,2.5\t,1,1,30720.0,40960.0,30720.0,1024.0,40960.0,1024.0,1888,NPU:0"
SMALLER = "aten::empty,512,3\t,,,,,2048.0,4096.0,30.0,,,,1888,NPU:0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    output = tmp_path / "rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "step_trace_time.csv").write_text(STEP_TRACE)
    (output / "kernel_details.csv").write_text(kernels(LINEAR, LINEAR, GROUPED, BATCHED, NORM, EXCHANGE))
    (output / "communication.json").write_text(json.dumps(COMMUNICATION))
    (output / "operator_memory.csv").write_text(memory(ALLOCATED, SMALLER))
    return output


# -- the tables --------------------------------------------------------------------------------------------------------


def test_kernels_add_up_by_operator_and_shape() -> None:
    found = read_kernel_details(kernels(LINEAR, LINEAR, TRANSPOSED, NORM, LINEAR.replace("1,0,", "2,0,", 1)))
    assert found.steps == 2
    first, second, norm = found.groups
    assert (first.operator_class, first.count, first.shape) == ("gemm", 3, (4096, 2048, 8192))
    assert first.seconds == pytest.approx(1.8e-3)
    assert first.flops == second.flops == 2.0 * 4096 * 2048 * 8192  # whichever side is transposed
    assert (norm.operator_class, norm.bytes) == ("vector", 2 * 2 * 4096 * 8192)


def test_work_of_grouped_and_batched_products() -> None:
    batched, grouped = read_kernel_details(kernels(GROUPED, BATCHED)).groups  # of equal time, by name
    assert (grouped.operator_class, grouped.flops) == ("grouped_gemm", 2.0 * 1024 * 512 * 256)
    assert (batched.operator_class, batched.flops) == ("gemm", pytest.approx(2.0 * 4 * 128 * 64 * 32))
    assert batched.shape == (0, 0, 0)  # one product of a batch is no measured shape


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("MatMulV3", "gemm"),
        ("GroupedMatmul", "grouped_gemm"),
        ("FlashAttentionScoreGrad", "attention"),
        ("AllGatherMatmul", "fused_exchange"),
        ("MatmulReduceScatter", "fused_exchange"),
        ("AlltoAllAllGatherBatchMatMul", "fused_exchange"),
        ("hcom_allGather_", "exchange"),
        ("SwiGlu", "vector"),
    ],
)
def test_operators_have_a_class(operator: str, expected: str) -> None:
    assert class_of(operator) == expected


def test_exchanges_add_up_by_operation_group_and_size() -> None:
    found = read_communication(json.dumps(COMMUNICATION))
    reduce, shuffle, send = found.groups
    assert (reduce.operation, reduce.group, reduce.count) == ("allReduce", "13681369207305868844", 2)
    assert reduce.elapsed_s == pytest.approx(8e-3)
    assert reduce.wait_s == pytest.approx(4e-3)
    assert reduce.sent_bytes["HCCS"] / reduce.sent_s["HCCS"] == pytest.approx(32.0e9, rel=1e-3)  # 64 MB in 2 ms
    assert "RDMA" not in reduce.sent_bytes
    assert (shuffle.operation, send.operation) == ("alltoallv", "send")


def test_the_peak_is_the_highest_total_in_either_unit() -> None:
    found = read_operator_memory(memory(ALLOCATED, SMALLER))
    assert (found.allocated_gib, found.reserved_gib) == (30.0, 40.0)
    assert found.largest == (("aten::empty", 1.0),)
    titles = (
        "Name,Size(KB),Allocation Time(us),Duration(us),Allocation Total Allocated(KB),Allocation Total Reserved(KB),"
        "Release Total Allocated(KB),Release Total Reserved(KB),Device"
    )
    assert read_operator_memory(f"{titles}\nop,4,1,1,1048576,2097152,0,0,NPU:0\n").allocated_gib == 1.0


# -- the run beside its plan -------------------------------------------------------------------------------------------


def test_a_folder_is_a_step_with_memory_and_measured_products(folder: Path) -> None:
    found = read_profiler_output(folder.parent)  # the folder above is taken too
    assert found.step is not None
    assert (found.step.step_time_s, found.step.peak_memory_gib) == (pytest.approx(1.15), 30.0)
    assert found.products is not None
    (point,) = found.products.gemm
    assert (point.m, point.n, point.k, point.seconds) == (4096, 2048, 8192, pytest.approx(6e-4))


def test_the_page_says_where_the_run_differs(folder: Path) -> None:
    plan = factories.plan_set().plans[0]
    found = compare_trace(read_profiler_output(folder), "ascend-800t-a2", None, plan)
    assert sum(part.measured_s for part in found.parts) == pytest.approx(1.15)
    assert sum(part.predicted_s for part in found.parts) == pytest.approx(plan.step_time_s)
    page = trace_page(found)
    for told in (
        "4096x8192; 8192x2048 | 2 | 1.2 | 229.1 TFLOPS",  # 2 m n k in 0.6 ms
        "allReduce | 05868844 | 64 | 2 | 8 | 50 % | 32.0 | HCCS 32.0, SDMA 32.0",
        f"allocated | {plan.allocator_peak_gib:.1f} | 30.0",
    ):
        assert told in page
    assert page.count("computing") == 1
    assert "差值" in trace_page(found, "zh")
    alone = trace_page(compare_trace(read_profiler_output(folder), "ascend-800t-a2"))
    assert "share of the step" not in alone


def test_calibrate_takes_a_folder_and_writes_the_page(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay, page = tmp_path / "overlay.yaml", tmp_path / "page.md"
    arguments = [str(folder), "--profile", "ascend-800t-a2", "--page", str(page), "-o", str(overlay)]
    monkeypatch.setattr(sys, "argv", ["autodeploy", "calibrate", *arguments])
    with pytest.raises(SystemExit) as caught:
        main.run()
    assert not caught.value.code
    seconds = []
    for found in (load_profile("ascend-800t-a2"), load_profile("ascend-800t-a2", overlay=overlay)):
        machine = machine_of(found, found.device(None), cluster_topology(found, num_npus=8), precision="bf16")
        seconds.append(float(gemm_s(4096.0, 2048.0, 8192.0, machine.rates)))
    # 229 TFLOPS are below what the profile says of such a product, and the fit follows as far as one shape can tell.
    assert 1.05 * seconds[0] < seconds[1] < 0.6e-3
    assert page.read_text().startswith("# Predicted against measured")


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no measurements"):
        read_profiler_output(tmp_path)


# -- what is refused ---------------------------------------------------------------------------------------------------


def refused(read: Callable[[str], object], text: str) -> str:
    with at_most(1.0), pytest.raises(SpecError) as caught:
        read(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must not be empty"),
        (KERNEL_TITLES, "no measurements"),
        ("Name,Type\nMatMul,MatMul\n", "line 1: missing 'duration(us)'"),
        ("Name,Name,Duration(us)\n", "line 1: 'name' is given twice"),
        (kernels(NORM, "1,2,3"), "line 3: expected 22 entries, got 3"),
        (kernels(kernel("n", "t", "nan")), "line 2: duration(us): nan is not a finite number"),
        (kernels(kernel("n", "t", "-1")), "line 2: duration(us): -1 is too small"),
        (kernels(kernel("n", "t", "1e999")), "line 2: duration(us): 1e999"),
        (kernels(NORM, kernel("n", "t", 1, "a,b;c")), "line 3: input shapes: invalid value 'a,b'"),
        (kernels(kernel("n", "t", 1, ",".join(["999999999999"] * 9))), "is too big"),
        (kernels(kernel("n", "t", 1, ";".join(["1"] * 70))), "line 2: at most 64 entries"),
        (kernels('1,"unclosed'), "line 2: invalid CSV"),
        (kernels("x" * 30_000), "line 2: at most 20,000 characters"),
        (kernels("\0"), "line 2: invalid value '\\x00'"),
        (",".join(f"a{i}" for i in range(300)), "line 1: at most 200 entries"),
    ],
)
def test_broken_kernels_are_refused_with_their_line(text: str, told: str) -> None:
    assert told in refused(read_kernel_details, text)


def broken(*keys: str, value: object) -> str:
    document: Any = copy.deepcopy(COMMUNICATION)
    node = document
    for key in keys[:-1]:
        node = node[key]
    node[keys[-1]] = value
    return json.dumps(document, indent=1)


OPERATION = ("step1", "collective", "hcom_allReduce__844_1_1@13681369207305868844")
TIMES = (*OPERATION, "Communication Time Info")
RATES = (*OPERATION, "Communication Bandwidth Info")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "no measurements"),
        ("[]", "not a JSON object"),
        (broken("step1", value=[]), "line 2: not a JSON object"),
        (broken("step1", "collective", value=3), "line 3: not a JSON object"),
        (broken(*OPERATION, value="x"), "line 4: not a JSON object"),
        (broken(*TIMES, value=None), "line 5: not a JSON object"),
        (broken(*TIMES, "Wait Time(ms)", value=-1), "line 9: Wait Time(ms): -1 is outside [0, 1e15]"),
        (broken(*TIMES, "Wait Time(ms)", value="1"), "line 9: Wait Time(ms): '1' is outside [0, 1e15]"),
        (broken(*TIMES, "Wait Time(ms)", value=10**300), "line 9: Wait Time(ms): 1000"),
        (broken(*RATES, "HCCS", "Transit Size(MB)", value=True), "Transit Size(MB): True"),
        ('{"step1":\n NaN}', "line 2: NaN is not a finite number"),
        ('{"step1": {},\n"step1": {}}', "line 2: 'step1' is given twice"),
        ('{"a":' * 100_000, "line 1: nested"),
        ('{"step1": {', "line 1"),
    ],
)
def test_broken_exchanges_are_refused_with_their_line(text: str, told: str) -> None:
    assert told in refused(read_communication, text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must not be empty"),
        (MEMORY_TITLES, "no measurements"),
        ("Name,Size(KB)\nop,1\n", "line 1: missing 'allocation total allocated(mb)'"),
        ("Name,Size\nop,1\n", "line 1: missing 'size(kb)'"),
        (memory(ALLOCATED, "a,b"), "line 3: expected 15 entries"),
        (memory(ALLOCATED.replace("30720.0", "-5", 1)), "line 2: allocation total allocated(mb): -5"),
        (memory(ALLOCATED.replace("30720.0", "inf", 1)), "line 2: allocation total allocated(mb): inf"),
        (memory(ALLOCATED.replace("30720.0", "x", 1)), "line 2: allocation total allocated(mb): 'x'"),
        (memory(ALLOCATED.replace("1048576", "1e30", 1)), "line 2: size(kb): 1e30"),
        (memory(ALLOCATED, "\0"), "line 3: invalid value '\\x00'"),
        (memory(SMALLER.replace("2048.0", "0")), "no measurements"),
    ],
)
def test_broken_memory_is_refused_with_its_line(text: str, told: str) -> None:
    assert told in refused(read_operator_memory, text)
