"""Every sentence of the reports, in English and Chinese."""

from __future__ import annotations

from typing import Literal

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

_TEXTS: dict[str, tuple[str, str]] = {
    "comma": (", ", "，"),
    "semicolon": ("; ", "；"),
    "colon": (": ", "："),
    "and": (" and ", "、"),
    # header
    "on": ("on", "@"),
    "cards": ("{cards} cards", "{cards} 卡"),
    "one_card": ("1 card", "1 卡"),
    "cards_and_dies": ("{cards} cards ({ranks} dies)", "{cards} 卡（{ranks} 个 die）"),
    "workload": ("seq {seq}, batch {batch}, {precision}", "序列 {seq}，批 {batch}，{precision}"),
    "for_target": ("for {target}", "目标框架 {target}"),
    "any_target": ("without a framework's launch rules", "不受框架启动规则限制"),
    # best plan
    "best": ("RECOMMENDED", "推荐"),
    "plan": ("PLAN", "方案"),
    "micro_batch": ("micro batch {size}", "微批 {size}"),
    "recompute": ("recompute {what}", "重计算 {what}"),
    "swap": ("swap {what}", "换出 {what}"),
    "nothing_recomputed": ("no recompute", "无重计算"),
    "step": ("step {step} s", "单步 {step} s"),
    "expected": ("step {step} s, expected {expected} s", "单步 {step} s，期望 {expected} s"),
    "per_card": ("{value} tokens/s/card", "{value} tokens/s/卡"),
    "in_total": ("{value} tokens/s", "共 {value} tokens/s"),
    "mfu": ("MFU {value} % ({convention})", "MFU {value} %（{convention}）"),
    "measured_mfu": (
        "highest measured MFU of its class {value} % (measured: {runs}; {record})",
        "同类 {runs} 次实测的最高 MFU 为 {value} %（{record}）",
    ),
    "no_measured_mfu": ("no run of its class has a measured MFU", "同类没有实测 MFU"),
    "interval": ("80 % interval {low}-{high} s", "80 % 区间 {low}-{high} s"),
    "extrapolated": ("extrapolated in {axes}", "外推维度：{axes}"),
    "nearest": ("nearest record: {record}", "最近实测：{record}"),
    "memory": ("memory {peak} of {limit} GiB (stage {stage})", "内存 {peak} / {limit} GiB（阶段 {stage}）"),
    "memory_interval": ("80 % interval {low}-{high} GiB", "80 % 区间 {low}-{high} GiB"),
    "p_fits": ("P(fits) {chance}", "放得下的概率 {chance}"),
    "oom": (
        "out of memory above expert imbalance {limit} (assumed {assumed}, peak {peak})",
        "专家不均衡超过 {limit} 即内存不足（假设 {assumed}，峰值 {peak}）",
    ),
    "experts": (
        "experts: busiest of EP{ep} at {time} times the mean for time, {memory} for memory ({stage} over its layers); "
        "{router}",
        "专家：EP{ep} 中最忙的 rank 为平均的 {time} 倍（时间）、{memory} 倍（内存，按其各层合计 {stage} 倍）；{router}",
    ),
    "experts_even": ("experts: all of EP{ep} loaded alike; {router}", "专家：EP{ep} 各 rank 负载相同；{router}"),
    "router_auxiliary_loss": ("router with an auxiliary loss", "带辅助损失的路由器"),
    "router_bias": ("router balanced by biases", "以偏置均衡的路由器"),
    "router_grouped": ("router with groups of experts", "分组专家路由器"),
    "router_forced": ("forced routing", "强制均匀路由"),
    "loads_file": ("loads from a file", "负载取自文件"),
    "does_not_fit": ("DOES NOT FIT by {excess} GiB", "超出 {excess} GiB，放不下"),
    "run": ("{tokens} tokens: {days} days, {card_hours} card-hours", "{tokens} tokens：{days} 天，{card_hours} 卡时"),
    # what a plan rests on
    "unproven": ("rests on no run: {names}", "没有实测依据：{names}"),
    "all_proven": (
        "every axis and feature has runs; fewest {name}: {runs}",
        "各轴与特性均有实测，最少的是 {name}：{runs} 次",
    ),
    "predicted_long": ("predicted {pct} % too long", "预测偏长 {pct} %"),
    "predicted_short": ("predicted {pct} % too short", "预测偏短 {pct} %"),
    "axis_schedule": ("schedule", "流水调度"),
    "axis_feature": ("feature", "特性"),
    "axis_moe_dispatcher": ("dispatcher", "专家分发"),
    "axis_cp_algo": ("context parallel algorithm", "上下文并行算法"),
    "axis_micro_batch_size": ("micro batch", "微批"),
    "axis_ranks": ("ranks", "rank 数"),
    "op_head": (
        "one micro batch on one rank, of {runs} a step; {layers} layers a stage; peak {peak} TF/s, memory {hbm} GB/s",
        "单个 rank 上的一个微批（每步 {runs} 个）；每阶段 {layers} 层；峰值 {peak} TF/s，显存 {hbm} GB/s",
    ),
    "op_layer": ("{name}, {count} in the model", "{name}，模型中 {count} 层"),
    "op_beside": ("vector work beside matrix work: {time} us", "与矩阵计算并行的向量计算：{time} us"),
    "op_name": ("operator", "算子"),
    "op_exchange": ("exchange", "通信"),
    "op_kind": ("kind", "类型"),
    "op_forward": ("forward us", "前向 us"),
    "op_backward": ("backward us", "反向 us"),
    "op_uneven": ("uneven us", "不均衡 us"),
    "op_rate": ("reached", "达到"),
    "op_roofline": ("roofline", "屋顶线"),
    "op_step": ("s/step", "秒/步"),
    "op_group": ("group", "通信组"),
    "op_tier": ("tier", "网络层"),
    "op_message": ("MB", "MB"),
    "op_once": ("once us", "单次 us"),
    "op_reached": ("GB/s", "GB/s"),
    "op_hidden": ("hidden", "掩盖"),
    "spares": ("with fewer nodes, and what becomes of today's checkpoint:", "节点减少时的方案，以及当前检查点的用法："),
    "spare_nodes": ("nodes", "节点"),
    "spare_cards": ("cards", "卡数"),
    "spare_plan": ("plan", "方案"),
    "spare_batch": ("batch", "批大小"),
    "spare_step": ("s/step", "秒/步"),
    "spare_share": ("tokens/s", "吞吐"),
    "spare_checkpoint": ("checkpoint", "检查点"),
    "spare_none": ("nothing fits", "无可行方案"),
    "spare_loaded": ("loaded", "直接加载"),
    "spare_resharded": ("resharded", "重新切分"),
    "spare_weights_resharded": ("weights resharded", "重新切分权重"),
    "spare_weights_converted": ("weights converted", "转换权重"),
    "spare_impossible": ("of no use", "无法使用"),
    "spare_unknown": ("not known", "未知"),
    "axis_placement": ("placement", "放置"),
    "axis_engine": ("engine", "推理引擎"),
    "axis_precision": ("precision of generation", "生成精度"),
    "axis_generation": ("generation {axis}", "生成 {axis}"),
    "evidence": ("What published runs say of this plan", "已发表实测对此方案的支持"),
    "evidence_axis": ("axis", "轴"),
    "evidence_value": ("value", "取值"),
    "evidence_runs": ("runs", "实测数"),
    "evidence_record": ("nearest record", "最近实测"),
    "evidence_error": ("step off by", "单步误差"),
    # what plans are ranked by
    "rescaled": (
        "every time is multiplied by {ratio}: the measured run {run} took {measured} s, predicted {predicted} s "
        "({source})",
        "所有时间均乘以 {ratio}：实测 {run} 为 {measured} s，预测 {predicted} s（{source}）",
    ),
    "reference_from": ("{name}: {source}", "{name}：{source}"),
    "faster_on_paper": (
        "{layout} is {pct} % faster on paper ({step} s, P(fits) {chance})",
        "{layout} 纸面上快 {pct} %（{step} s，放得下的概率 {chance}）",
    ),
    "first_on_paper": (
        "{layout} comes first on paper ({step} s, P(fits) {chance})",
        "{layout} 纸面上居首（{step} s，放得下的概率 {chance}）",
    ),
    "bets_on": (" and bets on: {bets}", "，其前提：{bets}"),
    "bet_cost": (" (+{pct} % if lost)", "（落空则 +{pct} %）"),
    "more_bets": ("{count} more", "另有 {count} 项"),
    "valley": ("{layouts} layouts within {within} % of the fastest", "{layouts} 种布局与最快者相差不到 {within} %"),
    "valley_alone": ("no other layout within {within} % of the fastest", "没有其他布局与最快者相差不到 {within} %"),
    "valley_shared": ("all with {shared}", "均为 {shared}"),
    "fewest_unproven": ("{plan} needs the fewest unproven features", "{plan} 依赖的未经实测特性最少"),
    "ranked_averse": (
        "ranked by regret: time beyond the best of {compared} plans, 80th percentile of {draws} draws of {numbers} "
        "uncertain numbers; those with P(fits) of {chance} first",
        "按遗憾排序：{numbers} 个不确定数的 {draws} 次抽样中，比 {compared} 个方案中最优者多用时间的第 80 百分位；"
        "放得下的概率不低于 {chance} 者在前",
    ),
    "ranked_neutral": ("ranked by the prediction alone (risk: neutral)", "仅按预测值排序（risk: neutral）"),
    "proven_share": ("gains that no run has shown count by {share} %", "未经实测的收益按 {share} % 计入"),
    "box": (
        "Uncertain numbers: factors at their 10th and 90th percentile",
        "不确定的数：第 10 与第 90 百分位处的系数",
    ),
    "box_number": ("number", "数"),
    "box_meaning": ("meaning", "含义"),
    "box_rest": ("{count} more change less than 0.5 %", "另有 {count} 个数的影响小于 0.5 %"),
    "box_low": ("low", "低"),
    "box_high": ("high", "高"),
    "box_influence": ("influence", "影响"),
    "box_basis": ("basis", "依据"),
    # why not
    "rejected_by": ("rejected by {rule}: {message}", "被 {rule} 拒绝：{message}"),
    "fits_with": (
        "with layers placed anew it fits in {peak} GiB: {choices}",
        "重新放置各层后需 {peak} GiB，可以放下：{choices}",
    ),
    "would_take": ("it would take {step} s a step", "单步将为 {step} s"),
    "completed_by": ("the rest completed: {layout}; {choices}", "其余补全为：{layout}；{choices}"),
    "against_fastest": (", {pct} % against the fastest on paper", "，比纸面上最快的方案 {pct} %"),
    "against_best": (", {pct} % against the best plan", "，比最优方案 {pct} %"),
    "nearest_passing": ("nearest changes:", "最接近的修改："),
    # errors
    "error": ("error: ", "错误："),
    "error_fields": ("error: {count} fields are not valid", "错误：{count} 个字段无效"),
    "hint": ("      hint: {hint}", "      提示：{hint}"),
    "error_cancelled": ("cancelled: {text}", "已取消：{text}"),
    # the run of weeks
    "run_steps": ("{tokens} tokens: {days} days of steps", "{tokens} tokens：纯训练 {days} 天"),
    "run_steps_part": (
        "{trained} of {tokens} tokens: {days} days of steps",
        "{tokens} tokens 中的 {trained}：纯训练 {days} 天",
    ),
    "run_total": (
        "with checkpoints and failures {days} days, {card_hours} card-hours, goodput {goodput} %",
        "计入检查点与故障共 {days} 天，{card_hours} 卡时，有效训练占比 {goodput} %",
    ),
    "run_total_near": (
        "checkpoints and failures add {added}, {card_hours} card-hours, goodput {goodput} %",
        "检查点与故障另需 {added}，{card_hours} 卡时，有效训练占比 {goodput} %",
    ),
    "run_lost": (
        "lost: checkpoints {checkpoint} %, repeated work {lost} %, restarts {restart} % ({failures})",
        "损失：检查点 {checkpoint} %，重复训练 {lost} %，重启 {restart} %（{failures}）",
    ),
    "failures_none": ("hardly a failure", "几乎没有故障"),
    "failures_one": ("1 failure", "1 次故障"),
    "failures_many": ("{count} failures", "{count} 次故障"),
    "run_checkpoint": (
        "a checkpoint of {size} every {interval} stops training for {pause}; a failure every {failure}, "
        "{restart} until the next step",
        "检查点 {size}，每 {interval} 一次，训练停 {pause}；平均 {failure} 一次故障，{restart} 后恢复",
    ),
    "run_phase": (
        "phase {number}: seq {seq}, batch {batch}, {tokens} tokens: {days} days, {step} s a step",
        "阶段 {number}：序列 {seq}，批 {batch}，{tokens} tokens：{days} 天，单步 {step} s",
    ),
    "run_phase_layout": ("under {layout} (change {change})", "布局 {layout}（切换 {change}）"),
    "run_phase_problem": (
        "phase {number}: seq {seq}, batch {batch}: not under this layout: {problem}",
        "阶段 {number}：序列 {seq}，批 {batch}：此布局不可行：{problem}",
    ),
    "run_allow": (
        "no total: allow the layout to change (run.layout_changes: allowed), or plan for that phase",
        "无法合计：请允许切换布局（run.layout_changes: allowed），或按该阶段规划",
    ),
    "run_cost": ("cost {amount} {currency}", "费用 {amount} {currency}"),
    "run_energy": ("energy {energy} MWh", "电量 {energy} MWh"),
    "run_energy_cost": ("power {amount} {currency}", "电费 {amount} {currency}"),
    "run_priors": ("assumed of the run: {priors}", "运行假设：{priors}"),
    "prior_npu_failure_interval_h": (
        "a card fails every {value} h ({source})",
        "单卡平均 {value} h 一次故障（{source}）",
    ),
    "prior_restart_s": ("restart in {value} s ({source})", "重启 {value} s（{source}）"),
    "prior_recovered_share": (
        "{value} of the failures leave a copy of the states ({source})",
        "{value} 的故障后仍有一份优化器状态副本（{source}）",
    ),
    "prior_reboot_s": ("failed processes back in {value} s ({source})", "故障进程 {value} s 内恢复（{source}）"),
    "run_recovery_ttp": (
        "recovery: states are saved when a card fails; a step is lost",
        "恢复：故障时保存状态，仅损失一步",
    ),
    "run_recovery_ttp+reboot": (
        "recovery: failed processes are started again beside the others; a step is lost",
        "恢复：仅重启故障进程，仅损失一步",
    ),
    "prior_storage_gb_per_s_per_npu": (
        "storage {value} GB/s a card ({source})",
        "每卡存储带宽 {value} GB/s（{source}）",
    ),
    "a_step": ("a step: ", "一步构成："),
    "headroom": ("lost: {losses}", "损失：{losses}"),
    "goal": (
        "MFU of {mfu} % is a step of {step} s: {less} s less, as much as {losses}",
        "MFU {mfu} % 对应单步 {step} 秒：需减少 {less} 秒，相当于 {losses}",
    ),
    "goal_part": ("{share} % of {part}", "{part} 的 {share} %"),
    "loss": ("{part} {seconds} s (MFU +{points})", "{part} {seconds} s（MFU +{points}）"),
    "below_peak": ("operators below peak", "算子未达峰值"),
    "mfu_without": ("MFU {mfu} % without these", "去除后 MFU {mfu} %"),
    "pareto": (
        "{count} plans that none beats in time, memory and cards at once: {points}",
        "{count} 个方案在时间、内存、卡数上互不支配：{points}",
    ),
    "pareto_some": (
        "{count} plans that none beats in time, memory and cards at once, {shown} of them: {points}",
        "{count} 个方案在时间、内存、卡数上互不支配，其中 {shown} 个：{points}",
    ),
    "hidden": ("{share} % hidden", "掩盖 {share} %"),
    "tie": ("≈ #{rank}", "≈ #{rank}"),
    "other_layers": ("layers or memory placed otherwise", "层或内存安排不同"),
    "versus_best": ("vs #1", "相对 #1"),
    "p_fits_column": ("P(fits)", "放得下"),
    "generation_column": ("generation", "生成"),
    "regret_column": ("regret", "遗憾"),
    "host_line": (
        "host: {operators} operators a layer in {issue} ms, {synchronisations} synchronisations of {event} ms, "
        "free {free} % of the step",
        "主机：每层 {operators} 个算子，下发 {issue} ms；{synchronisations} 次同步，每次 {event} ms；"
        "设备空闲占一步的 {free} %",
    ),
    "operator_line": (
        "operators: flash attention {attention} %, matrix {matmul} %, sorting {sorting} % ({hidden} % of it hidden), "
        "other vector {vector} %",
        "算子：Flash Attention {attention} %，矩阵 {matmul} %，排序类 {sorting} %（其中掩盖 {hidden} %），"
        "其他向量 {vector} %",
    ),
    "menu": (
        "What each layer could recompute or swap, per micro batch",
        "每层可选的重计算与换出（每个微批）",
    ),
    "menu_layers": ("layers", "层类型"),
    "menu_choice": ("choice", "选项"),
    "menu_saved": ("GiB saved", "节省 GiB"),
    "menu_added": ("ms paid", "代价 ms"),
    "menu_ratio": ("GiB/ms", "GiB/ms"),
    "menu_used": ("used by layers", "使用层数"),
    "recompute_kind": ("recompute", "重计算"),
    "swap_kind": ("swap", "换出"),
    # footer
    "counts": (
        "{enumerated} strategies in {seconds} s: {illegal} illegal, {too_big} too big, {pruned} bounded out, "
        "{solved} solved",
        "{seconds} s 内枚举 {enumerated} 个策略：{illegal} 个不合法，{too_big} 个放不下，{pruned} 个被下界剪枝，"
        "{solved} 个求解",
    ),
    "gap": ("gap {gap} % (of this model)", "最优性差距 {gap} %（在本代价模型内）"),
    "gap_unknown": ("no bound proven", "未证得下界"),
    "price": (
        "launch rules of {target} cost {price} %: without them {step} s",
        "{target} 的启动规则代价 {price} %：不受限时为 {step} s",
    ),
    "warning": ("warning: {text}", "注意：{text}"),
    "features_off": ("off ({reason}): {names}", "未使用（{reason}）：{names}"),
    "not_reproducible": (
        "warning: the time limit was reached, so another run may differ",
        "注意：达到时间上限，再次运行的结果可能不同",
    ),
    "next": ("next:", "下一步："),
    # no plan
    "infeasible": ("NO PLAN: nothing fits", "无可行方案"),
    "binding": ("binding rules: {rules}", "起约束作用的规则：{rules}"),
    "nearest_changes": ("nearest changes that fit:", "最接近的可行修改："),
    "no_nearest": (
        "no single change of cards, batch or features makes it fit",
        "卡数、批大小或特性的单项修改都不能使其可行",
    ),
    "cancelled": ("CANCELLED before a plan was found", "已取消，尚无方案"),
    "failed": ("FAILED: {error}", "失败：{error}"),
    "running": ("the search is {status}", "搜索状态：{status}"),
    # columns
    "layout": ("layout", "布局"),
    "schedule": ("schedule", "流水调度"),
    "step_column": ("s/step", "s/步"),
    "card_column": ("tok/s/card", "tok/s/卡"),
    "gib_column": ("GiB", "GiB"),
    "plan_column": ("plan", "方案"),
    "full_recompute": ("full rec.", "全重计算"),
    # Reinforcement learning
    "rl_workload": (
        "{algorithm}, {prompts} prompts x {responses} responses of {prompt} + {response} tokens (longest {longest}), "
        "{precision}",
        "{algorithm}，{prompts} 个提示词 x {responses} 个回答，平均 {prompt} + {response} token"
        "（最长 {longest}），{precision}",
    ),
    "rl_nothing": ("nothing", "无"),
    "rl_colocated": (
        "generates on the same cards: {layout}; leaves the device meanwhile: {offload}",
        "在同一批卡上生成：{layout}；期间换出：{offload}",
    ),
    "rl_separate": (
        "{generating} cards generate: {layout}; {training} cards train, in turn",
        "{generating} 卡生成：{layout}；{training} 卡训练，轮流进行",
    ),
    "rl_async": (
        "{generating} cards generate: {layout}; {training} cards train beside them, at most {staleness} updates behind",
        "{generating} 卡生成：{layout}；{training} 卡同时训练，最多落后 {staleness} 次更新",
    ),
    "rl_phases": ("phases, as exposed: {phases}", "各阶段（暴露部分）：{phases}"),
    "rl_generation": (
        "generation: {tpot} ms a token at batch {batch} a rank, {waves} waves, longest response {longest} s, tail "
        "{tail} % of decoding, {kv} GiB of keys and values",
        "生成：每 rank 批 {batch} 时每 token {tpot} ms，{waves} 轮，最长回答 {longest} s，"
        "长尾占解码 {tail} %，KV {kv} GiB",
    ),
    "rl_rates": (
        "tokens/s: {mean} at mean lengths, {longest} at greatest lengths, {response} of responses alone; memory "
        "{generation} GiB while it generates, {update} GiB while it trains",
        "tokens/s：按平均长度 {mean}，按最大长度 {longest}，仅回答 {response}；"
        "内存：生成时 {generation} GiB，训练时 {update} GiB",
    ),
    # Markdown
    "title": ("Plan report", "方案报告"),
    "best_plan": ("Best plan", "最优方案"),
    "plans": ("Plans", "方案列表"),
    "search": ("Search", "搜索"),
    "provenance": ("numbers are at weakest", "所依据的最弱数据"),
    "generated": ("generated, review before launch", "自动生成，启动前请复核"),
}

PART_NAMES: dict[str, tuple[str, str]] = {
    "compute_s": ("compute", "计算"),
    "imbalance_s": ("imbalance", "负载不均"),
    "exposed_ep_s": ("EP", "EP"),
    "exposed_tp_s": ("TP", "TP"),
    "exposed_cp_s": ("CP", "CP"),
    "exposed_dp_s": ("DP", "DP"),
    "exposed_pp_s": ("PP send", "PP 收发"),
    "pipeline_bubble_s": ("bubble", "空泡"),
    "recompute_s": ("recompute", "重计算"),
    "exposed_swap_s": ("swap", "换入换出"),
    "host_bound_s": ("host", "主机下发"),
    "optimizer_s": ("optimizer", "优化器"),
    "generation_s": ("generation", "生成"),
    "hand_over_s": ("hand-over", "权重移交"),
    "other": ("other", "其他"),
}


def say(lang: Language, key: str, **values: object) -> str:
    """The sentence in that language with its blanks filled in."""
    return _TEXTS[key][LANGUAGES.index(lang)].format(**values)


# How a plan for comparison is named, in a table and in a sentence, by its label.
_REFERENCES: dict[str | None, tuple[tuple[str, str], tuple[str, str]]] = {
    "public recipe": (("public recipe", "公开配方"), ("the public recipe", "公开配方")),
    "your script": (("your script", "您的脚本"), ("your script", "您的脚本")),
    "1F1B": (("1F1B", "1F1B"), ("plain 1F1B", "普通 1F1B")),
    None: (("the usual starting point", "常用起点"), ("the usual starting point", "常用起点")),
}


def reference_name(label: str | None, lang: Language, *, in_sentence: bool = False) -> str:
    """A plan for comparison by its label; a label that is no known one stays."""
    known = _REFERENCES.get(None if label == "the usual starting point" else label)
    return str(label) if known is None else known[in_sentence][LANGUAGES.index(lang)]


def part_name(lang: Language, part: str) -> str:
    """The short name of a part of the step time."""
    return PART_NAMES[part][LANGUAGES.index(lang)]
