"""Files of a cluster: what each format says, and how broken or hostile ones are refused.

The rank tables are made after the samples of CANN's guide of HCCL (version 1.2, two supernodes) and of MindCluster's
"hccl.json File Description"; the matrices after outputs of `npu-smi info -t topo` that ms-swift (eight 910B3) and
users of Atlas A3 (`Phy-ID`) show; the speeds after the example in MindCluster's ascend-common (`Speed: 100000 Mb/s`).
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.analysis.cluster_import import ImportedCluster, import_cluster
from autodeploy.formats.cluster_files import (
    MAX_TEXT,
    LeafMap,
    LinkSpeeds,
    NpuTopology,
    RankTable,
    read_cluster_file,
    read_cluster_text,
)
from autodeploy.kit.errors import SpecError
from autodeploy.specs.cluster import ClusterSpec
from hardware_profiles import load_profile
from tests.support.pace import at_most

if TYPE_CHECKING:
    from pathlib import Path


def table(servers: int = 4, devices: int = 16, supernodes: int = 2) -> dict[str, Any]:
    """A rank table of version 1.2; of version 1.0 without supernodes."""
    document: dict[str, Any] = {"status": "completed", "version": "1.2" if supernodes else "1.0"}
    document["server_count"] = str(servers)
    document["server_list"] = [
        {
            "server_id": f"node_{server}",
            "device": [
                {
                    "device_id": str(device),
                    "device_ip": f"192.168.{server}.{device}",
                    "rank_id": str(server * devices + device),
                    **({"super_device_id": str(server * 100 + device)} if supernodes else {}),
                }
                for device in range(devices)
            ],
        }
        for server in range(servers)
    ]
    if supernodes:
        each = servers // supernodes
        document["super_pod_list"] = [
            {
                "super_pod_id": str(pod),
                "server_list": [{"server_id": f"node_{pod * each + place}"} for place in range(each)],
            }
            for pod in range(supernodes)
        ]
    return document


def matrix(devices: int = 8, *, word: str = "NPU", pair: str = "HCCS", far: str = "HCCS") -> str:
    names = [f"{word}{device}" for device in range(devices)]
    rows = [
        "  ".join([name, *("X" if i == j else pair if i // 2 == j // 2 else far for j in range(devices)), "144-167"])
        for i, name in enumerate(names)
    ]
    return "\n".join(["\t   " + "  ".join(names) + "  CPU Affinity", *rows, "", "Legend:", "", "  X    = Self", ""])


def speeds(*mbit: int) -> str:
    return "".join(f"====> hccn_tool -i {i} -speed -g\nSpeed: {rate} Mb/s\n" for i, rate in enumerate(mbit))


HCCL = (
    "mpirun -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp32 -o sum -n 20 -p 8\n"
    "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    "67108864          | {us}           | 67.10886             | success\n"
)


def said(found: ImportedCluster) -> dict[str, dict[str, object]]:
    return {str(each.values.get("number", each.key)): each.values for each in found.disagreements}


def imported(*texts: str, profile: str | None = None) -> ImportedCluster:
    return import_cluster([(f"file{i}", read_cluster_text(text)) for i, text in enumerate(texts)], profile)


def refused(text: str) -> SpecError:
    with at_most(2.0), pytest.raises(SpecError) as caught:
        read_cluster_text(text)
    return caught.value


# -- the formats -------------------------------------------------------------------------------------------------------


def test_a_rank_table_lists_its_nodes_and_their_supernodes() -> None:
    found = read_cluster_text(json.dumps(table()))
    assert isinstance(found, RankTable)
    assert [(s.name, len(s.devices), s.supernode) for s in found.servers] == [
        ("node_0", 16, "0"),
        ("node_1", 16, "0"),
        ("node_2", 16, "1"),
        ("node_3", 16, "1"),
    ]
    plain = read_cluster_text("\ufeff" + json.dumps(table(2, 8, 0), indent=4))
    assert isinstance(plain, RankTable)
    assert {s.supernode for s in plain.servers} == {None}


def test_a_matrix_says_how_each_pair_is_joined() -> None:
    found = read_cluster_text(matrix(4, word="Phy-ID", pair="SIO", far="HCCS_SW"))
    assert found == NpuTopology(
        (0, 1, 2, 3),
        (
            ("X", "SIO", "HCCS_SW", "HCCS_SW"),
            ("SIO", "X", "HCCS_SW", "HCCS_SW"),
            ("HCCS_SW", "HCCS_SW", "X", "SIO"),
            ("HCCS_SW", "HCCS_SW", "SIO", "X"),
        ),
    )


def test_speeds_are_of_the_device_named_before_or_count_from_zero() -> None:
    assert read_cluster_text("hccn_tool -i 5 -speed -g\nSpeed: 200000 Mb/s\n") == LinkSpeeds({5: 200000})
    assert read_cluster_text("Speed: 200000 Mb/s\nSpeed: 100000 Mb/s\n") == LinkSpeeds({0: 200000, 1: 100000})


# -- the cluster -------------------------------------------------------------------------------------------------------


def test_a_cluster_that_is_as_its_profile_says_comes_without_disagreement() -> None:
    a2 = imported(json.dumps(table(4, 8, 0)), matrix(), speeds(*[200000] * 8))
    assert (a2.profile, a2.document["num_npus"], said(a2)) == ("ascend-800t-a2", 32, {})
    rate = a2.document["overlay"]["scale_out"]["gb_per_s_per_npu"]
    assert rate == {"value": 25.0, "kind": "measured", "source": "read from file2"}
    a3 = imported(json.dumps(table()), matrix(16, word="Phy-ID", pair="SIO", far="HCCS_SW"), speeds(*[200000] * 16))
    assert (a3.profile, said(a3)) == ("cloudmatrix-384", {})
    assert a3.document["blocks"] == [{"supernode": 0, "nodes": 2}, {"supernode": 1, "nodes": 2}]
    assert a3.document["overlay"]["scale_out"]["gb_per_s_per_npu"]["value"] == 50.0  # two dies a card
    for found in (a2, a3):
        ClusterSpec.model_validate(found.document)
        load_profile(found.profile, overlay=found.document["overlay"])


def test_parts_that_disagree_with_the_profile_are_named() -> None:
    broken = table(4, 8, 0)
    lost = broken["server_list"][3]["device"].pop()
    lost["rank_id"] = "31"
    text = matrix().replace("NPU0  X  HCCS", "NPU0  X  PHB").replace("NPU1  HCCS  X", "NPU1  PHB  X")
    found = imported(json.dumps(broken), text, speeds(*[200000] * 7, 100000), HCCL.format(us=2500))
    assert found.document["num_npus"] == 24  # a broken node is not counted
    assert said(found)["node_left_out"] == {"file": "file0", "server": "node_3", "found": 7, "usual": 8}
    assert said(found)["hccs 0-1"]["found"] == "PHB"
    assert said(found)["slow_ports"]["devices"] == "7"
    assert said(found)["scale_out.gb_per_s_per_npu"]["found"] == "12.5"  # 100 Gbit/s are 12.5 GB/s
    assert said(found).keys() == {
        *("node_left_out", "hccs 0-1", "slow_ports", "scale_out.gb_per_s_per_npu", "hccs.efficiency")
    }


def test_a_measured_collective_is_predicted_as_it_was_measured() -> None:
    from autodeploy.calibration.benchmarks import collective_s
    from autodeploy.costs.inputs.machine import machine_of
    from hardware_profiles import cluster_topology

    found = imported(HCCL.format(us=2500), profile="ascend-800t-a2")
    assert not {"num_npus", "blocks"} & found.document.keys()
    profile = load_profile(found.profile, overlay=found.document["overlay"])
    machine = machine_of(profile, profile.device(None), cluster_topology(profile, num_npus=8), precision="bf16")
    assert collective_s("all_reduce", 67108864, machine.group(1, 8), machine) == pytest.approx(2.5e-3, rel=0.03)


def leaves(*nodes: int) -> dict[str, Any]:
    """`tor_info` as MindCluster's guide to switch affinity shows it."""
    switches, first = [], 0
    for switch, count in enumerate(nodes):
        servers = [
            {"server_ip": f"10.0.{(first + n) // 200}.{(first + n) % 200}", "npu_count": 8, "slice_id": n}
            for n in range(count)
        ]
        switches.append({"tor_id": switch, "tor_ip": f"10.9.0.{switch}", "server": servers})
        first += count
    return {"version": "1.0", "tor_count": len(nodes), "server_list": switches}


def test_a_map_of_switches_says_how_many_nodes_are_below_each() -> None:
    plain = json.dumps(leaves(4, 4, 3))
    config_map = json.dumps({"kind": "ConfigMap", "data": {"tor_info": plain}})
    for text in (plain, config_map):
        assert read_cluster_text(text) == LeafMap((4, 4, 3))
    files = [("hccl.json", read_cluster_text(json.dumps(table(11, 8, 0)))), ("tor.json", read_cluster_text(plain))]
    found = import_cluster(files, leaf_oversubscription=3.0)
    assert (found.document["leaf"], said(found)) == ({"nodes": 4, "oversubscription": 3.0}, {})
    ClusterSpec.model_validate(found.document)
    unknown = import_cluster(files)
    assert "leaf" not in unknown.document
    assert said(unknown) == {"leaf_rate_unknown": {"file": "tor.json", "nodes": 4}}
    uneven = [files[0], ("tor.json", read_cluster_text(json.dumps(leaves(2, 4, 4, 1))))]
    assert said(import_cluster(uneven, leaf_oversubscription=2.0))["leaves_differ"]["found"] == 2
    told = said(import_cluster(files, leaf_nodes=8, leaf_oversubscription=2.0))["leaf.nodes"]
    assert (told["found"], told["expected"], told["other"]) == (4, 8, "--leaf-nodes")
    with pytest.raises(SpecError, match="number of nodes per leaf switch not given"):
        import_cluster(files[:1], leaf_oversubscription=2.0)
    with pytest.raises(SpecError, match="a second file of its kind"):
        import_cluster([*files, files[1]], leaf_oversubscription=2.0)


def test_leaf_switches_of_supernodes_are_those_of_whole_ones() -> None:
    whole = [("hccl.json", read_cluster_text(json.dumps(table(96, 16, 2))))]
    found = import_cluster(whole, leaf_nodes=48, leaf_oversubscription=2.0)
    assert found.document["num_npus"] == 768
    assert "blocks" not in found.document
    partial = [("hccl.json", read_cluster_text(json.dumps(table(4, 16, 2))))]
    left = import_cluster(partial, leaf_nodes=48, leaf_oversubscription=2.0)
    assert said(left) == {"leaf_left_out": {"profile": "cloudmatrix-384"}}
    assert "leaf" not in left.document


def test_nodes_with_fewer_cards_have_fewer_links_of_the_same_rate() -> None:
    found = imported(json.dumps(table(2, 4, 0)), profile="ascend-800t-a2")
    assert said(found)["npus_per_node"]["found"] == 4
    whole = load_profile("ascend-800t-a2").tier("hccs")
    half = load_profile("ascend-800t-a2", overlay=found.document["overlay"]).tier("hccs")
    assert (half.ranks, half.links) == (4, 3)
    assert half.bytes_per_s / half.links == pytest.approx(whole.bytes_per_s / whole.links)


def test_a_supernode_larger_than_the_profiles_is_taken_as_it_is() -> None:
    found = imported(json.dumps(table(50, 16, 1)))
    assert said(found)["supernode_nodes"]["found"] == 50
    assert load_profile(found.profile, overlay=found.document["overlay"]).supernode_nodes == 50


@pytest.mark.parametrize(
    ("texts", "profile", "told"),
    [
        ([json.dumps(table(2, 8, 0))] * 2, None, "a second file of its kind"),
        ([matrix()], None, "no file describes the cards"),
        ([json.dumps(table(2, 5, 0))], None, "with 5 devices per node"),
        ([json.dumps(table(2, 5, 0))], "cloudmatrix-384", "whole number of 2-die cards"),
    ],
)
def test_files_that_make_no_cluster_are_refused(texts: list[str], profile: str | None, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        imported(*texts, profile=profile)


# -- what is refused ---------------------------------------------------------------------------------------------------


def changed(path: str, value: object) -> str:
    """A good rank table with one value changed, one line a value."""
    document = copy.deepcopy(table())
    *parents, last = path.split("/")
    node: Any = document
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    node[int(last) if isinstance(node, list) else last] = value
    return json.dumps(document, indent=0)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("version", "2.0", "invalid value '2.0'"),
        ("status", "initializing", "invalid value 'initializing'"),
        ("server_count", "5", "expected 5 entries, got 4"),
        ("server_list/1/device/3/device_id", "2", "device_id 2 is given twice"),
        ("server_list/1/device/3/device_id", "-3", "'-3' is not a whole number"),
        ("server_list/1/device/3/rank_id", 10**30, "is not a whole number"),
        ("server_list/1/device/3/rank_id", "0", "rank_id 0 is given twice"),
        ("server_list/2/device/0/device_ip", "192.168.0.0", "device_ip 192.168.0.0 is given twice"),
        ("server_list/2/server_id", "node_0", "server_id node_0 is given twice"),
        ("server_list/2/server_id", True, "at most 200 characters"),
        ("server_list/2/device", {}, "at least one entry"),
        ("server_list/2/device/0", "0", "not a JSON object"),
        ("super_pod_list/1/server_list/0/server_id", "node_0", "'node_0' is given twice"),
        ("super_pod_list/1/server_list/0/server_id", "else", "(super_pod_list)"),
    ],
)
def test_a_wrong_value_of_a_rank_table_is_refused_with_its_line(path: str, value: object, told: str) -> None:
    text = changed(path, value)
    error = refused(text)
    assert told in str(error)
    line = int(str(error).removeprefix("line ").partition(":")[0])
    pointer = error.errors[0].path
    key = pointer.rsplit("/", 1)[-1]
    assert key.isdigit() or f'"{key}"' in text.split("\n")[line - 1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"version": "1.0",\n"version": "1.2"}', "line 2: 'version' is given twice"),
        ('{"version": "1.0",\n\n"server_count": NaN}', "line 3: NaN is not a finite number"),
        ('{"version": "1.0",\n"server_count": ' + "9" * 5000 + "}", "line 2: invalid JSON: "),
        ("\n" + "[" * 100_000, "line 2: nested"),
        ("{" * 5, "line 1"),
        ('{"version": "1.0"\n"status": ""}', "line 2"),
        ("[1,\n2]", "not a JSON object"),
        ('{"server_group_list":\n []}', "line 2: unknown key 'server_group_list'"),
        ('{"group_list": []}', "unknown key 'group_list'"),
        ('{"rank_list": []}', "unknown key 'rank_list'"),
        ('{"a": [' + "1," * 260_000 + "1]}", "at most 250,000 entries"),
        (" " * (MAX_TEXT + 1) + "{}", "at most 4,000,000 characters"),
    ],
)
def test_hostile_json_is_refused_with_its_line(text: str, told: str) -> None:
    assert told in str(refused(text))


def switches_with(path: str, value: object) -> str:
    """A good map of switches with one value changed, one line a value."""
    document: Any = leaves(2, 2)
    *parents, last = path.split("/")
    node = document
    for key in parents:
        node = node[int(key)] if isinstance(node, list) else node[key]
    node[int(last) if isinstance(node, list) else last] = value
    return json.dumps(document, indent=0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (switches_with("version", "9.0"), "line 2: invalid value '9.0'"),
        (switches_with("server_list", {}), "line 4: at least one entry"),
        (switches_with("server_list/1", 3), "not a JSON object"),
        (switches_with("server_list/1/tor_id", 0), "tor_id 0 is given twice"),
        (switches_with("server_list/1/tor_id", -1), "'-1' is not a whole number"),
        (switches_with("server_list/1/server", []), "at least one entry"),
        (switches_with("server_list/1/server/0/server_ip", "10.0.0.0"), "server_ip 10.0.0.0 is given twice"),
        (switches_with("server_list/1/server/0/server_ip", None), "at most 200 characters"),
        ('{"tor_id": 1, "server_list": ' + "[" * 100_000, "nested"),
        ('{"tor_id": NaN}', "NaN is not a finite number"),
        ('{"tor_id": [' + "1," * 260_000 + "1]}", "at most 250,000 entries"),
        (" " * (MAX_TEXT + 1) + '{"tor_id": 1}', "at most 4,000,000 characters"),
        ('{"data": {"tor_info": 4}}', "invalid value tor_info"),
        (json.dumps({"data": {"tor_info": json.dumps({"data": {"tor_info": "{}"}})}}), "invalid value tor_info"),
    ],
)
def test_a_broken_map_of_switches_is_refused_with_its_line(text: str, told: str) -> None:
    error = refused(text)
    assert told in str(error)
    assert str(error).startswith(("line ", "at most"))


def swapped(old: str, new: str, text: str | None = None) -> str:
    text = text or matrix()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (swapped("NPU0  X  HCCS", "NPU0  X  nvlink"), "line 2: invalid value 'nvlink'"),
        (swapped("NPU0  X  HCCS", "NPU0  X  SYS"), "line 2: the links from NPU0 to NPU1 and back differ"),
        (swapped("NPU0  X  HCCS", "NPU0  HCCS  HCCS"), "line 2: the links from NPU0 to NPU0 and back differ"),
        (swapped("  144-167", "", "NPU0 NPU1\nNPU0 X\nNPU1 HCCS X  144-167"), "line 2: expected 2 entries, got 1"),
        (swapped("NPU7  HCCS", "#  HCCS"), "missing NPU7"),
        (swapped("NPU6  HCCS", "NPU7  HCCS"), "line 9: NPU7 is given twice"),
        (swapped("NPU7  CPU", "NPU6  CPU"), "line 1: NPU6 is given twice"),
        (swapped("NPU7  HCCS", "NPU9  HCCS"), "missing NPU7"),
        (matrix() + matrix(), "line 14: NPU0 is given twice"),
        (matrix(65), "line 1: at most 64 entries"),
        (matrix() + "\0", "line 14: invalid value '\\x00'"),
        (matrix() + "x" * 30_000, "line 14: at most 20,000 characters"),
    ],
)
def test_a_broken_matrix_is_refused_with_its_line(text: str, told: str) -> None:
    assert told in str(refused(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Speed: Unknown!\n", "line 1: invalid value 'Unknown!'"),
        (speeds(200000) + "Speed:\n", "line 3: invalid value ''"),
        (speeds(200000) + "Speed: -1 Mb/s", "line 3: invalid value '-1 Mb/s'"),
        (speeds(200000) + "Speed: nan Mb/s", "line 3: invalid value 'nan Mb/s'"),
        (speeds(200000) + "Speed: 1e400 Mb/s", "line 3"),
        (speeds(200000) + "Speed: 0 Mb/s", "line 3: 0 is outside [1, "),
        (speeds(200000) + "Speed: 999999999 Mb/s", "line 3: 999999999 is outside [1, "),
        (speeds(200000) + "Speed: " + "9" * 5000 + " Mb/s", "line 3"),
        (speeds(200000) * 2, "line 4: device 0 is given twice"),
        (speeds(200000) + "Speed: 200 Gb/s", "line 3: invalid value '200 Gb/s'"),
        ("Speed: 200000 Mb/s\n" * 20_001, "line 20001: at most 20,000 entries"),
        ("ok\n\0", "not a file that can be imported"),
        ("", "must not be empty"),
    ],
)
def test_broken_speeds_are_refused_with_their_line(text: str, told: str) -> None:
    assert told in str(refused(text))


def test_a_file_of_another_encoding_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "hccl.json"
    path.write_bytes(json.dumps(table()).encode("utf-16"))
    with pytest.raises(SpecError, match=r"hccl\.json is not UTF-8"):
        read_cluster_file(path)
    path.write_text(changed("status", "no"))
    with pytest.raises(SpecError, match=r"hccl\.json: line 2: invalid value"):
        read_cluster_file(path)
