"""Every sentence of the reports of a check and of a comparison, in English and Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.reports.texts import Language

_TEXTS: dict[str, tuple[str, str]] = {
    "passed": ("PASS", "通过"),
    "gate_passed": ("ok  ", "通过  "),
    "gate_failed": ("FAIL", "未通过"),
    "failed": ("FAIL", "未通过"),
    "title": ("AutoDeploy check", "AutoDeploy 检查"),
    "gate": ("gate", "检查项"),
    "value": ("value", "数值"),
    "limit": ("limit", "上限/下限"),
    "verdict": ("verdict", "结论"),
    "told": ("no limit given", "未设限"),
    "legality": ("can be started", "可以启动"),
    "no_rule_broken": ("no rule is broken", "未违反任何规则"),
    "rules_broken": ("rules broken: {count}", "违反规则 {count} 条"),
    "for_release": (" ({release})", "（{release}）"),
    "not_predicted": ("no prediction: {reason}", "无法预测：{reason}"),
    "unmodelled": ("changes the result and is not modelled: {text}", "会改变结果且未建模：{text}"),
    "memory": ("memory on the card", "卡上内存"),
    "slowdown": ("slower than the best plan", "比最优方案慢"),
    "baseline": ("slower than the baseline", "比基线慢"),
    "slowdown_faster": ("faster than the best plan of a short search", "比短搜索的最优方案快"),
    "baseline_faster": ("faster than the baseline", "比基线快"),
    "slower_allowed": ("{pct} % slower is allowed", "允许慢 {pct} %"),
    "mfu": ("MFU", "MFU"),
    "no_best": ("the search found no plan that fits", "搜索未找到放得下的方案"),
    "memory_line": (
        "stage {stage} needs {peak} of {limit} GiB usable",
        "阶段 {stage} 需要 {peak} GiB，可用 {limit} GiB",
    ),
    "memory_interval": ("; 80 % interval {low}-{high} GiB", "；80 % 区间 {low}-{high} GiB"),
    "survives": (
        "; runs out of memory above expert imbalance {oom} (sized for {peak})",
        "；专家不均衡超过 {oom} 即内存不足（按 {peak} 估算）",
    ),
    "survives_any": ("; no imbalance of the experts changes that", "；与专家不均衡无关"),
    "survives_none": ("; too much at any imbalance of the experts", "；任何专家不均衡下都放不下"),
    "time_line": (
        "step {step} s, 80 % interval {low}-{high} s, MFU {mfu} %",
        "单步 {step} s，80 % 区间 {low}-{high} s，MFU {mfu} %",
    ),
    "best_line": (
        "best plan of a short search: {layout}, step {step} s, {peak} GiB; the launch is {slower}",
        "短搜索的最优方案：{layout}，单步 {step} s，{peak} GiB；此启动{slower}",
    ),
    "baseline_line": (
        "{name}: {layout}, step {step} s, {peak} GiB; the launch is {slower}",
        "{name}：{layout}，单步 {step} s，{peak} GiB；此启动{slower}",
    ),
    "slower": ("{pct} % slower per card", "每卡慢 {pct} %"),
    "faster": ("{pct} % faster per card", "每卡快 {pct} %"),
    "same": ("as fast", "一样快"),
    "shortage": (
        "stage {stage} needs {needed} GiB ({bytes} bytes), allowed are {limit} GiB: {excess} GiB too many; "
        "most is {part}, {largest} GiB",
        "阶段 {stage} 需要 {needed} GiB（{bytes} 字节），允许 {limit} GiB，超出 {excess} GiB；"
        "最大的是{part}，{largest} GiB",
    ),
    "cheapest": ("cheapest fix: {fix}", "代价最小的修改：{fix}"),
    "other_fix": ("or: {fix}", "或：{fix}"),
    "fix_cost": ("{names}: {peak} GiB, step {step} s ({cost})", "{names}：{peak} GiB，单步 {step} s（{cost}）"),
    "fix_add": ("; add {flags}", "；添加 {flags}"),
    "fix_drop": ("; take out {flags}", "；去掉 {flags}"),
    "no_fix": (
        "no recompute, swap, optimizer or micro batch choice makes this layout fit",
        "重计算、换出、优化器与微批的任何选择都不能使此布局放下",
    ),
    "take_best": ("take the best plan's layout instead", "请改用最优方案的布局"),
    "broken_rule": ("broken rule: {text} ({rule})", "违反规则：{text}（{rule}）"),
    "allowed_rule": ("allowed: {text} ({rule})", "已放行：{text}（{rule}）"),
    "baseline_name": ("baseline", "基线"),
    "changed": ("what changed against {name}", "与 {name} 相比的改动"),
    "nothing_changed": ("no flag changed", "没有改动参数"),
    "change_line": ("{name}: {before} -> {after}", "{name}：{before} -> {after}"),
    "moved_line": ("{part}: {before} -> {after} s ({moved} s)", "{part}：{before} -> {after} s（{moved} s）"),
    "before": ("before", "之前"),
    "after": ("after", "之后"),
    "difference": ("difference", "变化"),
    "flag": ("flag", "参数"),
    "strategy_field": ("field", "字段"),
    "step_time": ("step time (s)", "单步时间 (s)"),
    "peak_memory": ("memory on the card (GiB)", "卡上内存 (GiB)"),
    "why": ("why: {cause}", "原因：{cause}"),
    "assumed": ("assumed: {text}", "假定：{text}"),
    "contradiction": ("contradiction in the file: {text}", "文件自相矛盾：{text}"),
    "unknown_flags": ("flags or keys not read: {flags}", "未读取的参数或键：{flags}"),
    "part_weights": ("weights", "权重"),
    "part_gradients": ("gradients", "梯度"),
    "part_optimizer": ("optimizer states", "优化器状态"),
    "part_activations": ("activations", "激活值"),
    "part_workspace": ("workspace", "工作空间"),
    "part_communication_buffers": ("communication buffers", "通信缓冲"),
    "part_runtime": ("runtime", "运行时"),
    # remedies
    "distributed_optimizer": ("distributed optimizer", "分布式优化器"),
    "sequence_parallel": ("sequence parallelism", "序列并行"),
    "reuse_fp32_param": ("reuse the FP32 parameters", "复用 FP32 参数副本"),
    "swap_optimizer": ("swap the optimizer states", "换出优化器状态"),
    "virtual_optimizer": ("virtual optimizer", "虚拟优化器"),
    "swap_attention": ("swap attention activations", "换出注意力激活值"),
    "recompute": ("recompute {detail}", "重计算 {detail}"),
    "recompute_full": ("recompute {detail} layers of each stage", "每阶段完整重计算 {detail} 层"),
    "recompute_full_all": ("recompute every layer", "完整重计算所有层"),
    "micro_batch_size": ("micro batch {detail}", "微批 {detail}"),
    # single changes that are no remedies
    "placement": ("layers and memory placed anew", "重新放置各层与内存"),
    "recompute_none": ("no recompute", "不做重计算"),
    "moe_dispatcher": ("dispatcher {detail}", "专家分发 {detail}"),
    "degree": ("{axis} {detail}", "{axis} {detail}"),
    "switched_off": ("without {name}", "关闭{name}"),
    "schedule": ("schedule {detail}", "流水调度 {detail}"),
    # comparison
    "compare_title": ("Plans compared", "方案对比"),
    "field": ("field", "字段"),
    "yes": ("yes", "是"),
    "no": ("no", "否"),
    "all_equal": ("the plans do not differ", "各方案没有差别"),
    "checkpoint_change": (
        "checkpoints of {before} in {after}: {how} ({reason})",
        "{before} 的检查点用于 {after}：{how}（{reason}）",
    ),
    "checkpoint_moved": (", {size} in {time}", "，{size}，用时 {time}"),
    "checkpoint_loaded": ("loaded as they are", "直接加载"),
    "checkpoint_resharded": ("resharded as they are loaded, optimizer included", "加载时重新切分，包括优化器状态"),
    "checkpoint_weights_resharded": (
        "weights resharded as they are loaded, optimizer left behind (--no-load-optim)",
        "加载时重新切分权重，不加载优化器状态（--no-load-optim）",
    ),
    "checkpoint_weights_converted": (
        "weights converted, optimizer left behind",
        "转换权重，不保留优化器状态",
    ),
    "checkpoint_impossible": ("of no use", "无法使用"),
    "checkpoint_unknown": ("not known", "未知"),
    "group_search": ("what was asked", "输入"),
    "group_strategy": ("strategy", "策略"),
    "group_time": ("time and memory", "时间与内存"),
    "group_breakdown": ("a step (s)", "一步构成 (s)"),
    "group_stages": ("worst stage (GiB)", "最满阶段 (GiB)"),
}

# Fields of a comparison whose bare name says too little.
_FIELDS: dict[str, tuple[str, str]] = {
    "model.name": ("model", "模型"),
    "cluster.profile": ("cluster", "集群"),
    "cluster.device": ("chip grade", "芯片型号"),
    "cluster.num_npus": ("cards", "卡数"),
    "training.seq_length": ("sequence length", "序列长度"),
    "training.global_batch_size.value": ("global batch", "全局批大小"),
    "training.precision": ("precision", "精度"),
    "search.target": ("target", "目标框架"),
    **{name: (name.upper(), name.upper()) for name in ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "fsdp")},
    "cp_algo": ("context parallel algorithm", "上下文并行算法"),
    "moe_dispatcher": ("dispatcher", "专家分发"),
    "sequence_parallel": ("sequence parallelism", "序列并行"),
    "distributed_optimizer": ("distributed optimizer", "分布式优化器"),
    "swap_optimizer": ("swapped optimizer states", "换出优化器状态"),
    "reuse_fp32_param": ("reused FP32 parameters", "复用 FP32 参数副本"),
    "training.routing_imbalance": ("routing imbalance, sustained", "持续路由不均衡"),
    "training.routing_imbalance_peak": ("routing imbalance, peak", "峰值路由不均衡"),
    "training.router": ("router", "路由器"),
    "search.numerics": ("numerics", "数值要求"),
    "search.objective": ("objective", "目标"),
    "search.risk": ("risk", "风险偏好"),
    "engine_version": ("engine version", "引擎版本"),
    "profile_hash": ("profile hash", "硬件哈希"),
    "micro_batch_size": ("micro batch", "微批"),
    "schedule": ("schedule", "流水调度"),
    "layers_per_stage": ("layers per stage", "每阶段层数"),
    "recompute": ("recompute", "重计算"),
    "swap": ("swap", "换出"),
    "features": ("features", "特性"),
    "unproven": ("rests on no run", "没有实测依据"),
    "rescaled": ("times multiplied by", "时间乘以"),
    "step_time_s": ("step time (s)", "单步时间 (s)"),
    "expected_step_time_s": ("expected step time (s)", "期望单步时间 (s)"),
    "regret_p80_pct": ("regret, 80th percentile (%)", "遗憾，第 80 百分位 (%)"),
    "tokens_per_s": ("tokens/s", "tokens/s"),
    "tokens_per_s_per_npu": ("tokens/s/card", "tokens/s/卡"),
    "mfu": ("MFU", "MFU"),
    "peak_memory_gib": ("peak memory (GiB)", "峰值内存 (GiB)"),
    "memory_limit_gib": ("usable memory (GiB)", "可用内存 (GiB)"),
    "p_fits": ("P(fits)", "放得下的概率"),
    "oom_imbalance": ("imbalance it survives", "可承受的不均衡"),
    "experts.time_factor": ("imbalance of experts, time", "专家不均衡（时间）"),
    "experts.memory_factor": ("imbalance of experts, memory", "专家不均衡（内存）"),
    "num_npus_used": ("cards used", "所用卡数"),
    "micro_batches": ("micro batches", "微批数"),
    "days": ("days", "天数"),
    "run.days": ("days of the run", "整个训练天数"),
    "run.npu_hours": ("card-hours of the run", "整个训练卡时"),
    "run.goodput": ("goodput", "有效训练占比"),
    "run.cost": ("cost of the run", "整个训练费用"),
    "npu_hours": ("card-hours", "卡时"),
}


def field_name(lang: Language, field: str) -> str:
    """A field of a comparison in words; one without words keeps its name."""
    return _FIELDS[field][1 if lang == "zh" else 0] if field in _FIELDS else field.replace("_", " ")


def tell(lang: Language, key: str, **values: object) -> str:
    """The sentence in that language with its blanks filled in."""
    return _TEXTS[key][1 if lang == "zh" else 0].format(**values)


def change_name(lang: Language, name: str) -> str:
    """A single change such as `recompute:none`, `tp:4` or `schedule:interleaved vpp:4` in words; a feature by name."""
    kind, _, detail = name.partition(":")
    if name == "recompute:none":
        return tell(lang, "recompute_none")
    if kind in {"tp", "pp", "cp", "ep", "etp"}:
        return tell(lang, "degree", axis=kind.upper(), detail=detail)
    if kind == "schedule":
        return tell(lang, kind, detail=detail.replace("vpp:", "VPP "))
    if detail == "off":
        return tell(lang, "switched_off", name=remedy_name(lang, kind))
    return remedy_name(lang, name) if kind in _TEXTS else name


def remedy_name(lang: Language, name: str) -> str:
    """A remedy such as `recompute:norm` or `micro_batch_size:1` in words."""
    kind, _, detail = name.partition(":")
    if name == "recompute_full:all":
        kind = "recompute_full_all"
    return tell(lang, kind, detail=detail)
