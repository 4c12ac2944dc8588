"""A spec from the options of one line, and `autodeploy init`, which writes one to start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autodeploy.cli.options import Lang, LanguageOption
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME|FILE", help="instead of SPEC: a preset, or a config.json")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="PROFILE", help="hardware profile, `autodeploy profiles ls`")
]
DeviceOption = Annotated[str | None, typer.Option("--device", metavar="GRADE", help="chip grade, e.g. 910B3")]
CardsOption = Annotated[str | None, typer.Option("--cards", metavar="N", help="cards, e.g. 512 or 64nodes")]
SeqOption = Annotated[str | None, typer.Option("--seq", metavar="N", help="sequence length, e.g. 8k")]
BatchOption = Annotated[
    str | None, typer.Option("--batch", metavar="N", help="global batch, in sequences or tokens: 512, 4M-tokens")
]
TokensOption = Annotated[
    str | None, typer.Option("--tokens", metavar="N", help="tokens of the whole run, e.g. 15T: the report has days")
]
TargetOption = Annotated[str | None, typer.Option("--target", metavar="NAME", help="framework to plan for")]

SCHEMA_FILE = "autodeploy-spec.schema.json"
HEADER = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"


def one_line_document(
    model: str,
    cluster: str | None,
    device: str | None,
    cards: str | None,
    seq: str | None,
    batch: str | None,
    tokens: str | None,
    target: str | None,
) -> dict[str, Any]:
    """The spec that options say; what is missing stays out, so that the spec names it.

    model : a preset's name, or the path of a config.json or its folder.
    """
    is_file = model.endswith(".json") or Path(model).exists()
    document: dict[str, Any] = {"model": {"hf_config": model} if is_file else model}
    document["cluster"] = {"profile": cluster, "device": device, "num_npus": _amount(cards)}
    document["training"] = {"seq_length": _amount(seq), "global_batch_size": _amount(batch), "tokens": _amount(tokens)}
    document["search"] = {"target": target}
    filled = {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in document.items()
        if name != "model"
    }
    return {"model": document["model"], **{name: section for name, section in filled.items() if section}}


def _amount(text: str | None) -> int | float | str | None:
    """A number where it is one; amounts with a unit are read with the spec."""
    if text is None:
        return None
    bare = text.replace(",", "").replace("_", "")
    if bare.isascii() and bare.isdigit():
        return int(bare)
    try:
        return float(bare)
    except ValueError:
        return text


def one_line_spec(spec_file: str | None, options: dict[str, str | None]) -> Spec:
    """The spec of a file, or of the options beside it; not of both.

    Raises SpecError when both or neither are given, or a field is bad.
    """
    from autodeploy.cli.options import doubt, read_spec
    from autodeploy.kit.errors import SpecError
    from autodeploy.specs.reading import read_spec_document

    given = [name for name, value in options.items() if value is not None]
    if spec_file is not None:
        if given:
            raise SpecError(Message("common.excludes_it", what="SPEC"), path=f"--{given[0]}")
        return read_spec(spec_file)
    if options["model"] is None:
        hint = Message("common.at_least_one_of", names="SPEC, --model")
        raise SpecError(Message("common.is_required", name="SPEC"), path="SPEC", hint=hint)
    return read_spec_document(one_line_document(**options), base_dir=Path(), doubt=doubt)  # type: ignore[arg-type]


init_app = typer.Typer()


@init_app.command(
    epilog="Examples: autodeploy init; "
    "autodeploy init --model config.json --cluster ascend-800t-a2 --cards 512 --seq 8k --batch 4M-tokens -o my.yaml"
)
def init(
    model: ModelOption = "qwen3-30b-a3b",
    cluster: ClusterOption = "ascend-800t-a2",
    device: DeviceOption = None,
    cards: CardsOption = "32",
    seq: SeqOption = "4096",
    batch: BatchOption = "512",
    tokens: TokensOption = "1T",
    target: TargetOption = None,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="file to write")] = Path("spec.yaml"),
    lang: Lang = LanguageOption.EN,
) -> None:
    """Write a spec to start from, and beside it the schema with which editors complete and check it."""
    from autodeploy.analysis.intake import json_schema
    from autodeploy.cli.output import notify, write_report
    from autodeploy.kit.errors import SpecError
    from autodeploy.kit.yaml_text import yaml_text
    from autodeploy.specs.reading import read_spec_document

    if output.exists():
        raise SpecError(Message("cli.exists", file=output), path="--output")
    document = one_line_document(str(model), cluster, device, cards, seq, batch, tokens, target)
    read_spec_document(document, base_dir=Path())
    write_report(HEADER + yaml_text(document), output)
    schema = output.with_name(SCHEMA_FILE)
    write_report(json.dumps(json_schema("spec"), indent=1), schema)
    notify("plan_it", file=output)
