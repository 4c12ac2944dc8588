"""A search ends when it has to, also where nothing looks at a clock."""

from __future__ import annotations

import contextlib
import gc
import logging
import subprocess
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from autodeploy.kit.deadline import AGAIN_S, LAST_S, LATE_S, Deadline, Overdue
from autodeploy.kit.errors import SpecError
from autodeploy.search.planner import Progress, plan
from autodeploy.specs.reading import read_spec_document

if TYPE_CHECKING:
    from pathlib import Path

SLACK_S = 0.5


def busy(seconds: float) -> str:
    """Works without a look at anything else."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
    return "done"


def napping(seconds: float) -> str:
    """The same with its processor left to other tests, where no part of the test is how busy it is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.001)
    return "done"


def deadline(limit_s: float, should_cancel: object = None) -> Deadline:
    return Deadline(should_cancel, time.monotonic(), limit_s)  # type: ignore[arg-type]


def test_what_ends_in_time_is_answered() -> None:
    assert deadline(10.0).search(lambda: busy(0.01)) == "done"


def test_what_does_not_look_is_interrupted_at_the_limit() -> None:
    stop, began = deadline(0.2), time.monotonic()
    assert stop.search(lambda: busy(30.0)) is None
    assert time.monotonic() - began < 0.2 + LATE_S + SLACK_S
    assert stop.out_of_time
    assert stop.interrupted


def test_what_does_not_look_is_interrupted_when_somebody_cancels() -> None:
    began = time.monotonic()
    stop = deadline(60.0, lambda: time.monotonic() > began + 0.2)
    assert stop.search(lambda: busy(30.0)) is None
    assert time.monotonic() - began < 0.2 + LATE_S + SLACK_S
    assert not stop.out_of_time


def test_an_interruption_is_not_caught_as_an_error() -> None:
    def stubborn() -> None:
        while True:
            with contextlib.suppress(Exception):
                napping(30.0)

    assert deadline(0.1).search(stubborn) is None


def test_an_interruption_that_is_lost_is_repeated() -> None:
    """Nothing can be raised in a callback of the garbage collector; it ends, and the part is interrupted after it."""

    def collecting(phase: str, _: dict[str, int]) -> None:
        if phase == "stop":
            busy(0.1 + LATE_S + 0.1)

    def part() -> None:
        gc.callbacks.append(collecting)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(collecting)
        napping(30.0)

    stop, began = deadline(0.1), time.monotonic()
    assert stop.search(part) is None
    assert time.monotonic() - began < 0.1 + LATE_S + 2 * AGAIN_S + SLACK_S


def test_an_interruption_that_machine_code_words_anew_is_one() -> None:
    def calls() -> None:
        """As compiled code that calls Python, which is interrupted."""
        try:
            napping(30.0)
        except Overdue as error:
            raise SystemError("returned a result with an exception set") from error

    assert deadline(0.1).search(calls) is None

    def wrong() -> None:
        raise SystemError("of its own")

    with pytest.raises(SystemError, match="of its own"):
        deadline(10.0).search(wrong)


def test_an_import_is_left_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import time\nfor _ in range(500):\n    time.sleep(0.001)\nwhole = True\n"
    (tmp_path / "a_slow_module_of_this_test.py").write_text(slow)
    monkeypatch.syspath_prepend(tmp_path)

    def imports_and_goes_on() -> None:
        import_module("a_slow_module_of_this_test")
        napping(30.0)

    assert deadline(0.1).search(imports_and_goes_on) is None
    assert sys.modules["a_slow_module_of_this_test"].whole


def test_what_a_log_locks_is_released() -> None:
    ended = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            napping(0.5)
            ended.append(record.getMessage())

    log = logging.Logger("a test of deadlines")
    log.addHandler(Slow())
    assert deadline(0.1).search(lambda: (log.error("whole"), napping(30.0))) is None
    assert ended == ["whole"]


def test_a_part_inside_a_part_is_ended_by_the_outer_one() -> None:
    inner, outer = deadline(60.0), deadline(0.1)
    reached = []

    def both() -> None:
        inner.search(lambda: napping(30.0))
        reached.append("behind the inner part")

    assert outer.search(both) is None
    assert not reached


def test_errors_pass_and_nothing_is_raised_afterwards() -> None:
    stop = deadline(0.1)

    def wrong() -> None:
        raise SpecError("wrong", path="/x")

    with pytest.raises(SpecError, match="wrong"):
        stop.search(wrong)
    try:
        napping(0.4)
    except Overdue:
        pytest.fail("an interruption came after its part was over")


PROFILED = """
import sys, time
from autodeploy.kit.deadline import Deadline

def busy(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"

assert Deadline(None, time.monotonic(), 60.0).search(lambda: busy(0.1)) == "done"
assert Deadline(None, time.monotonic(), 0.1).search(lambda: busy(30.0)) is None
sys.setprofile(lambda *_: None)
sys.settrace(lambda *_: None)
busy(0.1)
"""


def test_a_tracer_works_after_a_part() -> None:
    """An interruption that CPython was told to forget would keep its eval loop from ever going on under a tracer."""
    subprocess.run([sys.executable, "-c", PROFILED], check=True, timeout=60)


def test_some_of_the_time_is_kept_for_the_plans_once_there_are_any() -> None:
    stop = deadline(1.0)
    stop.has_plan()
    time.sleep(0.75)
    assert stop()  # the search ends
    assert stop.finish()  # and its report is made in a hurry
    assert not stop()
    assert stop.last(lambda: busy(0.01)) == "done"
    time.sleep(0.3 + LAST_S)
    assert stop.last(lambda: busy(0.01)) is None


def late_with_plan(monkeypatch: pytest.MonkeyPatch, *, computed_s: float) -> bool:
    """Whether a search is to end for the report of its plan, 100 s into a limit of 120 s."""
    began = time.process_time()
    stop = Deadline(None, time.monotonic() - 100.0, 120.0)
    monkeypatch.setattr("autodeploy.kit.deadline.time.process_time", lambda: began + computed_s)
    stop.has_plan()
    return stop()


def test_more_time_is_kept_for_the_plans_where_others_share_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not late_with_plan(monkeypatch, computed_s=100.0)
    assert late_with_plan(monkeypatch, computed_s=10.0)


BIG = {
    "model": {"preset": "llama2-70b", "name": "big", "num_hidden_layers": 1024},
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 2048},
    "training": {"seq_length": 4096, "global_batch_size": 2048},
}


def test_a_large_search_keeps_its_time_limit() -> None:
    began = time.monotonic()
    with contextlib.suppress(SpecError):  # on a busy machine there is no plan yet
        found = plan(read_spec_document({**BIG, "search": {"time_limit_s": 2.0}}))
        assert found.plans
        assert not found.reproducible
        assert any("time limit of 2 s" in warning for warning in found.warnings)
    assert time.monotonic() - began < 3.0 + SLACK_S


def test_a_search_without_time_for_a_plan_says_so() -> None:
    with pytest.raises(SpecError, match=r"time limit: no plan found in 0\.01 s") as caught:
        plan(read_spec_document({**BIG, "search": {"time_limit_s": 0.01}}))
    assert caught.value.errors[0].path == "/search/time_limit_s"


def test_a_plan_that_was_found_is_told_where_no_time_is_left_to_describe_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(deadline: Deadline, _part: object) -> None:
        deadline.out_of_time = True

    for name in ("describe", "last"):
        monkeypatch.setattr(Deadline, name, cut_off)
    search = {"top_k": 3, "effort": "fast", "fix": {"tp": 1, "cp": 1, "micro_batch_size": 1}}
    cluster = {"profile": "ascend-800t-a2", "num_npus": 8}
    document = {"model": "qwen3-8b", "cluster": cluster, "training": BIG["training"], "search": search}
    assert len(plan(read_spec_document(document)).plans) == 1


def test_a_cancelled_search_ends_soon() -> None:
    asked: list[float] = []

    def progress(event: Progress) -> None:
        if event.incumbent_s is not None and not asked:
            asked.append(time.monotonic())

    found = plan(read_spec_document(BIG), progress=progress, should_cancel=lambda: bool(asked))
    assert found.status == "cancelled"
    assert time.monotonic() - asked[0] < 1.0 + SLACK_S
