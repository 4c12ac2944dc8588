"""Public recipes as data: they are legal where they were run, and their speeds are those of the records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autodeploy import calibration
from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.formats.import_document import import_document
from autodeploy.search.planner import estimate, launch_rules
from autodeploy.search.ranking.public_recipes import PublicRecipe, features_of, public_recipes, recipes_for
from autodeploy.specs.presets import load_preset
from autodeploy.specs.spec import Spec, parse_spec
from autodeploy.stack.frameworks import FRAMEWORKS, UNRESTRICTED
from docs.public_recipes import read_recipe
from hardware_profiles import load_profile

LAUNCHES = Path(calibration.__file__).parent / "records" / "launches"
RECIPES = public_recipes()
SCRIPT = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}:[\w./-]+\.sh")


def name_of(recipe: PublicRecipe) -> str:
    return f"{recipe.model}-{recipe.profile}-{recipe.source.rpartition('/')[2]}"


def spec_of(recipe: PublicRecipe) -> Spec:
    training = {"seq_length": recipe.seq_length, "global_batch_size": recipe.global_batch_size}
    document = {
        "model": recipe.model,
        "cluster": {"profile": recipe.profile, "device": recipe.device, "num_npus": recipe.num_npus, "overlay": "none"},
        "training": training | {"precision": recipe.precision},
        "search": {"target": recipe.framework},
        "strategy": recipe.strategy.model_dump(mode="json"),
    }
    return parse_spec(document)


def test_models_chips_and_frameworks_are_known_ones_and_no_entry_is_there_twice() -> None:
    assert len({name_of(each) for each in RECIPES} | {each.source for each in RECIPES}) >= len(RECIPES)
    for recipe in RECIPES:
        assert load_preset(recipe.model)
        assert recipe.device in set(load_profile(recipe.profile).devices)
        assert recipe.framework in FRAMEWORKS
        assert SCRIPT.fullmatch(recipe.source) or not recipe.source.endswith(".sh")


def test_a_recipe_of_its_publishers_own_software_has_on_what_it_names_alone() -> None:
    own = [each for each in RECIPES if each.framework == UNRESTRICTED]
    assert own
    assert all(features_of(each) == frozenset(each.strategy.features) for each in own)
    launched = next(each for each in RECIPES if (each.model, each.framework) == ("deepseek-v2", "mindspeed-llm"))
    assert {"padded_heads", "regathers_latents"} <= features_of(launched) - {*launched.strategy.features}


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_degrees_divide_the_cards_and_the_batch(recipe: PublicRecipe) -> None:
    s, ranks = recipe.strategy, recipe.num_npus * load_profile(recipe.profile).devices_per_npu
    replicas, rest = divmod(ranks, s.tp * s.pp * s.cp)
    assert rest == 0
    assert recipe.global_batch_size % (replicas * s.micro_batch_size) == 0
    assert s.tp * s.cp * replicas % (s.ep * (s.etp or 1)) == 0
    assert (load_preset(recipe.model).n_routed_experts or 1) % s.ep == 0


@pytest.mark.parametrize(
    "recipe", [each for each in RECIPES if each.framework == "mindspeed-llm" and not each.note], ids=name_of
)
def test_a_script_that_is_run_breaks_no_rule_of_its_framework(recipe: PublicRecipe) -> None:
    features = frozenset(recipe.strategy.features)
    assert launch_rules(spec_of(recipe), features=features).names == frozenset()


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each.measured], ids=name_of)
def test_a_published_speed_is_that_of_its_record(recipe: PublicRecipe) -> None:
    records = {record.id: record for record in shipped_records()}
    assert recipe.measured is not None
    record = records[recipe.measured.record]
    tokens_per_s = record.measured.tokens_per_s_per_npu
    if tokens_per_s is None:
        assert recipe.measured_step_time_s == pytest.approx(record.measured.step_time_s, rel=1e-4)
    else:
        assert recipe.measured.tokens_per_s_per_npu == tokens_per_s
    assert (recipe.profile, recipe.num_npus) == (record.cluster.profile, record.cluster.num_npus)
    assert recipe.global_batch_size == record.training.global_batch_size.value
    assert (recipe.seq_length, recipe.precision) == (record.training.seq_length, record.training.precision)
    degrees = ("tp", "pp", "cp", "ep", "micro_batch_size")
    assert [getattr(recipe.strategy, name) for name in degrees] == [getattr(record.strategy, name) for name in degrees]


@pytest.mark.parametrize("record", ["MSF01", "MSF02", "MSF03"])
def test_a_recipe_is_what_the_importer_reads_of_its_script(record: str) -> None:
    # The launches of these records are their scripts without data, optimizer and checkpoints.
    recipe = next(each for each in RECIPES if each.measured and each.measured.record == record)
    row = recipe.model_dump(mode="json", exclude_unset=True)
    read = read_recipe(row, (LAUNCHES / f"{record}.sh").read_text(encoding="utf-8"))
    assert PublicRecipe.model_validate(read) == recipe


def test_a_step_of_deepseek_v3_on_256_cards_takes_67_seconds() -> None:
    recipe = next(each for each in RECIPES if each.measured and each.measured.record == "MSF01")
    assert recipe.measured_step_time_s == pytest.approx(67.15, abs=0.01)
    assert recipe.short_source.startswith("Ascend/MindSpeed-LLM@c77308a1:examples/mcore/deepseek3/")


def test_recipes_are_of_the_models_sizes_and_the_chips_family() -> None:
    a3, a2 = load_profile("cloudmatrix-384"), load_profile("ascend-800t-a2")
    model = load_preset("deepseek-v3").model_copy(update={"name": "of another name", "vocab_size": 129_000})
    assert {each.model for each in recipes_for(model, a3)} == {"deepseek-v3"}
    assert {each.profile for each in recipes_for(model, a2)} == {"ascend-800t-a2"}
    assert {each.model for each in recipes_for(load_preset("llama3-70b"), a2)} == {"llama3.1-70b"}
    wider = model.model_copy(update={"hidden_size": 8192})
    assert recipes_for(wider, a3) == ()


def test_a_vocabulary_that_a_script_lacks_is_the_models() -> None:
    text = (LAUNCHES / "MSF02.sh").read_text(encoding="utf-8")
    bare = re.sub(r" +--padded-vocab-size \d+ \\\n", "", text).replace("qwen3", "own")
    recipe = next(each for each in RECIPES if each.measured and each.measured.record == "MSF02")
    row = recipe.model_dump(mode="json", exclude_unset=True)
    assert read_recipe(row, bare)["strategy"] == row["strategy"]
    assert import_document(text, "MSF02.sh").document["model"]["vocab_size"] == 151_936
    assert estimate(spec_of(recipe)).fits
