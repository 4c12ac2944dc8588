"""Files of measurements: what each format says, and how broken or hostile ones are refused."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from autodeploy.formats.measurements.benchmark_tables import MAX_LINES, steady
from autodeploy.formats.measurements.measured_file import read_measured_file, read_measured_text
from autodeploy.kit.errors import SpecError
from tests.support.pace import at_most

if TYPE_CHECKING:
    from autodeploy.specs.measured_run import MeasuredRun


def log_line(number: int, ms: float | str, *, batch: int = 16, tflops: float | str = 150.0, skipped: int = 0) -> str:
    return (
        f" [2026-11-20 12:00:00] iteration {number:8d}/    2000 | consumed samples: {number * batch:12d} | "
        f"elapsed time per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): {tflops} | "
        f"learning rate: 1.250000E-06 | global batch size: {batch:5d} | lm loss: 1.2E+01 | loss scale: 1.0 | "
        f"grad norm: 2.103 | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |"
    )


MEMORY = (
    "[Rank {rank}] (after 2 iterations) memory (MB) | allocated: 12345.0 | max allocated: {peak} | "
    "reserved: 25000.0 | max reserved: 25000.0"
)
TRACE_TITLES = (
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
    "Communication(Not Overlapped and Exclude Receive),Preparing"
)
HCCL = (
    "mpirun -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp32 -o sum -n 20 -p 8\n"
    "the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5\n"
    "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    "8192              | 61.40          | 0.13342              | success\n"
    "67108864          | 1000.00        | 67.10886             | NULL\n"
)
NCCL = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "    67108864      16777216     float     sum      -1   1000.0   67.11  117.44      0    999.0   67.18  117.56\n"
)


def only(text: str, **options: object) -> MeasuredRun:
    (run,) = read_measured_text(text, **options)  # type: ignore[arg-type]
    return run


def refused(text: str) -> SpecError:
    with at_most(1.0), pytest.raises(SpecError) as caught:
        read_measured_text(text)
    return caught.value


# -- the steady part ---------------------------------------------------------------------------------------------------


def test_the_steady_part_leaves_out_what_warms_up_and_does_not_mind_a_stall() -> None:
    found = steady([50.0, 12.0, 10.1, 10.0, 30.0, 10.0, 9.9])
    assert (found.warm_up, found.iterations, found.median) == (2, 5, 10.0)
    assert found.spread == pytest.approx(1.4826 * 0.1 / 10.0)


@pytest.mark.parametrize(("times", "warm_up"), [([5.0], 0), ([9.0, 5.0], 1), ([5.0, 5.0], 0), ([5.0, 5.0, 5.0], 1)])
def test_short_runs_keep_what_there_is(times: list[float], warm_up: int) -> None:
    found = steady(times)
    assert (found.warm_up, found.median) == (warm_up, 5.0)
    assert found.iterations == len(times) - warm_up


# -- training logs -----------------------------------------------------------------------------------------------------


def test_a_training_log_gives_time_throughput_and_the_worst_rank_s_memory() -> None:
    times = [50_000, 12_000, 10_050.0, 10_010.0, 9_990.0, 30_000, 10_000, 10_020.0]
    lines = [log_line(number, ms, tflops=150 + number) for number, ms in enumerate(times, start=1)]
    lines[2:2] = [MEMORY.format(rank=0, peak=40960.0), MEMORY.format(rank=8, peak=51200.0), "lm loss: nan of somebody"]
    run = only("\r\n".join(lines))
    assert run.source == "training_log"
    assert run.step_time_s == pytest.approx(10.015)
    assert (run.iterations, run.warm_up_iterations) == (6, 2)
    assert run.step_time_spread == pytest.approx(1.4826 * 0.020 / 10.015, rel=0.01)
    assert run.tflops_per_npu == pytest.approx(155.5)
    assert run.peak_memory_gib == 50.0
    assert run.strategy == {"global_batch_size": 16}
    assert run.original["elapsed_time_per_iteration_ms"] == pytest.approx(times)


def test_a_batch_ramp_is_left_out() -> None:
    lines = [log_line(n, 5_000, batch=8) for n in (1, 2)] + [log_line(n, 10_000, batch=16) for n in (3, 4, 5)]
    run = only("\n".join(lines))
    assert (run.step_time_s, run.strategy) == (10.0, {"global_batch_size": 16})
    assert run.original["iterations_at_other_batches"] == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (log_line(2, "nan"), "line 2: elapsed time per iteration: nan"),
        (log_line(2, "-3"), "too small"),
        (log_line(2, "soon"), "not a number"),
        (log_line(2, "1e999"), "not a finite number"),
        (log_line(2, 10.0, tflops="inf"), "line 2: throughput"),
        (log_line(2, 10.0).replace("global batch size:    16", "global batch size:   1.5"), "not a whole number"),
        (MEMORY.format(rank=0, peak="-1"), "line 2: max allocated"),
    ],
)
def test_a_bad_line_of_a_log_is_named(line: str, message: str) -> None:
    error = refused(log_line(1, 10_000.0) + "\n" + line)
    assert message in str(error)
    assert error.errors[0].path == "/2"


# -- tables of step times ----------------------------------------------------------------------------------------------


def test_a_table_of_step_times_is_one_run() -> None:
    run = only("# node 7\nstep,step_time_ms,peak_memory_gib,loss\n1,2000,40,9\n2,1000,41,8\n3,1000,41,7\n")
    assert (run.step_time_s, run.peak_memory_gib, run.iterations) == (1.0, 41.0, 2)
    assert run.strategy == {}
    assert run.original["ignored_columns"] == ["loss"]


def test_rows_of_several_strategies_are_several_runs() -> None:
    first, second = read_measured_text('{"step_time_s": 9, "tp": 8}\n\n{"step_time_s": 11, "TP": 4, "pp": 2}\n')
    assert (first.strategy, first.step_time_s) == ({"tp": 8}, 9.0)
    assert (second.strategy, second.step_time_s) == ({"tp": 4, "pp": 2}, 11.0)


def test_throughput_alone_is_a_run() -> None:
    assert only("tokens_per_s_per_npu\n1000\n1010\n1020\n").tokens_per_s_per_npu == 1010.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("step,loss\n1,2\n", "at least one of "),
        ("step_time_s\n1\n-1\n", "line 3"),
        ("step_time_s\n1\n1,2\n", "line 3: expected 1 entry, got 2"),
        ("step_time_s,step_time_s\n1,2\n", "given twice"),
        ('step_time_s\n"1\n', "line 2: invalid CSV"),
        ("step_time_s\n0x10\n", "not a number"),
        ("step_time_s,tp\n1,1.5\n", "not a whole number"),
        ('{"step_time_s": 1}\n{"step_time_s": NaN}', "line 2"),
        ('{"step_time_s": 1}\n[1]', "line 2: not a JSON object"),
        ('{"step_time_s": 1}\n{"step_time_s"', "line 2"),
        ("step_time_s\n1\0\n", "line 2: invalid value '\\x00'"),
    ],
)
def test_bad_tables_are_refused_with_their_line(text: str, message: str) -> None:
    assert message in str(refused(text))


@pytest.mark.parametrize(
    "text",
    [
        "step_time_s\n" + "1\n" * (MAX_LINES + 1),
        "step_time_s\n" + "9" * 30_000,
        "x" * 17_000_000,
        "elapsed time per iteration (ms): " + "a:" * 9_000,
        "elapsed time per iteration (ms):" + " | x: " * 3_000,
        "data_size\n" + ("ranks" + " " * 5_000 + "\n") * 500,
        ",".join(str(n) for n in range(3_000)) + "\n" + ",".join("1" for _ in range(3_000)),
        '{"a":' * 20_000,
        '{"step_time_s": 1}\n' * 199_998 + "x",
        (log_line(1, 10.0) + "\n") * 25_000 + log_line(2, "x"),
        "step,step_time_s,tp\n" + "1,1.0,8\n" * 199_990 + "1,x,8",
        '{"step_time_s": 1}\n' * 9_990 + "x",
        "step,step_time_s,tp\n" + "1,1.0,8\n" * 9_990 + "1,x,8",
    ],
    ids=[
        *("lines", "digits", "size", "colons", "bars", "spaces", "columns", "depth"),
        *("json lines", "log lines", "rows", "fewer json lines", "fewer rows"),
    ],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    assert str(refused(text))


# -- the profiler ------------------------------------------------------------------------------------------------------


def test_a_step_trace_is_split_on_the_device_that_computes_longest() -> None:
    rows = ["0,1,800000,300000,50000,350000,10000,1000000,100000,200000,3000"]
    rows += ["1,1,900000,200000,60000,260000,10000,990000,120000,80000,3000"]
    rows += ["1,2,920000,200000,60000,260000,30000,990000,120000,80000,3000"]
    run = only("\ufeff" + "\n".join([TRACE_TITLES, *rows]))
    times = run.profiler
    assert times is not None
    assert (times.steps, times.devices) == (2, 2)
    assert times.computing_s == pytest.approx(0.91)
    assert times.communication_s == pytest.approx(0.08)
    assert times.bubble_s == pytest.approx(0.12)
    assert times.free_s == pytest.approx(0.02)
    assert run.step_time_s == pytest.approx(0.91 + 0.2 + 0.02)
    assert run.original["device"] == "1"


def test_traces_of_several_ranks_may_follow_each_other() -> None:
    row = "{},1,{},0,0,0,0,0,0,0,0"
    run = only("\n".join([TRACE_TITLES, row.format(0, 100), TRACE_TITLES, row.format(1, 200)]))
    assert run.profiler is not None
    assert (run.profiler.devices, run.profiler.computing_s) == (2, pytest.approx(2e-4))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRACE_TITLES + "\n", "no measurements"),
        (TRACE_TITLES + "\n0,1,-5,0,0,0,0,0,0,0,0\n", "line 2: computing: -5"),
        (TRACE_TITLES + "\n0,1,x,0,0,0,0,0,0,0,0\n", "line 2"),
        (TRACE_TITLES + "\n0,1,0,0,0,0,0,0,0,0,0\n", "0 s is too small"),
        (TRACE_TITLES.replace(",Free", ",Idle") + "\n0,1,1,0,0,0,0,0,0,0,0\n", "missing 'free'"),
        (TRACE_TITLES + "\n0,1,nan,0,0,0,0,0,0,0,0\n", "line 2: computing: nan is not a finite number"),
        (TRACE_TITLES + "\n0,1,1e999,0,0,0,0,0,0,0,0\n", "line 2: computing: 1e999"),
        (TRACE_TITLES + "\n0,1,1\n", "line 2: expected 11 entries, got 3"),
        (TRACE_TITLES + ",Free\n0,1,1,0,0,0,0,0,0,0,0,0\n", "line 1: 'free' is given twice"),
        (TRACE_TITLES + "\n0,1,1,0,0,0,0,0,0,0,0\n\0", "line 3: invalid value '\\x00'"),
        (TRACE_TITLES + '\n0,1,"1,0,0,0,0,0,0,0,0\n', "line 2: invalid CSV"),
        (TRACE_TITLES + "\n0,1," + "9" * 30_000 + ",0,0,0,0,0,0,0,0\n", "line 2: at most 20,000 characters"),
        (TRACE_TITLES + "\n" + "0,1,1,0,0,0,0,0,0,0,0\n" * MAX_LINES, f"at most {MAX_LINES:,} entries"),
    ],
)
def test_bad_traces_are_refused(text: str, message: str) -> None:
    assert message in str(refused(text))


# -- benchmarks --------------------------------------------------------------------------------------------------------


def test_a_gemm_table_gives_shapes_and_seconds() -> None:
    run = only("m,n,k,us,tflops\n4096,4096,4096,500,\n4096,4096,4096,,274.877906944\n")
    assert run.is_benchmark
    assert [(p.m, p.n, p.k) for p in run.gemm] == [(4096, 4096, 4096)] * 2
    assert [p.seconds for p in run.gemm] == pytest.approx([5e-4, 5e-4])


def test_the_output_of_hccl_test_says_operation_and_ranks_in_its_command() -> None:
    run = only(HCCL)
    assert [(p.op, p.ranks, p.message_bytes) for p in run.collectives] == [
        ("all_reduce", 8, 8192),
        ("all_reduce", 8, 67_108_864),
    ]
    assert [p.seconds for p in run.collectives] == pytest.approx([61.4e-6, 1e-3])


def test_what_a_table_does_not_say_the_caller_does() -> None:
    run = only(NCCL, op="reduce_scatter", ranks=16)
    (point,) = run.collectives
    assert (point.op, point.ranks, point.seconds) == ("reduce_scatter", 16, pytest.approx(1e-3))
    assert "ranks is required" in str(refused(NCCL))


def test_bus_bandwidth_is_turned_into_time() -> None:
    run = only("op,ranks,bytes,busbw\nall_reduce,8,1000000000,175\nall_gather,8,1000000000,87.5\n")
    assert [p.seconds for p in run.collectives] == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k,us\n1,2,0,4\n", "line 2: k: 0"),
        ("m,n,k\n1,2,3\n", "line 2: at least one of us"),
        (HCCL.replace("NULL", "failed"), "line 5: hccl_test found the result wrong: 'failed'"),
        (HCCL.replace("8192 ", "-1 "), "line 4: size: -1 is too small"),
        (HCCL.replace("8192 ", ""), "line 4: size: '' is not a number"),
        (HCCL.replace("8192 ", "1.5 "), "line 4: size"),
        (HCCL.replace("8192 ", "9" * 5_000), "line 4: size: 999"),
        (HCCL.replace("61.40", "nan"), "line 4: time: nan"),
        (HCCL.replace("61.40", "soon"), "line 4: time: 'soon' is not a number"),
        (HCCL.replace("61.40", "0"), "line 4: time: 0 is too small"),
        (HCCL.replace("61.40", "1e999"), "line 4: time: 1e999"),
        (HCCL.replace("-n 8", "-n 0"), "line 4: ranks=0 is outside [2, 200000]"),
        (HCCL + "\0", "line 6: invalid value '\\x00'"),
        (HCCL + "x" * 30_000, "line 6: at most 20,000 characters"),
        ("op,ranks,bytes,time_us\nbroadcast,8,1000,5\n", "not modelled yet: 'broadcast'"),
        ("op,ranks,bytes,time_us\nall_gather,1,1000,5\n", "line 2: ranks=1 is outside [2, 200000]"),
        ("bytes,time_us\n1000,5\n", "ranks is required"),
    ],
)
def test_bad_benchmarks_are_refused(text: str, message: str) -> None:
    assert message in str(refused(text))


@pytest.mark.parametrize("value", ["1e-15", "1e-320", "0.5", "999999999999", "9e11", "1e15", "999999999999999999"])
@pytest.mark.parametrize(
    "text",
    [
        log_line(1, "{}"),
        log_line(1, 900.0, tflops="{}"),
        log_line(1, 900.0) + "\n" + MEMORY.format(rank=0, peak="{}"),
        log_line(1, 900.0).replace("   16 |", " {} |"),
        "step_time_s,tp,seq_length\n{},1,2\n",
        "step_time_s,tp,num_npus\n1,{},{}\n",
        "step_time_ms,tokens_per_s_per_npu,peak_memory_gib\n5,{},{}\n",
        TRACE_TITLES + "\n0,1,{},{},0,0,{},0,0,0,0\n",
        "m,n,k,us\n{},2,3,{}\n",
        "m,n,k,tflops\n8,8,8,{}\n",
        HCCL.replace("8192 ", "{} "),
        HCCL.replace("61.40", "{}"),
        "op,ranks,bytes,busbw\nall_reduce,8,1000,{}\n",
        "torch_npu: out of memory. Tried to allocate {} GiB (NPU 0; {} GiB total capacity; {} MiB free)",
    ],
)
def test_whatever_a_file_measures_is_a_document_or_refused(text: str, value: str) -> None:
    runs: tuple[MeasuredRun, ...] = ()
    with contextlib.suppress(SpecError):
        runs = read_measured_text(text.replace("{}", value))
    assert all(run == type(run).model_validate(run.model_dump()) for run in runs)


def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("step_time_s\n1\nx\n")
    with pytest.raises(SpecError, match=r"steps\.csv: line 3"):
        read_measured_file(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_measured_file(path)
