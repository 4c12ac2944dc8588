"""A cluster as its own files say it: the `cluster` of a spec, with what was measured as its overlay."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.benchmarks import collective_overlay
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.formats.cluster_files import LeafMap, LinkSpeeds, NpuTopology, RankTable, Server
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.measured_run import MeasuredRun
from hardware_profiles import apply_overlay, cluster_topology, list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.formats.cluster_files import ClusterFile
    from hardware_profiles import Profile

# A link that reaches less or more than this share off what the profile says disagrees with it; below is how far sizes
# and repeats of one collective lie apart.
TOLERANCE = 0.10
SPEED_TOLERANCE = 0.01
MBIT_TO_GB = 1.0 / 8000.0
# How a pair of devices is joined by each kind of tier: words of `npu-smi info -t topo`.
LINKS_OF_TIER = {"p2p": "SIO", "full_mesh": "HCCS", "switch": "HCCS_SW"}

Named = tuple[str, "ClusterFile"]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A difference of the files from the profile: a key of section `command` and its blanks."""

    key: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ImportedCluster:
    """`document`: the `cluster` of a spec, its overlay included. It has no size where no file says one."""

    profile: str
    document: dict[str, Any]
    disagreements: tuple[Disagreement, ...]


def import_cluster(
    files: Sequence[Named],
    profile_name: str | None = None,
    *,
    leaf_nodes: int | None = None,
    leaf_oversubscription: float | None = None,
) -> ImportedCluster:
    """The cluster that these files, each with its name, describe together.

    profile_name : the profile that they are held against; None: the one system whose nodes look like the rank table's.
    leaf_nodes, leaf_oversubscription : of leaf switches, what no file says; the latter no file does.

    Raises SpecError when two rank tables or maps of switches are there, no or several profiles fit, nodes can't be made
    of the profile's cards, or nobody says how many are below a leaf switch.
    """
    tables = [(name, file) for name, file in files if isinstance(file, RankTable)]
    if len(tables) > 1:
        raise SpecError(Message("services.second_file", file=tables[1][0]))
    profile = load_profile(profile_name or _profile_of(tables[0][1] if tables else None))
    document: dict[str, Any] = {"profile": profile_name or profile.name}
    overlay: dict[str, Any] = {"profile": profile.name}
    said: list[Disagreement] = []
    for name, table in tables:
        document |= _counted(profile, table, name, overlay, said)
    if leaf := _leaf(files, leaf_nodes, leaf_oversubscription, said):
        document = _behind_leaves(apply_overlay(profile, overlay), document, leaf, said)
    for name, file in files:
        if isinstance(file, LinkSpeeds):
            _speeds(profile, file, name, overlay, said)
        elif isinstance(file, NpuTopology):
            _joined(apply_overlay(profile, overlay), file, name, said)
    benchmarks = [(name, file) for name, file in files if isinstance(file, MeasuredRun) and file.collectives]
    if benchmarks:
        _collectives(apply_overlay(profile, overlay), benchmarks, overlay, said)
    apply_overlay(profile, overlay)
    if len(overlay) > 1:
        document["overlay"] = overlay
    return ImportedCluster(profile.name, document, tuple(said))


def _profile_of(table: RankTable | None) -> str:
    """The one system that a rank table's nodes look like: as many devices a node, supernodes or none."""
    hint = Message("services.profile_name_one_of", names=", ".join(list_profiles()))
    if table is None:
        raise SpecError(Message("services.unknown_cards"), hint=hint)
    devices = _usual_devices(table)
    grouped = table.servers[0].supernode is not None
    shipped = [load_profile(name) for name in list_profiles()]
    # Systems that are started by such tables have a launcher that writes them.
    profiles = [
        p.name
        for p in shipped
        if p.document.ascendjob is not None
        and p.ranks_per_node == devices
        and (p.supernode_nodes is not None) == grouped
    ]
    if len(profiles) != 1:
        raise SpecError(Message("services.no_matching_profile", devices=devices), hint=hint)
    return profiles[0]


def _usual_devices(table: RankTable) -> int:
    """Devices of most nodes, the larger number where as many have another."""
    counts = Counter(len(server.devices) for server in table.servers)
    return max(counts, key=lambda devices: (counts[devices], devices))


def _counted(
    profile: Profile, table: RankTable, name: str, overlay: dict[str, Any], said: list[Disagreement]
) -> dict[str, Any]:
    """Nodes and cards; nodes with fewer devices than most are left out, as broken ones are."""
    devices = _usual_devices(table)
    whole = [server for server in table.servers if len(server.devices) == devices]
    for server in table.servers:
        if len(server.devices) != devices:
            left_out = {"file": name, "server": server.name, "found": len(server.devices), "usual": devices}
            said.append(Disagreement("node_left_out", left_out))
    cards, rest = divmod(devices, profile.devices_per_npu)
    if rest:
        message = Message("services.partial_cards", devices=devices, dies=profile.devices_per_npu)
        raise SpecError(Message("common.place", place=name, message=message), hint="--profile NAME")
    if cards != profile.npus_per_node:
        said.append(_differs(name, "npus_per_node", cards, profile.npus_per_node))
        _fewer_cards(profile, devices, cards, name, overlay)
    nodes = _by_supernode(whole)
    if nodes is None or profile.supernode_nodes is None:
        if nodes is not None:
            said.append(Disagreement("supernodes_unknown", {"file": name, "found": len(nodes)}))
        return {"num_npus": cards * len(whole)}
    if max(nodes.values()) > profile.supernode_nodes:
        most = max(nodes.values())
        said.append(_differs(name, "supernode_nodes", most, profile.supernode_nodes))
        overlay["supernode_nodes"] = _measured(most, name)
    return {"blocks": [{"supernode": i, "nodes": count} for i, count in enumerate(nodes.values())]}


def _leaf(
    files: Sequence[Named], nodes: int | None, oversubscription: float | None, said: list[Disagreement]
) -> dict[str, Any] | None:
    """Leaf switches as a spec says them; None without."""
    maps = [(name, file) for name, file in files if isinstance(file, LeafMap)]
    if len(maps) > 1:
        raise SpecError(Message("services.second_file", file=maps[1][0]))
    for name, leaf_map in maps:
        counts = Counter(leaf_map.nodes)
        usual = max(counts, key=lambda count: (counts[count], count))
        others = sum(count != usual for count in leaf_map.nodes)
        if others > (leaf_map.nodes[-1] < usual):  # the last one may be partly filled
            said.append(Disagreement("leaves_differ", {"file": name, "usual": usual, "found": others}))
        if nodes is not None and nodes != usual:
            said.append(_differs(name, "leaf.nodes", usual, nodes, "--leaf-nodes"))
        nodes = usual if nodes is None else nodes
        if oversubscription is None:
            said.append(Disagreement("leaf_rate_unknown", {"file": name, "nodes": usual}))
    if oversubscription is None:
        return None
    if nodes is None:
        message = Message("services.unknown_leaf_nodes")
        raise SpecError(message, hint=Message("services.give_leaf_nodes"))
    return {"nodes": nodes, "oversubscription": oversubscription}


def _behind_leaves(
    profile: Profile, document: dict[str, Any], leaf: dict[str, Any], said: list[Disagreement]
) -> dict[str, Any]:
    """The cluster with its leaf switches, in whole supernodes: nothing says where the others' broken nodes are."""
    blocks = document.get("blocks", ())
    if any(block["nodes"] != profile.supernode_nodes for block in blocks[:-1]):
        said.append(Disagreement("leaf_left_out", {"profile": profile.name}))
        return document
    section = {key: value for key, value in document.items() if key != "blocks"}
    if blocks:
        section["num_npus"] = profile.npus_per_node * sum(block["nodes"] for block in blocks)
    return section | {"leaf": leaf}


def _fewer_cards(profile: Profile, devices: int, cards: int, name: str, overlay: dict[str, Any]) -> None:
    """Nodes of another size: of a full mesh each device has links to the devices that are there, of the same rate."""
    overlay["npus_per_node"] = _measured(cards, name)
    for tier, document in zip(profile.tiers, profile.document.tiers, strict=True):
        if tier.links and document.span == "node" and devices > 1:
            links = devices - 1
            quantity = document.gb_per_s_per_npu
            overlay[tier.name] = {
                "gb_per_s_per_npu": {
                    "value": quantity.value * links / tier.links,
                    "kind": quantity.kind,
                    "source": list(quantity.source),
                    "note": f"{links} of {tier.links} links: {cards} cards a node in {name}",
                }
            }


def _by_supernode(servers: Sequence[Server]) -> dict[str, int] | None:
    """Nodes of each supernode in the order of the table; None without supernodes."""
    if any(server.supernode is None for server in servers):
        return None
    return dict(Counter(str(server.supernode) for server in servers))


def _speeds(profile: Profile, speeds: LinkSpeeds, name: str, overlay: dict[str, Any], said: list[Disagreement]) -> None:
    """A device's network port is its way out of the node or supernode; a collective waits for the slowest."""
    tier = profile.document.tiers[-1]
    rates = {device: mbit * MBIT_TO_GB * profile.devices_per_npu for device, mbit in sorted(speeds.mbit_per_s.items())}
    slowest, fastest = min(rates.values()), max(rates.values())
    shipped = tier.gb_per_s_per_npu.value
    if slowest < fastest:
        slow = ", ".join(str(device) for device, rate in rates.items() if rate == slowest)
        said.append(Disagreement("slow_ports", {"file": name, "devices": slow[:200], "found": f"{slowest:g}"}))
    if abs(slowest / shipped - 1.0) > SPEED_TOLERANCE:
        said.append(_differs(name, f"{tier.name}.gb_per_s_per_npu", f"{slowest:g}", f"{shipped:g}"))
    before = overlay.get(tier.name, {}).get("gb_per_s_per_npu")
    if before is None or before["value"] > slowest:
        overlay.setdefault(tier.name, {})["gb_per_s_per_npu"] = _measured(slowest, name)


def _joined(profile: Profile, topology: NpuTopology, name: str, said: list[Disagreement]) -> None:
    """Whether each pair of a node is joined as the profile's innermost tier that holds both."""
    if len(topology.devices) != profile.ranks_per_node:
        said.append(_differs(name, "ranks_per_node", len(topology.devices), profile.ranks_per_node))
    otherwise: dict[tuple[str, str, str], list[str]] = {}
    for i, device in enumerate(topology.devices):
        for j in range(i):
            tier, kind = next(
                (t, document.kind)
                for t, document in zip(profile.tiers, profile.document.tiers, strict=True)
                if t.ranks is None or i // t.ranks == j // t.ranks
            )
            expected, link = LINKS_OF_TIER[kind], topology.links[i][j]
            if link != expected:
                pair = f"{topology.devices[j]}-{device}"
                otherwise.setdefault((tier.name, expected, link), []).append(pair)
    for (tier_name, expected, link), pairs in otherwise.items():
        shown_pairs = ", ".join(pairs[:4]) + (", ..." if len(pairs) > 4 else "")
        said.append(_differs(name, f"{tier_name} {shown_pairs}", link, expected))


def _collectives(
    profile: Profile, benchmarks: Sequence[tuple[str, MeasuredRun]], overlay: dict[str, Any], said: list[Disagreement]
) -> None:
    """Efficiency of collectives on each tier they cross, fitted through the formulas that plans are priced by."""
    points = [point for _, run in benchmarks for point in run.collectives]
    names = ", ".join(name for name, _ in benchmarks)
    node = cluster_topology(profile, num_npus=profile.npus_per_node)
    machine = machine_of(profile, profile.device(None), node, precision="bf16")
    for section, numbers in collective_overlay(profile, machine, points, f"collectives of {names}").items():
        if section == "profile":
            continue
        overlay[section] = overlay.get(section, {}) | numbers
        shipped, measured = float(profile.tier(section).efficiency), float(numbers["efficiency"]["value"])
        if abs(measured / shipped - 1.0) > TOLERANCE:
            said.append(_differs(names, f"{section}.efficiency", f"{measured:.2f}", f"{shipped:.2f}"))


def _differs(file: str, number: str, found: object, expected: object, other: str = "profile") -> Disagreement:
    """A number of the profile, or of what else is given, that the file says otherwise."""
    values = {"file": file, "number": number, "found": found, "expected": expected, "other": other}
    return Disagreement("file_differs", values)


def _measured(value: float, name: str) -> dict[str, Any]:
    return {"value": value, "kind": "measured", "source": f"read from {name}"}
