"""Grammars of the documents that are read from strangers, real-looking files to change, and what reads each format.

A grammar has productions by name; `<name>` in one stands for any production of that name. `pieces` are what is repeated
until a document is as large as it may be: that finds whatever takes time by the square of a length.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.legality import check_unread
from autodeploy.formats.import_document import import_document
from autodeploy.formats.measurements.measured_file import read_measured_text
from autodeploy.kit.errors import SpecError
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.expert_loads import read_expert_loads
from autodeploy.specs.text_files import load_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ROOT = Path(__file__).parents[2]
CLUSTER = ("ascend-800t-a2", None, 64)


@dataclass(frozen=True, slots=True)
class Format:
    """How documents of one format are made, and what reads them."""

    grammar: Mapping[str, Sequence[str]]
    seeds: Sequence[str]
    pieces: Sequence[str]
    read: Callable[[str], object]


def launch(suffix: str) -> Callable[[str], object]:
    """What requests with a spec or a launch file of this ending do to it before anything is predicted or searched."""

    def read(text: str) -> object:
        try:
            imported = import_document(text, f"run{suffix}")
            spec = imported.spec(*CLUSTER)
            return spec if spec.strategy is None else launch_of(imported, *CLUSTER)
        except SpecError as error:
            return check_unread(text, error, CheckLimits(), cluster=CLUSTER[0], num_npus=CLUSTER[2], own_profiles=False)

    return read


def _json(text: str) -> object:
    load_json(text)
    return launch(".json")(text)


def _table(text: str) -> object:
    """A table of measurements, or one of the tokens of experts."""
    if not text.startswith("step,layer"):
        return read_measured_text(text, op="all_reduce", ranks=8)
    with tempfile.NamedTemporaryFile("w", suffix=".csv", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        return read_expert_loads(file.name)


TORCHTITAN = """\
[job]
dump_folder = "./outputs"
description = "{name} pre-training"
[profiling]
enable_profiling = false
[model]
name = "{name}"
flavor = "{flavor}"
hf_assets_path = "./assets/hf/{flavor}"
converters = ["npu_rms_norm", "npu_gmm"]
[optimizer]
name = "AdamW"
lr = 8e-4
eps = 1e-8
[lr_scheduler]
warmup_steps = 200
decay_ratio = 0.8
[training]
local_batch_size = {batch}
global_batch_size = 512
seq_len = {seq}
max_norm = 1.0
steps = 1_000
dataset = "c4"
[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = {shard}
fsdp_reshard_after_forward = "default" # default / never / always
tensor_parallel_degree = {tp}
pipeline_parallel_degree = {pp}
pipeline_parallel_schedule = "1F1B"
expert_parallel_degree = {ep}
context_parallel_degree = 1
[checkpoint]
enable = false
interval = 500
[activation_checkpoint]
mode = "{mode}"
selective_ac_option = '2'
[compile]
enable = false
components = ["model", "loss"]
"""
RECIPES = tuple(
    TORCHTITAN.format(name=name, flavor=flavor, batch=batch, seq=seq, shard=shard, tp=tp, pp=pp, ep=ep, mode=mode)
    for name, flavor, batch, seq, shard, tp, pp, ep, mode in (
        ("llama3", "8B", 1, 8192, -1, 1, 1, 1, "selective"),
        ("llama3", "70B", 8, 8192, -1, 8, 1, 1, "full"),
        ("llama3", "405B", 2, 8192, 16, 8, 8, 1, "full"),
        ("qwen3", "30B-A3B", 2, 4096, 32, 2, 1, 8, "full"),
        ("deepseek_v3", "16B", 4, 4096, 8, 1, 1, 8, "none"),
        ("deepseek_v3", "671B", 4, 4096, 64, 1, 8, 64, "selective"),
    )
)
MINDSPEED_RL = (
    "defaults:\n  - model: qwen3\nmegatron_training:\n  model: qwen3_8b\n  stage: ray_grpo\n  seq_length: 4096\n"
    "  global_batch_size: 64\nactor_config:\n  tensor_model_parallel_size: 4\n  pipeline_model_parallel_size: 1\n"
    "  micro_batch_size: 1\nrl_config:\n  n_samples_per_prompt: 8\n  use_remove_padding: true\n"
    "generate_config:\n  infer_tensor_parallel_size: 4\n"
)

HF = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "head_dim": 128}
HF |= {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 151936}
HF |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144}
SPEC = {
    "model": "qwen3-8b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 64, "overrides": {}},
    "training": {"seq_length": 4096, "global_batch_size": 512, "precision": "bf16"},
    "search": {"target": "mindspeed-llm", "features": {}, "fix": {"tp": 8}},
    "strategy": {"tp": 8, "pp": 2, "micro_batch_size": 1},
}
VERL = (
    "python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' algorithm.adv_estimator=grpo \\\n"
    "  data.train_batch_size=64 data.max_prompt_length=$((1024 * 2)) data.max_response_length=4096 \\\n"
    "  actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm \\\n"
    "  actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=64 \\\n"
    "  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\\n"
    "  +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\\n"
    "  trainer.n_gpus_per_node=8 trainer.nnodes=2 trainer.device=npu "
)
VERL_LAUNCHES = (VERL, VERL.replace("megatron", "fsdp"), VERL.replace("npu", "cuda") + "critic.optim.lr=1e-5")

LOG = (
    " [2026-11-20 12:00:00] iteration       {n}/    2000 | consumed samples:           64 | elapsed time per "
    "iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 150.0 | global batch size:    16 | lm loss: 1.2E+01 | "
    "number of skipped iterations:   0 |\n"
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 |\n"
)
OUT_OF_MEMORY = (
    "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 54.00 GiB already "
    "allocated; 1.20 GiB free; 58.00 GiB reserved in total by PyTorch)\n"
)
NCCL = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "    67108864      16777216     float     sum      -1   1000.0   67.11  117.44      0    999.0   67.18  117.56\n"
)
HCCL = (
    "mpirun -n 8 ./bin/all_reduce_test -b 8K -e 64M -f 2 -d fp32 -o sum -n 20 -p 8\n"
    "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    "67108864          | 1000.00        | 67.10886             | NULL\n"
)
MEASURED = (
    "".join(LOG.format(n=n, ms=ms) for n, ms in enumerate((50_000, 12_000, 10_050, 10_010), 1)),
    *(OUT_OF_MEMORY, NCCL, HCCL),
    "step,step_time_s\n1,14.2\n2,12.9\n3,12.8\n4,12.8\n",
    "m,n,k,time_us\n4096,4096,4096,500\n",
    "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble\n"
    "0,1,1,1,1,1,1,1,1\n",
    "step,layer,expert,tokens\n0,0,0,10\n0,0,1,12\n0,1,0,11\n0,1,1,11\n",
)


def _formats() -> Mapping[str, Format]:
    described = YAML(typ="safe", pure=True).load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    added = {"hydra": {"launch": [VERL]}, "tables": {"log": [LOG], "nccl": [NCCL]}}
    return {
        name: Format(
            {**described[name]["grammar"], **added.get(name, {})}, seeds, (*described[name]["pieces"], *more), read
        )
        for name, seeds, more, read in (
            ("toml", RECIPES, (), launch(".toml")),
            (
                "yaml",
                (*_files("examples", "*.yaml"), *_files("tests/launch_files", "*.yaml"), MINDSPEED_RL),
                (),
                launch(".yaml"),
            ),
            (
                "json",
                (json.dumps(HF), json.dumps(SPEC, indent=1), json.dumps({**SPEC, "model": {"hf_config": HF}})),
                (),
                _json,
            ),
            ("shell", _files("tests/launch_files", "**/*.sh"), (), launch(".sh")),
            ("hydra", VERL_LAUNCHES, (), launch(".sh")),
            ("tables", MEASURED, (LOG, OUT_OF_MEMORY, NCCL, HCCL), _table),
        )
    }


def _files(folder: str, pattern: str) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted((ROOT / folder).glob(pattern)))


FORMATS = _formats()
