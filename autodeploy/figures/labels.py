"""Names of what the pictures show, in English and Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from autodeploy.reports.texts import reference_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.strategy import Strategy

Language = Literal["en", "zh"]

PARTS: dict[Language, dict[str, str]] = {
    "en": {
        "compute_s": "compute",
        "imbalance_s": "imbalance",
        "recompute_s": "recompute",
        "exposed_swap_s": "swap",
        "exposed_tp_s": "tensor parallel",
        "exposed_ep_s": "expert All-to-All",
        "exposed_cp_s": "context parallel",
        "exposed_dp_s": "data parallel",
        "exposed_pp_s": "pipeline send",
        "pipeline_bubble_s": "pipeline bubble",
        "host_bound_s": "host",
        "optimizer_s": "optimizer",
        "generation_s": "generation",
        "hand_over_s": "hand-over of weights",
    },
    "zh": {
        "compute_s": "计算",
        "imbalance_s": "负载不均",
        "recompute_s": "重计算",
        "exposed_swap_s": "换入换出",
        "exposed_tp_s": "张量并行通信",
        "exposed_ep_s": "专家 All-to-All",
        "exposed_cp_s": "上下文并行通信",
        "exposed_dp_s": "数据并行通信",
        "exposed_pp_s": "流水线收发",
        "pipeline_bubble_s": "流水线空泡",
        "host_bound_s": "主机下发",
        "optimizer_s": "优化器",
        "generation_s": "生成",
        "hand_over_s": "权重移交",
    },
}

MEMORY: dict[Language, dict[str, str]] = {
    "en": {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer": "optimizer states",
        "activations": "activations",
        "workspace": "workspace",
        "communication_buffers": "communication buffers",
        "runtime": "runtime",
    },
    "zh": {
        "weights": "权重",
        "gradients": "梯度",
        "optimizer": "优化器状态",
        "activations": "激活值",
        "workspace": "工作空间",
        "communication_buffers": "通信缓冲",
        "runtime": "运行时",
    },
}

RL_WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "seconds": "seconds",
        "batch": "sequences at once",
        "fullest": "fullest rank",
        "mean": "mean rank",
        "all": "all cards",
        "generation": "cards that generate",
        "training": "cards that train",
    },
    "zh": {
        "seconds": "秒",
        "batch": "同时解码的序列数",
        "fullest": "最满的 rank",
        "mean": "平均 rank",
        "all": "所有卡",
        "generation": "生成卡",
        "training": "训练卡",
    },
}

RL_PHASES: dict[Language, dict[str, str]] = {
    "en": {
        "hand_over": "hand-over",
        "generation": "generation",
        "onload_training": "onload for training",
        "offload_training": "offload of training",
        "preparation": "preparation",
        "log_probabilities": "log probabilities",
        "reference": "reference",
        "values": "values",
        "reward": "reward",
        "critic_update": "update of the critic",
        "update": "update",
    },
    "zh": {
        "hand_over": "权重移交",
        "generation": "生成",
        "onload_training": "训练前装入",
        "offload_training": "训练后换出",
        "preparation": "准备",
        "log_probabilities": "对数概率",
        "reference": "参考模型",
        "values": "价值估计",
        "reward": "奖励模型",
        "critic_update": "评论模型更新",
        "update": "更新",
    },
}
"""Phases of a step of reinforcement learning."""

WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "step_time": "step time (s)",
        "memory": "peak memory (GiB)",
        "stage_memory": "memory on the card (GiB)",
        "stage": "stage",
        "chunk": "chunk",
        "layer": "layer of the model",
        "layers": "layers",
        "dense": "dense layers",
        "moe": "MoE layers",
        "plan": "plan",
        "limit": "usable",
        "interval": "80 % interval",
        "front": "no plan is better in both",
        "device": "device of the node",
        "node": "node",
        "days": "days",
        "cost": "cost, in the currency of the prices",
        "deadline": "deadline",
    },
    "zh": {
        "step_time": "单步时间 (s)",
        "memory": "峰值内存 (GiB)",
        "stage_memory": "卡上内存 (GiB)",
        "stage": "阶段",
        "chunk": "虚拟段",
        "layer": "模型层号",
        "layers": "层",
        "dense": "稠密层",
        "moe": "MoE 层",
        "plan": "方案",
        "limit": "可用",
        "interval": "80 % 区间",
        "front": "两项互不支配的方案",
        "device": "节点内设备",
        "node": "节点",
        "days": "天数",
        "cost": "成本（与价格同币种）",
        "deadline": "期限",
    },
}


DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def layout(strategy: Strategy) -> str:
    """Parallel degrees in short form, such as `TP2 PP8 VPP4 EP64 DP48`; VPP, CP, EP, ETP of 1 are left out."""
    return short_degrees({name: getattr(strategy, name) for name in DEGREES})


def short_degrees(degrees: Mapping[str, int | None]) -> str:
    """As `layout`, of degrees by their names in a strategy; one that is not set is 1."""
    values = [(name.upper(), degrees.get(name) or 1) for name in DEGREES]
    return " ".join(f"{name}{value}" for name, value in values if value > 1 or name in {"TP", "PP", "DP"})


def plan_label(plan: Plan, lang: Language) -> str:
    """How a picture names a plan: its rank, or what it is compared with, and its layout."""
    return f"{short_label(plan, lang)} · {layout(plan.strategy)}"


def short_label(plan: Plan, lang: Language) -> str:
    """Its rank, or what it is compared with."""
    return reference_name(plan.label, lang) if is_reference(plan) else f"{plan.rank}"


def is_reference(plan: Plan) -> bool:
    """Whether the plan is shown only for comparison: it is labelled, such as "public recipe"."""
    return plan.label is not None
