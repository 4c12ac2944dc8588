"""What a launch file says of a plan comes back when it is read: import(export(plan)) over random plans."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodeploy.formats.import_document import import_document
from autodeploy.formats.registry import export
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Recompute, Strategy
from tests import factories
from tests.support.examples import examples

MINDSPEED_FEATURES = (
    *("flash_attention", "fused_swiglu", "fused_rmsnorm", "fused_operators", "grouped_gemm"),
    *("shared_expert_overlap", "overlap_grad_reduce", "overlap_param_gather", "moe_alltoall_overlap"),
    *("rect_fa", "vector_sort", "host_sync_free", "virtual_pipeline_balance"),
)
SEPARATE = ("activation", "norm", "mla_up_proj")
SELECTIVE = ("core_attn", "mlp", "moe", "shared_experts")
SWAPS = ("unpermute", "layer_input")
CLUSTERS = (
    {"profile": "cloudmatrix-384", "num_npus": 384},
    {"profile": "ascend-800t-a2", "device": "910B2", "num_npus": 768},
)
# Megatron-LM beside MindSpeed, as its release on Ascend is, and alone.
ON_ASCEND = "megatron on Ascend"
WITH_MINDSPEED = frozenset({"mindspeed-llm", ON_ASCEND})
ELSEWHERE = ({"profile": "nvidia-h100", "num_npus": 768},)
FILES = {
    "mindspeed-llm": ".sh",
    "mindspeed-llm-flags": ".sh",
    "megatron": ".sh",
    "mindformers": ".yaml",
    "json": ".json",
}


@st.composite
def models(draw, target):
    """Models of one attention or the other, dense or with experts, with or without multi-token prediction."""
    dense, networks = target != "json", target == "mindformers"  # which has a network for some of them
    heads = draw(st.sampled_from([8, 16, 32]))
    model = {
        "name": "drawn",
        "hidden_size": heads * 64,
        "num_attention_heads": heads,
        "num_hidden_layers": draw(st.integers(8, 48)),
        "vocab_size": draw(st.integers(1000, 200_000)),
        "tie_word_embeddings": draw(st.booleans()),
        "num_nextn_predict_layers": draw(st.integers(0, 1)),
    }
    if draw(st.booleans()):
        model |= {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        model |= draw(st.sampled_from([{}, {"q_lora_rank": 1536}]))
    else:
        model |= {"num_key_value_heads": draw(st.sampled_from([heads, heads // 4]))}
        model |= {"head_dim": draw(st.sampled_from([64, 128])), "qk_norm": networks or draw(st.booleans())}
        model |= {"num_nextn_predict_layers": 0} if networks else {}
    if networks and "kv_lora_rank" in model:
        model |= {"tie_word_embeddings": False}
    if dense and draw(st.booleans()):
        return model | {"intermediate_size": draw(st.integers(1, 200)) * 64}
    first = 0 if networks and "qk_norm" in model else draw(st.integers(0, 1))
    model |= {"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536}
    model |= {"n_shared_experts": draw(st.integers(0, 2)), "first_k_dense_replace": first}
    model |= {"intermediate_size": 4096} if first else {}
    return model | draw(st.sampled_from([{}, {"n_group": 8, "topk_group": 4}]))


@st.composite
def placements(draw, layers, pp, chunks):
    """Layers of each stage and chunk, even or not."""
    total = pp * chunks
    if layers % total == 0 and draw(st.booleans()):
        counts = [layers // total] * total
    else:
        cuts = sorted(draw(st.lists(st.integers(0, layers - total), min_size=total - 1, max_size=total - 1)))
        counts = [1 + high - low for low, high in zip([0, *cuts], [*cuts, layers - total], strict=True)]
    rows = [tuple(counts[chunk * pp + stage] for chunk in range(chunks)) for stage in range(pp)]
    return tuple(rows) if chunks > 1 else tuple(row[0] for row in rows)


@st.composite
def recomputes(draw, target, stages, *, is_mla):
    """Whole layers, on some or all, the same on each stage or not; or modules."""
    kind = draw(st.sampled_from(["none", "full", "per_stage", "modules", "selective"]))
    if kind == "none":
        return Recompute()
    if kind == "full":
        return Recompute(granularity="full", num_layers=draw(st.sampled_from([None, 1, 2])))
    if kind == "per_stage":
        name = draw(st.sampled_from(["full", "activation", "activation@moe"]))
        rows = tuple({name: draw(st.integers(0, min(3, layers)))} for layers in stages)
        modules = () if name == "full" else ("activation",)
        return Recompute(granularity="full" if name == "full" else "selective", modules=modules, per_stage=rows)
    if target == "mindformers":
        return Recompute(granularity="selective", modules=("activation",))
    if kind == "selective" or target not in WITH_MINDSPEED:
        names = draw(st.lists(st.sampled_from(SELECTIVE), min_size=1, unique=True))
        return Recompute(granularity="selective", modules=tuple(names))
    allowed = SEPARATE if is_mla and target == "mindspeed-llm" else SEPARATE[:2]
    names = draw(st.lists(st.sampled_from(allowed), min_size=1, unique=True))
    layers = draw(st.sampled_from([None, 1])) if "mla_up_proj" not in names else None
    return Recompute(granularity="selective", modules=tuple(names), num_layers=layers)


@st.composite
def cases(draw, target):
    """A PlanSet and a plan that the target can say without loss, but for what the test's expectation names."""
    model = draw(models(target))
    is_moe, layers = "n_routed_experts" in model, model["num_hidden_layers"]
    tp, pp, cp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2, 4]))
    ep = draw(st.sampled_from([8, 16])) if is_moe else 1
    schedules = ["1f1b"] if pp == 1 else ["1f1b", "interleaved"]
    if pp > 1 and is_moe and target not in {"mindformers"}:
        schedules.append("adaptive_pipe")
        if cp == 1 and target != "megatron" and not model["tie_word_embeddings"]:
            schedules.append("dualpipev")
    schedule = draw(st.sampled_from(schedules))
    vpp = 2 if schedule in {"interleaved", "adaptive_pipe"} and layers >= 2 * pp else 1
    schedule = "1f1b" if vpp == 1 and schedule in {"interleaved", "adaptive_pipe"} else schedule
    chunks = 2 if schedule == "dualpipev" else vpp
    placed = draw(placements(layers, pp, chunks))
    stages = [sum(row) if isinstance(row, tuple) else row for row in placed]
    paired = schedule in {"adaptive_pipe", "dualpipev"}
    features = draw(st.lists(st.sampled_from(MINDSPEED_FEATURES), unique=True))
    dropped = {"overlap_grad_reduce", "overlap_param_gather"} if paired or target == "mindformers" else set()
    dropped |= {"moe_alltoall_overlap"} if paired or target not in WITH_MINDSPEED else set()
    dropped |= {"rect_fa"} if target in {"megatron", ON_ASCEND} else set()  # MindSpeed-LLM's own
    dropped |= set() if is_moe else {"grouped_gemm", "fused_operators", "shared_expert_overlap", "moe_alltoall_overlap"}
    dropped |= {"rect_fa"} if target == ON_ASCEND else set()  # its flag is MindSpeed-LLM's
    dropped |= set() if "kv_lora_rank" in model else {"rect_fa"}  # keys and values of other models have one width
    algorithm = draw(st.sampled_from(["ring", "ulysses", *(["hybrid"] if cp == 4 else [])])) if cp > 1 else None
    dispatchers = ["alltoall", "allgather"]
    dispatchers += ["alltoall_seq"] if target in WITH_MINDSPEED and not paired else []
    dispatchers += ["hierarchical"] if target == "mindformers" else []
    strategy = Strategy(
        tp=tp,
        pp=pp,
        vpp=vpp,
        dp=768 // (tp * pp * cp),
        cp=cp,
        cp_algo=algorithm,
        ulysses_degree=2 if algorithm == "hybrid" else None,
        ep=ep,
        etp=1 if is_moe else None,
        micro_batch_size=draw(st.sampled_from([1, 2])),
        sequence_parallel=tp > 1 and draw(st.booleans()),
        distributed_optimizer=draw(st.booleans()),
        schedule=schedule,
        layers_per_stage=placed,
        moe_dispatcher=draw(st.sampled_from(dispatchers)) if is_moe else None,
        recompute=draw(recomputes(target, stages, is_mla="kv_lora_rank" in model)),
        swap=tuple(sorted(draw(st.lists(st.sampled_from(SWAPS), unique=True)))) if target in WITH_MINDSPEED else (),
        swap_optimizer=target in WITH_MINDSPEED and draw(st.booleans()),
        features=tuple(name for name in sorted(features) if name not in dropped),
    )
    batch = strategy.dp * strategy.micro_batch_size * 8
    document = factories.spec_document(model=model, global_batch_size=batch)
    document["cluster"] = draw(st.sampled_from(ELSEWHERE if target == "megatron" else CLUSTERS))
    spec = Spec.model_validate(document)
    npus = document["cluster"]["num_npus"]
    plan = factories.plan(1, spec=spec, strategy=strategy, stages=(), run=None, micro_batches=8, num_npus_used=npus)
    return factories.plan_set(1, spec=spec), plan


def by_stage(recompute, stages):
    """Choice -> layers of each stage, of a strategy as it is."""
    if recompute.granularity == "none":
        return {}
    if recompute.per_stage is not None:
        names = {key.partition("@")[0] for row in recompute.per_stage for key in row}
        rows = {
            name: [sum(n for key, n in row.items() if key.partition("@")[0] == name) for row in recompute.per_stage]
            for name in names
        }
    else:
        layers = max(stages) if recompute.num_layers is None else recompute.num_layers
        names = ("full",) if recompute.granularity == "full" else recompute.modules
        rows = {name: [layers] * len(stages) for name in names}
    capped = {name: [min(n, top) for n, top in zip(row, stages, strict=True)] for name, row in rows.items()}
    return {name: row for name, row in capped.items() if any(row)}


def as_flags_say(counts, stages, target, vpp):
    """Scripts count the same layers on every stage; Megatron-LM counts whole layers of each virtual stage."""
    found = {}
    for name, row in counts.items():
        most = max(row)
        if name == "full":
            if target == "megatron" and vpp > 1 and most < max(stages):
                most = -(-most // vpp) * vpp
        elif target == "megatron":
            most = max(stages)
        found[name] = [min(most, top) for top in stages]
    return found


def rows_of(strategy, layers):
    chunks = 2 if strategy.schedule == "dualpipev" else strategy.vpp
    if strategy.layers_per_stage is None:
        return [[layers // (strategy.pp * chunks)] * chunks for _ in range(strategy.pp)]
    return [list(row) if isinstance(row, tuple) else [row] for row in strategy.layers_per_stage]


SAME = (
    *("tp", "pp", "vpp", "cp", "cp_algo", "ep", "etp", "micro_batch_size", "sequence_parallel"),
    *("distributed_optimizer", "fsdp", "schedule", "moe_dispatcher", "swap", "swap_optimizer", "reuse_fp32_param"),
)


@pytest.mark.parametrize("target", ["mindspeed-llm", "megatron", ON_ASCEND, "mindformers"])
@given(data=st.data())
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_comes_back_from_its_launch_file(target, data):
    plan_set, plan = data.draw(cases(target))
    framework = "megatron" if target == ON_ASCEND else target
    imported = import_document(export(plan_set, plan, framework).text, "plan" + FILES[framework])
    spec, before = imported.spec(), Spec.model_validate(plan_set.search.spec)
    assert imported.plan_id == plan.plan_id
    assert imported.target == framework
    assert imported.diagnostics.contradicted == ()
    assert imported.diagnostics.unmodelled == ()
    assert imported.kept == ()
    assert spec.cluster == before.cluster
    assert imported.ranks == 768
    assert spec.model.model_dump(exclude={"name", "recipe"}) == before.model.model_dump(exclude={"name", "recipe"})
    assert spec.training.seq_length == before.training.seq_length
    assert spec.training.global_batch_size.value == before.training.global_batch_size.value
    assert spec.training.precision == before.training.precision
    strategy = spec.strategy
    assert {name: getattr(strategy, name) for name in SAME} == {name: getattr(plan.strategy, name) for name in SAME}
    layers = before.model.num_hidden_layers
    assert rows_of(strategy, layers) == rows_of(plan.strategy, layers)
    stages = [sum(row) for row in rows_of(plan.strategy, layers)]
    expected = by_stage(plan.strategy.recompute, stages)
    if target != "mindformers":
        expected = as_flags_say(expected, stages, target, plan.strategy.vpp)
    assert by_stage(strategy.recompute, stages) == expected
    implied = {"host_core_binding", "adaptive_pipe", "swap_optimizer", "tp_extend_ep", "hierarchical_a2a"}
    implied |= {"grouped_gemm"} if "moe_alltoall_overlap" in plan.strategy.features else set()
    implied |= {"grouped_gemm"} if paired(strategy) or "tp_extend_ep" in strategy.features else set()
    # MindSpeed refuses --moe-permute-fusion with this dispatcher.
    implied |= {"fused_operators"} if plan.strategy.moe_dispatcher == "allgather" else set()
    implied |= {"grouped_gemm"} if target == "mindformers" else set()
    implied |= {"overlap_grad_reduce"} if "overlap_param_gather" in plan.strategy.features else set()
    assert {*strategy.features} - implied == {*plan.strategy.features} - implied


def paired(strategy):
    return strategy.schedule in {"adaptive_pipe", "dualpipev"}


@given(data=st.data())
@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_json_brings_the_whole_plan_back(data):
    plan_set, plan = data.draw(cases("json"))
    spec = import_document(export(plan_set, plan, "json").text, "plan.json").spec()
    assert spec.strategy == plan.strategy
    assert spec.model_dump(exclude={"strategy"}) == Spec.model_validate(plan_set.search.spec).model_dump(
        exclude={"strategy"}
    )
