"""Amounts as people write them in a spec: `4k` tokens of a sequence, `1T` tokens of a run, `nodes: 16`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from hardware_profiles import ProfileError, load_profile

AMOUNT = re.compile(r"(\d{1,18}(?:\.\d{1,9})?(?:e\d{1,2})?)\s*([kmbt]?)", re.IGNORECASE)
NODES = re.compile(r"(\d{1,6})\s*(?:x\s*)?(?:nodes?|节点|个节点)", re.IGNORECASE)
# Lengths, batches and cards come in powers of two, so that a k of them is 1,024; tokens of a run are counted by tens.
BINARY = {"": 1, "k": 1024, "m": 1024**2}
DECIMAL = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def token_amount(text: str) -> float | None:
    """`13T`, `500B` or `1.5e12` as a number; None for what is none."""
    return _amount(text, DECIMAL)


def whole_amount(text: str) -> int | None:
    """`4k` as 4096 and `1.5k` as 1536; None for what is no whole number."""
    value = _amount(text, BINARY)
    return int(value) if value is not None and value == int(value) else None


def _amount(text: str, units: Mapping[str, float]) -> float | None:
    match = AMOUNT.fullmatch(text.strip())
    unit = None if match is None else units.get(match[2].lower())
    return None if match is None or unit is None else float(match[1]) * unit


FIELDS: Mapping[str, Callable[[str], float | None]] = {
    "seq_length": whole_amount,
    "global_batch_size": whole_amount,
    "tokens": token_amount,
}


def card_count(text: str, profile: Any) -> int | None:
    """`384`, `4k` or, with the name of a profile, `16 nodes` as cards; None for what is none.

    Of a profile that can't be read nobody knows the cards of a node.
    """
    match = NODES.fullmatch(text.strip())
    if match is None:
        return whole_amount(text)
    per_node = _cards_of_a_node(profile)
    return None if per_node is None else int(match[1]) * per_node


def with_read_amounts(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A spec's document with its written amounts as numbers, and whole nodes as cards.

    What can't be read stays as it is, so that the validation of the spec names it. A bare number in quotes stays a
    text, which a spec refuses.
    """
    changed = {**document}
    if isinstance(cluster := changed.get("cluster"), Mapping):
        changed["cluster"] = _with_cards(cluster)
    if isinstance(training := changed.get("training"), Mapping):
        changed["training"] = _with_numbers(training)
    if isinstance(run := changed.get("run"), Mapping) and isinstance(phases := run.get("phases"), list):
        changed["run"] = {**run, "phases": [_with_numbers(p) if isinstance(p, Mapping) else p for p in phases]}
    return changed


def _with_numbers(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with its lengths, batches and tokens as numbers."""
    changed = {**section}
    for name, read in FIELDS.items():
        value = section.get(name)
        if isinstance(value, str) and value.strip()[-1:].isalpha():
            changed[name] = value if (amount := read(value)) is None else amount
    return changed


def _with_cards(cluster: Mapping[str, Any]) -> Mapping[str, Any]:
    """A cluster with `num_npus` where it says `nodes: 16`, or `num_npus: 16 nodes`."""
    nodes, said, profile = cluster.get("nodes"), cluster.get("num_npus"), cluster.get("profile")
    if isinstance(said, str) and said.strip()[-1:].isalpha():
        cards = card_count(said, profile)
        return cluster if cards is None else {**cluster, "num_npus": cards}
    if not isinstance(nodes, int) or isinstance(nodes, bool) or said is not None or cluster.get("blocks") is not None:
        return cluster
    per_node = _cards_of_a_node(profile)
    if per_node is None:
        return cluster
    return {**{name: value for name, value in cluster.items() if name != "nodes"}, "num_npus": nodes * per_node}


def _cards_of_a_node(profile: Any) -> int | None:
    try:
        return load_profile(profile).npus_per_node if isinstance(profile, str) else None
    except ProfileError:
        return None
