"""A feature and a chip as YAML and a framework as an object: planned and exported with no product file edited."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import hardware_profiles
from autodeploy.formats.megatron.launch import launch_of
from autodeploy.formats.registry import export, formats_of
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.search.planner import estimate, plan
from autodeploy.space.facts import launched_facts
from autodeploy.specs.artefact import Artefact
from autodeploy.specs.reading import read_spec_document
from autodeploy.stack import features, frameworks, releases
from autodeploy.stack.features import FEATURES, LaunchFlag, Variant
from autodeploy.stack.flag_tables import RegisteredFlag, flag_table
from autodeploy.stack.frameworks import Framework
from autodeploy.stack.releases import Component, Release
from autodeploy.stack.schedules import launched
from cost_models import schedule
from cost_models.schedule import Schedule
from hardware_profiles import list_profiles, load_profile, registered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec

PROFILES = Path(hardware_profiles.__file__).parent / "data"
FEATURE = """
area: all-to-all
features:
  acme_overlap:
    title: shared expert computed during the All-to-All, by Acme's own trainer
    numerics: reordered
    mechanism: shared_expert_overlap
    vendors: [acme]
    model: {moe: the model has no experts}
    in_use: moe and ep > 1 and not paired
    values: {lanes: 4}
    launch:
      - component: acme-trainer
        block: MOE_ARGS
        flags: [--acme-overlap, {flag: --acme-lanes, value: "=min(lanes, experts // ep)"}]
"""
MODEL = {
    "name": "small-experts",
    "hidden_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32_000,
    "n_routed_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1024,
    "n_shared_experts": 1,
}


def acme_script(plan_set: PlanSet, chosen: Plan) -> Artefact:
    """The flags of Megatron-LM that the trainer shares, in one line."""
    launch = launch_of(plan_set, chosen, "acme-trainer")
    words = [
        " ".join([flag, *map(str, values)]) for lines in launch.arguments.blocks.values() for flag, values in lines
    ]
    return Artefact("acme-train " + " ".join(words), "text/plain", "acme.sh", tuple(launch.arguments.notes))


def acme_release() -> Release:
    """The trainer is a fork of Megatron-LM: it has its parser, less one overlap and with its own."""
    known = {name: flag for name, flag in flag_table("megatron-main").items() if name != "--moe-shared-expert-overlap"}
    own = [("--acme-overlap", "flag"), ("--acme-lanes", "int"), ("--acme-schedule", "str")]
    table = known | {name: RegisteredFlag(name, kind, (), "", "acme-trainer", "trainer.py:1") for name, kind in own}
    parts = ("acme-trainer", "megatron")
    components = {name: Component(f"acme/{name}", "0" * 40, "main") for name in parts}
    return Release(
        "acme-trainer-1", "Acme trainer 1", "acme-trainer", ("acme",), components, is_default=True, table=table
    )


@pytest.fixture
def acme(tmp_path: Path) -> Iterator[None]:
    chip = (PROFILES / "nvidia-h100.yaml").read_text(encoding="utf-8")
    for old, new in (
        ("name: nvidia-h100\n", "name: acme-one\n"),
        ("vendor: NVIDIA", "vendor: Acme"),
        ("environment:\n", "environment:\n  - {name: ACME_QUEUE, value: deep, when: ep > 1}\n"),
        ("family: nvidia-h100", "family: acme-one"),
    ):
        assert old in chip
        chip = chip.replace(old, new)
    (tmp_path / "chip.yaml").write_text(chip, encoding="utf-8")
    (tmp_path / "feature.yaml").write_text(FEATURE, encoding="utf-8")
    with ExitStack() as known:
        known.enter_context(registered(tmp_path / "chip.yaml"))
        known.enter_context(features.registered(tmp_path / "feature.yaml"))
        known.enter_context(frameworks.registered(Framework("acme-trainer", "Acme trainer", export=acme_script)))
        known.enter_context(releases.registered(acme_release()))
        yield


def spec_of(profile: str = "acme-one", target: str = "acme-trainer", **search: Any) -> Spec:
    return read_spec_document(
        {
            "model": MODEL,
            "cluster": {"profile": profile, "num_npus": 32},
            "training": {"seq_length": 4096, "global_batch_size": 256},
            "search": {"target": target, "effort": 0.02, "top_k": 1, "risk": "neutral", **search},
        }
    )


@pytest.mark.usefixtures("acme")
def test_what_is_registered_is_planned_with_and_launched() -> None:
    found = plan(spec_of(fix={"ep": 16, "tp": 1}, forbid={"schedule": ["adaptive_pipe"]}), alone=True)
    best = found.plans[0]
    assert "acme_overlap" in best.strategy.features
    assert not {"shared_expert_overlap", "swap_attention"} & {*best.strategy.features}
    assert "acme-trainer" in formats_of(best.strategy.schedule)
    script = export(found, best, "acme-trainer")
    assert f"--acme-overlap --acme-lanes {min(4, 32 // best.strategy.ep)}" in script.text
    assert not any("acme" in note for note in script.notes)


@pytest.mark.usefixtures("acme")
def test_a_schedule_of_its_own_is_launched_too() -> None:
    deeper = Schedule("acme_pipe", title="Acme Pipe", least_chunks=2, extra_warm_up=2, pairs=True)
    flag = LaunchFlag("--acme-schedule", "SCHEDULE_ARGS", ("deeper",))
    with schedule.registered(deeper), launched("acme_pipe", Variant("acme-trainer", by="schedule", flags=(flag,))):
        found = plan(spec_of(fix={"schedule": "acme_pipe", "ep": 16, "pp": 2, "tp": 1}), alone=True)
        assert found.plans
        assert found.plans[0].strategy.schedule == "acme_pipe"
        assert "--acme-schedule deeper" in export(found, found.plans[0], "acme-trainer").text
        elsewhere = spec_of(profile="nvidia-h100", target="megatron", fix={"schedule": "acme_pipe"})
        assert not plan(elsewhere, alone=True).plans


@pytest.mark.usefixtures("acme")
def test_its_mechanism_is_what_the_prediction_prices() -> None:
    strategy = {"tp": 1, "pp": 1, "ep": 16, "moe_dispatcher": "alltoall"}
    steps = {}
    for name in ("acme_overlap", "none"):
        document = spec_of(features={"acme_overlap": "off"} if name == "none" else {}).model_dump(mode="json")
        steps[name] = estimate(read_spec_document({**document, "strategy": strategy})).step_time_s
    assert steps["acme_overlap"] < steps["none"]


@pytest.mark.usefixtures("acme")
def test_it_is_refused_where_it_can_not_be() -> None:
    with pytest.raises(UnsupportedError, match="megatron can't launch it"):
        plan(spec_of(target="megatron", features={"acme_overlap": "on"}))
    with pytest.raises(UnsupportedError, match="it is a feature of acme software"):
        plan(spec_of(profile="nvidia-h100", target="any", features={"acme_overlap": "on"}))
    with pytest.raises(SpecError):
        plan(spec_of(profile="nvidia-h100"))


@pytest.mark.usefixtures("acme")
def test_names_are_taken_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known already"), features.registered(tmp_path / "feature.yaml"):
        pass
    with pytest.raises(ValueError, match="already"), registered(tmp_path / "chip.yaml"):
        pass
    with pytest.raises(ValueError, match="known already"), frameworks.registered(Framework("megatron", "Megatron")):
        pass


def test_a_release_that_was_asked_before_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / "feature.yaml").write_text(FEATURE, encoding="utf-8")
    release = spec_of(profile="nvidia-h100", target="megatron").search.release("NVIDIA")
    for each in (None, release):
        before = launched_facts(each)
        with features.registered(tmp_path / "feature.yaml"):
            assert launched_facts(each).keys() - before.keys() == {"launches_acme_overlap"}
        assert launched_facts(each) == before


def test_nothing_stays_behind() -> None:
    assert "acme_overlap" not in FEATURES
    assert "acme-one" not in list_profiles()
    with pytest.raises(SpecError):
        spec_of(profile="nvidia-h100")


def test_a_record_that_says_what_none_can_is_refused(tmp_path: Path) -> None:
    (tmp_path / "feature.yaml").write_text(FEATURE.replace("mechanism:", "mechanisn:"), encoding="utf-8")
    with pytest.raises(ValueError, match="mechanisn"), features.registered(tmp_path / "feature.yaml"):
        pass


# -- a profile under another name -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user's copies lie."""
    return tmp_path_factory.mktemp("profiles")


@cache
def copied(name: str, folder: Path) -> str:
    """A profile as a user copies it, with its calibrated numbers and a name of its own."""
    document = load_profile(name).document.model_dump(mode="json", exclude_none=True) | {"name": "a-cluster-of-ours"}
    path = folder / f"{name}-of-ours.yaml"
    path.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, allow_unicode=True), encoding="utf-8")
    return str(path)


def plans_of(profile: str, model: Any, target: str) -> list[Any]:
    """The best plan of a small space with tensor parallelism, where chips differ most in what they use."""
    document = {
        "model": model,
        "cluster": {"profile": profile, "num_npus": 16},
        "training": {"seq_length": 4096, "global_batch_size": 128},
        "search": {
            "target": target,
            "effort": 0.02,
            "top_k": 1,
            "risk": "neutral",
            "allow": {"tp": [4], "pp": [2], "vpp": [1], "cp": [1], "micro_batch_size": [1]},
        },
    }
    found = plan(read_spec_document(document, base_dir=Path(profile).parent), alone=True)
    assert found.plans
    return [found, [(each.strategy, each.step_time_s, each.peak_memory_gib, each.stages) for each in found.plans]]


# Every profile with two targets, every target on two profiles, and both models in turn.
@pytest.mark.parametrize(
    ("name", "target", "model"),
    [
        ("cloudmatrix-384", "any", MODEL),
        ("cloudmatrix-384", "mindspeed-llm", "llama2-7b"),
        ("ascend-800t-a2", "mindspeed-llm", MODEL),
        ("ascend-800t-a2", "megatron", "llama2-7b"),
        ("nvidia-a100-80g", "any", MODEL),
        ("nvidia-a100-80g", "megatron", MODEL),
    ],
)
def test_a_copied_profile_plans_the_same(name: str, target: str, model: Any, ours: Path) -> None:
    (_, first), (found, second) = plans_of(name, model, target), plans_of(copied(name, ours), model, target)
    assert first == second
    used = {feature for each in found.plans for feature in each.strategy.features}
    if name == "cloudmatrix-384":
        assert "mc2" not in used
    if name == "nvidia-a100-80g":
        assert not {"swap_attention", "mc2", "coc", "reuse_fp32_param"} & used
        assert all("attention" not in each.strategy.swap for each in found.plans)


def test_a_copied_chip_is_launched_the_same(ours: Path) -> None:
    texts = []
    for profile in ("ascend-800t-a2", copied("ascend-800t-a2", ours)):
        found, _ = plans_of(profile, "llama2-7b", "mindspeed-llm")
        for to in ("mindspeed-llm", "ascendjob"):
            text = export(found, found.plans[0], to).text
            texts.append([line for line in text.splitlines() if "plan p_" not in line and "autodeploy" not in line])
    assert texts[0] == texts[2]
    assert texts[1] == texts[3]
    assert any(line.startswith('export HCCL_OP_BASE_FFTS_MODE="TRUE"') for line in texts[0])
