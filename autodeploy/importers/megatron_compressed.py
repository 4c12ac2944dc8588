"""DeepSeek-V4 in MindSpeed-LLM's flags: attention to compressed keys, residual streams, hashed experts.

Its layers are those of `pretrain_deepseek4.py`, and of fine-tuning, alone. `--qk-head-dim` is the whole head, which
`--kv-lora-rank` and `--v-head-dim` say once more or not at all; prediction modules have a window alone.
Source: MindSpeed-LLM @c77308a1, tasks/models/transformer/deepseek4/csa.py, core/models/deepseek4/deepseek4_model.py,
features_manager/transformer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError
from autodeploy.importers.hf_compressed import types_of
from autodeploy.importers.megatron_layers import noop_numbers
from autodeploy.messages import Message

if TYPE_CHECKING:
    from autodeploy.importers.flag_reader import FlagReader

PROGRAM: Final = "pretrain_deepseek4.py"
TUNER: Final = "posttrain_gpt.py"
LATENT: Final = ("--multi-latent-attention", "--multi-head-latent-attention")
RATIOS, STREAMS = "--compress-ratios", "--enable-mhc"
OF_THE_MODEL = {
    "--kv-compress": Message("mechanism.compressed_attention"),
    RATIOS: Message("mechanism.compressed_attention"),
    STREAMS: Message("mechanism.hyper_connections"),
}
SIZES = {
    "o_groups": ("--o-groups", 8),
    "o_lora_rank": ("--o-lora-rank", 1024),
    "index_topk": ("--index-topk", 2048),
    "index_n_heads": ("--index-n-heads", 64),
    "index_head_dim": ("--index-head-dim", 128),
}
# Without these kernels scores are made whole, and maps of streams by FP32 operators: nothing that is priced.
KERNELS = {
    "--use-sparse-flash-attn": RATIOS,
    "--use-fused-lightning-indexer": RATIOS,
    "--use-fused-mhc": STREAMS,
}
REPLACED = ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")


def is_compressed(reader: FlagReader) -> bool:
    """Whether the launch is DeepSeek-V4's.

    Raises
    ------
    UnsupportedError
        where another program has its flags. SpecError : where its program lacks those that make its layers.
    """
    program = reader.script.program.rpartition("/")[2]
    given = [flag for flag in OF_THE_MODEL if reader.has(flag)]
    own = program == PROGRAM or (program == TUNER and RATIOS in given)
    if not own and given:
        reader.refuse_mechanism(given[0], OF_THE_MODEL[given[0]])
    latent = any(reader.has(flag) for flag in LATENT)
    for flag, present in ((RATIOS, RATIOS in given), (LATENT[0], latent)):
        if own and not present:
            raise SpecError(Message("common.is_required", name=flag), path="/model/layer_types")
    return own


def read_compressed(reader: FlagReader, model: dict[str, Any], layers: int) -> dict[str, Any]:
    """The model with its attention, streams and hashed layers.

    Parameters
    ----------
    model : what is read of it, with the fields of latent attention. layers : without padding.

    Raises
    ------
    UnsupportedError
        of entries of more than two sizes, and of launches without the kernels that are priced.
    """
    streams = reader.switch(STREAMS, "/model/hyper_connections")
    for kernel, of in KERNELS.items():
        pair = (kernel, f"{kernel}-loss") if kernel.endswith("indexer") else (kernel,)
        if not any([reader.switch(flag, "/model/compressed_attention") for flag in pair]) and reader.has(of):
            reader.refuse_mechanism(of, Message("importers.kind_without_kernel", kind=OF_THE_MODEL[of], flag=kernel))
    if not reader.switch("--enable-dsa-indexer", "/model/compressed_attention"):
        reader.refuse_mechanism(RATIOS, Message("mechanism.sparse_without_indexer"))
    types, rates = _types(reader, layers)
    sizes: dict[str, Any] = dict(rates)
    for field, (flag, usual) in SIZES.items():
        given = reader.number(flag, f"/model/compressed_attention/{field}")
        sizes[field] = usual if given is None else given
    window = reader.number("--sliding-window-size", "/model/sliding_window")
    fields = {key: value for key, value in model.items() if key not in REPLACED}
    fields |= {
        "num_key_value_heads": 1,
        "head_dim": model["qk_nope_head_dim"],
        "sliding_window": window or 128,
        "layer_types": types,
        "compressed_attention": sizes,
    }
    if streams:
        counts = {"hc_mult": ("--hc-mult", 4), "hc_sinkhorn_iters": ("--hc-sinkhorn-iters", 20)}
        numbers = {
            field: (reader.number(flag, f"/model/hyper_connections/{field}"), usual)
            for field, (flag, usual) in counts.items()
        }
        fields["hyper_connections"] = {field: usual if n is None else n for field, (n, usual) in numbers.items()}
    hashed = reader.number("--n-hash-layers", "/model/num_hash_layers") or 0
    return fields | {"num_hash_layers": min(hashed, layers)}


def read_positions(reader: FlagReader) -> dict[str, Any]:
    """Rotary positions in the recipe: the base of windows, and of entries theirs with yarn."""
    where = "/model/recipe"
    base, entries = (
        reader.decimal(flag, f"{where}/{field}")
        for flag, field in (("--rope-theta", "rope_theta"), ("--compress-rope-theta", "compress_rope_theta"))
    )
    factor = reader.decimal("--rope-factor", f"{where}/rope_scaling/factor")
    before = reader.number("--original-seq-len", f"{where}/rope_scaling/original_max_position_embeddings")
    scaling = {"rope_type": "yarn", "factor": factor or 4.0, "original_max_position_embeddings": before or 65_536}
    for flag in ("--beta-fast", "--beta-slow"):
        value = reader.decimal(flag, f"{where}/rope_scaling")
        scaling |= {} if value is None else {flag.removeprefix("--").replace("-", "_"): value}
    return {"rope_theta": base or 1e4, "compress_rope_theta": entries or 4e4, "rope_scaling": scaling}


def _types(reader: FlagReader, layers: int) -> tuple[list[str], dict[str, int]]:
    """Types of layers: one number each, padding counted."""
    words = reader.words(RATIOS, "/model/layer_types")
    if bad := [word for word in words if not word.isdigit() or len(word) > 5]:
        reader.fail(RATIOS, Message("field_fault.is_no_whole_number", value=repr(bad[0][:40])))
    noops = noop_numbers(reader)
    ratios = [int(word) for number, word in enumerate(words) if number not in noops][:layers]
    if len(ratios) < layers:
        reader.fail(RATIOS, Message("common.entries_expected", count=layers, found=len(ratios)))
    types = types_of(ratios)
    if types is None:
        reader.refuse_mechanism(RATIOS, f"compress_ratios {sorted({*ratios})}")
    return types
