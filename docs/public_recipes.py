"""Reads the scripts that public recipes name once more, and the records that state their speed.

    python -m docs.public_recipes CHECKOUT --repo owner/name

renews the entries of autodeploy/search/ranking/public_recipes.yaml whose source is a script of that repository.
Model, chips and source stand, what the importer reads of the script is written anew. Nothing of a script is run or
copied but its numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.formats.import_document import import_document
from autodeploy.kit.errors import SpecError
from autodeploy.specs.presets import load_preset

FILE = Path(__file__).resolve().parent.parent / "autodeploy" / "search" / "ranking" / "public_recipes.yaml"
# What a launch says of its layers holds for the model of its script.
OF_LAYERS = ("layers_per_stage", "swap_per_stage")


def script_text(checkout: Path, commit: str, path: str) -> str:
    """The script at its commit."""
    command = ["git", "-C", str(checkout), "show", f"{commit}:{path}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_recipe(row: dict[str, Any], text: str) -> dict[str, Any]:
    """The entry with what the importer reads of its script; a vocabulary that the script lacks is the model's."""
    model = load_preset(row["model"])
    name = row["source"].rpartition("/")[2]
    try:
        imported = import_document(text, name)
    except SpecError:
        imported = import_document(text, name, variables={"VOCAB_SIZE": str(model.vocab_size)})
    launch = launch_of(imported, row["profile"], row["device"])
    spec = launch.spec
    assert spec.strategy is not None
    strategy = spec.strategy.model_dump(mode="json", exclude_defaults=True)
    if spec.model.num_hidden_layers != model.num_hidden_layers:
        strategy = {key: value for key, value in strategy.items() if key not in OF_LAYERS}
    kept = {key: row[key] for key in ("model", "profile", "device", "framework", "source")}
    read: dict[str, Any] = {
        "num_npus": spec.cluster.num_npus,
        "global_batch_size": spec.training.global_batch_size.value,
        "seq_length": spec.training.seq_length,
    }
    if spec.training.router == "forced":
        read["routing_imbalance"] = 1.0
    rest: dict[str, Any] = {key: row[key] for key in ("measured", "note") if key in row}
    return {**kept, **read, "strategy": strategy, **rest}


def written(head: str, rows: list[dict[str, Any]]) -> str:
    """The file: an entry a block, its strategy on one line."""
    lines = [head.rstrip(), "recipes:"]
    for row in rows:
        for number, (key, value) in enumerate(row.items()):
            text = json.dumps(value) if isinstance(value, dict | list) or key == "note" else str(value)
            lines.append(f"{'-' if number == 0 else ' '} {key}: {text}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Reads the checkout and rewrites the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("path", type=Path, help="the checkout, with its history")
    parser.add_argument("--repo", required=True, help="owner/name")
    given = parser.parse_args()
    text = FILE.read_text(encoding="utf-8")
    rows = YAML(typ="safe").load(text)["recipes"]
    for number, row in enumerate(rows):
        place, _, rest = row["source"].partition("@")
        commit, _, path = rest.partition(":")
        if place == given.repo and path:
            rows[number] = read_recipe(row, script_text(given.path, commit, path))
    FILE.write_text(written(text.partition("recipes:")[0], rows), encoding="utf-8")


if __name__ == "__main__":
    main()
