"""Writes the pages under docs/reference, the figures of docs/explanation and the nomenclature from the code.

Run by `make docs`. A test compares what this makes with what is committed.
"""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.analysis.intake import json_schema
from docs.commands import command_line_pages
from docs.error_box_page import error_box_page
from docs.figures import figures
from docs.nomenclature import PAGE, nomenclature_page
from docs.rest import rest_pages
from docs.schema_tables import code, model_tables, schemas_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import BaseModel

    from autodeploy.stack.software import Stack
    from docs.schema_tables import Mode

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Made by `make docs` from the code. Change the code, not this page. -->"


def _documents() -> dict[str, tuple[Mode, tuple[type[BaseModel], ...]]]:
    """Documents of each page of the reference: a model is described on the first that has it, and linked by others."""
    from autodeploy.specs.measurements import GenerationRecord, RlRecord
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.plan_details import RlPlan
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.record import Record
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

    return {
        "strategy": ("validation", (Strategy,)),
        "model": ("validation", (ModelSpec,)),
        "spec": ("validation", (Spec,)),
        "rl_plan": ("serialization", (RlPlan,)),
        "plan": ("serialization", (Plan,)),
        "planset": ("serialization", (PlanSet,)),
        "records": ("validation", (Record, GenerationRecord, RlRecord)),
    }


def document_tables(page: str) -> str:
    """Tables of the models that a page describes."""
    elsewhere: dict[str, str] = {}
    for name, (mode, models) in _documents().items():
        if name == page:
            return model_tables(models, mode=mode, elsewhere=elsewhere)
        elsewhere |= {model: f"{name}.md" for model in schemas_of(models, mode) if model not in elsewhere}
    raise KeyError(page)


def model_page() -> str:
    head = """# The model of a spec

Fields of `model` in a [spec](spec.md). Instead, it may be a [preset's name](models.md), `{preset: name, ...changes}` or
`{hf_config: ./config.json}`.

"""
    return head + document_tables("model")


def spec_page() -> str:
    head = """# The spec

The input of a search: model, cluster, training run and search settings, as YAML or JSON. Unknown keys are rejected; all
errors are reported at once, each with its JSON pointer and a hint. `model` may also be a
[preset's name](models.md), `{preset: name, ...changes}` or `{hf_config: ./config.json}`;
`training.global_batch_size` may be a plain number or tokens of a step (`4M tokens`); in `search.features`, `true` and
`false` are read as `on` and `off`; `strategy.recompute` may be `none`, `selective` or `full`. The same as JSON Schema:
[spec.schema.json](spec.schema.json), which `autodeploy init` writes beside a spec, and `GET /v1/schemas`.

"""
    return head + document_tables("spec")


def strategy_page() -> str:
    from autodeploy.stack.features import FEATURES, GROUPS
    from autodeploy.stack.frameworks import UNRESTRICTED
    from autodeploy.stack.releases import releases

    defaults = [release for release in releases() if release.is_default]
    rows = []
    for name, feature in FEATURES.items():
        by = [code(release.name) for release in defaults if feature.variant(release) is not None]
        rows.append(
            (code(name), feature.title, feature.area, feature.numerics, ", ".join(by) or f"{UNRESTRICTED} alone")
        )
    groups = [(code(name), ", ".join(code(member) for member in members)) for name, members in GROUPS.items()]
    return (
        "# Strategy and features\n\n"
        "Rank order, innermost first: tp, cp, dp, pp; for experts etp, ep, edp, pp. `tp_pp_dp_mapping` swaps the last "
        "two: stages are adjacent, replicas far apart. `ep` is the number of ranks over which the routed experts of "
        "a layer are spread.\n\n"
        + document_tables("strategy")
        + "\n## Features\n\nEach is one mechanism, set in `search.features` to `on`, `off` or `auto`. `auto` means "
        "on if the target's release can launch the feature, the chip's software supports it, the model can use it "
        "and `search.numerics` allows it. A release can launch a feature if its parser registers the flags; target "
        "`any` uses everything. The records are data: `autodeploy/stack/features/`.\n\n"
        + table(("feature", "what it does", "area", "numerics", "launched by"), rows)
        + "\n## Groups\n\n"
        + table(("group", "members"), groups)
    )


def plan_page() -> str:
    head = """# A plan

One strategy with its prediction, as [PlanSets](planset.md), `autodeploy estimate -f json` and the REST API have it.
Times are in seconds, memory in GiB, throughput in tokens per second.

"""
    return head + document_tables("plan")


def rl_plan_page() -> str:
    head = """# A plan of post-training

What a [plan](plan.md) of reinforcement learning has beside one of pre-training, under `rl`: phases of a step, and
generation by itself.

"""
    return head + document_tables("rl_plan")


def plan_set_page() -> str:
    head = """# The PlanSet

The result of a search. `autodeploy plan -f json`, the REST API and the database hold the same document. Equal specs,
profiles and engine versions give equal PlanSets except for `search.id`, `search.created_at` and `timing`. Times are in
seconds, memory in GiB, throughput in tokens per second.

"""
    return head + document_tables("planset")


def records_page() -> str:
    head = """# Measured runs

One JSON object per line, as read by `autodeploy validate`. Lines with `kind: generation` are measurements of serving,
those with `training.rl` of a post-training step.
`measured.peak_memory_gib` is the framework allocator's maximum on the worst rank. Strategy features that a record does
not name are off on Ascend and before 2024; later NVIDIA stacks have fusions and data-parallel overlap on.

"""
    return head + document_tables("records")


def rules_page() -> str:
    from autodeploy.space.rules import load_rules

    rules = load_rules()
    text = """# Legality rules

A strategy is a candidate only if it satisfies every rule that applies to the target: arithmetic rules apply to all
plans, `released` ones to all releases, the others to releases with that component (`megatron`, `mindspeed`,
`mindspeed-llm`, `mindformers`) or to one release. A candidate is counted under the first rule that it violates, in
`counts.rejected` of a PlanSet. `when` limits a rule to some candidates, for which `require` must be true. The rules are
data: `autodeploy/space/rules.yaml`. The schedules, dispatchers, optimizer modes and memory choices that a release
supports follow from the flags that its parser registers.

`kind` tells who enforces a rule. *refused*: the framework's parser or validators. *later*: the launch fails after them.
*unsound*: it starts, but does not run what was planned. *planned*: the planner, which models nothing else, or the spec,
which requires it. *costly*: it runs at an unintended loss. *advice*: it runs at a small loss. `autodeploy check` fails
on refused, later and costly ones. Rules enforced by a framework are tested with an accepted and a rejected launch each,
in `tests/launch_check/rule_pairs.yaml`.

Source keys: MG Megatron-LM core_v0.12.1 and @d98e8a64, MS MindSpeed @028de58c, LLM MindSpeed-LLM @c77308a1, MF
mindformers @f52743ca.
"""
    for target in dict.fromkeys(target for rule in rules for target in rule.targets):
        rows = [
            (code(rule.name), rule.text, code(rule.when), code(rule.require), rule.kind, rule.source)
            for rule in rules
            if target in rule.targets
        ]
        text += f"\n## {target}\n\n" + table(("rule", "in words", "when", "require", "kind", "source"), rows)
    return text


def memory_page() -> str:
    from autodeploy.costs.workload.memory_choices import CHOICES, EVERYTHING
    from autodeploy.space.rules import launched_choices
    from autodeploy.stack.releases import releases

    defaults = [release for release in releases() if release.is_default]
    conditions = [launched_choices(release) for release in defaults]
    every = {EVERYTHING: "everything but the layer's input"}
    rows = [
        (
            code(choice.name),
            choice.kind,
            ", ".join(every.get(name) or code(name) for name in choice.frees),
            ", ".join(
                {EVERYTHING: "the whole layer"}.get(name) or code(name)
                for name in dict.fromkeys((*choice.replays, *choice.replays_exchanges))
            ),
        )
        for choice in CHOICES.values()
    ]
    launch = [(code(name), *(_condition(each.get(name)) for each in conditions)) for name in CHOICES]
    return (
        "# Memory choices\n\nWhat can be recomputed or swapped instead of kept, counted in layers per stage. Choices "
        "that free the same tensor are mutually exclusive.\n\n"
        + table(("choice", "kind", "tensors it frees", "what the backward pass does again"), rows)
        + "\n## Support by release\n\nTarget `any` permits every choice.\n\n"
        + table(("choice", *(release.name for release in defaults)), launch)
    )


def _condition(text: str | None) -> str:
    if text is None:
        return "never"
    return "always" if text == "True" else f"if {code(text)}"


def profile_page() -> str:
    from hardware_profiles import list_profiles, load_profile
    from hardware_profiles.efficiencies import EFFICIENCY_TERMS
    from hardware_profiles.schema import ProfileDocument

    built_in = [load_profile(name) for name in list_profiles()]
    rows = [
        (code(p.name), p.title, ", ".join(p.devices), p.default_device, str(p.devices_per_npu), str(p.npus_per_node))
        for p in built_in
    ]
    terms = [
        (code(term.name), term.meaning, term.unit, f"{term.default:g}", f"{100 * term.prior_sigma:.0f} %")
        for term in EFFICIENCY_TERMS.values()
    ]
    return (
        "# Hardware profiles\n\nOne YAML file per system. Every number has `value`, `unit`, `kind` (`datasheet`, "
        "`measured`, `fitted` or `assumed`, from the strongest evidence to the weakest) and `source`. Bandwidths are "
        "unidirectional, per card. Numbers in other units than the format's are rejected, never converted. How to "
        "write one: [Describe your own cluster](../how-to/own_cluster.md).\n\n## Built in\n\n"
        + table(("name", "system", "chip grades", "default", "dies a card", "cards a node"), rows)
        + "\n## Efficiencies\n\nAny of them may be omitted; the default then applies, with kind `assumed`. The prior "
        "is the relative standard deviation before a fit.\n\n"
        + table(("name", "meaning", "unit", "default", "prior"), terms)
        + "\n"
        + model_tables([ProfileDocument])
    )


def stacks_page() -> str:
    from autodeploy.stack.software import shipped_stacks

    rows = [
        (
            f"[{s.name}](software_stacks/{s.name}.md)",
            s.title,
            ", ".join(s.vendors),
            code(s.target) if s.target else "",
            "x" if s.default else "",
        )
        for s in shipped_stacks().values()
    ]
    return (
        "# Software stacks\n\n`software` in a spec or a record names one: `software: NAME`, or `{stack, release, "
        "overrides}`. Absent, it is the default of `search.target` on the cluster's chips; a record's follows from its "
        "framework, source and date. Each fact has a `kind` (`code`, `document`, `record` or `assumed`) and a "
        "`source`. What flags switch is not listed: it is off without its flag. An own stack is a YAML file with "
        "`name`, `title` and `inherits: NAME`; its facts replace those it inherits, `null` removes one.\n\n"
        + table(("name", "software", "chips", "target", "default"), rows)
    )


def stack_page(stack: Stack) -> str:
    facts = [(f"{section}.{name}", *rest) for section, name, *rest in stack.rows()]
    sources = "".join(f"- {key}: {meaning}\n" for key, meaning in stack.sources.items())
    head = f"# {stack.name}\n\n{stack.title}; one of the [software stacks](../software_stacks.md).\n\n"
    return head + table(("fact", "value", "kind", "source"), facts) + f"\n{sources}"


def models_page() -> str:
    from autodeploy.specs.presets import list_presets, read_preset

    rows = [
        (code(p.name), p.title, f"{p.params_b:g}", f"{p.active_b:g}", _kind(read_preset(p.name).model), p.source)
        for p in list_presets()
    ]
    return (
        "# Model presets\n\nNames for `model` in a spec. Parameters in billions as published; the tests compare them "
        "with the counts of the presets.\n\n"
        + table(("name", "model", "parameters", "active", "kind", "source of the shape"), rows)
    )


def _kind(model: object) -> str:
    attention = "MLA" if getattr(model, "kv_lora_rank", None) else "GQA or MHA"
    return f"{attention}, {'experts' if getattr(model, 'is_moe', False) else 'dense'}"


def settings_page() -> str:
    from autodeploy.kit.settings import PREFIX, Settings
    from docs.schema_tables import type_of

    fields = Settings.model_json_schema()["properties"]
    rows = [
        (
            code(PREFIX + name.upper()),
            type_of(field),
            code(field["default"]) if field.get("default") is not None else "",
            str(field.get("description", "")),
        )
        for name, field in fields.items()
    ]
    extra = [
        (code("AUTODEPLOY_SERVER"), "default of `--server`"),
        (code("AUTODEPLOY_LANG"), "default of `--lang`"),
        (code("AUTODEPLOY_API_KEY"), "sent by the command line as a bearer token to the server"),
        (code("AUTODEPLOY_DEBUG"), "show the traceback of an unexpected error"),
        (code("NO_COLOR"), "no bold on a terminal"),
    ]
    return (
        "# Settings\n\nEnvironment variables, read once when a process starts. An invalid value is reported and the "
        "process exits with code 2. Without `AUTODEPLOY_DATABASE_URL` the database is the file `autodeploy.db` in "
        "`$XDG_DATA_HOME/autodeploy`, by default `~/.local/share/autodeploy`.\n\n"
        + table(("variable", "type", "default", "meaning"), rows)
        + "\n## On the command line only\n\n"
        + table(("variable", "meaning"), extra)
    )


def releases_page() -> str:
    from autodeploy.stack.releases import releases

    head = """# Releases

Commits of a framework's repositories that work together. `search.target_release` selects one; otherwise the default of
the target for the chips is used. The table of the same name in `autodeploy/stack/flags/` lists what the parser
registers, with type, choices, number of values, component and location; `make flags` generates it from the sources.
[How to use releases](../how-to/releases.md).

"""
    rows = [
        (
            code(release.name),
            release.title,
            release.framework,
            ", ".join(release.vendors or ("any",)),
            "yes" if release.is_default else "",
            ", ".join(f"{part.repository} {part.short} ({part.branch})" for part in release.components.values()),
            f"{len(release.registered):,}",
        )
        for release in releases()
    ]
    titles = ("release", "what it is", "target", "chips", "default", "commits", "flags or keys")
    return head + table(titles, rows)


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the glossary: Chinese forms of it, the first the usual one, and what finds it in an English text."""

    term: str
    zh: tuple[str, ...]
    finds: str
    means: str


def glossary() -> tuple[Term, ...]:
    """Terms that reports, pages, messages and the documentation keep to."""
    with (DOCS / "glossary.csv").open(encoding="utf-8", newline="") as lines:
        return tuple(
            Term(row["term"], tuple(row["zh"].split("/")), row["finds"] or re.escape(row["term"]), row["means"])
            for row in csv.DictReader(lines, delimiter="|")
        )


def glossary_page() -> str:
    rows = [(each.term, each.zh[0], each.means) for each in glossary()]
    head = "# Glossary\n\nTerms to which reports, pages, messages and this documentation keep, in both languages.\n\n"
    return head + table(("term", "Chinese", "meaning"), rows)


PAGES: dict[str, Callable[[], str]] = {
    "spec": spec_page,
    "model": model_page,
    "strategy": strategy_page,
    "planset": plan_set_page,
    "plan": plan_page,
    "rl_plan": rl_plan_page,
    "records": records_page,
    "legality_rules": rules_page,
    "memory_choices": memory_page,
    "hardware_profiles": profile_page,
    "software_stacks": stacks_page,
    "error_box": error_box_page,
    "models": models_page,
    "settings": settings_page,
    "releases": releases_page,
    "glossary": glossary_page,
}


def generated() -> dict[str, str]:
    """Text of every generated file by its path from docs/."""
    from autodeploy.stack.software import shipped_stacks

    texts = {name: make() for name, make in PAGES.items()} | command_line_pages() | rest_pages()
    texts |= {f"software_stacks/{stack.name}": stack_page(stack) for stack in shipped_stacks().values()}
    pages = {f"reference/{name}.md": f"{NOTE}\n\n{text.rstrip()}\n" for name, text in texts.items()}
    pages[f"../{PAGE.relative_to(DOCS.parent)}"] = f"{NOTE}\n\n{nomenclature_page().rstrip()}\n"
    pages["reference/spec.schema.json"] = json.dumps(json_schema("spec"), indent=1) + "\n"
    return pages | {f"explanation/figures/{name}.svg": text for name, text in figures().items()}


def main() -> None:
    """Write what differs."""
    for name, text in generated().items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
