"""`autodeploy models ls` and `show`."""

from __future__ import annotations

from typing import Annotated

import typer

from autodeploy.cli.options import Lang, LanguageOption, ListFormat, SimpleFormat, language

app = typer.Typer(no_args_is_help=True)


@app.command("ls")
def list_all(output_format: SimpleFormat = ListFormat.TABLE, lang: Lang = LanguageOption.EN) -> None:
    """List the models that a spec can name."""
    from autodeploy.cli.output import json_text, table_text, write_report
    from autodeploy.reports.wording import command_text
    from autodeploy.specs.presets import list_presets

    presets = list_presets()
    if output_format is ListFormat.JSON:
        write_report(json_text([preset.model_dump(mode="json") for preset in presets]), None)
        return
    rows = [[p.name, p.title, f"{p.params_b:g}", f"{p.active_b:g}", short_source(p.source)] for p in presets]
    columns = [command_text(language(lang), name) for name in ("name", "model", "billion", "active", "source")]
    write_report(table_text(columns, rows, right=frozenset({2, 3})), None)


def short_source(source: str) -> str:
    """The first source, of a Hugging Face configuration the repository alone; `models show` has all of it."""
    return source.partition(";")[0].removeprefix("config.json of ").removesuffix(" (Hugging Face)")


@app.command(epilog="Example: autodeploy models show deepseek-v3")
def show(
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
