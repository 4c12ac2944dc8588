"""Kinds of training and number formats as launches see them: the flags that ask a release for each.

A release launches one where it registers all flags of one of its variants; of a configuration file that has no key for
it, where the framework's source takes it. Source: MindSpeed-LLM @c77308a1 fsdp2/utils/arguments.py; torchtitan v0.2.2
config/job_config.py; mindformers @f52743ca, whose compute_dtype knows no 8-bit format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.stack.features import LaunchFlag, Variant

if TYPE_CHECKING:
    from autodeploy.stack.features import Stack


def _by(component: str, flag: str = "", *values: str, unless: tuple[str, ...] = ()) -> Variant:
    return Variant(component, flags=(LaunchFlag(flag, values=values),) if flag else (), unless=unless)


_FILES: Final = tuple(map(_by, ("mindspeed-llm-fsdp2", "torchtitan-npu", "mindformers")))
_ALL: Final = (_by("megatron"), *_FILES)
WAYS: Final[dict[str, tuple[Variant, ...]]] = {
    "pretrain": _ALL,
    "sft": (_by("mindspeed-llm", "--stage", "sft"), _by("megatron", "--sft", unless=("mindspeed",))),
    "dpo": (_by("mindspeed-llm", "--stage", "dpo"),),
    "lora": (_by("mindspeed-llm", "--lora-target-modules"),),
    "bf16": _ALL,
    "fp32": _ALL,
    "fp16": (_by("megatron", "--fp16"), _by("mindspeed-llm-fsdp2"), _by("mindformers")),
    "fp8": (_by("megatron", "--fp8-format", "hybrid"),),
}


def trains(release: Stack, name: str) -> bool:
    """Whether a release launches a kind of training, adapters (`lora`) or a number format."""
    return any(each.fits(release) for each in WAYS[name])
