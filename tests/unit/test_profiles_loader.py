"""Loading a profile: by name, from a user's file, and what is refused."""

from __future__ import annotations

import copy
import pickle
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from hardware_profiles import ProfileError, list_profiles, load_profile, profile_hash
from hardware_profiles.reading import MAX_YAML_BYTES, parse_profile_document, parse_yaml, read_yaml_file
from tests.support.cpu_time import least_cpu_s

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = files("hardware_profiles") / "data" / "cloudmatrix-384.yaml"


@pytest.fixture(scope="module")
def shipped_content() -> dict[str, Any]:
    return parse_yaml(SHIPPED.read_text(encoding="utf-8"))


@pytest.fixture
def content(shipped_content: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(shipped_content)


def paths_of(error: pytest.ExceptionInfo[ProfileError]) -> list[str]:
    return [problem.path for problem in error.value.problems]


def test_named_profile_is_loaded_once() -> None:
    assert load_profile("nvidia-h100") is load_profile("nvidia-h100")
    assert load_profile("nvidia-h100", calibrated=False) is load_profile("nvidia-h100", calibrated=False)


def test_unknown_name_lists_the_known_and_the_close() -> None:
    with pytest.raises(ProfileError, match="no profile 'cloudmatrix384'") as error:
        load_profile("cloudmatrix384")
    assert "did you mean cloudmatrix-384?" in error.value.hint
    assert all(name in error.value.hint for name in list_profiles())


@pytest.mark.parametrize("name", ["", "..", "../loader", "data/nvidia-h100", "/etc/passwd", "a\x00b.yaml", "/dev/zero"])
def test_a_name_never_reaches_outside(name: str) -> None:
    with pytest.raises(ProfileError):
        load_profile(name)


def test_own_yaml_loads_the_same_way(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(SHIPPED.read_text(encoding="utf-8"), encoding="utf-8")
    shipped = load_profile("cloudmatrix-384", calibrated=False)
    assert load_profile(own) == load_profile(str(own)) == shipped
    assert hash(load_profile(own)) == hash(shipped)


def test_hash_follows_every_number(content: dict[str, Any]) -> None:
    base = load_profile("cloudmatrix-384", calibrated=False)
    assert profile_hash(base) == base.content_hash
    assert len(profile_hash(base)) == 64
    changed = load_profile("cloudmatrix-384", overrides={"host.sync_us": 51}, calibrated=False)
    assert profile_hash(changed) != profile_hash(base)
    assert changed != base
    assert parse_profile_document(content) == base.document


def test_profile_and_error_cross_process_borders() -> None:
    profile = load_profile("ascend-800t-a2")
    assert pickle.loads(pickle.dumps(profile)) == profile
    error = ProfileError("wrong", path="/tiers/0", hint="mend it")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.path, copied.hint, copied.problems) == ("wrong", "/tiers/0", "mend it", error.problems)


def test_every_bad_field_is_named_at_once(content: dict[str, Any]) -> None:
    content["tiers"][1]["gb_per_s_per_npu"]["value"] = -3
    content["host"]["sync_us"]["unit"] = "ms"
    content["memory"]["fragmentation"]["kind"] = "guessed"
    content["fixed_costs"]["cube_op"] = content["fixed_costs"].pop("cube_op_us")
    with pytest.raises(ProfileError) as error:
        parse_profile_document(content)
    assert set(paths_of(error)) == {
        "/tiers/1/gb_per_s_per_npu",
        "/host/sync_us",
        "/memory/fragmentation/kind",
        "/fixed_costs/cube_op",
        "/fixed_costs/cube_op_us",
    }
    assert "unit is 'ms', expected 'us'" in str(error.value)
    assert "-3 is outside [1e-06, 1e+09] GB/s" in str(error.value)


@pytest.mark.parametrize("value", [True, "196", None, [196], float("nan"), float("inf"), "unknown"])
def test_a_value_is_a_finite_number(content: dict[str, Any], value: object) -> None:
    content["tiers"][1]["gb_per_s_per_npu"]["value"] = value
    with pytest.raises(ProfileError) as error:
        parse_profile_document(content)
    assert paths_of(error) == ["/tiers/1/gb_per_s_per_npu/value"]


def test_a_plain_number_without_provenance_is_refused(content: dict[str, Any]) -> None:
    content["host"]["sync_us"] = 50
    with pytest.raises(ProfileError) as error:
        parse_profile_document(content)
    assert paths_of(error) == ["/host/sync_us"]
    assert error.value.hint == "give {value, unit, kind, source}"


def test_unknown_efficiency_and_source_have_close_matches(content: dict[str, Any]) -> None:
    content["efficiency"]["gemm_khalf"] = content["efficiency"].pop("gemm_k_half")
    content["efficiency"]["hbm"]["value"] = 1.2
    with pytest.raises(ProfileError) as error:
        parse_profile_document(content)
    assert paths_of(error) == ["/efficiency/hbm", "/efficiency/gemm_khalf"]
    assert error.value.problems[1].hint == "did you mean 'gemm_k_half'?"


def test_unknown_source_is_named(content: dict[str, Any]) -> None:
    content["host"]["sync_us"]["source"] = ["own", "mms"]
    with pytest.raises(ProfileError) as error:
        parse_profile_document(content)
    assert paths_of(error) == ["/host/sync_us/source"]
    assert error.value.hint == "did you mean 'msm'?"
    content["host"]["sync_us"]["source"] = "our own measurement of June"
    assert parse_profile_document(content).host.sync_us.source == ("our own measurement of June",)


def test_efficiency_left_out_takes_the_default(content: dict[str, Any]) -> None:
    del content["efficiency"]["permute"]
    quantity = parse_profile_document(content).efficiency["permute"]
    assert (quantity.value, quantity.kind, quantity.source) == (0.20, "assumed", ("default of the schema",))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda c: c.update(default_device="910D"), "/default_device"),
        (lambda c: c["tiers"].reverse(), "/tiers/0/span"),
        (lambda c: c["tiers"].pop(), "/tiers/1/span"),
        (lambda c: c["tiers"][1].update(name="die_pair"), "/tiers/1/name"),
        (lambda c: c["tiers"][1].update(name="host"), "/tiers/1/name"),
        (lambda c: c["tiers"][1].update(span="npu"), "/tiers/1/span"),
        (lambda c: c.pop("supernode_nodes"), "/tiers/1/span"),
        (lambda c: c.update(npus_per_node={**c["npus_per_node"], "value": 7.5}), "/npus_per_node"),
        (lambda c: c["devices"]["910C"]["usable_hbm_gib"].update(value=65), "/devices/910C/usable_hbm_gib"),
        (lambda c: c.update(devices={}), "/devices"),
        (lambda c: c["release_factors"]["current"].update(value=0), "/release_factors/current"),
    ],
)
def test_contradictions_are_refused(content: dict[str, Any], change: Any, path: str) -> None:
    change(content)
    with pytest.raises(ProfileError) as error:
        parse_profile_document(content)
    assert path in paths_of(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", "invalid YAML.*line"),
        ("a: 1\na: 2\n", "invalid YAML.*line 2"),
        ("- 1\n- 2\n", "is not a mapping"),
        ("", "is not a mapping"),
        ("a: &x [1]\nb: *x\n", "aliases are not supported"),
        ("a: !!python/object:os.system {}\n", "invalid YAML"),
        ("a: " + "[" * 60_000, "line 1, column 23: nested more than 20 levels deep"),
        ("a: 2020-99-99\n", "invalid YAML|month must be"),
        ("#" * (MAX_YAML_BYTES + 1), "larger than 131,072 bytes"),
    ],
)
def test_hostile_text_is_refused(text: str, message: str) -> None:
    def refuse() -> None:
        with pytest.raises(ProfileError, match=message):
            parse_yaml(text)

    assert least_cpu_s(refuse, limit_s=1.0) < 1.0


def test_alias_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 {x: 1}"] + [f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 40)]

    def refuse() -> None:
        with pytest.raises(ProfileError, match="line 2, column 15: aliases are not supported"):
            parse_yaml("\n".join(lines))

    assert least_cpu_s(refuse, limit_s=1.0) < 1.0


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="not UTF-8"):
        load_profile(binary)
    with pytest.raises(ProfileError, match=r"cannot read .*: No such file"):
        load_profile(tmp_path / "missing.yaml")
    with pytest.raises(ProfileError, match=r"cannot read .*: Is a directory"):
        read_yaml_file(tmp_path)
