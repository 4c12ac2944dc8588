"""What a schema cannot say: the rules by which a request that fits its schema is refused all the same.

The OpenAPI document has them under `x-refusals`, by group: key -> sentence with blanks in braces, the keys as the
refusal's `errors[].key` says them (its `key` where there are no `errors`). Each operation names the groups that hold
for it. What the schema does say (types, ranges, required and known keys) is left out. A test sends requests that fit
the schema and lets no other refusal pass.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autodeploy.checks.flag_rules import flag_rules
from autodeploy.messages.catalogue import catalogue
from autodeploy.strategies.rules import load_rules

KEY = "x-refusals"
# Group -> sections of the catalogue: the rooms that say them.
SECTIONS = {
    "body": ("api", "json"),
    "spec": (
        *("specs", "common", "profiles", "evaluation", "planner", "post_training", "ranking", "rl_planning", "solver"),
        *("stack", "strategies", "rule", "what_if", "training_run", "ablation", "calibration"),
    ),
    "strategy": ("checks", "exporters", "flag_rule", "rehearsal"),
    "file": ("importers", "json", "os", "profiles"),
    "service": ("services", "store", "jobs", "settings", "api", "common"),
}
# A document inside a request is read by its own schema, of `GET /v1/schemas`; a `config.json` or a file by its format.
INSIDE = "inside"
WITH_BODY = (*SECTIONS, INSIDE)
WITHOUT_BODY = ("service",)
# What an exporter refuses is said of strategies; a rehearsal's own spec can be refused too.
EXPORTS = frozenset({"export_plan"})
# What the schema says too, in our words and in pydantic's.
SAID_BY_SCHEMA = ("field_fault", "pydantic")
KEYS_SAID_BY_SCHEMA = frozenset({"common.is_required", "common.unknown_key"})


@cache
def groups() -> dict[str, dict[str, str]]:
    """Every group: its keys with their sentences."""
    said = [rule.text for rule in load_rules()] + [rule.text for rule in flag_rules()]
    texts = {text.key: str(text) for text in said} | catalogue("en")
    by_schema = {key for key in texts if key.partition(".")[0] in SAID_BY_SCHEMA} | KEYS_SAID_BY_SCHEMA
    texts_of_groups = {
        group: {key: text for key, text in sorted(texts.items()) if _section(key) in names and key not in by_schema}
        for group, names in SECTIONS.items()
    }
    return texts_of_groups | {INSIDE: {key: texts[key] for key in sorted(by_schema)}}


def _section(key: str) -> str:
    return key.partition(".")[0]


def add_refusals(document: dict[str, Any]) -> None:
    """Completes an OpenAPI document: the groups, and for each operation that refuses anything their names."""
    document[KEY] = groups()
    for methods in document["paths"].values():
        for operation in methods.values():
            if "422" in operation["responses"]:
                exports = ("spec", "strategy") if operation["operationId"] in EXPORTS else ()
                operation[KEY] = [*(WITH_BODY if "requestBody" in operation else WITHOUT_BODY), *exports]
