"""Writes the pages under docs/reference, the figures of docs/explanation and the nomenclature from the code.

Run by `make docs`. A test compares what this makes with what is committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docs.commands import command_line_page
from docs.error_box_page import error_box_page
from docs.figures import figures
from docs.nomenclature import PAGE, nomenclature_page
from docs.rest import rest_page
from docs.schema_tables import code, model_tables, table

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).resolve().parent
NOTE = "<!-- Made by `make docs` from the code. Change the code, not this page. -->"


def spec_page() -> str:
    from autodeploy.specs.spec import Spec

    head = """# The spec

What you plan with: a model, a cluster, a training run and a search, as YAML or JSON. Unknown keys are refused; all
mistakes are reported at once, each with its JSON pointer and a hint. `model` may also be a
[preset's name](models.md), `{preset: name, ...changes}` or `{hf_config: ./config.json}`;
`training.global_batch_size` may be a plain number; in `search.features`, `true` and `false` are read as `on` and `off`.
The same documents as JSON Schema: `GET /v1/schemas`.

"""
    return head + model_tables([Spec])


def strategy_page() -> str:
    from autodeploy.specs.strategy import Strategy
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
        "Rank order, innermost first: tp, cp, dp, pp; for experts etp, ep, edp, pp. With `tp_pp_dp_mapping` the last "
        "two change places: stages are next to each other, replicas far apart. `ep` counts the ranks over which the "
        "routed experts of one layer are spread.\n\n"
        + model_tables([Strategy])
        + "\n## Features\n\nEach is one mechanism, switched in `search.features` with `on`, `off` or `auto`. `auto` is "
        "on where the target's release can launch the feature, the chip's software has it, the model has a use for it "
        "and `search.numerics` allows it. A release launches a feature whose flags its parser registers; target `any` "
        "plans with everything. The records are data: `autodeploy/stack/features/`.\n\n"
        + table(("feature", "what it does", "area", "numerics", "launched by"), rows)
        + "\n## Groups\n\n"
        + table(("group", "members"), groups)
    )


def plan_set_page() -> str:
    from autodeploy.specs.planset import PlanSet

    head = """# The PlanSet

What a search answers with. The same document comes from `autodeploy plan -f json`, from the REST API and out of the
database. Equal specs, profiles and engine versions give equal PlanSets but for `search.id`, `search.created_at` and
`timing`. All times are seconds, all memory GiB, throughput is tokens per second.

"""
    return head + model_tables([PlanSet], mode="serialization")


def records_page() -> str:
    from autodeploy.specs.generation import GenerationRecord
    from autodeploy.specs.record import Record
    from autodeploy.specs.rl_record import RlRecord

    head = """# Measured runs

One JSON object a line, as `autodeploy validate` reads them; a line with `kind: generation` measured serving, one with
`training.rl` a step of post-training.
`measured.peak_memory_gib` is the framework allocator's maximum on the worst rank. A strategy feature that a record
does not name is off on Ascend and before 2024; later NVIDIA stacks have fusions and data-parallel overlap on.

"""
    return head + model_tables([Record, GenerationRecord, RlRecord])


def rules_page() -> str:
    from autodeploy.strategies.rules import load_rules

    rules = load_rules()
    text = """# Legality rules

A strategy is a candidate only if it obeys every rule that binds what the plan is for: arithmetic rules every plan,
`released` ones every release, the others releases with that component (`megatron`, `mindspeed`, `mindspeed-llm`,
`mindformers`), or one release. A candidate is counted under the first rule that it breaks: `counts.rejected` of a
PlanSet has these names. `when` limits a rule to some candidates; `require` must then be true. The rules are data:
`autodeploy/strategies/rules.yaml`. Which schedules, dispatchers, optimizer modes and memory choices a release has at
all follows from the flags that its parser registers.

`kind` says who holds a rule: *refused*, the framework's parser or validators; *later*, the launch dies after them;
*unsound*, it starts and is not what was planned; *planned*, the planner, which models no other, or the spec, which
asks for it; *costly*, it runs at a loss that nobody means; *advice*, at a small one. `autodeploy check` fails on
refused, later and costly ones. What a framework holds is tried from both sides, a launch that obeys and one that
breaks it, in `tests/launch_check/rule_pairs.yaml`.

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
    from autodeploy.stack.releases import releases
    from autodeploy.strategies.memory_rules import launched_choices, memory_variants
    from autodeploy.workload.memory_choices import CHOICES, EVERYTHING

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
    launch = [(code(name), *(_condition(each.get(name)) for each in conditions)) for name in memory_variants()]
    return (
        "# Memory choices\n\nWhat may be recomputed or swapped instead of kept, counted in layers per stage. Two "
        "choices that free the same tensor exclude each other.\n\n"
        + table(("choice", "kind", "tensors it frees", "what the backward pass does again"), rows)
        + "\n## Which release can launch it\n\nUnder target `any` every choice is open.\n\n"
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
        "# Hardware profiles\n\nOne YAML file a system. Every number has `value`, `unit`, `kind` (`datasheet`, "
        "`measured`, `fitted` or `assumed`, from the strongest ground to the weakest) and `source`. Bandwidths are one "
        "way, per card. A number in another unit than the format's is refused, never converted. How to write one: "
        "[Describe your own cluster](../how-to/own_cluster.md).\n\n## Built in\n\n"
        + table(("name", "system", "chip grades", "default", "dies a card", "cards a node"), rows)
        + "\n## Efficiencies\n\nA profile may leave any of them out; the default then stands in, with kind `assumed`. "
        "The prior is the relative standard deviation before a fit.\n\n"
        + table(("name", "meaning", "unit", "default", "prior"), terms)
        + "\n"
        + model_tables([ProfileDocument])
    )


def models_page() -> str:
    from autodeploy.specs.presets import list_presets, read_preset

    rows = [
        (code(p.name), p.title, f"{p.params_b:g}", f"{p.active_b:g}", _kind(read_preset(p.name).model), p.source)
        for p in list_presets()
    ]
    return (
        "# Model presets\n\nNames for `model` in a spec. Parameters in billions as their publishers give them; the "
        "tests compare the presets' own counts with them.\n\n"
        + table(("name", "model", "parameters", "active", "kind", "source of the shape"), rows)
    )


def _kind(model: object) -> str:
    attention = "MLA" if getattr(model, "is_mla", False) else "GQA or MHA"
    return f"{attention}, {'experts' if getattr(model, 'is_moe', False) else 'dense'}"


def settings_page() -> str:
    from autodeploy.settings import PREFIX, Settings
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
        "# Settings\n\nEnvironment variables, read once when a process starts. A bad value is named and the process "
        "ends with exit code 2. Without `AUTODEPLOY_DATABASE_URL` the database is the file `autodeploy.db` in "
        "`$XDG_DATA_HOME/autodeploy`, by default `~/.local/share/autodeploy`.\n\n"
        + table(("variable", "type", "default", "meaning"), rows)
        + "\n## On the command line only\n\n"
        + table(("variable", "meaning"), extra)
    )


def releases_page() -> str:
    from autodeploy.stack.releases import releases

    head = """# Releases

Commits of a framework's repositories that run together. `search.target_release` names one; a spec that names none
means the default of its target on its chips. A table of its name in `autodeploy/stack/flags/` has what the parser
registers, with type, choices, number of values, component and place: `make flags` makes it from the sources.
[How to use them](../how-to/releases.md).

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


PAGES: dict[str, Callable[[], str]] = {
    "command_line": command_line_page,
    "rest": rest_page,
    "spec": spec_page,
    "strategy": strategy_page,
    "planset": plan_set_page,
    "records": records_page,
    "legality_rules": rules_page,
    "memory_choices": memory_page,
    "hardware_profiles": profile_page,
    "error_box": error_box_page,
    "models": models_page,
    "settings": settings_page,
    "releases": releases_page,
}


def generated() -> dict[str, str]:
    """Text of every generated file by its path from docs/."""
    pages = {f"reference/{name}.md": f"{NOTE}\n\n{make().rstrip()}\n" for name, make in PAGES.items()}
    pages[f"../{PAGE.relative_to(DOCS.parent)}"] = f"{NOTE}\n\n{nomenclature_page().rstrip()}\n"
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
