"""What a schema cannot say: the rules by which a request that fits its schema is refused all the same.

The OpenAPI document has them under `x-refusals`, by group: sentences with blanks in braces (`{name}` some text,
`{name:n}` a number), as the refusal's `errors[].detail` says them (its `detail` where there are no `errors`). Each
operation names the groups that hold for it. They are those of the catalogues that everything said here is translated
by, so a rule that is missing has no Chinese either; what the schema does say (types, ranges, required and known keys)
is left out. A test sends requests that fit the schema and lets no other refusal pass.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from autodeploy.reports.translation import catalogue

KEY = "x-refusals"
# Group -> sections of the catalogues.
SECTIONS = {
    "body": ("yaml", "bodies"),
    "spec": (
        *("specs", "errors", "profiles", "features", "loads", "rules", "arithmetic", "schedules", "experts"),
        *("generation", "post_training"),
    ),
    "strategy": (
        *("tensors", "optimizer", "recomputation", "run", "flags", "rules_allowed"),
        *("exports", "post_training_exports", "rehearsals"),
    ),
    "file": ("files", "imports", "post_training_imports", "measurements", "columns", "numbers"),
    "service": ("service",),
}
WITH_BODY = tuple(SECTIONS)
# Of operations that take what this service gave: a document inside is read by its own schema, of `GET /v1/schemas`.
INSIDE = "inside"
WITH_DOCUMENT_INSIDE = frozenset({"compare_plans", "create_check"})
WITHOUT_BODY = ("service",)
# What an exporter refuses is said of strategies; a rehearsal's own spec can be refused too.
EXPORTS = frozenset({"export_plan"})
# What the schema says too, in the words of `autodeploy.specs.validation` and of pydantic.
SAID_BY_SCHEMA = frozenset(
    {
        "{value} is too small",
        "{value} is too big",
        "{value} is neither true nor false",
        "{value} is no whole number",
        "{value} is no number",
        "{value} is not known here",
        "{name} is required",
        "unknown key {name}",
    }
)


@cache
def groups() -> dict[str, list[str]]:
    """Every group with its sentences."""
    sections = catalogue()
    found = {
        group: sorted(sentence for name in names for sentence in sections[name] if not _is_said_by_schema(sentence))
        for group, names in SECTIONS.items()
    }
    found[INSIDE] = sorted(sentence for sentence in sections["errors"] if _is_said_by_schema(sentence))
    return found


def _is_said_by_schema(sentence: str) -> bool:
    return sentence in SAID_BY_SCHEMA or sentence.startswith("Input should be")


def add_refusals(document: dict[str, Any]) -> None:
    """Completes an OpenAPI document: the groups, and for each operation that refuses anything their names."""
    document[KEY] = groups()
    for methods in document["paths"].values():
        for operation in methods.values():
            if "422" in operation["responses"]:
                inside = (INSIDE,) if operation["operationId"] in WITH_DOCUMENT_INSIDE else ()
                exports = ("spec", "strategy") if operation["operationId"] in EXPORTS else ()
                operation[KEY] = [*(WITH_BODY if "requestBody" in operation else WITHOUT_BODY), *exports, *inside]
