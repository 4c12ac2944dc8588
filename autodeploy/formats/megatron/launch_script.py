"""A plan as a bash script that starts it on every node: environment, the user's variables, arguments, torchrun.

What the plan can't know is a variable that the script asks for and stops without.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from autodeploy.formats.common.flag_effects import profile_of
from autodeploy.formats.common.launch_script import environment_variables
from autodeploy.formats.megatron.arguments import ShellVariable, features_without_flags, shell_array
from autodeploy.formats.megatron.attention import COMPRESSED_TRAINER, QWEN3_NEXT_SPEC, SHORTCUT_SPEC
from autodeploy.formats.megatron.launch import Launch, add_checkpoints, launch_of
from autodeploy.formats.megatron.recipe import ASKED_FOR_BALANCING, ASKED_FOR_POSITIONS, told_variables
from autodeploy.formats.megatron.tuning import TRAINER
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.launched import full_interval
from autodeploy.stack.expression import evaluate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.stack.releases import Component, Release


# The part of a launch script that looks whether the checkouts on the machine are those of its release.
_FIND = "import importlib.util as u; print(u.find_spec('mindspeed').submodule_search_locations[0] + '/..')"
# The checkouts of what a script is not started in. `megatron` of MindSpeed-LLM is a copied folder, or a link to one.
_ELSEWHERE = {
    "mindspeed": f'"$(python -c "{_FIND}" 2> /dev/null || true)"',
    "megatron": '"$([[ ! -L megatron ]] || echo "$(readlink -f megatron)/..")"',
}
# verl imports both as packages, from checkouts that are installed in place.
_INSTALLED = f'"$(python -c "{_FIND.replace("mindspeed", "megatron")}" 2> /dev/null || true)"'
_FUNCTION = """\
check_release() {
    local name="$1" commit="$2" branch="$3" top="" head="" now=""
    if [[ -n "$4" ]]; then
        top="$(cd "$4" 2> /dev/null && pwd -P)" || top=""
    fi
    if [[ -n "${top}" && "$(git -C "${top}" rev-parse --show-toplevel 2> /dev/null)" == "${top}" ]]; then
        head="$(git -C "${top}" rev-parse --quiet --verify HEAD 2> /dev/null)" || head=""
    fi
    if [[ -z "${head}" ]]; then
        echo "warning: the commit of ${name} can't be read, this script is for ${commit:0:8} (${branch})" >&2
        return 0
    fi
    if [[ "${head}" == "${commit}" ]]; then
        return 0
    fi
    now="$(git -C "${top}" for-each-ref --points-at HEAD --format='%(refname:lstrip=2)' | paste -sd ' ' -)"
    local found="${name} in ${top} is at ${head:0:8} (${now:-no branch}), this script is for ${commit:0:8} (${branch})"
    if [[ " ${now} " == *[\\ /]"${branch} "* ]] ||
        git -C "${top}" merge-base --is-ancestor "${commit}" "${head}" 2> /dev/null; then
        echo "warning: ${found}" >&2
        return 0
    fi
    if [[ "${ALLOW_OTHER_RELEASE:-0}" != 0 ]]; then
        echo "warning: ${found}" >&2
        return 0
    fi
    echo "${found}: check that out, or set ALLOW_OTHER_RELEASE=1 to go on" >&2
    exit 2
}
"""


def release_lines(release: Release) -> list[str]:
    """The release in words, for comments: its title, and repository, commit and branch of each component."""
    parts = (f"{part.repository} {part.commit[:12]} ({part.branch})" for part in release.components.values())
    return [f"For {release.title}, {release.name}: {', '.join(parts)}."]


def release_check(release: Release) -> str:
    """The function, and a call for each component."""
    first, *others = (name for name in ("verl", "mindspeed-llm", "megatron", "mindspeed") if release.has(name))
    elsewhere = _ELSEWHERE | ({"megatron": _INSTALLED} if release.has("verl") else {})
    folders = {first: '"."'} | {name: elsewhere[name] for name in others}
    calls = [_call(release.components[name], folder) for name, folder in folders.items()]
    return "# Is this the release that the flags are for?\n" + _FUNCTION + "".join(calls)


def _call(part: Component, folder: str) -> str:
    name = part.repository.rpartition("/")[2]
    return f'check_release {name} {part.commit} "{part.branch}" \\\n    {folder}\n'


DATA, CONVERSATIONS = "DATA_PATH", "JSON lines, of which each has the conversations of a sequence as messages"
REQUIRED = (
    (DATA, "prefix of the preprocessed data set"),
    ("TOKENIZER_PATH", "directory of the Hugging Face tokenizer"),
    ("CKPT_SAVE_DIR", "directory for checkpoints"),
    ("MASTER_ADDR", "address of the first node"),
    ("NODE_RANK", "number of this node, from 0"),
    ("LR", "peak learning rate"),
    ("MIN_LR", "final learning rate"),
    ("WARMUP_ITERS", "iterations of learning-rate warm-up"),
)
_ASKED = re.compile(r'^: "\$\{(\w+):\?', re.MULTILINE)
FIXED_SEGMENTS = ("expandable_segments:True", "expandable_segments:False")  # as profiles have it; where they are fixed
UNPLANNED_SAVE_STEPS = 1000  # of a plan without a run
LEAST_SHARE = 1e-6  # of documents, that a comment tells
_MARKABLE = re.compile(r"[\w./+-]+")
# The trainer of Megatron-LM knows no Ascend device; MindSpeed adapts it when it is imported first.
ADAPTED_TRAINER = "pretrain_gpt_ascend.py"
_ADAPTED = f"""cat > {ADAPTED_TRAINER} <<'PYTHON'
import mindspeed.megatron_adaptor  # noqa: F401 - has to be imported before Megatron

import runpy

runpy.run_path("pretrain_gpt.py", run_name="__main__")
PYTHON
"""


def add_run_arguments(launch: Launch, tokenizer: tuple[tuple[str, str | ShellVariable], ...]) -> None:
    """Data, checkpoints and logging, which every launch needs and no plan knows."""
    arguments = launch.arguments
    for flag, value in tokenizer:
        arguments.add("GPT_ARGS", flag, value)
    arguments.add("TRAIN_ARGS", "--manual-gc")
    arguments.add("TRAIN_ARGS", "--manual-gc-interval", 50)
    arguments.add("TRAIN_ARGS", "--distributed-backend", "nccl")
    arguments.add("TRAIN_ARGS", "--distributed-timeout-minutes", 120)
    arguments.add("DATA_ARGS", "--data-path", ShellVariable("DATA_PATH"))
    arguments.add("DATA_ARGS", "--split", "100,0,0")
    arguments.add("OUTPUT_ARGS", "--save", ShellVariable("CKPT_SAVE_DIR"))
    arguments.add("OUTPUT_ARGS", "--save-interval", ShellVariable("SAVE_INTERVAL"))
    arguments.add("OUTPUT_ARGS", "--log-interval", 1)
    arguments.add("OUTPUT_ARGS", "--eval-interval", ShellVariable("SAVE_INTERVAL"))
    arguments.add("OUTPUT_ARGS", "--eval-iters", 0)
    add_checkpoints(arguments, launch.spec)


def script_text(plan_set: PlanSet, launch: Launch, *, directory: str, adapts: bool) -> str:
    """The whole script.

    directory : the checkout that it is started in.
    adapts : whether the trainer has to import MindSpeed's adaptor first, because it doesn't itself.
    """
    blocks = {name: lines for name, lines in launch.arguments.blocks.items() if lines}
    parts = [
        script_head(plan_set, launch, _HOW.format(directory=directory, plan=launch.plan.plan_id)),
        environment_block(launch),
        _required(launch),
        release_check(launch.arguments.release),
        _variables(launch),
        _cluster(launch),
        *(shell_array(name, lines) for name, lines in blocks.items()),
        *([_ADAPTED] if adapts else []),
        _command(list(blocks), _trainer(launch, adapts=adapts)),
    ]
    return "\n".join(parts)


def _trainer(launch: Launch, *, adapts: bool) -> str:
    if launch.arguments.has("--stage"):
        return TRAINER
    if launch.spec.model.attention.types:
        return COMPRESSED_TRAINER
    return ADAPTED_TRAINER if adapts else "pretrain_gpt.py"


def _flags_alone(plan_set: PlanSet, launch: Launch, name: str) -> Artefact:
    """The argument blocks, for one's own script."""
    blocks = {name: lines for name, lines in launch.arguments.blocks.items() if lines}
    head = [f"# {provenance_line(plan_set, launch.plan)}", f"# For {launch.ranks} ranks.", *mark(launch)]
    head += [f"# {line}" for line in release_lines(launch.arguments.release)]
    head += [f"# Note: {note}" for note in launch.arguments.notes]
    variables = [f"{name}={value}" for name, value in launch.variables.items()]
    parts = ["\n".join(head), "\n".join(variables), *(shell_array(*block) for block in blocks.items())]
    notes = tuple(launch.arguments.notes)
    return Artefact("\n\n".join(parts) + "\n", SHELL, f"{name}_{launch.plan.plan_id}.sh", notes)


def mark(launch: Launch) -> list[str]:
    """The comment that names what no flag can to whoever reads the file back.

    Cluster, what of the model has no flag, lengths of packed documents, features without a flag.

    A profile that is a path is no name: it is left out.
    """
    cluster = launch.spec.cluster
    values: dict[str, str | None] = {}
    if all(_MARKABLE.fullmatch(name) for name in (cluster.profile, cluster.device or "-")):
        values = {"cluster": cluster.profile, "device": cluster.device, "num_npus": str(launch.plan.num_npus_used)}
    values["release"] = launch.arguments.release.name
    values |= {name: getattr(launch.spec.model, name) for name in launch.arguments.unsaid}
    lengths = launch.spec.training.sequence_length_histogram or {}
    values["lengths"] = "+".join(f"{length}/{share:f}" for length, share in lengths.items() if share >= LEAST_SHARE)
    values["features"] = "+".join(features_without_flags(launch.plan.strategy, launch.arguments.release))
    given = [f"{name}={value}" for name, value in values.items() if value]
    return ["# autodeploy: " + " ".join(given)] if given else []


def environment(launch: Launch) -> dict[str, str]:
    """Host and communication settings that the prediction assumes (24 cores a device, two-level task queue)."""
    values = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    if launch.plan.strategy.fsdp:
        del values["CUDA_DEVICE_MAX_CONNECTIONS"]
    profile = profile_of(launch.spec)
    axes = {axis: getattr(launch.plan.strategy, axis) for axis in ("tp", "pp", "vpp", "cp", "ep")}
    for variable in () if profile is None else profile.document.environment:
        if not variable.when or evaluate(variable.when, axes):
            values[variable.name] = variable.value
    if "fixed_segments" in launch.plan.strategy.features:
        values = {name: value.replace(*FIXED_SEGMENTS) for name, value in values.items()}
    unknown = values.keys() - environment_variables().keys()
    if unknown:
        raise KeyError(f"{sorted(unknown)} are not in the flag table")
    return values


def environment_block(launch: Launch) -> str:
    """The environment as exports, each with what it is worth."""
    profile = profile_of(launch.spec)
    worth = {} if profile is None else {each.name: each.worth for each in profile.document.environment if each.worth}
    exports = (f'export {name}="{value}"' for name, value in environment(launch).items())
    remarks = (f"  # {worth[name]}" if name in worth else "" for name in environment(launch))
    return "".join(f"{line}{remark}\n" for line, remark in zip(exports, remarks, strict=True))


def script_head(plan_set: PlanSet, launch: Launch, start: str, *, beside: str = "", more_marks: str = "") -> str:
    """Comments at the head of a script: as of `head_comments`, with what is predicted.

    start : comment on how it is started. beside : words about its ranks.
    """
    spec, plan = launch.spec, launch.plan
    notes = "".join(f"# Note: {note}\n" for note in launch.arguments.notes)
    name = " ".join(spec.model.name.split())
    marked = "".join(f"{line}{more_marks}\n" for line in mark(launch))
    released = "".join(f"# {line}\n" for line in release_lines(launch.arguments.release))
    return (
        "#!/usr/bin/env bash\n"
        f"# {provenance_line(plan_set, plan)}\n"
        f"# {name} on {plan.num_npus_used} cards ({launch.ranks} ranks{beside}), "
        f"predicted step {plan.step_time_s:.4g} s, peak memory "
        f"{plan.peak_memory_gib:.1f} of {plan.memory_limit_gib:.1f} GiB\n"
        f"{released}{marked}{start}{notes}set -euo pipefail\n"
    )


_HOW = """\
# Start it in the {directory} directory on every node, after the toolkit's set_env.sh, with NODE_RANK from 0 and
# MASTER_ADDR of the first node; formats slurm and ascendjob do that for all nodes. DRY_RUN=1 only prints the command.
# The node with the last rank writes steps to LOG_FILE: `autodeploy runs add {plan} LOG_FILE` compares them.
"""


def _required(launch: Launch) -> str:
    """Variables without a sensible default: the script stops with a message where one is missing."""
    variables, used = told_variables(launch.spec.training.recipe_or_default), launch.arguments.variables()
    needed = {name for name, _ in REQUIRED} - variables.keys() - ({"WARMUP_ITERS"} - used)
    required = [(name, meaning) for name, meaning in REQUIRED if name in needed]
    if launch.arguments.has("--sft"):
        required = [(name, CONVERSATIONS if name == DATA else meaning) for name, meaning in required]
    if ASKED_FOR_POSITIONS in used:
        required.append((ASKED_FOR_POSITIONS, "rope_theta of the model configuration"))
    if launch.spec.training.tokens is None:
        required.append(("TRAIN_ITERS", "iterations to train"))
    lines = [f': "${{{name}:?set {name}: {meaning}}}"\n' for name, meaning in required]
    return "# Set these before the start.\n" + "".join(lines)


def asked_for(text: str) -> tuple[str, ...]:
    """Names of the variables that a script stops without, in order."""
    return tuple(_ASKED.findall(text))


def _variables(launch: Launch) -> str:
    lines = [f"{name}={value}\n" for name, value in launch.variables.items()]
    defaults = told_variables(launch.spec.training.recipe_or_default)
    lines += [f'{name}="${{{name}:-{value}}}"\n' for name, value in defaults.items()]
    tokens = launch.spec.training.tokens
    if tokens is not None:
        iterations = math.ceil(tokens / (launch.variables["GBS"] * launch.spec.training.sample_tokens))
        lines.append(f'TRAIN_ITERS="${{TRAIN_ITERS:-{iterations}}}"  # {tokens:.4g} tokens\n')
    if ASKED_FOR_BALANCING in launch.arguments.variables():
        lines.append(f'{ASKED_FOR_BALANCING}="${{{ASKED_FOR_BALANCING}:-aux_loss}}"\n')
    lines.append(f'SAVE_INTERVAL="${{SAVE_INTERVAL:-{launch.plan.save_steps or UNPLANNED_SAVE_STEPS}}}"\n')
    return "# The plan.\n" + "".join(lines)


def _cluster(launch: Launch) -> str:
    """Nodes and processes, and a stop where they are not the plan's."""
    profile = profile_of(launch.spec)
    if profile is None:
        given = ': "${NPUS_PER_NODE:?set NPUS_PER_NODE: processes a node}"\n'
    else:
        given = f'NPUS_PER_NODE="${{NPUS_PER_NODE:-{min(profile.ranks_per_node, launch.ranks)}}}"\n'
    return (
        f'WORLD_SIZE={launch.ranks}\n{given}NNODES="${{NNODES:-$((WORLD_SIZE / NPUS_PER_NODE))}}"\n'
        'MASTER_PORT="${MASTER_PORT:-6000}"\n'
        "if ((NNODES * NPUS_PER_NODE != WORLD_SIZE)); then\n"
        '    echo "the plan is for ${WORLD_SIZE} ranks, not ${NNODES} nodes of ${NPUS_PER_NODE}" >&2\n'
        "    exit 2\n"
        "fi\n"
        f"{_INTERFACE}"
        "DISTRIBUTED_ARGS=(\n"
        '    --nproc_per_node "${NPUS_PER_NODE}"\n'
        '    --nnodes "${NNODES}"\n'
        '    --node_rank "${NODE_RANK}"\n'
        '    --master_addr "${MASTER_ADDR}"\n'
        '    --master_port "${MASTER_PORT}"\n'
        ")\n"
    )


DRY_RUN = """\
# DRY_RUN=1 prints the command and starts nothing.
shown() {
    printf '%q ' "$@"
    printf '\\n'
}
"""
_INTERFACE = """\
if ((NNODES > 1)) && [[ -z "${HCCL_SOCKET_IFNAME:-}${NCCL_SOCKET_IFNAME:-}" ]]; then
    echo "warning: neither HCCL_SOCKET_IFNAME nor NCCL_SOCKET_IFNAME names the interface between nodes" >&2
fi
"""


def _command(blocks: list[str], trainer: str) -> str:
    lines = [f'    "${{{name}[@]}}" \\\n' for name in blocks]
    return (
        'read -r -a EXTRA <<< "${EXTRA_ARGS:-}"\n'
        'LOG_FILE="${LOG_FILE:-train_node${NODE_RANK}.log}"\n'
        '[[ -z "${DRY_RUN:-}" ]] || LOG_FILE=/dev/null\n'
        f'{DRY_RUN}${{DRY_RUN:+shown}} torchrun "${{DISTRIBUTED_ARGS[@]}}" {trainer} \\\n'
        + "".join(lines)
        + '    ${CKPT_LOAD_DIR:+--load "${CKPT_LOAD_DIR}"} \\\n'
        + '    ${EXTRA[@]+"${EXTRA[@]}"} 2>&1 | tee -a "${LOG_FILE}"\n'
    )


SHELL = "text/x-shellscript"


def export_megatron(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The launch script, to be started on every node in the Megatron-LM directory."""
    launch = _megatron_launch(plan_set, plan)
    path = ShellVariable("TOKENIZER_PATH")
    named = "SFTTokenizer" if launch.arguments.has("--sft") else "HuggingFaceTokenizer"
    if launch.arguments.knows("--tokenizer-type", named):
        tokenizer = (("--tokenizer-type", named), ("--tokenizer-model", path))
    else:
        tokenizer = (("--tokenizer-type", "PretrainedFromHF"), ("--tokenizer-name-or-path", path))
    add_run_arguments(launch, tokenizer)
    adapts = launch.arguments.release.has("mindspeed")
    text = script_text(plan_set, launch, directory="Megatron-LM", adapts=adapts)
    return Artefact(text, SHELL, f"megatron_{plan.plan_id}.sh", tuple(launch.arguments.notes))


def export_megatron_flags(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The argument blocks alone."""
    return _flags_alone(plan_set, _megatron_launch(plan_set, plan), "megatron_flags")


def _megatron_launch(plan_set: PlanSet, plan: Plan) -> Launch:
    launch = launch_of(plan_set, plan, "megatron")
    if launch.arguments.release.has("mindspeed"):
        add_fused_rotation(launch)
    return launch


QK_NORM_SPEC = "mindspeed_llm.tasks.models.spec.qwen3_spec"


def export_mindspeed_llm(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The launch script, to be started on every node."""
    launch = _launch(plan_set, plan)
    tokenizer = (
        ("--tokenizer-type", "PretrainedFromHF"),
        ("--tokenizer-name-or-path", ShellVariable("TOKENIZER_PATH")),
    )
    add_run_arguments(launch, tokenizer)
    launch.arguments.add("TRAIN_ARGS", "--no-shared-storage")
    text = script_text(plan_set, launch, directory="MindSpeed-LLM", adapts=False)
    return Artefact(text, SHELL, f"pretrain_{plan.plan_id}.sh", tuple(launch.arguments.notes))


def export_mindspeed_llm_flags(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The argument blocks alone."""
    return _flags_alone(plan_set, _launch(plan_set, plan), "flags")


def layer_spec(model: ModelSpec) -> tuple[str, ...]:
    """Module and name of the layers' specification: the model's own, else that of latent attention or qk norms."""
    if model.recipe_or_default.layer_spec is not None:
        return tuple(model.recipe_or_default.layer_spec.split())
    if model.shortcut_moe:
        return (SHORTCUT_SPEC, "layer_spec")
    if full_interval(model) is not None:
        return (QWEN3_NEXT_SPEC, "layer_spec")
    module = model.attention.layer_spec or (QK_NORM_SPEC if model.qk_norm else "")
    return (module, "layer_spec") if module else ()


def _launch(plan_set: PlanSet, plan: Plan) -> Launch:
    """The plan's flags with what MindSpeed-LLM's scripts add to Megatron's, whatever the plan."""
    launch = launch_of(plan_set, plan, "mindspeed-llm")
    add_own_arguments(launch)
    return launch


def add_own_arguments(launch: Launch) -> None:
    """Flags of the scripts beyond Megatron's: vocabulary, layers' specification, rotary positions."""
    arguments, model = launch.arguments, launch.spec.model
    block = "GPT_ARGS"
    padded = math.ceil(model.vocab_size / launch.plan.strategy.tp) * launch.plan.strategy.tp
    arguments.add(block, "--padded-vocab-size", padded)
    if spec := layer_spec(model):
        arguments.add(block, "--spec", *spec)
    if model.attention.types:
        arguments.add(block, "--transformer-impl", "local")
        if model.num_nextn_predict_layers:
            arguments.add(block, "--mtp-spec", model.attention.layer_spec, "mtp_spec")
        return
    if model.rotates:
        arguments.add("OPERATOR_ARGS", "--use-rotary-position-embeddings")
        add_fused_rotation(launch)


def add_fused_rotation(launch: Launch) -> None:
    """MindSpeed's rotation of queries and keys as one operator each, which is what plans are priced with."""
    if launch.spec.model.rotates and "fused_operators" in launch.plan.strategy.features:
        launch.arguments.add("OPERATOR_ARGS", "--use-fused-rotary-pos-emb")


def torchrun(launch: Launch, port: int) -> str:
    """The launcher with the plan's nodes, as comments say it."""
    profile = profile_of(launch.spec)
    each = min(profile.ranks_per_node, launch.ranks) if profile else 8
    return (
        f"torchrun --nproc_per_node {each} --nnodes {max(1, launch.ranks // each)} --node_rank NODE_RANK "
        f"--master_addr MASTER_ADDR --master_port {port}"
    )


def head_comments(plan_set: PlanSet, launch: Launch, start: Iterable[str], *, more_marks: str = "") -> list[str]:
    """Comments at the head of the file: the plan, what no key says, the release, `start` and the notes."""
    marks = [line.removeprefix("# ") + more_marks for line in mark(launch)]
    notes = [f"Note: {note}" for note in launch.arguments.notes]
    provenance = provenance_line(plan_set, launch.plan)
    return [provenance, *marks, *release_lines(launch.arguments.release), *start, *notes]
