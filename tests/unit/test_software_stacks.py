"""Stack documents: what they say, how they are read, and that nothing depends on their names."""

from __future__ import annotations

import re
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.kit.errors import SpecError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.reports.plan_report import header
from autodeploy.search import planner
from autodeploy.specs.reading import read_spec_document, read_spec_file
from autodeploy.specs.software import release_of
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS, launchers
from autodeploy.stack.releases import Release, releases
from autodeploy.stack.software import (
    FORMATS,
    KINDS,
    SECTIONS,
    Run,
    default_stack,
    resolved,
    shipped_stacks,
    stack_of_document,
    stack_of_run,
)
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.messages import Language

FOLDER = files("autodeploy.stack") / "stacks"
OWN: dict[str, Any] = {
    "name": "own",
    "title": "A stack of ours",
    "inherits": "megatron-lm",
    "sources": {"OWN": "our image of October"},
    "formats": {"gradients": {"value": "bf16", "kind": "record", "source": "OWN run 12"}},
}
STRATEGY = {"tp": 4, "pp": 2, "features": ["flash_attention", "fused_rmsnorm", "fused_swiglu", "rect_fa"]}


def spec(profile: str = "nvidia-h100", target: str = "megatron", **more: Any) -> Any:
    return read_spec_document(
        {
            "model": "llama2-13b",
            "cluster": {"profile": profile, "num_npus": 16},
            "training": {"seq_length": 4096, "global_batch_size": 128},
            "search": {"target": target},
            "strategy": STRATEGY,
            **more,
        }
    )


def test_every_fact_has_a_kind_and_a_source() -> None:
    for stack in shipped_stacks().values():
        assert stack.rows(), stack.name
        assert all(kind in KINDS and source for *_, kind, source in stack.rows())


def test_every_launch_framework_has_one_default_stack_where_it_has_a_release() -> None:
    for release in releases():
        vendors = release.vendors or ("nvidia",)
        for vendor in vendors:
            found = [
                s
                for s in shipped_stacks().values()
                if s.default and s.target == release.framework and vendor in s.vendors
            ]
            assert len(found) == 1
            assert release.name in found[0].releases
    assert {name for stack in shipped_stacks().values() for name in stack.releases} == {
        each.name for each in releases()
    }
    assert {s.target for s in shipped_stacks().values() if s.target} == set(launchers())


@pytest.mark.parametrize("profile", ["nvidia-a100-80g", "nvidia-h100", "nvidia-h800", "nvidia-b200"])
def test_plain_megatron_keeps_gradients_in_fp32_and_recipes_of_nemo_do_not(profile: str) -> None:
    plain, recipe = (planner.estimate(spec(profile, software=name)) for name in ("megatron-lm", "nemo"))
    per_gib = 2 * 13.0e9 / 8 / 2**30
    assert plain.peak_memory_gib - recipe.peak_memory_gib == pytest.approx(per_gib, rel=0.15)


def test_the_default_of_a_target_is_what_naming_it_says() -> None:
    for profile in ("nvidia-h100", "ascend-800t-a2"):
        for target in ("megatron", "mindspeed-llm", "mindformers"):
            vendor = "huawei" if profile.startswith("ascend") else "nvidia"
            stack = default_stack(target, vendor)
            if stack.name not in shipped_stacks():
                continue
            named = planner.estimate(spec(profile, target, software=stack.name))
            assert named.model_dump(exclude={"plan_id"}) == planner.estimate(spec(profile, target)).model_dump(
                exclude={"plan_id"}
            )


@given(
    st.sampled_from(sorted(shipped_stacks())),
    st.sampled_from(["bf16", "fp16", "fp8"]),
    st.frozensets(st.sampled_from(["moe", "mla"])),
)
def test_a_copy_under_another_name_changes_nothing(name: str, precision: str, models: frozenset[str]) -> None:
    document = next(d for d in documents() if d["name"] == name)
    copied = stack_of_document({**deepcopy(document), "name": "a-copy", "title": "copy"})
    for date in (None, "2023-05-01", "1.0.RC1", "2024-08-30", "2.1.0", "26.0.0"):
        run = Run(precision, models, 4, 2, frozenset({"grouped_gemm"}), date=date)
        one, other = resolved(shipped_stacks()[name], run), resolved(copied, run)
        assert (one.features, one.memory, one.void) == (other.features, other.memory, other.void)
        assert (one.formats, one.settings, one.host) == (other.formats, other.settings, other.host)


def documents() -> list[dict[str, Any]]:
    return [
        load_shipped_yaml(each.read_text(encoding="utf-8")) for each in FOLDER.iterdir() if each.name.endswith(".yaml")
    ]


def test_no_code_asks_for_a_stacks_name() -> None:
    """Names that are no framework's too stand in documents and tests alone."""
    own = {name for name in shipped_stacks() if name not in FRAMEWORKS}
    root = Path(__file__).parents[2]
    for package in ("autodeploy", "api", "cost_models", "hardware_profiles"):
        for path in (root / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            asked = {name for name in own if re.search(rf"(==|\bin\b).{{0,40}}[\"']{re.escape(name)}[\"']", text)}
            assert not asked, (path, asked)


def test_an_own_stack_inherits_replaces_and_takes_away(tmp_path: Path) -> None:
    own = deepcopy(OWN)
    own["features"] = {"rect_fa": None, "grouped_gemm": {"kind": "assumed", "source": "our image"}}
    stack = stack_of_document(own)
    software = resolved(stack, Run())
    assert "rect_fa" not in software.features
    assert {"grouped_gemm", "fused_swiglu"} <= software.features
    assert software.formats["gradients"] == "bf16"
    assert stack.vendors == ("nvidia",)
    (tmp_path / "ours.yaml").write_text(yaml_text(own), encoding="utf-8")
    written = spec().model_dump(mode="json", exclude_unset=True) | {"software": "ours.yaml"}
    (tmp_path / "spec.yaml").write_text(yaml_text(written), encoding="utf-8")
    read = read_spec_file(tmp_path / "spec.yaml")
    inline = spec(software={"stack": own})
    assert planner.estimate(read).peak_memory_gib == planner.estimate(inline).peak_memory_gib
    assert planner.estimate(read).peak_memory_gib < planner.estimate(spec()).peak_memory_gib


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("formats.gradients", "bf16"),
        ("formats.moments", "bf16"),
        ("features.unfused_optimizer", "on"),
        ("features.graph_mode", "on"),
        ("settings.band", "mid_2024"),
    ],
)
def test_an_override_changes_one_fact(path: str, value: str) -> None:
    profile = "ascend-800t-a2"
    changed = spec(profile, software={"stack": "megatron-mindspeed", "overrides": {path: value}})
    before, after = (planner.estimate(each) for each in (spec(profile), changed))
    assert (before.step_time_s, before.peak_memory_gib) != (after.step_time_s, after.peak_memory_gib)


def test_an_override_takes_a_fact_of_memory_away() -> None:
    experts = {"model": "qwen3-30b-a3b", "strategy": {"pp": 2, "ep": 8, "distributed_optimizer": True}}
    off = {"stack": "megatron-lm", "overrides": {"memory.weighted_experts": "off"}}
    held, kept = (planner.estimate(spec(**experts, **more)).peak_memory_gib for more in ({}, {"software": off}))
    assert kept > held + 1.0


@pytest.mark.parametrize("name", ["megatron-llm", "mindspeed-llm", "a stack of nobody"])
def test_a_stack_that_is_not_there_or_not_for_these_chips_is_refused(name: str) -> None:
    assert faults(name) == ["/software/stack"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("formats.gradients", "fp4"),
        ("formats.logits", "fp32"),
        ("features.grouped_gemm", "on"),  # a switch of the search
        ("features.graph_mod", "on"),
        ("memory.torch_loss", "yes"),
        ("settings.colour", "red"),
        ("colour", "red"),
    ],
)
def test_an_override_that_no_stack_has_is_refused(path: str, value: str) -> None:
    assert faults({"stack": "megatron-lm", "overrides": {path: value}}) == [f"/software/overrides/{path}"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"colour": "red"}, "/colour"),
        ({"inherits": "nobody"}, "/inherits"),
        ({"formats": {"gradients": {"value": "fp4", "kind": "code", "source": "x"}}}, "/formats/gradients/value"),
        ({"features": {"rect_fa": {"kind": "hearsay", "source": "x"}}}, "/features/rect_fa/kind"),
        ({"features": {"rect_fa": {"kind": "code"}}}, "/features/rect_fa/source"),
        ({"features": {"rect_fa": True}}, "/features/rect_fa"),
        ({"features": {"rope": {"kind": "code", "source": "x", "when": {"sun": 1}}}}, "/features/rope/when/sun"),
    ],
)
def test_what_is_no_document_of_a_stack_is_refused_at_its_place(change: dict[str, Any], pointer: str) -> None:
    assert faults({"stack": {**OWN, **change}}) == [f"/software/stack{pointer}"]


def faults(software: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec(software=software)
    return [error.path for error in caught.value.errors]


def test_documents_say_nothing_beside_their_sections() -> None:
    for document in documents():
        for section in SECTIONS:
            assert isinstance(document.get(section) or {}, dict)
        for name, fact in (document.get("formats") or {}).items():
            assert {each["value"] for each in (fact if isinstance(fact, list) else [fact])} <= {*FORMATS[name]}


@pytest.mark.parametrize(
    ("framework", "source", "vendor", "name"),
    [
        ("Megatron-LM", "a table", "nvidia", "megatron-lm"),
        ("megatron", "NVIDIA-NeMo/Megatron-Bridge docs", "nvidia", "megatron-bridge"),
        ("NeMo", "", "nvidia", "nemo"),
        ("nemo-rl", "", "nvidia", "nemo-rl"),
        ("a framework of nobody", "", "nvidia", "nemo"),
        ("a framework of nobody", "", "huawei", "mindspeed-llm"),
        ("ModelLink (Megatron)", "", "huawei", "mindspeed-llm"),
        ("megatron", "", "huawei", "megatron-mindspeed"),
        ("verl + MindSpeed", "", "huawei", "verl-megatron-npu"),
        ("verl (FSDP)", "", "huawei", "verl-fsdp-npu"),
        ("MindSpeed-RL", "", "huawei", "mindspeed-rl"),
        ("deepspeed 0.14", "", "huawei", "deepspeed"),
        ("torchtitan", "", "nvidia", "torchtitan"),
        ("torchtitan-npu", "", "huawei", "torchtitan-npu"),
    ],
)
def test_a_records_words_find_its_stack(framework: str, source: str, vendor: str, name: str) -> None:
    assert stack_of_run(framework, source, vendor, "any", Run()).name == name


def test_a_record_may_name_its_stack() -> None:
    record = next(r for r in shipped_records() if r.cluster.profile == "nvidia-h100")
    document = record.model_dump(mode="json", exclude={"diagnoses"})
    named = type(record).model_validate(
        {**document, "software": {"stack": "megatron-lm", "overrides": {"formats.moments": "bf16"}}}
    )
    assert release_of(named).stack.name == "megatron-lm"
    assert release_of(named).memory == {
        "parameter_buffers",
        "precision_aware_optimizer",
        "weighted_experts",
    }


@pytest.mark.parametrize(("precision", "bytes_a_parameter"), [("bf16", 18.0), ("fp16", 20.0)])
@pytest.mark.parametrize("tp", [4, 8])
def test_fp16_with_fp32_sums_holds_what_bf16_does(precision: str, bytes_a_parameter: float, tp: int) -> None:
    """Megatron-LM, docs on the distributed optimizer: 18 bytes a parameter in BF16, 20 in FP16; with FP32 sums 18."""

    def states(**more: Any) -> float:
        strategy = {**STRATEGY, "tp": tp, "pp": 2, "distributed_optimizer": False}
        training = {"seq_length": 4096, "global_batch_size": 128, "precision": precision}
        stage = planner.estimate(spec(strategy=strategy, training=training, **more)).stages[0].memory_gib
        return stage.weights + stage.gradients + stage.optimizer

    summed = {"stack": "megatron-lm", "overrides": {"formats.gradients": "fp32"}}
    assert states(software=summed) == pytest.approx(states() * 18.0 / bytes_a_parameter, rel=1e-6)
    assert default_stack("megatron", "nvidia").facts["formats"]["gradients"]


def test_runs_of_selective_recomputation_summed_in_fp32() -> None:
    """Korthikanti et al. give 45.56 GiB of states for 2.75 G parameters of a rank: 17.8 bytes each."""
    own = stack_of_run("megatron", "Korthikanti et al. arXiv:2205.05198", "nvidia", "Ampere", Run("fp16"))
    other = stack_of_run("megatron", "Narayanan et al. arXiv:2104.04473", "nvidia", "Ampere", Run("fp16"))
    assert "fp32_gradients" in resolved(own, Run("fp16")).memory
    assert "fp32_gradients" not in resolved(own, Run("bf16")).memory
    assert "fp32_gradients" not in resolved(other, Run("fp16")).memory


def test_a_spec_that_names_no_software_is_written_as_before() -> None:
    assert "software" not in spec().model_dump(mode="json")
    assert spec(software="megatron-lm").model_dump(mode="json")["software"]["stack"] == "megatron-lm"


@pytest.mark.parametrize("release", releases(), ids=lambda release: release.name)
def test_what_a_certificate_leaves_out_is_launched_and_is_no_feature(release: Release) -> None:
    flags = [flag for feature in FEATURES.values() if (v := feature.variant(release)) for flag in v.flags]
    switched = {flag.flag if flag.fixed_value is None else f"{flag.flag} {flag.fixed_value}" for flag in flags}
    assert all(release.registers(*name.split()) for name in release.not_searched)
    assert not switched.intersection(release.not_searched)


def test_every_name_that_a_certificate_may_leave_out_is_launched_by_some_release() -> None:
    lists = load_shipped_yaml(files("autodeploy.stack").joinpath("not_searched.yaml").read_text(encoding="utf-8"))
    launched = {name for release in releases() for name in release.not_searched}
    assert launched == {name for names in lists.values() for name in names}


@pytest.mark.parametrize("software", ["nemo", {"stack": OWN}])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_report_says_which_software_a_spec_names(software: Any, lang: Language) -> None:
    name = software if isinstance(software, str) else software["stack"]["name"]
    document = {
        "model": "llama3-8b",
        "cluster": {"profile": "nvidia-h100", "num_npus": 8},
        "training": {"seq_length": 4096, "global_batch_size": 64},
    }
    named, unnamed = (read_spec_document(document | more) for more in ({"software": software}, {}))
    assert name in header(named, None, lang)[1]
    assert name not in header(unnamed, None, lang)[1]
