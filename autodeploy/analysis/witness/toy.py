"""A launch at toy widths: small enough for a CPU, with everything that decides messages, order and placement kept.

Widths shrink to multiples of one unit that all degrees divide, in about the ratios that they have. Experts, top-k,
heads, layers, micro batches, degrees and schedule stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.formats.megatron.tuning import TRAINER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.launch_script import LaunchScript

UNIT = 16
HIDDEN_UNITS = 4
LEAST_TOKENS = 32  # of a rank and micro batch
HEAD_SHARE, LEAST_HEAD = 8, 8
VOCABULARY = 256
WIDTHS = (
    *("--ffn-hidden-size", "--moe-ffn-hidden-size", "--moe-shared-expert-intermediate-size"),
    *("--q-lora-rank", "--kv-lora-rank"),
)
HEADS = (
    *("--kv-channels", "--qk-head-dim", "--qk-nope-head-dim", "--qk-rope-head-dim", "--qk-pos-emb-head-dim"),
    "--v-head-dim",
)
# What needs files, a network or 8 bits; the value says what the run takes instead.
DROPPED = (
    *("--data-path", "--save", "--load", "--save-interval", "--tokenizer-model", "--tokenizer-name-or-path"),
    *(
        "--lr-warmup-iters",
        "--lr-warmup-fraction",
        "--fp8-format",
        "--fp8-recipe",
        "--tensorboard-dir",
        "--log-throughput",
    ),
    *(
        "--prompt-type",
        "--enable-hf2mg-convert",
        "--distributed-timeout-minutes",
        "--no-shared-storage",
        "--eval-iters",
    ),
)
RUN = {
    "--tokenizer-type": ("NullTokenizer",),
    "--mock-data": (),
    "--split": ("100,0,0",),
    "--num-workers": ("0",),
    "--no-check-for-nan-in-loss-and-grad": (),  # numbers of other ranks are made up
    "--log-interval": ("1",),
    "--eval-interval": ("1000",),
    "--eval-iters": ("0",),
    "--lr": ("1e-4",),
    "--min-lr": ("1e-5",),
    "--lr-warmup-iters": ("0",),
    "--ckpt-format": ("torch",),
    "--distributed-backend": ("nccl",),
}


@dataclass(frozen=True)
class ToyLaunch:
    """A command line at toy widths. `model`: the flags that a prediction reads; `argv`: those that are run."""

    model: dict[str, tuple[str, ...]]
    argv: tuple[str, ...]
    changed: dict[str, str]
    environment: dict[str, str]
    ranks: int
    devices: int
    steps: int
    real_widths: bool = False

    @property
    def entry(self) -> str:
        """The framework's program that it starts."""
        return TRAINER if "--stage" in self.model else "pretrain_gpt.py"

    @property
    def script(self) -> str:
        """A launch script of the same training, as an importer reads it."""
        nodes = -(-self.ranks // self.devices)
        words = [word for name, values in self.model.items() for word in (name, *(f"'{value}'" for value in values))]
        exports = "".join(f'export {name}="{value}"\n' for name, value in self.environment.items())
        head = f"torchrun --nproc_per_node {self.devices} --nnodes {nodes} {self.entry}"
        return f"#!/usr/bin/env bash\n{exports}{head} {' '.join(words)}\n"


def toy_launch(
    script: LaunchScript,
    ranks: int,
    more: Mapping[str, tuple[str, ...]],
    *,
    spare_token: bool = False,
    real_widths: bool = False,
) -> ToyLaunch:
    """The launch of a script at toy widths, on as many ranks.

    more : flags that a stand-in needs. spare_token : the release's tokenizer without a file adds a token of its own.
    real_widths : nothing shrinks.
    """
    given = {
        name: tuple(value.text for value in flag.values) for name, flag in script.flags.items() if not flag.unknown
    }
    small = given if real_widths else given | _widths(given)
    run = {name: values for name, values in small.items() if name not in DROPPED} | RUN | dict(more)
    if (
        "--kv-channels" not in run and "--multi-latent-attention" in run
    ):  # latent attention has widths of its own, parsers ask for this one all the same
        run["--kv-channels"] = (str(LEAST_HEAD),)
    if spare_token and "--padded-vocab-size" not in run:
        run["--vocab-size"] = (str(int(run["--vocab-size"][0]) - 1),)
    steps = 2 if "--overlap-param-gather" in given else 1  # the gathers begin after the first step
    run["--train-iters"] = (str(steps),)
    changed = {
        name: " ".join(run[name]) if name in run else ""
        for name in sorted(given.keys() | run.keys())
        if given.get(name) != run.get(name)
    }
    return ToyLaunch(
        model={name: values for name, values in small.items() if name not in DROPPED},
        argv=tuple(word for name, values in run.items() for word in (name, *values)),
        changed=changed,
        environment=dict(script.environment),
        ranks=ranks,
        devices=min(ranks, script.launcher.get("ranks_per_node", 8)),
        steps=steps,
        real_widths=real_widths,
    )


def _widths(flags: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    def number(name: str, otherwise: int = 1) -> int:
        values = flags.get(name)
        return int(values[0]) if values else otherwise

    tp, cp = number("--tensor-model-parallel-size"), number("--context-parallel-size")
    unit = UNIT * math.lcm(tp, number("--expert-tensor-parallel-size", tp))
    hidden = number("--hidden-size")
    small = {"--hidden-size": unit * HIDDEN_UNITS}
    for name in WIDTHS:
        if name in flags:
            small[name] = unit * max(1, round(HIDDEN_UNITS * number(name) / hidden))
    for name in HEADS:
        if name in flags:
            small[name] = max(LEAST_HEAD, number(name) // HEAD_SHARE // 2 * 2)
    if "--multi-latent-attention" not in flags and "--kv-channels" not in flags:
        small["--kv-channels"] = max(LEAST_HEAD, hidden // number("--num-attention-heads") // HEAD_SHARE // 2 * 2)
    experts, taken = number("--num-experts"), number("--moe-router-topk")
    round_tokens = math.lcm(experts // math.gcd(experts, taken), 2)  # after which each expert has as many
    tokens = round_tokens * -(-LEAST_TOKENS // round_tokens)
    small["--seq-length"] = min(number("--seq-length"), tokens * tp * cp)
    if "--max-position-embeddings" in flags:
        small["--max-position-embeddings"] = small["--seq-length"]
    for name in ("--vocab-size", "--padded-vocab-size"):
        if name in flags:
            small[name] = VOCABULARY * tp + number(name) % tp  # one that ranks can't share stays so
    return {name: (str(value),) for name, value in small.items()}
