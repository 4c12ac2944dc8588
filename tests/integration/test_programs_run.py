"""Programs that no command starts run: benchmarks, soak tests, pages, calibration. Each once, cut to its least."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import threading
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.calibration.shipped.generation import shipped_generation
from autodeploy.calibration.shipped.overhead_fit import shipped_rl
from autodeploy.calibration.shipped.tables import shipped_records
from docs import scoreboard as scoreboard_page
from docs.accuracy_page.sets import SPLITS
from hardware_profiles.shipped_yaml import load_shipped_yaml
from tests import factories
from tests.integration.test_api_rl import SPEC as POST_TRAINING
from tests.support import commissioned_clusters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autodeploy.specs.measurements import GenerationRecord, RlRecord
    from autodeploy.specs.record import Record

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("tests/benchmarks", "tests/soak", "docs", "autodeploy/calibration/shipped")
SMALL_SPEC = ROOT / "tests" / "benchmarks" / "small.yaml"


class Cut:
    """One program with what makes it small: names of its module replaced, arguments, files in a folder of its own."""

    def __init__(self, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name, self.folder, self.monkeypatch = name, folder, monkeypatch
        monkeypatch.setattr(sys, "argv", [name])

    @property
    def module(self) -> Any:
        """It, imported."""
        return importlib.import_module(self.name)

    def set(self, **names: Any) -> None:
        """Names of the module."""
        for name, value in names.items():
            self.monkeypatch.setattr(self.module, name, value)

    def arguments(self, *words: str) -> None:
        """Words of the command line."""
        self.monkeypatch.setattr(sys, "argv", [self.name, *words])

    def environment(self, name: str, value: str) -> None:
        """A variable of the environment."""
        self.monkeypatch.setenv(name, value)

    def main(self, *arguments: Any, **named: Any) -> None:
        """Runs it, to an end without complaint."""
        try:
            code = self.module.main(*arguments, **named)
        except SystemExit as end:
            code = end.code
        assert not isinstance(code, int | str) or not code


def scale_out(cut: Cut) -> None:
    cut.set(WORKERS=(), server_binaries=lambda: None)
    cut.main()


def stored_searches(cut: Cut) -> None:
    """With every fourth filter: the lists themselves are held in test_store_sorted.py."""
    some = dict(list(cut.module.FILTERS.items())[::4])
    cut.set(LIMIT_MS=10_000.0, CLAIM_LIMIT_MS=10_000.0, FILTERS=some)
    cut.arguments("--searches", "300", "--waiting", "50", "--requests", "1", "--on", "sqlite")
    cut.main()


def neighbours(cut: Cut) -> None:
    cut.set(EVERY_S=(0.1, 0.2), SUBMIT_S=0.3, STOPPED_S=(0.1, 0.2))
    cut.arguments("--seconds", "0.5", "sqlite")
    cut.main()


def greedy(cut: Cut) -> None:
    cut.set(LIMIT_MS=60_000.0, PAUSE_S=0.05, running_service=partial(cut.module.running_service, forked=True))
    cut.arguments("--seconds", "0.5", "--on", "sqlite")
    cut.main()


def pretended(cut: Cut) -> None:
    """A worker needs PostgreSQL, which not every machine has: its planner alone."""
    cut.set(SHORT_S=0.01)
    assert cut.module.plan(factories.spec(), search_id="srch_1", created_at=factories.CREATED_AT).plans


def probe(cut: Cut) -> None:
    class Alive(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Alive) as server:
        server.daemon_threads, server.block_on_close = True, False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        cut.main(f"http://127.0.0.1:{server.server_port}", 0.05, 0.01)
        server.shutdown()
        thread.join()


def real_training(cut: Cut) -> None:
    """Without torch: the file of measurements that it reads is compared as usual."""
    found = cut.module.Outcome
    assert found is not None
    cut.set(steadiest=lambda *_: None)
    cut.arguments("--python", sys.executable, "--sizes", "--processes")
    cut.main()


def notice(cut: Cut) -> None:
    cut.set(NOTICE=cut.folder / "NOTICE")
    cut.main()
    assert (cut.folder / "NOTICE").read_text(encoding="utf-8")


def generate(cut: Cut) -> None:
    name, page = next(iter(cut.module.PAGES.items()))
    cut.set(DOCS=cut.folder, generated=lambda: {name: page()})
    cut.main()
    assert any(path.is_file() for path in cut.folder.rglob("*"))


def readme(cut: Cut) -> None:
    shutil.copy(ROOT / "README.md", cut.folder)
    # The table of accuracy is made in another test.
    cut.set(READMES={"en": cut.folder / "README.md"}, EXAMPLE=SMALL_SPEC, validated=dict, accuracy=lambda _: {"en": {}})
    cut.main()
    assert "hidden" not in (cut.folder / "README.md").read_text(encoding="utf-8")


def public_scripts(cut: Cut) -> None:
    page = cut.folder / "page.md"
    files = str(ROOT / "tests" / "launch_files")
    cut.arguments(files, "--repo", "owner/name", "--commit", "abc123", "--files", "*.sh", "-o", str(page))
    cut.main()
    assert "owner/name" in page.read_text(encoding="utf-8")


def public_recipes(cut: Cut) -> None:
    file = Path(shutil.copy(cut.module.FILE, cut.folder))
    cut.set(FILE=file)
    cut.arguments(str(cut.folder), "--repo", "owner/name")
    cut.main()
    assert "recipes:" in file.read_text(encoding="utf-8")


def search_comparison(cut: Cut) -> None:
    (cut.folder / "explanation" / "figures").mkdir(parents=True)
    cut.set(DOCS=cut.folder, PAGE=cut.folder / "search.md", EXAMPLES=SMALL_SPEC.parent)
    cut.set(SCRIPTS=(), SPECS=("small",), DRAWN="small")
    cut.main()
    assert "small" in (cut.folder / "search.md").read_text(encoding="utf-8")


def records(most: int) -> list[Record]:
    """Shipped records: so many of each profile, dense and with experts, with a measured peak and without, small and
    large, as the accuracy page splits them.
    """
    sides = {split.profile: split for split in SPLITS}

    def kind(record: Record) -> tuple[object, ...]:
        cards, split = record.cluster.num_npus or 1, sides.get(record.cluster.profile)
        side = split and (cards <= split.at_most, cards >= split.at_least)
        return record.cluster.profile, record.model.is_moe, has_peak(record), side

    return first_of(shipped_records(), most, kind)


def has_peak(record: Record) -> bool:
    return record.measured.peak_memory_gib is not None


def generation_records() -> list[GenerationRecord]:
    return first_of(shipped_generation(), 14, lambda record: record.cluster.profile)


def rl_records() -> list[RlRecord]:
    return first_of(shipped_rl(), 3, lambda record: record.framework)


def first_of(every: Iterable[Any], most: int, kind: Callable[[Any], object]) -> list[Any]:
    """The first so many of each kind."""
    seen: Counter[object] = Counter()
    taken = []
    for each in every:
        seen[kind(each)] += 1
        if seen[kind(each)] <= most:
            taken.append(each)
    return taken


def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One public script of the vendor's instead of all: each is predicted twice."""
    every = scoreboard_page.launches
    monkeypatch.setattr(scoreboard_page, "launches", lambda records: every(records)[:1])


def accuracy(cut: Cut) -> None:
    one_launch(cut.monkeypatch)
    cut.main(records(3), cut.folder, cut.folder, published=False)
    assert {path.suffix for path in cut.folder.rglob("*") if path.is_file()} == {".md", ".svg", ".json"}


def scoreboard(cut: Cut) -> None:
    one_launch(cut.monkeypatch)
    cut.arguments("--quick")
    cut.main(records(3))


def shipped_calibration(cut: Cut) -> None:
    cut.main(records(2), cut.folder, cut.folder / "coverage.json")
    assert len(list(cut.folder.glob("*.yaml"))) >= 3


def recommendations(cut: Cut) -> None:
    cut.main(
        [cut.module.Case("Small", load_shipped_yaml(SMALL_SPEC.read_text(encoding="utf-8")))], cut.folder / "page.md"
    )
    assert "## Small" in (cut.folder / "page.md").read_text(encoding="utf-8")


def stability(cut: Cut) -> None:
    page = cut.folder / "page.md"
    cut.arguments("--specs", str(SMALL_SPEC), "--draws", "4", "--processes", "1", "--page", str(page))
    cut.main()
    assert "| small |" in page.read_text(encoding="utf-8")


def rehearsals(cut: Cut) -> None:
    cut.main("MLA A3", "2nodes", 1)


def soak(cut: Cut) -> None:
    """Parts that start no service: tests/faults has those."""
    cut.arguments(
        *("malformed", "hostile", "documents", "--specs", "20"),
        *("--formats", "json", "tables", "--documents-seconds", "0.1", "--stride", "29"),
    )
    cut.main()


def small_training(cut: Cut) -> None:
    """One process of it, on torch, where an interpreter is named that has it (`make soak` makes one)."""
    python = os.environ["TORCH_PYTHON"]
    model = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    model |= {"vocab_size": 100, "learned_position_embeddings": 16}
    run = {"model": model, "seq_length": 16, "micro_batch_size": 1, "steps": 2}
    script, trained = ROOT / "tests" / "soak" / "small_training.py", cut.folder / "trained.json"
    real = importlib.import_module("tests.soak.real_training")
    real.launched(python, 1, str(script), json.dumps(run), str(trained))
    (rank,) = json.loads(trained.read_text(encoding="utf-8"))["ranks"]
    assert len(rank["seconds"]) == 2
    assert rank["parameters"] == 2 * 100 * 32 + 16 * 32 + 2 * (4 * 32 * 32 + 2 * 32 * 64 + 2 * 32) + 32


def published_effects(cut: Cut) -> None:
    cases, page, readme_page = cut.folder / "cases", cut.folder / "page.md", cut.folder / "README.md"
    cases.mkdir()
    shutil.copy(ROOT / "examples" / "published" / "parameter_copy_compression.yaml", cases)
    readme_page.write_text("<!-- systems -->\n<!-- /systems -->", encoding="utf-8")
    cut.main(cases, page, {"en": readme_page})
    assert "| shared parameter copies | met | 2 / 2 |" in readme_page.read_text(encoding="utf-8")
    assert "17.25" in page.read_text(encoding="utf-8")


def published_signs(cut: Cut) -> None:
    """The figures of one case."""
    signs = {"parameter_copy_compression": {"reuse_fp32_param, memory": "0"}}
    cut.set(expected=lambda: ({"waits": ["host.sync_us"]}, signs, {}))
    cut.main()


def measured_strategies(cut: Cut) -> None:
    cut.main(["ST084"])


def recommended(cut: Cut) -> None:
    """Every law has something to compare, in a search that has a rival and in one of post-training."""
    told: list[Counter[tuple[str, str]]] = []
    tally = cut.module.Tally
    cut.set(Tally=lambda: told.append((made := tally()).counts) or made)
    cut.arguments(str(SMALL_SPEC), "--effort", "fast", "--features", "2", "--axes", "2", "--plans", "2")
    cut.main()
    small = cut.folder / "post_training.yaml"
    small.write_text(json.dumps(POST_TRAINING), encoding="utf-8")
    cut.arguments(str(small), "--laws", "forced", "--features", "0", "--axes", "1", "--plans", "1")
    cut.main()
    for counts, laws in zip(told, (["undominated", "forced", "neutral", "efforts", "limits"], ["forced"]), strict=True):
        assert all(counts[law, "kept"] > 0 for law in laws)


def processor_time(cut: Cut) -> None:
    kept = cut.folder / "figures.json"
    cut.arguments(str(SMALL_SPEC), "--write", str(kept))
    cut.set(SMALL=SMALL_SPEC)
    cut.main()
    assert all(loops > 0.0 for loops in json.loads(kept.read_text(encoding="utf-8")).values())
    # No tree is a third faster than itself, which would take as long again to find once more.
    (loops,) = json.loads(kept.read_text(encoding="utf-8")).values()
    cut.set(spent=lambda *_: cut.module.Spent(processor_s=1.0, in_loops=loops, peak_mb=1.0))
    cut.arguments(str(SMALL_SPEC), "--against", str(kept))
    assert cut.module.main() == 1


def replay(cut: Cut) -> None:
    series = [r for r in shipped_records() if r.id.startswith("dgxc_v25.04.02_llama70b_") and r.id.endswith("_bf16")]
    kept = [r for r in series if (r.cluster.num_npus or 0) in {64, 128, 1024}]
    cut.main(kept, cut.folder / "page.md")
    text = (cut.folder / "page.md").read_text(encoding="utf-8")
    assert "| nvidia-h100 | \\<= 64 | 1 | 2 | 2 |" in text
    assert "its own on fewer cards" in text


def scale(cut: Cut) -> None:
    series = [r for r in shipped_records() if r.id.startswith("dgxc_v25.04.02_llama70b_") and r.id.endswith("_bf16")]
    cut.main([r for r in series if (r.cluster.num_npus or 0) in {64, 1024}], cut.folder / "page.md")
    assert " on 64 |" in (cut.folder / "page.md").read_text(encoding="utf-8")


def sealed_predictions(cut: Cut) -> None:
    cut.set(PAGE=cut.folder / "page.md")
    cut.main()
    assert "0 graded" in (cut.folder / "page.md").read_text(encoding="utf-8")


def commissioned(cut: Cut) -> None:
    commissioned_clusters.JOBS["small"] = ("llama2-7b", "ascend-800t-a2", 64, 128)
    try:
        cut.main(1, ["small"])
    finally:
        del commissioned_clusters.JOBS["small"]


# Needs an interpreter with torch, which `make soak` makes: run where TORCH_PYTHON names one.
WITH_TORCH = frozenset({"tests.soak.small_training"})

LEAST: dict[str, Callable[[Cut], None]] = {
    "tests.benchmarks.__main__": lambda cut: cut.main(small=True),
    "tests.benchmarks.scale_out": scale_out,
    "tests.benchmarks.stored_searches": stored_searches,
    "tests.soak.neighbours": neighbours,
    "tests.soak.greedy": greedy,
    "tests.soak.pretended": pretended,
    "tests.soak.probe": probe,
    "tests.soak.real_training": real_training,
    "docs.notice": notice,
    "docs.generate": generate,
    "docs.readme": readme,
    "docs.public_scripts": public_scripts,
    "docs.public_recipes": public_recipes,
    "docs.search_comparison": search_comparison,
    "docs.accuracy": accuracy,
    "docs.published_effects": published_effects,
    "docs.published_signs": published_signs,
    "docs.backtest": lambda cut: cut.main(records(4), cut.folder / "page.md"),
    "docs.generation_accuracy": lambda cut: cut.main(generation_records(), cut.folder / "page.md", cut.folder),
    "docs.rl_accuracy": lambda cut: cut.main(rl_records(), cut.folder / "page.md"),
    "docs.scoreboard": scoreboard,
    "autodeploy.calibration.shipped.__main__": shipped_calibration,
    "docs.recommendations": recommendations,
    "docs.stability": stability,
    "docs.replay": replay,
    "docs.scale": scale,
    "docs.sealed_predictions": sealed_predictions,
    "tests.benchmarks.commissioned": commissioned,
    "tests.benchmarks.rehearsals": rehearsals,
    "tests.soak.__main__": soak,
    "tests.soak.small_training": small_training,
    "tests.soak.measured_strategies": measured_strategies,
    "tests.soak.recommended": recommended,
    "tests.benchmarks.processor_time": processor_time,
}


def test_every_program_of_these_folders_is_run():
    found = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8"):
                found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert found == LEAST.keys()


@pytest.mark.parametrize("name", [name for name in LEAST if name not in WITH_TORCH or "TORCH_PYTHON" in os.environ])
def test_a_program_runs_cut_to_its_least(name, tmp_path, monkeypatch):
    LEAST[name](Cut(name, tmp_path, monkeypatch))
