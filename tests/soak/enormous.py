"""Specs that are built to be enormous, one after the other: a search keeps its memory, its time limit and a cancel.

Layers, cards, micro batches, phases, lists, effort: each as large as a valid spec can say it, or nearly.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from autodeploy.service.store.database import Database
from autodeploy.service.store.tables import SearchRow
from tests.support.figures import report

if TYPE_CHECKING:
    from tests.faults.service import Service

LIMIT_S: Final = 20.0
LATE_S: Final = 1.0
CANCEL_AFTER_S: Final = 8.0
LIVEZ_P99_MS: Final = 100.0
MOST_BYTES: Final = 2 << 30  # AUTODEPLOY_SEARCH_MEMORY_BYTES by default
WITH_PLANS: Final = 10
DONE: Final = ("optimal", "feasible", "infeasible", "cancelled", "failed")


def _spec(model: str, layers: int | None, cluster: dict[str, Any], training: dict[str, Any], **more: Any) -> Any:
    deeper = {} if layers is None else {"num_hidden_layers": layers}
    return {
        "model": {"preset": model, "name": "big", **deeper},
        "cluster": cluster,
        "training": {"seq_length": 4096, **training},
        **more,
    }


def _on(profile: str, cards: int, **more: Any) -> dict[str, Any]:
    return {"profile": profile, "num_npus": cards, **more}


def _phases(*, ramps: bool) -> list[dict[str, Any]]:
    """Sixteen phases, each of another length; with ramps 64 batches in each."""
    ramp = {"ramp": {"start": 128, "increment": 126, "tokens": 1e11}} if ramps else {}
    return [
        {"tokens": 1e12, "seq_length": 4096 + 1024 * n, "global_batch_size": 8192 if ramps else 2048 + 256 * n, **ramp}
        for n in range(16)
    ]


A2, A3, H100, B200 = "ascend-800t-a2", "cloudmatrix-384", "nvidia-h100", "nvidia-b200"
DEEP, LONG = {"effort": "deep"}, {"effort": 1000.0, "top_k": 100}
LENGTHS = {str(number): 1.0 for number in range(1, 20_000)}

SPECS: Final[dict[str, Any]] = {
    "dense, 1,024 layers, 2,048 cards": _spec("llama2-70b", 1024, _on(A2, 2048), {"global_batch_size": 2048}),
    "dense, 1,024 layers, deep": _spec("llama2-70b", 1024, _on(A2, 2048), {"global_batch_size": 2048}, search=DEEP),
    "experts, 1,024 layers, 65,536 cards, deep": _spec(
        "deepseek-v3", 1024, _on(A2, 65_536), {"global_batch_size": 65_536}, search=DEEP
    ),
    "experts, 512 layers, 65,536 cards, deep": _spec(
        "deepseek-v3", 512, _on(A3, 65_536), {"global_batch_size": 61_440}, search=DEEP
    ),
    "166,320 cards": _spec("llama2-70b", None, _on(A2, 166_320), {"global_batch_size": 166_320}),
    "196,560 cards, any target, 100 plans": _spec(
        "deepseek-v3", None, _on(A3, 196_560), {"global_batch_size": 196_560}, search={**LONG, "target": "any"}
    ),
    "199,584 cards, 1,024 layers": _spec("mixtral-8x22b", 1024, _on(B200, 199_584), {"global_batch_size": 1_995_840}),
    "a million sequences on 1,024 cards": _spec("llama2-70b", 1024, _on(A2, 1024), {"global_batch_size": 1_048_576}),
    "sequences of a million tokens": _spec(
        "qwen3-235b-a22b", 940, _on(A2, 8192), {"seq_length": 1_048_576, "global_batch_size": 8192}, search=DEEP
    ),
    "20,000 lengths of documents": _spec(
        "llama3-70b", 320, _on(A2, 8192), {"global_batch_size": 8192, "sequence_length_histogram": LENGTHS}
    ),
    "16 phases, each searched": _spec(
        "llama2-70b",
        80,
        _on(A2, 2048),
        {"global_batch_size": 2048},
        run={"layout_changes": "allowed", "phases": _phases(ramps=False)},
    ),
    "16 ramps of 64 batches, 100 plans": _spec(
        "llama2-70b", 640, _on(A2, 4096), {"global_batch_size": 4096}, search=LONG, run={"phases": _phases(ramps=True)}
    ),
    "16 phases, one beyond any search": _spec(
        "kimi-k2",
        None,
        _on(A3, 384),
        {"global_batch_size": 15_360},
        search={"target": "any"},
        run={
            "layout_changes": "allowed",
            "phases": [{"tokens": 1e12, "seq_length": 16_777_216, "global_batch_size": 7_207_200}],
        },
    ),
    "fewer cards allowed, 1,024 layers": _spec(
        "deepseek-v3", 1024, _on(A3, 65_536, use="at_most"), {"global_batch_size": 61_440}, search=DEEP
    ),
    "a batch within 50 %": _spec(
        "deepseek-v3", 512, _on(A2, 131_072), {"global_batch_size": {"value": 131_072, "tolerance_pct": 50}}
    ),
    "least memory, 1,024 layers": _spec(
        "llama3.1-405b", 1024, _on(A2, 65_536), {"global_batch_size": 65_536}, search={"objective": "peak_memory"}
    ),
    "other placements, 1,024 layers": _spec(
        "gpt3-175b", 1024, _on(H100, 16_384), {"global_batch_size": 16_384}, search={"distinct": "placements"}
    ),
    "one pipeline of 512 stages": _spec(
        "llama2-70b", 1024, _on(A2, 4096), {"global_batch_size": 4096}, search={"fix": {"pp": 512}, "effort": 100.0}
    ),
    "mode fast, deep, 384 layers": _spec(
        "kimi-k2", 384, _on(A3, 3072), {"global_batch_size": 15_360}, search={**DEEP, "mode": "fast"}
    ),
    "long lists of axes": _spec(
        "pangu-ultra-moe-718b",
        488,
        _on(A2, 6144),
        {"global_batch_size": 12_288},
        search={"allow": {"micro_batch_size": list(range(1, 2049))}, "effort": 1000.0},
    ),
}
CANCELLED: Final = frozenset(list(SPECS)[1::5])
"""These are cancelled while they run; the others end at their limit, or before."""


@dataclass
class Seen:
    """What became of each spec: its status, and by how much its end was late."""

    statuses: dict[str, str] = field(default_factory=dict)
    with_plans: int = 0
    late_s: dict[str, float] = field(default_factory=dict)
    cancel_s: dict[str, float] = field(default_factory=dict)


class Memory:
    """The most memory that any process below another one had at once, while the `with` block runs."""

    def __init__(self, pid: int) -> None:
        self._pid, self._over = pid, threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.2):
            for pid in below(self._pid):
                self.most_bytes = max(self.most_bytes, peak_bytes(pid))


def below(pid: int) -> list[int]:
    """Processes that a process made, and those that these made."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        parents.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def peak_bytes(pid: int) -> int:
    """The most that was resident of a process; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def measure(service: Service, names: list[str], limit_s: float = LIMIT_S) -> bool:
    """Searches those specs one after the other and reports; whether every limit was kept."""
    seen = Seen()
    seconds = len(names) * (limit_s + 10.0)
    probe = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.probe", service.urls[0], str(seconds), "0.1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    database = Database(service.database_url, pool_size=1)
    try:
        with Memory(service.runner.pid) as memory, httpx.Client(base_url=service.urls[0], timeout=60) as http:
            for name in names:
                _search(http, database, name, limit_s, seen)
    finally:
        database.close()
    output, _ = probe.communicate()
    livez_ms = sorted(float(line) for line in output.split())
    p99_ms = livez_ms[int(0.99 * (len(livez_ms) - 1))]
    case = f"{len(names)} enormous specs, limit {limit_s:g} s"
    for name, status in seen.statuses.items():
        sys.stderr.write(f"{name}: {status}, {seen.late_s.get(name, seen.cancel_s.get(name, 0.0)):+.2f} s\n")
    latest, slowest = max(seen.late_s.values(), default=0.0), max(seen.cancel_s.values(), default=0.0)
    report("enormous_specs_with_plans", seen.with_plans, "count", case)
    report("enormous_specs_refused", list(seen.statuses.values()).count("refused"), "count", case)
    report("enormous_specs_failed", list(seen.statuses.values()).count("failed"), "count", case)
    report("search_memory_peak", memory.most_bytes / (1 << 30), "GiB", case)
    report("time_limit_overrun", latest, "s", case)
    report("cancel_to_end", slowest, "s", case)
    report("livez_p99", p99_ms, "ms", case)
    enough = seen.with_plans >= min(WITH_PLANS, len(names) // 2)
    kept = memory.most_bytes <= MOST_BYTES and latest <= LATE_S and slowest <= LATE_S
    return enough and kept and p99_ms <= LIVEZ_P99_MS


def _search(http: httpx.Client, database: Database, name: str, limit_s: float, seen: Seen) -> None:
    spec = SPECS[name]
    spec = {**spec, "search": {**spec.get("search", {}), "time_limit_s": limit_s}}
    answer = http.post("/v1/searches", json=spec, headers={"Cache-Control": "no-cache"})
    if answer.status_code == 422:
        seen.statuses[name] = "refused"
        return
    answer.raise_for_status()
    search_id = answer.headers["Location"].rpartition("/")[2]
    asked_at = None
    while (row := _row(database, search_id)).status not in DONE:
        running_s = time.time() - row.started_at.timestamp() if row.started_at and row.status == "running" else 0.0
        if name in CANCELLED and asked_at is None and running_s > min(CANCEL_AFTER_S, limit_s / 2):
            asked_at = time.time()
            http.post(f"/v1/searches/{search_id}/cancel").raise_for_status()
        time.sleep(0.1)
    assert row.started_at is not None
    assert row.finished_at is not None
    seen.statuses[name] = row.status
    seen.with_plans += bool(row.num_plans)
    if asked_at is not None:
        seen.cancel_s[name] = row.finished_at.timestamp() - asked_at
    else:
        seen.late_s[name] = (row.finished_at - row.started_at).total_seconds() - limit_s
    if row.status == "failed":
        sys.stderr.write(f"{name}: {row.error}\n")


def _row(database: Database, search_id: str) -> SearchRow:
    with database.read() as session:
        row = session.get(SearchRow, search_id)
        assert row is not None
        session.expunge(row)
        return row
