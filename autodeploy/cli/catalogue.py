"""`autodeploy profiles`, `models` and `stacks`: list and show them."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations while the program runs
from typing import TYPE_CHECKING, Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.messages import Language
    from hardware_profiles import Profile


models_app = typer.Typer(no_args_is_help=True)


@models_app.command("ls")
def list_models(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the models that a spec can name."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.specs.presets import list_presets

    presets = list_presets()
    if output_format is ListFormat.JSON:
        write_report(json_text([preset.model_dump(mode="json") for preset in presets]), None)
        return
    rows = [[p.name, p.title, f"{p.params_b:g}", f"{p.active_b:g}", short_source(p.source)] for p in presets]
    columns = command_text.each(language(lang), "name", "model", "billion", "active", "source")
    write_report(table_text(columns, rows, right=frozenset({2, 3})), None)


def short_source(source: str) -> str:
    """The first source, of a Hugging Face configuration the repository alone; `models show` has all of it."""
    return source.partition(";")[0].removeprefix("config.json of ").removesuffix(" (Hugging Face)")


@models_app.command("show", epilog="Example: autodeploy models show deepseek-v3")
def show_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a preset's name")],
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show a model in the form used by specs, with its parameter counts and sources."""
    from autodeploy.cli.output import json_text, write_report
    from autodeploy.kit.yaml_text import yaml_text
    from autodeploy.reports.wording import command_text, titled
    from autodeploy.specs.presets import read_preset

    preset = read_preset(name)
    model = preset.model
    if output_format is ListFormat.JSON:
        write_report(json_text(preset.model_dump(mode="json")), None)
        return
    total, active = preset.counted_params_b()
    spoken = language(lang)
    sizes = {"total": f"{total:.1f}", "active": f"{active:.1f}"}
    head = [command_text(spoken, "model_title", title=preset.title, **sizes)]
    head.append(titled(spoken, command_text(spoken, "source"), preset.source))
    head += [command_text(spoken, "assumed", text=text) for text in preset.assumed]
    document = {"model": model.model_dump(mode="json", exclude_unset=True)}
    write_report("".join(f"# {line}\n" for line in head) + yaml_text(document), None)


profiles_app = typer.Typer(no_args_is_help=True)


@profiles_app.command("ls")
def list_profiles(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the hardware profiles that come with AutoDeploy."""
    from autodeploy.cli.output import json_text, write_report
    from hardware_profiles import list_profiles, load_profile

    profiles = [load_profile(name) for name in list_profiles()]
    if output_format is ListFormat.JSON:
        documents = [
            {
                "name": p.name,
                "title": p.title,
                "devices": list(p.devices),
                "default_device": p.default_device,
                "devices_per_npu": p.devices_per_npu,
                "npus_per_node": p.npus_per_node,
                "content_hash": p.content_hash,
            }
            for p in profiles
        ]
        write_report(json_text(documents), None)
        return
    write_report(_systems(profiles, language(lang)), None)


def _systems(profiles: Sequence[Profile], lang: Language) -> str:
    """A row a profile: its chips and the size of its nodes."""
    from autodeploy.cli.output import table_text
    from autodeploy.reports.wording import command_text

    rows = [
        [p.name, p.title, ", ".join(p.devices), p.default_device, str(p.devices_per_npu), str(p.npus_per_node)]
        for p in profiles
    ]
    titles = command_text.each(lang, "name", "system", "devices", "default", "dies_a_card", "cards_a_node")
    return table_text(titles, rows, right=frozenset({4, 5}))


@profiles_app.command("this-machine", epilog="Example: autodeploy profiles this-machine --processes 2 -o cpu.yaml")
def this_machine(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PROFILE.yaml", help="file to write the profile to")
    ],
    processes: Annotated[int, typer.Option("--processes", min=1, max=4096, help="ranks that share the cores")] = 1,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write a profile of this machine's processors; its rates are upper bounds until a probe calibrates them."""
    from autodeploy.analysis.probe.own_cpu import facts, profile_yaml
    from autodeploy.cli.output import write_report

    write_report(profile_yaml(facts(), processes), output)


@profiles_app.command("show", epilog="Example: autodeploy profiles show cloudmatrix-384")
def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="a profile's name, or your own YAML file")],
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show every number of a profile with its unit, kind and source."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from hardware_profiles import load_profile
    from hardware_profiles.schema import INFORMATIVE

    profile = load_profile(name)
    if output_format is ListFormat.JSON:
        write_report(json_text(profile.document.model_dump(mode="json")), None)
        return
    spoken = language(lang)
    unread = command_text(spoken, "read_by_no_formula")
    rows = [
        [path, f"{q.value:g}", q.unit, q.kind + unread * (path.rpartition(".")[2] in INFORMATIVE), ", ".join(q.source)]
        for path, q in profile.quantities.items()
    ]

    head = _systems([profile], spoken) + "\n"
    columns = command_text.each(spoken, "number", "value", "unit", "kind", "source")
    table = table_text(columns, rows, right=frozenset({1}), whole=frozenset({0}))
    sources = [[key, source.title] for key, source in profile.document.sources.items()]
    meanings = table_text(command_text.each(spoken, "source", "meaning"), sources)
    write_report(head + table + ("\n" + meanings if sources else ""), None)


stacks_app = typer.Typer(no_args_is_help=True)


@stacks_app.command("ls")
def list_stacks(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the software stacks that come with AutoDeploy."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import command_text
    from autodeploy.specs.resources import StackItem
    from autodeploy.stack.software import shipped_stacks

    stacks = shipped_stacks().values()
    if output_format is ListFormat.JSON:
        write_report(json_text([StackItem.model_validate(stack).model_dump() for stack in stacks]), None)
        return
    rows = [
        [s.name, in_language(s.said, language(lang)), ", ".join(s.vendors), s.target or "", "x" if s.default else ""]
        for s in stacks
    ]
    titles = command_text.each(language(lang), "name", "stack", "chips", "target", "default")
    write_report(table_text(titles, rows, whole=frozenset({0})), None)


@stacks_app.command("show", epilog="Example: autodeploy stacks show megatron-lm")
def show_stack(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="a stack's name, or your own YAML file")],
    output_format: SimpleFormat = ListFormat.TABLE,
    lang: Lang = LanguageOption.EN,
) -> None:
    """Show every fact of a stack with what it depends on, its kind and source."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.messages import in_language
    from autodeploy.reports.wording import command_text
    from autodeploy.specs.reading import read_stack
    from autodeploy.specs.resources import StackDocument

    stack = read_stack(name)
    if output_format is ListFormat.JSON:
        write_report(json_text(StackDocument.of(stack).model_dump()), None)
        return

    spoken = language(lang)

    def said(texts: Iterable[str]) -> list[str]:
        return [in_language(text, spoken) for text in texts]

    rows = [said((f"{section}.{fact}", *rest)) for section, fact, *rest in stack.rows()]
    facts = table_text(command_text.each(spoken, "fact", "value", "kind", "source"), rows, whole=frozenset({0}))
    sources = table_text(
        command_text.each(spoken, "source", "meaning"), [said(each) for each in stack.meanings.items()]
    )
    write_report("\n".join((f"{stack.name}: {in_language(stack.said, spoken)}\n", facts, sources)), None)
